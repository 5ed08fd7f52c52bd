"""Groups of other rules than `prefix`: what is a hit, what is kept for whose sake, what goes first."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from engine_driver import BLOCK, SESSION, Driver, ids_of
from hypothesis import given, settings
from hypothesis import strategies as st

from tierd.core import messages as m
from tierd.core.errors import InvalidInput
from tierd_client.hits import PREFIX, HitRule

WINDOW, STATE = HitRule(4, tail=2), HitRule(8, tail=1)


def chain_of(first: int, count: int, rule: HitRule, group: int = 0) -> m.Ids:
    return replace(ids_of(range(first, first + count), chain=True), rule=rule, group=group)


def looked_up(driver: Driver, *chains: m.Ids) -> m.ChainsLookedUp:
    reply = driver.step(m.LookupChains(chains))
    assert isinstance(reply, m.ChainsLookedUp)
    return reply


@settings(max_examples=60, deadline=None)
@given(st.sets(st.integers(0, 7)), st.sampled_from([PREFIX, WINDOW, STATE]))
def test_lookup_and_open_sequence_go_by_the_rule(there: set[int], rule: HitRule) -> None:
    """A hit of n blocks is the longest of which the last `tail` are there."""
    driver = Driver(host=8)
    driver.put(sorted(there))
    blocks = chain_of(0, 8, rule)
    possible = [n for n in range(9) if set(range(max(0, n - rule.tail), n)) <= there]
    assert driver.step(m.Lookup(blocks)).hit_blocks == max(possible)
    assert driver.step(m.OpenSequence(SESSION, "s", blocks)).hit_blocks == max(possible)


def test_chains_agree_on_tokens() -> None:
    """Chains of several groups are looked up at one instant; what they agree on is what each of them supports."""
    driver = Driver(host=16)
    full, window, state = chain_of(0, 8, HitRule(4)), chain_of(20, 8, WINDOW, 1), chain_of(40, 4, STATE, 2)
    driver.put_ids(full)
    driver.put_ids(window.take(np.array([1, 2, 3, 5, 6])))
    driver.put_ids(state.take(np.array([1, 2])))
    assert [looked_up(driver, one).hit_tokens for one in (full, window, state)] == [32, 28, 24]
    assert looked_up(driver, full, state).hit_tokens == 24
    assert looked_up(driver, full, window, state).hit_tokens == 16
    assert [len(tiers) for tiers in looked_up(driver, full, window, state).tiers] == [8, 8, 4]


def test_bytes_below_are_those_that_the_hit_needs() -> None:
    """What must come up from the spill tier first is counted for the needed blocks alone, and a spill tier that
    is down holds no hit and no tier's bit, though its blocks stay known."""
    driver = Driver(host=8, spill=8)
    window = chain_of(0, 6, WINDOW)
    driver.put_ids(window)
    driver.step(m.Evict(window, m.Tier.SPILL))
    driver.carry_out()
    found = driver.step(m.Lookup(window))
    assert (found.hit_blocks, found.below_bytes, found.tiers.tolist()) == (6, 2 * BLOCK, [4] * 6)
    assert looked_up(driver, window).below_bytes == 2 * BLOCK
    driver.step(m.SpillState(up=False))
    found = driver.step(m.Lookup(window))
    assert (found.hit_blocks, found.below_bytes, found.tiers.tolist()) == (0, 0, [0] * 6)
    assert found.presence.tolist() == [m.Presence.BELOW] * 6
    assert looked_up(driver, window).hit_tokens == 0


def test_a_window_keeps_nothing_before_it() -> None:
    """Under pressure the blocks of a window group that no request reads any more go, though deeper ones stay;
    in a prefix group of the same age the deepest go first."""
    driver = Driver(host=8)
    window, full = chain_of(0, 4, WINDOW), chain_of(10, 4, PREFIX, 1)
    driver.put_ids(window)
    driver.put_ids(full)
    driver.release(driver.acquire_ids(full.take(np.array([2, 3]))))
    driver.release(driver.acquire_ids(window.take(np.array([2, 3]))))
    driver.put([100, 101, 102])
    assert driver.step(m.Lookup(window)).tiers.tolist() == [0, 0, 2, 2]
    assert driver.step(m.Lookup(full)).tiers.tolist() == [2, 2, 2, 0]
    assert driver.step(m.Lookup(window)).hit_blocks == 4


def test_blocks_of_one_put_go_from_the_end_in_every_group() -> None:
    """Of blocks that came in together the deepest go first in a window group too, so that the hits of all groups
    shrink together."""
    driver = Driver(host=6)
    window = chain_of(0, 6, WINDOW)
    driver.put_ids(window)
    driver.put([100, 101])
    assert driver.step(m.Lookup(window)).tiers.tolist() == [2, 2, 2, 2, 0, 0]


def test_a_clear_takes_no_more_than_it_may() -> None:
    """`most` bounds the blocks of one Clear; what it skips for being in use does not count."""
    driver = Driver(host=8)
    driver.put(range(8))
    lease = driver.acquire([0, 1])
    where = m.BlockFilter(namespaces=frozenset({1}))
    removed = [sum(driver.step(m.Clear(where, most=4)).copies.values()) for _ in range(3)]
    assert removed == [4, 2, 0]
    assert driver.step(m.Clear(where, most=4)).in_use == 2
    driver.release(lease)
    assert sum(driver.step(m.Clear(where)).copies.values()) == 2


def test_a_sequence_pins_the_chains_of_all_its_groups() -> None:
    """Until it closes nothing of them goes, also what comes in while it runs; attention is over the first alone."""
    driver = Driver(host=8)
    full, window = chain_of(0, 3, PREFIX), chain_of(10, 3, WINDOW, 1)
    driver.put_ids(full.take(np.array([0, 1, 2])))
    driver.put_ids(window.take(np.array([0, 1])))
    opened = driver.step(m.OpenSequence(SESSION, "s", full, others=(window,)))
    assert (opened.hit_blocks, len(opened.tiers)) == (3, 3)
    driver.put_ids(window.take(np.array([2])), sequence="s")
    driver.put(range(100, 120))
    assert driver.step(m.Lookup(full)).hit_blocks == driver.step(m.Lookup(window)).hit_blocks == 3
    mass = np.full(3, 0.1, np.float32)
    assert driver.step(m.Observe(SESSION, "s", mass)).updated == 3
    with pytest.raises(InvalidInput, match="4 values for a sequence of 3 blocks"):
        driver.step(m.Observe(SESSION, "s", np.full(4, 0.1, np.float32)))
    driver.step(m.CloseSequence(SESSION, "s"))
    driver.put(range(120, 140))
    assert driver.step(m.Lookup(full)).hit_blocks == driver.step(m.Lookup(window)).hit_blocks == 0
