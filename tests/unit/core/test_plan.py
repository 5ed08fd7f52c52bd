"""The dry run of an eviction: it says what would go, and leaves everything as it was."""

from __future__ import annotations

import numpy as np
from engine_driver import BLOCK, SESSION, Driver, identity, ids_of

from tierd.core import messages as m


def _put_wide(driver: Driver, number: int) -> None:
    """Stores a block of twice the size, so that victims are chosen one by one."""
    blocks = ids_of([number])
    reply = driver.step(m.Reserve(SESSION, blocks, 2 * BLOCK))
    assert isinstance(reply, m.ReserveReply) and reply.outcomes.tolist() == [m.Reserved.GRANTED]
    sums = np.full(1, 5, np.uint64)
    driver.step(m.Commit(SESSION, blocks.ids, reply.generations, sums, m.Tier.HOST, ""))


def _planned(driver: Driver, blocks: int) -> m.Planned:
    free = driver.engine.state.tiers[m.Tier.HOST].copies.free
    reply = driver.step(m.Plan(m.Tier.HOST, free + blocks * BLOCK, 100))
    assert isinstance(reply, m.Planned)
    return reply


def test_a_plan_names_each_victim_once() -> None:
    """Where a parent may go before its child, it is not planned twice, however often one asks."""
    driver = Driver(host=4096, policy="lru(leaf_only=false)")
    driver.put([0])
    driver.put_ids(ids_of([1], chain=True, first=1, parent=0))
    driver.put([2])
    _put_wide(driver, 3)
    for _ in range(3):
        planned = _planned(driver, 3)
        assert [one.identity for one in planned.victims] == [identity(0), identity(1), identity(2)]
        assert (planned.victim_bytes, planned.victim_blocks) == (3 * BLOCK, 3)


def test_a_plan_takes_children_before_their_parents() -> None:
    """With leaf_only the dry run follows a chain from its end, and leaves it whole."""
    driver = Driver(host=4096, policy="lru")
    driver.put([0, 1, 2], chain=True)
    _put_wide(driver, 3)
    for _ in range(2):
        assert [one.identity for one in _planned(driver, 3).victims] == [identity(2), identity(1), identity(0)]
    assert driver.present() == [0, 1, 2, 3]
