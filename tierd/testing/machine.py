"""The daemon's side of a simulated machine: an engine over tables that survive it, and ways to kill it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any

from tierd.core.engine import Engine
from tierd.core.engine_settings import EngineSettings, TierSpec
from tierd.core.messages import Tier
from tierd.core.tables import Tables
from tierd.testing.prompts import Kind
from tierd_client.format import PAGE_BYTES
from tierd_client.hits import HitRule

POLICIES = (
    "lru", "lrfu", "lrfu(leaf_only=false)", "lru(persist=false)", "lrfu(ranking=composite)",
    "lrfu(ranking=decayed,lambda=0.25)", "lrfu(ranking=decayed,half_life_s=20,ghost_factor=1)",
    "arc", "arc(leaf_only=false)", "sieve", "s3fifo(leaf_only=false)", "random", "streaming",
)


@dataclass(frozen=True, slots=True)
class Scale:
    """Sizes of a simulated machine, small enough that everything is scarce."""

    hbm_pages: int = 24
    host_pages: tuple[int, ...] = (40, 24)
    spill_pages: int = 96
    rows: int = 96
    workers: int = 4
    longest_prompt: int = 9
    kinds: tuple[Kind, ...] = (
        Kind(1, 0, PAGE_BYTES), Kind(1, 1, 2 * PAGE_BYTES, HitRule(1, tail=2)), Kind(2, 0, 2 * PAGE_BYTES + 100),
    )


class Killed(BaseException):
    """The daemon died. Not an Exception: nothing in the engine may catch it."""


def build_settings(scale: Scale, policy: str, *, hbm: bool, spill: bool) -> EngineSettings:
    segments = tuple((number, pages * PAGE_BYTES) for number, pages in enumerate(scale.host_pages, 1))
    tiers = [TierSpec(Tier.HOST, segments)]
    if hbm:
        tiers.append(TierSpec(Tier.HBM, ((1, scale.hbm_pages * PAGE_BYTES),)))
    if spill:
        tiers.append(TierSpec(Tier.SPILL, capacity_bytes=scale.spill_pages * PAGE_BYTES))
    return EngineSettings(
        tuple(tiers), policy, max_moves=8, pin_share=0.1, max_prefetches=3, max_prefetch_moves=4,
        stock_bytes=6 * PAGE_BYTES, stock_share=0.2,
    )


def build_tables(scale: Scale) -> Tables:
    return Tables.private(scale.rows, sessions=64, holds=4096)


def build_engine(settings: EngineSettings, tables: Tables, survivors: frozenset[int] = frozenset()) -> Engine:
    return Engine(settings, tables, survivors)


@contextmanager
def killed_after(lines: int) -> Iterator[None]:
    """Kills what runs inside, by raising Killed, before its `lines`-th line of the core or of the format."""
    left = lines

    def local(_frame: FrameType, event: str, _argument: Any) -> Any:
        nonlocal left
        if event == "line":
            left -= 1
            if left == 0:
                raise Killed
        return local

    def enter(frame: FrameType, _event: str, _argument: Any) -> Any:
        name = frame.f_code.co_filename
        return local if "tierd/core" in name or name.endswith("tierd_client/format.py") else None

    before = sys.gettrace()
    sys.settrace(enter)
    try:
        yield
    finally:
        sys.settrace(before)
