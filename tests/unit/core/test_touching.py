"""Accesses served elsewhere: a record changes in the same way wherever it lies, in the catalog or as a ghost."""

from __future__ import annotations

import numpy as np
import pytest
from engine_driver import SESSION, Driver, identity, ids_of

from tierd.core import messages as m


def touch(driver: Driver, numbers: list[int], counts: list[int]) -> m.Touched:
    reply = driver.step(m.Touch(SESSION, ids_of(numbers), np.array(counts, np.uint32)))
    assert isinstance(reply, m.Touched)
    return reply


@pytest.mark.parametrize("policy", ["lru", "lrfu", "lrfu(alpha=0.25,lambda=0.125)", "lrfu(half_life_s=3)"])
def test_a_ghost_is_touched_as_a_resident_block_is(policy: str) -> None:
    """Of two records with one history, one a ghost's and one a block's, each touch makes the same."""
    away, resident = Driver(host=2, policy=policy), Driver(host=4, policy=policy)
    for driver in (away, resident):
        for number in (0, 1, 2):
            driver.put([number])
    for counts, wait_s in (([3], 2.0), ([1], 5.0), ([2], 0.0)):
        views = []
        for driver in (away, resident):
            driver.now += wait_s
            touched = touch(driver, [0], counts)
            assert (touched.blocks, touched.ghosts) == ((0, 1) if driver is away else (1, 0))
            views.append(driver.describe(0))
        ghost, block = views
        assert ghost is not None and block is not None and ghost.ghost and not block.ghost
        assert ghost.record == block.record


def test_a_touch_counts_each_block_as_often_as_it_is_told() -> None:
    """Blocks of one report with different counts get as many accesses each, and one named twice only once."""
    driver = Driver(host=1, policy="lrfu")
    for number in (0, 1, 2):
        driver.put([number])
    assert touch(driver, [0, 1, 2, 1], [2, 5, 3, 1]).ghosts == 2
    counted = []
    for number in (2, 0, 1):
        driver.put([number])
        view = driver.describe(number)
        assert view is not None
        counted.append(view.record.touches)
    assert counted == [1 + 3 + 1, 1 + 2 + 1, 1 + 5 + 1]


def test_a_touch_learns_which_block_stands_before_another() -> None:
    """A block that was stored before its parent has it after a touch that names both as a chain."""
    driver = Driver(host=4)
    driver.put_ids(ids_of([1], chain=True, first=1, parent=0))
    driver.put([0])
    for parent in (None, identity(0)):
        view = driver.describe(1)
        assert view is not None and view.parent == parent
        driver.step(m.Touch(SESSION, ids_of([0, 1], chain=True), np.array([1, 1], np.uint32)))


def test_what_was_read_by_the_catalog_is_a_hit_of_its_tier() -> None:
    """Hits that a client tells of are added to those of their tiers, without a lease; of a tier that is off they
    are forgotten."""
    driver = Driver(host=2)
    driver.put([0])
    driver.step(m.Touch(SESSION, ids_of([0]), np.array([1], np.uint32), hbm_hits=2, host_hits=3))
    told = driver.step(m.Occupancy())
    assert isinstance(told, m.OccupancyReply)
    assert [(tier.tier, tier.hits_total) for tier in told.tiers] == [(m.Tier.HOST, 3)]
