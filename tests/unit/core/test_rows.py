"""What happens when rows, rather than bytes, run out; and what a restart keeps of records."""

from __future__ import annotations

import numpy as np
from engine_driver import SESSION, Driver, identity, ids_of

from tierd.core import messages as m
from tierd.core.engine import Tables


def test_a_full_catalog_drops_the_lowest_ranked_blocks_for_newcomers() -> None:
    """With room in the tier and no row left, new blocks are stored and the least recently used are gone."""
    driver = Driver(host=64, rows=8)
    for number in range(8):
        driver.put([number])
    assert driver.put([20, 21]) == [m.Reserved.GRANTED] * 2
    assert driver.present() == [2, 3, 4, 5, 6, 7, 20, 21]


def test_a_full_catalog_lets_the_spill_tier_go_first() -> None:
    """Blocks that lie only in spill make way before those in host, and their values are unlinked."""
    driver = Driver(host=2, spill=16, rows=6)
    for number in range(4):
        driver.put([number])
        driver.carry_out()
        driver.put([number])
    spilled = driver.present(m.Tier.SPILL)
    assert spilled
    driver.put([30])
    driver.carry_out()
    for number in range(31, 37):
        driver.put([number])
        driver.carry_out()
        driver.put([number])
    assert driver.unlinked, "what left spill was deleted from the server"


def test_a_catalog_full_of_blocks_that_are_held_twice_makes_room() -> None:
    """When every row has a copy in host and one in spill, newcomers find rows: the lowest ranked blocks go
    altogether, also from the server, and no leased one does."""
    driver = Driver(host=64, spill=64, rows=4)
    driver.put([0, 1, 2, 3])
    driver.step(m.Evict(ids_of([0, 1, 2, 3]), m.Tier.SPILL))
    driver.carry_out()
    driver.step(m.Readmit(ids_of([0, 1, 2, 3]), m.Tier.HOST))
    driver.carry_out()
    assert driver.present(m.Tier.SPILL) == driver.present() == [0, 1, 2, 3]
    lease = driver.acquire([0])
    assert driver.put([9, 10]) == [m.Reserved.GRANTED] * 2
    assert driver.present() == [0, 3, 9, 10]
    assert sorted(driver.unlinked) == sorted(map(identity, [1, 2]))
    assert driver.put([11, 12, 13, 14])[3] == m.Reserved.FULL, "what is leased stays"
    driver.release(lease)


def test_a_full_catalog_drops_no_parent_of_a_resident_child() -> None:
    """A block held twice stays while a child of it lies in one of the tiers: the deepest goes first."""
    driver = Driver(host=64, spill=64, rows=3)
    driver.put([0, 1, 2], chain=True)
    driver.step(m.Evict(ids_of([0, 1, 2], chain=True), m.Tier.SPILL))
    driver.carry_out()
    driver.step(m.Readmit(ids_of([0, 1, 2], chain=True), m.Tier.HOST))
    driver.carry_out()
    assert driver.put([9]) == [m.Reserved.GRANTED]
    assert driver.present() == [0, 1, 9]


def test_a_catalog_full_of_what_is_in_use_refuses() -> None:
    """When each row is pinned the newcomer is FULL, and its slot is free again."""
    driver = Driver(host=64, rows=4)
    driver.put([0, 1, 2, 3])
    lease = driver.acquire([0, 1, 2, 3])
    assert driver.put([9]) == [m.Reserved.FULL]
    driver.release(lease)
    assert driver.put([9]) == [m.Reserved.GRANTED]


def test_a_record_whose_only_copy_was_wiped_survives_as_a_ghost() -> None:
    """After a restart in which a tier lost its bytes, the block resumes its statistics when it comes back."""
    tables = Tables.private(64)
    first = Driver(host=8, hbm=8, tables=tables)
    first.step(m.OpenSession(SESSION, bytes(16)))
    first.put([1], tier=m.Tier.HBM)
    first.put([1], tier=m.Tier.HBM)
    before = first.describe(1)
    second = Driver(host=8, tables=tables)
    ghost = second.describe(1)
    assert before is not None and ghost is not None and ghost.ghost
    assert (ghost.record.touches, ghost.record.ema) == (before.record.touches, before.record.ema)
    second.step(m.OpenSession(SESSION + 1, bytes(16)))


def test_the_characteristic_age_survives_a_restart() -> None:
    """T of a tier goes on where it was."""
    tables = Tables.private(64)
    first = Driver(host=2, tables=tables, policy="lrfu")
    first.step(m.OpenSession(SESSION, bytes(16)))
    for number in range(10):
        first.put([number])
    age = first.engine.state.tiers[m.Tier.HOST].age
    assert age != 50.0
    second = Driver(host=2, tables=tables, policy="lrfu")
    assert second.engine.state.tiers[m.Tier.HOST].age == age


def test_the_rest_of_a_chain_keeps_its_places() -> None:
    """Ids taken out of a chain are stored at their positions, behind their own predecessors."""
    driver = Driver(host=16)
    chain = ids_of([0, 1, 2, 3, 4], chain=True)
    driver.put_ids(chain.take(np.array([0, 1, 2])))
    driver.put_ids(chain.take(np.array([3, 4])))
    view = driver.describe(4)
    assert view is not None and view.position == 4 and view.parent == chain.ids[3].tobytes()
    first = driver.describe(3)
    assert first is not None and first.parent == chain.ids[2].tobytes()


def test_links_that_run_backwards_are_ignored() -> None:
    """A client that names its blocks in a ring cannot make them unevictable."""
    driver = Driver(host=4)
    driver.put([0, 1], chain=True)
    driver.put_ids(ids_of([1, 0], chain=True, first=0))
    driver.put([2])
    assert driver.put([10, 11, 12, 13]) == [m.Reserved.GRANTED] * 4


def test_a_block_that_came_back_while_records_were_not_kept_has_one_record() -> None:
    """Without `persist` a block that comes back begins anew and its ghost is gone, so that the policy after that
    does not find two records of it."""
    driver = Driver(host=1, policy="lru")
    driver.put([0])
    driver.put([1])
    driver.step(m.SetPolicy("lru(persist=false)"))
    driver.put([0])
    driver.step(m.SetPolicy("lru"))
    found = driver.describe(0)
    assert found is not None and not found.ghost and found.record.touches == 1
