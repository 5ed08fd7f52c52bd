"""PENDING is said only of what is under way: whoever is told so has something to wait for."""

from __future__ import annotations

import numpy as np
import pytest
from engine_driver import SESSION, Driver, ids_of

from tierd.core import messages as m


def spilled(driver: Driver, count: int) -> None:
    """Puts so many blocks, from number 0 on, into the spill tier alone."""
    for number in range(count):
        driver.put([number])
        driver.step(m.Evict(ids_of([number]), m.Tier.SPILL))
        driver.carry_out()


@pytest.mark.parametrize("max_moves", [1, 2, 3])
def test_more_blocks_than_moves_and_no_room_are_full(max_moves: int) -> None:
    """Of a request for more blocks than may move at once, those for which there is no room are FULL, however far
    down the list they stand: nothing that happens later would bring them up."""
    driver = Driver(2, spill=32, max_moves=max_moves)
    spilled(driver, 12)
    reply = driver.acquire(range(12))
    lease, outcomes = reply.lease, reply.outcomes.copy()
    for _ in range(12):
        driver.carry_out()
        left = np.flatnonzero(outcomes == m.Acquired.PENDING)
        if not len(left):
            break
        assert reply.waiting
        reply = driver.step(m.Acquire(SESSION, ids_of(left.tolist()), lease=lease, retry=True))
        assert isinstance(reply, m.AcquireReply)
        lease, outcomes[left] = reply.lease, reply.outcomes
    assert sorted(outcomes.tolist()) == [m.Acquired.LEASED] * 2 + [m.Acquired.FULL] * 10


@pytest.mark.parametrize("allow_drop", [False, True])
def test_more_evictions_than_moves_and_no_room_below_end(allow_drop: bool) -> None:
    """Of more blocks than may move at once, none of which finds room below, none is left PENDING."""
    driver = Driver(8, spill=2, max_moves=2)
    spilled(driver, 2)
    driver.step(m.OpenSequence(SESSION, "pins what is spilled", ids_of([0, 1])))
    driver.put(range(10, 16))
    reply = driver.step(m.Evict(ids_of(range(10, 16)), m.Tier.SPILL, allow_drop=allow_drop))
    assert isinstance(reply, m.Outcomes)
    wanted = m.Evicted.DROPPED if allow_drop else m.Evicted.FAILED
    assert reply.outcomes.tolist() == [wanted] * 6
    assert not reply.waiting
