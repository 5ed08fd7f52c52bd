"""Shadow mode: what host memory of several sizes would have saved requests whose blocks are stored nowhere.

Each namespace that is reported has one simulated tier for each size, as if it had the memory for itself. Requests
are joined and played on the thread of a recorder, within a bounded share of one processor: what comes faster is
left out and counted.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import structlog

from tierd.app.recorder import Recorder, Request, Shadowed
from tierd.core import messages as m
from tierd.core.arena import slot_bytes
from tierd.core.shadow import Figures, ShadowTier, splitmix64
from tierd_client.format import IDENTITY_BYTES, U8Array

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class ShadowSettings:
    """`sizes_bytes`: of host memory. `blocks_max`: simulated of each size; `namespaces_max`: at once, those that
    were reported last. `cpu_percent`: of one processor."""

    sizes_bytes: tuple[int, ...]
    blocks_max: int
    namespaces_max: int
    cpu_percent: int


@dataclass(frozen=True, slots=True)
class SizeFigures:
    """What host memory of that many bytes would have done."""

    capacity_bytes: int
    figures: Figures


@dataclass(frozen=True, slots=True)
class ShadowFigures:
    """Of one namespace, since it was first reported. `served_blocks`: those that the engine had itself."""

    namespace: int
    policy: str
    block_tokens: int
    block_bytes: int
    requests: int
    asked_blocks: int
    served_blocks: int
    prefill_tokens_per_s: float
    observed_s: float
    sizes: tuple[SizeFigures, ...]


class Shadow:
    """The shadowed namespaces. Belongs to the event loop's thread, but for what its recorder plays on its own."""

    def __init__(self, settings: ShadowSettings, policy: str, trace: Recorder | None = None) -> None:
        """`trace`: is told of the same requests."""
        self.policy = policy
        """Of the tiers; another one begins all figures anew."""

        self._settings = settings
        self._recorder = Recorder(self._serve)
        self._told = [self._recorder] if trace is None else [self._recorder, trace]
        self._kept: dict[int, _Namespace] = {}
        self._figures: dict[int, ShadowFigures] = {}
        self._stopping = threading.Event()

    @property
    def left_out_total(self) -> int:
        """Reports that came faster than they can be played."""
        return self._recorder.left_out_total

    def report(self, session: int, blocks: m.Ids, shadowed: Shadowed, *, begins: bool, ends: bool) -> None:
        """A request, or a part of one: its first, its last, or both."""
        for recorder in self._told:
            recorder.note_shadowed(session, blocks, shadowed, begins=begins, ends=ends)

    def figures(self) -> list[ShadowFigures]:
        """Of each namespace, by number."""
        return [one for _, one in sorted(self._figures.items())]

    async def run(self) -> None:
        """Works until cancelled."""
        await self._recorder.run()

    async def stop(self, timeout_s: float) -> None:
        """Gives up what has not been played: the figures end with the process."""
        self._stopping.set()
        await self._recorder.stop(timeout_s)

    def _serve(self, requests: Sequence[Request]) -> None:
        """On the recorder's thread. Idles between requests, so that it takes no more than its share."""
        idle = 100 / self._settings.cpu_percent - 1
        for request in requests:
            if request.shadowed is None or self._stopping.is_set():
                continue
            began_s = time.thread_time()
            self._play(request, request.shadowed)
            self._stopping.wait(idle * (time.thread_time() - began_s))

    def _play(self, request: Request, shadowed: Shadowed) -> None:
        number = shadowed.namespace
        kept = self._kept.pop(number, None)
        if kept is None or kept.policy != self.policy or kept.block_bytes != shadowed.block_bytes:
            kept = _Namespace(self._settings, self.policy, request, shadowed)
            log.info("shadowed", namespace=number, policy=kept.policy, block_bytes=kept.block_bytes)
        self._kept[number] = kept
        if len(self._kept) > self._settings.namespaces_max:
            oldest = next(iter(self._kept))
            del self._kept[oldest]
            self._figures = {one: figures for one, figures in self._figures.items() if one != oldest}
            log.warning("shadow_forgotten", namespace=oldest, reason="more than shadow_namespaces_max")
        kept.serve(request, shadowed)
        self._figures = self._figures | {number: kept.figures(number)}


class _Namespace:
    """One namespace under its policy: a tier for each size."""

    def __init__(self, settings: ShadowSettings, policy: str, first: Request, shadowed: Shadowed) -> None:
        self.policy = policy
        self.block_bytes = shadowed.block_bytes
        self._block_tokens = first.block_tokens
        self._began_s = self._last_s = first.at_s
        self._requests = self._asked = self._served = 0
        self._prefill_tokens_per_s = 0.0
        self._tiers = {
            size: ShadowTier(policy, max(1, size // slot_bytes(self.block_bytes)), settings.blocks_max,
                             self._block_tokens)
            for size in settings.sizes_bytes
        }

    def serve(self, request: Request, shadowed: Shadowed) -> None:
        ids = identities_of(request)
        asked = len(ids) - request.replies
        served = min(request.served, asked)
        self._requests += 1
        self._asked += asked
        self._served += served
        self._last_s = max(self._last_s, request.last_s)
        self._prefill_tokens_per_s = shadowed.prefill_tokens_per_s or self._prefill_tokens_per_s
        for tier in self._tiers.values():
            tier.serve(ids, asked, served, request.at_s)

    def figures(self, number: int) -> ShadowFigures:
        sizes = tuple(SizeFigures(size, tier.figures()) for size, tier in self._tiers.items())
        return ShadowFigures(
            number, self.policy, self._block_tokens, self.block_bytes, self._requests, self._asked, self._served,
            self._prefill_tokens_per_s, self._last_s - self._began_s, sizes,
        )


def identities_of(request: Request) -> U8Array:
    """Identities (n, 32) in the place of its blocks', of which it has 8 bytes each."""
    words = np.fromiter(request.words, np.uint64, len(request.words))
    steps = np.arange(1, IDENTITY_BYTES // 8 + 1, dtype=np.uint64)
    mixed = splitmix64(words[:, None] + steps * np.uint64(0x9E3779B97F4A7C15))
    return mixed.astype("<u8").view(np.uint8).reshape(-1, IDENTITY_BYTES)
