"""Traces that are made from a spec."""

from __future__ import annotations

import numpy as np
import pytest

from tierd.core.errors import InvalidInput
from tierd.sim.workloads import WORKLOADS, is_workload, make_trace, zipf


def test_the_same_spec_makes_the_same_trace() -> None:
    """A trace depends on its spec and nothing else; another seed makes another one."""
    first, again, other = (make_trace(f"chained-zipf(requests=50,seed={seed})") for seed in (3, 3, 4))
    assert np.array_equal(first.blocks, again.blocks)
    assert not np.array_equal(first.blocks, other.blocks)


def test_prompts_share_prefixes_and_turns_do_not() -> None:
    """Each request of chained-zipf is a whole prompt, and behind it blocks that no other request has."""
    trace = make_trace("chained-zipf(requests=200,prompts=10,most_prompt_blocks=8,most_turn_blocks=3)")
    times = np.bincount(trace.blocks)
    heads = {int(trace.request(n)[0]) for n in range(trace.requests)}
    assert len(heads) <= 10
    for number in range(trace.requests):
        uses = times[trace.request(number)]
        assert (np.diff(uses) <= 0).all()


def test_the_hot_set_moves_by_its_drift() -> None:
    """After each period a quarter of the hot set is new: what was asked for before it is asked for less."""
    trace = make_trace("scan-polluted(requests=40,hot_blocks=100,hot_asked=100,scanned=0,drift_every=20)")
    before, after = set(trace.request(19).tolist()), set(trace.request(20).tolist())
    assert len(before & after) == 75
    assert not trace.chained


def test_answers_are_stored_and_asked_for_in_the_next_turn() -> None:
    """An answer counts as no access, and stands in the prompt of the next turn of its session."""
    trace = make_trace("multi-turn(sessions=1,turns=3)")
    assert trace.replies is not None
    assert (trace.asked[1:] == np.diff(trace.offsets)[:-1]).all()
    assert trace.accesses == len(trace.blocks) - trace.replies.sum()


def test_contexts_grow_no_further_than_said() -> None:
    """With most_blocks a session's context stops at that many blocks behind the shared prompt."""
    trace = make_trace("multi-turn(sessions=1,turns=200,most_blocks=800)")
    assert np.diff(trace.offsets).max() == 800 + 2048 // 16


def test_the_workload_of_the_figures() -> None:
    """The default multi-turn workload is the one that the claims were simulated on: its size says so."""
    trace = make_trace("multi-turn")
    assert (trace.requests, trace.accesses, trace.distinct) == (2500, 4_853_379, 122_160)


def test_zipf_is_a_distribution() -> None:
    """Probabilities fall as one over rank to the exponent, and sum to 1."""
    weights = zipf(10, 1.1)
    assert weights.sum() == pytest.approx(1.0)
    assert weights[0] / weights[4] == pytest.approx(5**1.1)


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ("chained-zipf(requests=0)", "chained-zipf.requests"), ("chained-zipf(drift=2)", "chained-zipf.drift"),
        ("chained-zipf(colour=1)", "chained-zipf.colour"), ("chained-zipf(seed=1,seed=2)", "chained-zipf.seed"),
        ("scan-polluted(hot_blocks=5,hot_asked=6)", "scan-polluted.hot_asked"),
        ("scan-polluted(requests=1000000)", "workload"), ("multi-turn(turns=1e3)", "multi-turn.turns"),
        ("multi-turns", "workload"), ("multi-turn(exponent=nan)", "multi-turn.exponent"),
        ("multi-turn(least_context_tokens=5000,most_context_tokens=4000)", "multi-turn.most_context_tokens"),
    ],
)
def test_bad_specs_are_refused(spec: str, field: str) -> None:
    """What is no workload, no parameter or out of range is refused by name, before anything is made."""
    with pytest.raises(InvalidInput) as caught:
        make_trace(spec)
    assert caught.value.field == field


@pytest.mark.parametrize("name", WORKLOADS)
def test_workloads_are_told_from_files(name: str) -> None:
    """A name with or without parameters is a workload, a path is not."""
    assert is_workload(name)
    assert is_workload(f"{name}(seed=2)")
    assert not is_workload(f"{name}.jsonl")
    assert not is_workload(f"./{name}")
