"""Hits on two public traces, as integers: what a study with another simulator counted.

The traces are not in the repository: TIERD_TRACES names the folder that holds them.
"""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

import pytest

from tierd.sim.replay import Row, parse_capacities, replay
from tierd.sim.traces import Trace, read_trace

FOLDER = os.environ.get("TIERD_TRACES", "")
CONVERSATION, AGENTS = "mooncake_conversation.jsonl", "lmcache_agent.npz"
RESET = "lrfu(ranking=composite,alpha=0.05,beta=0.001,persist=false,leaf_only=false)"
PERSIST = "lrfu(ranking=composite,alpha=0.05,beta=0.001,persist=true,ghost_factor=inf,leaf_only=false)"
GHOSTS_4 = "lrfu(ranking=composite,alpha=0.05,beta=0.001,persist=true,ghost_factor=4,leaf_only=false)"
LRU = "lru(leaf_only=false)"
LFU_RESET = "lfu(persist=false,leaf_only=false)"
LFU_PERSIST = "lfu(ghost_factor=inf,leaf_only=false)"

pytestmark = pytest.mark.skipif(not FOLDER, reason="TIERD_TRACES does not name a folder of traces")


@cache
def trace(name: str) -> Trace:
    return read_trace(Path(FOLDER) / name)


@cache
def row(name: str, policy: str, capacity: int) -> Row:
    return replay(trace(name), policy, capacity)


@pytest.mark.parametrize(
    ("name", "capacity", "policy", "prefix_hits"),
    [
        (CONVERSATION, 9139, LRU, 56_479),
        (CONVERSATION, 9139, RESET, 57_683),
        (CONVERSATION, 9139, PERSIST, 59_458),
        (CONVERSATION, 9139, GHOSTS_4, 59_481),
        (CONVERSATION, 9139, LFU_RESET, 36_564),
        (CONVERSATION, 9139, LFU_PERSIST, 52_240),
        (CONVERSATION, 9139, "belady", 105_710),
        (CONVERSATION, 18279, LRU, 80_466),
        (CONVERSATION, 18279, RESET, 82_194),
        (CONVERSATION, 18279, PERSIST, 82_982),
        (CONVERSATION, 18279, GHOSTS_4, 82_984),
        (CONVERSATION, 18279, "belady", 105_710),
        (CONVERSATION, 1827, "gab", 30_039),
        (CONVERSATION, 9139, "gab", 63_710),
        (CONVERSATION, 18279, "gab", 84_189),
        (AGENTS, 1246, "gab", 144_918),
        (AGENTS, 2492, "gab", 205_828),
        (AGENTS, 6232, "gab", 224_344),
        (CONVERSATION, 1827, "gittins", 29_565),
        (CONVERSATION, 9139, "gittins", 62_711),
        (AGENTS, 1246, "gittins", 122_838),
        (AGENTS, 2492, "gittins", 200_312),
        (AGENTS, 6553, LRU, 224_358),
        (AGENTS, 6553, PERSIST, 223_793),
        (AGENTS, 6553, "belady", 224_583),
        (AGENTS, 2492, LRU, 197_088),
        (AGENTS, 2492, RESET, 196_112),
        (AGENTS, 2492, PERSIST, 196_683),
        (AGENTS, 2492, LFU_RESET, 112_166),
        (AGENTS, 2492, "belady", 215_488),
    ],
)
def test_prefix_hits(name: str, capacity: int, policy: str, prefix_hits: int) -> None:
    """Each policy hits exactly as many leading blocks as the study counted; of `gittins`, as this engine did."""
    assert row(name, policy, capacity).prefix_hits == prefix_hits


@pytest.mark.parametrize(("name", "capacity"), [(CONVERSATION, 9139), (CONVERSATION, 18279), (AGENTS, 2492)])
def test_leaf_only_changes_nothing_for_lru(name: str, capacity: int) -> None:
    """LRU's own victims are leaves: with the rule it hits the same, and every block hit is a prefix hit."""
    leaves = row(name, "lru", capacity)
    assert leaves.prefix_hits == row(name, LRU, capacity).prefix_hits
    assert leaves.block_hits == leaves.prefix_hits


def test_the_default_policy_beats_lru() -> None:
    """Over six capacities lrfu (auto) hits a point and a half more than lru, and nowhere half a point less."""
    points = [(CONVERSATION, "1%,5%,10%,25%"), (AGENTS, "5%,10%")]
    gains = []
    for name, capacities in points:
        for capacity in parse_capacities(capacities, trace(name).distinct):
            default, lru = row(name, "lrfu", capacity), row(name, "lru", capacity)
            gains.append(100 * (default.prefix_hits - lru.prefix_hits) / default.accesses)
            assert default.block_hits == default.prefix_hits
    assert min(gains) >= -0.5
    assert sum(gains) / len(gains) >= 1.5


def test_traces_are_those_of_the_study() -> None:
    """The files hold the accesses that the integers were counted over."""
    assert (trace(CONVERSATION).accesses, trace(CONVERSATION).distinct) == (288_500, 182_790)
    assert (trace(AGENTS).accesses, trace(AGENTS).distinct) == (249_511, 24_928)
