"""LRU beside the policy: how well its hits are known, and when it takes over."""

from __future__ import annotations

import numpy as np
import pytest

from tierd.core.errors import InvalidInput
from tierd.core.fallback import HALF_LIFE, MOST_STEPS, TERM, Fallback
from tierd.core.messages import SetPolicy
from tierd.core.policy.registry import parse
from tierd.core.shadow import Requests
from tierd.sim.replay import play
from tierd.sim.traces import identities_of
from tierd.sim.workloads import make_trace

CAPACITY = 100
CHATS = "chained-zipf(requests=600,prompts=40,most_prompt_blocks=8,most_turn_blocks=4)"
WITHOUT = "lrfu(fallback=none)"


def gaps(*steps: int) -> np.ndarray:
    return np.array(steps, np.int64)


@pytest.mark.parametrize("capacity", [40, 100, 300])
def test_lead_over_lru_is_nothing_for_lru(capacity: int) -> None:
    """What LRU is said to hit by the gaps alone is what it hits: over a trace its lead stays within half a
    percent of the accesses."""
    trace = make_trace(CHATS)
    requests = Requests("lru(fallback=lru)", capacity, trace.distinct, trace.block_tokens)
    identities, fallback = identities_of(trace.distinct), requests.engine.state.fallback
    assert fallback is not None
    for number in range(trace.requests):
        requests.serve(identities[trace.request(number)], float(number))
        assert abs(fallback.lead) < 0.005 * trace.accesses
    assert not fallback.active


def test_while_lru_has_taken_over_hits_are_those_of_lru() -> None:
    """The default with LRU in its place hits, request by request, what `lru` hits."""
    trace = make_trace(CHATS)
    identities, present = identities_of(trace.distinct), []
    for policy in ("lru", "lrfu"):
        requests = Requests(policy, CAPACITY, trace.distinct, trace.block_tokens)
        if (fallback := requests.engine.state.fallback) is not None:
            fallback.active, fallback._left = True, 1 << 30
        present.append([requests.serve(identities[trace.request(number)], float(number)).tolist()
                        for number in range(trace.requests)])
    assert present[0] == present[1]


def test_nothing_changes_where_the_policy_wins() -> None:
    """Where frequency pays LRU never takes over: the hits are those without a fallback."""
    trace = make_trace("chained-zipf(requests=800,prompts=100,most_prompt_blocks=8,most_turn_blocks=4)")
    assert (play(trace, "lrfu", 100).prefix_hits == play(trace, WITHOUT, 100).prefix_hits).all()


def test_the_policy_is_tried_again_and_then_more_seldom() -> None:
    """LRU stays for a term, and twice as long when the policy fails again."""
    fallback, step, lengths = Fallback(1), 1, []
    while len(lengths) < 3:
        began = step
        while not fallback.active:
            fallback.access(step, gaps(1), hit=False)
            fallback.access(step, gaps(*range(10_000, 10_020)), hit=None)
            step += 1
            fallback.tick(step, 1 << 40)
        assert step - began < HALF_LIFE
        began = step
        while fallback.active:
            step += 1
            fallback.tick(step, 1 << 40)
        lengths.append(step - began)
    assert lengths == [TERM, 2 * TERM, 4 * TERM]


def test_what_is_not_judged_changes_no_lead() -> None:
    """Accesses that were served elsewhere, and hits on what was accessed before the beginning, tell nothing."""
    fallback = Fallback(50)
    fallback.access(50, gaps(10, 20), hit=True)
    fallback.access(51, gaps(1, 1), hit=None)
    assert fallback.lead == 0.0
    fallback.access(52, gaps(1, 1), hit=True)
    assert fallback.lead == 0.0
    fallback.access(53, gaps(1), hit=False)
    assert fallback.lead == -1.0


def test_lru_forgets_the_oldest() -> None:
    """Of four identities in two steps, with room for three, half of the older step's are kept."""
    fallback = Fallback(1)
    fallback.access(1, gaps(1, 1), hit=False)
    fallback.tick(2, 3)
    fallback.access(2, gaps(2, 2), hit=False)
    fallback.tick(3, 3)
    fallback.access(3, gaps(2, 2), hit=False)
    assert fallback.lead == pytest.approx(-1.0)


def test_steps_are_bounded() -> None:
    """However many steps pass while nothing is forgotten, so many are told apart."""
    fallback = Fallback(1)
    for step in range(1, 2 * MOST_STEPS + 2000):
        fallback.access(step, gaps(step), hit=False)
    assert len(fallback._steps) <= 2 * MOST_STEPS
    before = fallback.lead
    fallback.access(step, gaps(MOST_STEPS // 2, 2 * MOST_STEPS), hit=False)
    assert fallback.lead == before - 1


def test_a_change_of_policy_begins_anew() -> None:
    """A fallback belongs to the policy that has one."""
    engine = Requests("lrfu", CAPACITY, CAPACITY, 16).engine
    first = engine.state.fallback
    assert first is not None
    engine.step(SetPolicy("gab"), 1.0)
    assert engine.state.fallback is None
    engine.step(SetPolicy("lrfu"), 2.0)
    assert engine.state.fallback not in (None, first)


@pytest.mark.parametrize("spec", ["arc(fallback=lru)", "lrfu(ranking=decayed,fallback=lru)", "lrfu(fallback=fifo)"])
def test_where_there_is_none_it_is_refused(spec: str) -> None:
    """Policies by keys or queues have no fallback, and there is no other than lru."""
    with pytest.raises(InvalidInput, match="fallback"):
        parse(spec)
