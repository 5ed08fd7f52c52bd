"""What is claimed of surviving state and of alpha, on the streams that show it and with what takes it away."""

from __future__ import annotations

import math
from functools import cache

import pytest

from tierd.sim.keyed import MEMORIES, Memory, replay_keyed
from tierd.sim.replay import play
from tierd.sim.traces import Trace
from tierd.sim.workloads import make_trace

TALKS = (
    "multi-turn(sessions=100,turns=1000,shared_tokens=256,least_context_tokens=128,most_context_tokens=1536,"
    "least_answer_tokens=16,most_answer_tokens=128)"
)
TALKS_CAPACITY = 500
SCANS = "scan-polluted(requests=300,hot_blocks=750,hot_asked=96,scanned=32)"
SCANS_CAPACITY = 819
ALPHAS = (0.5, 0.15, 0.05, 0.01, 0.001)
LFU = "lrfu(ranking=decayed,lambda=0)"


def average(alpha: float, extra: str = "") -> str:
    """The policy that sorts by a moving average which fades with each request."""
    return f"lrfu(ranking=decayed,lambda={-math.log2(1 - alpha)!r}{extra})"


@cache
def trace(spec: str) -> Trace:
    return make_trace(spec)


@cache
def percent(spec: str, policy: str, capacity: int, pinned: bool, memory: Memory, first: int = 0) -> float:
    of = trace(spec)
    played = replay_keyed(of, policy, capacity, pinned=pinned, memory=memory)
    return 100 * float(played.block_hits[first:].sum() / of.asked[first:].sum())


def talks(policy: str, pinned: bool, memory: Memory) -> float:
    return percent(TALKS, policy, TALKS_CAPACITY, pinned, memory, first=500)


def scans(alpha: float, memory: Memory) -> float:
    return percent(SCANS, average(alpha), SCANS_CAPACITY, True, memory)


def test_the_gain_of_surviving_state_vanishes_with_pinning() -> None:
    """Where a request may push out its own blocks, LFU gains over 15 points by records that survive; with the
    request pinned it gains under 3."""
    assert talks(LFU, False, "ageing") - talks(LFU, False, "reset") > 15
    assert 0 < talks(LFU, True, "ageing") - talks(LFU, True, "reset") < 3


@pytest.mark.parametrize("policy", [LFU, average(0.01)])
def test_what_is_won_without_pinning_are_evictions_of_the_request_itself(policy: str) -> None:
    """Without pinning most evictions take blocks of the request being served; with it none does."""
    free = replay_keyed(trace(TALKS), policy, TALKS_CAPACITY, pinned=False, memory="reset")
    held = replay_keyed(trace(TALKS), policy, TALKS_CAPACITY, pinned=True, memory="reset")
    assert free.self_evictions > free.evictions / 2
    assert held.self_evictions == 0


def test_alpha_has_an_interior_optimum_near_a_twentieth() -> None:
    """On the scan-polluted stream, pinned, 0.05 is the best of the alphas, with and without surviving state."""
    for memory in MEMORIES:
        assert max(ALPHAS, key=lambda alpha: scans(alpha, memory)) == 0.05


def test_surviving_state_is_worth_most_at_low_alpha() -> None:
    """On the scan-polluted stream surviving records are worth over 8 points at low alpha, under 1 at high alpha."""
    gain = {alpha: scans(alpha, "ageing") - scans(alpha, "reset") for alpha in ALPHAS}
    assert gain[0.01] > 8
    assert gain[0.001] > 8
    assert abs(gain[0.5]) < 1


def test_the_engine_agrees_with_the_heap() -> None:
    """The engine hits as often as the heap of numbers with pinned requests and ageing records, block for block."""
    of = trace(TALKS.replace("turns=1000", "turns=250"))
    heap = replay_keyed(of, LFU, TALKS_CAPACITY, pinned=True, memory="ageing")
    engine = play(of, "lrfu(ranking=decayed,lambda=0,ghost_factor=inf,leaf_only=false)", TALKS_CAPACITY)
    assert (engine.block_hits == heap.block_hits).all()
    assert (engine.evictions, engine.self_evictions) == (heap.evictions, 0)


def test_an_absence_takes_no_time_for_frozen_records() -> None:
    """Frozen records keep more of their score than ageing ones: two blocks swap places in the order."""
    of = trace(SCANS)
    memories: tuple[Memory, Memory] = ("ageing", "frozen")
    ageing, frozen = (
        replay_keyed(of, average(0.01), SCANS_CAPACITY, pinned=True, memory=memory) for memory in memories
    )
    assert ageing.block_hits.sum() != frozen.block_hits.sum()
