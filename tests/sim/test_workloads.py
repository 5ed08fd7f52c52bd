"""Traces that are made from a spec."""

from __future__ import annotations

import itertools
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest

from tierd.core.errors import InvalidInput
from tierd.sim.draws import zipf
from tierd.sim.workloads import WORKLOADS, is_workload, make_trace

SEEDED = [
    "chained-zipf(requests=50", "scan-polluted(requests=20", "multi-turn(turns=30", "chat(conversations=50",
    "agents(sessions=20", "hot-set(requests=50", "recent(requests=50",
]


@pytest.mark.parametrize("spec", SEEDED)
def test_the_same_spec_makes_the_same_trace(spec: str) -> None:
    """A trace depends on its spec and nothing else; another seed makes another one."""
    first, again, other = (make_trace(f"{spec},seed={seed})") for seed in (3, 3, 4))
    assert np.array_equal(first.blocks, again.blocks)
    assert np.array_equal(first.times_s, again.times_s)
    assert not np.array_equal(first.blocks, other.blocks)


@pytest.mark.parametrize("name", WORKLOADS)
def test_a_workload_knows_about_how_large_it_is(name: str) -> None:
    """What a workload says of its size, by which too large ones are refused, is within a factor of two of it."""
    trace = make_trace(name)
    assert 0.5 < WORKLOADS[name]().accesses() / len(trace.blocks) < 2


def test_prompts_share_prefixes_and_turns_do_not() -> None:
    """Each request of chained-zipf is a whole prompt, and behind it blocks that no other request has."""
    trace = make_trace("chained-zipf(requests=200,prompts=10,most_prompt_blocks=8,most_turn_blocks=3)")
    times = np.bincount(trace.blocks)
    heads = {int(trace.request(n)[0]) for n in range(trace.requests)}
    assert len(heads) <= 10
    for number in range(trace.requests):
        uses = times[trace.request(number)]
        assert (np.diff(uses) <= 0).all()


def test_some_prompts_are_asked_for_once() -> None:
    """With once=0.4 about 0.4 of the requests of chained-zipf share no block with another one, with once=0 none."""
    of = "chained-zipf(requests=500,prompts=5,most_prompt_blocks=8,most_turn_blocks=0,once={})"
    for share in (0.0, 0.4):
        trace = make_trace(of.format(share))
        once = np.bincount(trace.blocks)[trace.blocks[trace.offsets[:-1]]] == 1
        assert abs(once.mean() - share) < 0.1


def test_phases_share_no_document() -> None:
    """Nothing that hot-set asks for in one phase is asked for in another, and everything comes back within one."""
    trace = make_trace("hot-set(requests=300,documents=5,phases=3)")
    phases = [set(trace.blocks[trace.offsets[at] : trace.offsets[at + 100]].tolist()) for at in (0, 100, 200)]
    assert not phases[0] & phases[1] and not phases[1] & phases[2] and not phases[0] & phases[2]
    assert trace.accesses > 10 * trace.distinct


def test_what_is_no_longer_alive_does_not_come_back() -> None:
    """With recent(alive=3) at most two other documents were asked for since a document was asked for last."""
    trace = make_trace("recent(requests=400,alive=3,most_blocks=1)")
    last: dict[int, int] = {}
    for number, block in enumerate(trace.blocks.tolist()):
        since = set(trace.blocks[last[block] + 1 : number].tolist()) if block in last else set()
        assert len(since) <= 2
        last[block] = number


def test_a_loop_asks_for_all_in_turn() -> None:
    """Request n of a loop over 7 documents is document n mod 7."""
    trace = make_trace("loop(requests=20,documents=7,blocks=3)")
    assert trace.blocks[::3].tolist() == [n % 7 * 3 for n in range(20)]


@pytest.mark.parametrize("spec", ["chat(conversations=99,with_system=0,think_s=1)", "agents(sessions=30)"])
def test_a_turn_holds_what_was_said_before(spec: str) -> None:
    """A block is behind the same block wherever it stands, and requests come in the order of their times."""
    trace = make_trace(spec)
    before: dict[int, int] = {}
    for number in range(trace.requests):
        chain = itertools.pairwise([-1, *trace.request(number).tolist()])
        assert all(before.setdefault(block, parent) == parent for parent, block in chain)
    assert (np.diff(trace.times_s) >= 0).all()
    assert trace.distinct < trace.accesses / 1.5


def test_agents_wait_for_their_own_turns_alone() -> None:
    """With one slot the sessions of agents follow one another; with many they are told apart by their tasks."""
    one = make_trace("agents(sessions=5,at_once=1,systems=1,most_system_blocks=1)")
    tasks = [int(one.request(number)[1]) for number in range(one.requests)]
    assert len(set(tasks)) == 5 and tasks == sorted(tasks)


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


def test_the_documents_know_every_parameter() -> None:
    """docs/policies/traffic.md names each workload, and each parameter of it with its default."""
    text = (Path(__file__).parents[2] / "docs" / "policies" / "traffic.md").read_text()
    for name, kind in WORKLOADS.items():
        said = ", ".join(f"{one.name}={one.default}" for one in fields(kind))
        assert f"| `{name}` | {said} |" in text
