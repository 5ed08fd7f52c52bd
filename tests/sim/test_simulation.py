"""The machine around the engine, simulated from seeds."""

from __future__ import annotations

import os

import pytest

from tierd.testing.simulation import simulate

FAST = os.environ.get("TIERD_TEST_EFFORT") == "fast"
SEEDS, STEPS, CHUNK = (10, 1000, 1) if FAST else (200, 2000, 5)


@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_nothing_happens_that_may_never_happen(first: int) -> None:
    """No seed makes the engine break an invariant, hand out a range in use, or show wrong bytes to a reader."""
    for seed in range(first, first + CHUNK):
        simulate(seed, STEPS)


def test_a_seed_repeats_itself() -> None:
    """A seed decides everything: two runs give the same outcomes."""
    assert simulate(12_345, 500) == simulate(12_345, 500)


def test_runs_meet_what_they_are_for() -> None:
    """Over a few seeds each outcome that is not rare occurs, and each failure happens."""
    outcomes, events = set(), set()
    for seed in range(1_000, 1_020):
        summary = simulate(seed, 1_000)
        outcomes |= set(summary.outcomes)
        events |= set(summary.events)
    wanted = {f"Reserve {n}" for n in range(1, 6)} | {f"Acquire {n}" for n in (1, 2, 3)}
    wanted |= {f"Evict {n}" for n in (1, 2, 3, 4, 6)} | {f"Readmit {n}" for n in range(1, 5)}
    wanted |= {f"StoreBelow {n}" for n in (1, 3, 4, 5)} | {"Commit 1", "Commit 2", "Abort 1"}
    wanted |= {"Pin 1", "Pin 2", "Pin refused"} | {f"Prefetch {n}" for n in (1, 2, 3)}
    wanted |= {f"PrefetchStatus {n}" for n in (1, 2, 3, 4, 6)}
    assert wanted - outcomes == set()
    assert {"killed in the middle", "kill_daemon", "worker_dies", "worker_is_lost", "spill_fails"} <= events
