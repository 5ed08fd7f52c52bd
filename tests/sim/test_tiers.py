"""Replay through several tiers of the engine."""

from __future__ import annotations

import json

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from tierd.sim.command import sim
from tierd.sim.played import Played
from tierd.sim.replay import play
from tierd.sim.tiers import Tiers, replay_tiers, uppermost
from tierd.sim.traces import Trace
from tierd.sim.workloads import make_trace

CHATS = "chained-zipf(requests=150,prompts=20,most_prompt_blocks=8,most_turn_blocks=4)"
HOST = 30


def through(trace: Trace, tiers: Tiers, policy: str = "lru") -> Played:
    return replay_tiers(trace, policy, HOST, tiers, lambda _: None)


@pytest.mark.parametrize("policy", ["lru", "lrfu(admission=none)", "lrfu(ranking=composite,persist=false)"])
def test_one_tier_by_sequences_is_one_tier_by_notes(policy: str) -> None:
    """With nothing but a host tier, requests as sequences hit and evict exactly as they do in the short way."""
    trace = make_trace(CHATS)
    short, long = play(trace, policy, HOST), through(trace, Tiers(), policy)
    assert (short.block_hits == long.block_hits).all()
    assert (short.evictions, long.self_evictions) == (long.evictions, 0)


def test_each_hit_is_of_one_tier() -> None:
    """Hits of the tiers add up to all hits, block by block and along the prefix."""
    played = through(make_trace(CHATS), Tiers(hbm=10, spill=60))
    assert list(played.tiers) == ["hbm", "host", "spill"]
    for kind in ("block_hits", "prefix_hits"):
        of_tiers = sum(getattr(of, kind) for of in played.tiers.values())
        assert (of_tiers == getattr(played, kind)).all()


def test_a_spill_tier_adds_hits_and_takes_none() -> None:
    """The host tier hits as often with a spill tier below it; what is evicted moves down, and up when it is hit."""
    trace = make_trace(CHATS)
    alone, both = play(trace, "lru", HOST), through(trace, Tiers(spill=60))
    assert (both.tiers["host"].block_hits == alone.block_hits).all()
    assert both.moved["spill>host"] == both.tiers["spill"].block_hits.sum() > 0
    assert both.moved["host>spill"] + both.moved["host>out"] == both.evictions - both.moved["spill>out"]


def test_prefetched_blocks_are_hit_above() -> None:
    """With a prefetch of the next request most of what lay in the spill tier is found in host instead."""
    trace = make_trace(CHATS)
    late, early = through(trace, Tiers(spill=60)), through(trace, Tiers(spill=60, prefetch=1))
    assert early.tiers["spill"].block_hits.sum() < late.tiers["spill"].block_hits.sum() / 2
    assert early.tiers["host"].block_hits.sum() > late.tiers["host"].block_hits.sum()


def test_watermarks_keep_the_spill_tier_emptier() -> None:
    """With a low watermark fewer blocks are left to hit in the spill tier."""
    trace = make_trace(CHATS)
    full = through(trace, Tiers(spill=60))
    low = through(trace, Tiers(spill=60, settings=(("spill_high", "0.5"), ("spill_low", "0.2"))))
    assert low.tiers["spill"].block_hits.sum() < full.tiers["spill"].block_hits.sum()


def test_the_uppermost_tier_is_the_fastest() -> None:
    """Of bits by tier the lowest one counts."""
    assert uppermost(np.array([0, 1, 2, 4, 6, 7], np.uint8)).tolist() == [0, 1, 2, 3, 2, 1]


def test_the_command_tells_tiers_and_edges() -> None:
    """tierd sim with a spill tier has the hits of each tier and the bytes of each edge."""
    app = typer.Typer()
    app.command()(sim)
    arguments = [CHATS, "--policy", "lru", "--capacity", "30", "--spill", "60", "--kv-bytes-per-token", "2"]
    (row,) = json.loads(CliRunner().invoke(app, [*arguments, "--json"]).stdout)
    assert row["tiers"]["host"]["block_hits"] + row["tiers"]["spill"]["block_hits"] == row["block_hits"]
    assert row["moved_bytes"]["spill>host"] == 2 * 16 * row["tiers"]["spill"]["block_hits"]
    assert "spill>host" in CliRunner().invoke(app, arguments).stdout
