"""Blocks that others stored: adopted, promoted, forgotten, never counted and never deleted."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from engine_driver import BLOCK, SESSION, Driver, identity, ids_of

from tierd.core import messages as m
from tierd.core.engine import Engine, EngineSettings, TierSpec
from tierd.core.invariants import check
from tierd_client.format import WORD_REACH

RECORD = m.Record(touches=3, last=900, wall=990.0, ema=0.2, crf=1.5)


def adopt(
    driver: Driver, numbers: Sequence[int], *, own: bool = False, record: m.Record = RECORD, checksum: int = 5
) -> int:
    """A chain of blocks that the store was found to hold, the first one at position 0; how many were new."""
    count = len(numbers)
    packed = ids_of(numbers).ids
    parents = np.zeros_like(packed)
    parents[1:] = packed[:-1]
    blocks = m.Ids(1, 0, packed, True, some=(np.arange(count), parents))
    sums, mine = np.full(count, checksum, np.uint64), np.full(count, own)
    done = driver.step(m.AddFound(blocks, BLOCK, sums, (record,) * count, mine))
    assert isinstance(done, m.Done)
    return done.count


def spill_row(driver: Driver) -> m.TierOccupancy:
    reply = driver.step(m.Occupancy())
    assert isinstance(reply, m.OccupancyReply)
    return next(one for one in reply.tiers if one.tier == m.Tier.SPILL)


def test_found_blocks_are_hits() -> None:
    """An adopted chain is found by a lookup, comes up as any other, and its bytes must have the stored checksum."""
    driver = Driver(4, spill=4)
    assert adopt(driver, [1, 2, 3], checksum=77) == 3
    assert adopt(driver, [1, 2, 3]) == 0
    looked = driver.step(m.Lookup(ids_of([1, 2, 3, 4])))
    assert isinstance(looked, m.LookedUp) and looked.hit_blocks == 3
    assert set(driver.acquire([1, 2, 3]).outcomes.tolist()) == {m.Acquired.PENDING}
    assert [(move.source, move.checksum) for move in driver.moves] == [(m.Tier.SPILL, 77)] * 3
    driver.carry_out()
    assert set(driver.acquire([1, 2, 3]).outcomes.tolist()) == {m.Acquired.LEASED}
    view = driver.describe(2)
    assert view is not None and (view.position, view.parent, view.record.touches) == (1, identity(1), 4)


def test_found_blocks_take_no_room() -> None:
    """What others stored is not counted against the limit, is no victim, and is not deleted when it is dropped."""
    driver = Driver(2, spill=1)
    adopt(driver, range(10, 18))
    row = spill_row(driver)
    assert (row.used_bytes, row.free_bytes, row.blocks) == (0, BLOCK, 8)
    driver.put([1, 2])
    driver.put([3])
    driver.carry_out()
    driver.put([3])
    assert spill_row(driver).used_bytes == BLOCK
    assert set(driver.present(m.Tier.SPILL)) >= set(range(10, 18))
    driver.step(m.Clear(m.BlockFilter()))
    assert driver.unlinked and not set(driver.unlinked) & {identity(number) for number in range(10, 18)}


def test_own_blocks_are_counted_again() -> None:
    """What this instance stored in an earlier life is its own again, as far as its limit goes."""
    driver = Driver(1, spill=2)
    adopt(driver, [1, 2, 3], own=True)
    assert spill_row(driver).used_bytes == 2 * BLOCK
    driver.step(m.Clear(m.BlockFilter()))
    assert driver.unlinked == [identity(1), identity(2)]


def test_a_found_block_saves_the_write() -> None:
    """A victim that others have stored is dropped without a move."""
    driver = Driver(1, spill=1)
    adopt(driver, [1])
    driver.acquire([1])
    driver.carry_out()
    driver.put([2])
    assert not driver.moves
    assert driver.tiers(1) == {m.Tier.SPILL}
    assert spill_row(driver).used_bytes == 0


def test_a_store_that_finds_the_block_there() -> None:
    """A demotion that finds another's value of the same content has arrived, and the copy is the other's."""
    driver = Driver(2, spill=2)
    driver.put([1, 2], chain=True)
    driver.step(m.Evict(ids_of([1, 2]), m.Tier.SPILL))
    moves, driver.moves = driver.moves, []
    driver.step(m.Finish(tuple(m.MoveResult(move.op, True, found=True) for move in moves)))
    assert driver.tiers(1) == driver.tiers(2) == {m.Tier.SPILL}
    assert spill_row(driver).used_bytes == 0
    driver.step(m.Clear(m.BlockFilter()))
    assert driver.unlinked == []


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("damaged", [False, True])
def test_lost_on_the_way_up(own: bool, damaged: bool) -> None:
    """A block that vanished is a miss and nothing is deleted, which another may have stored since; one that is
    damaged is deleted whoever stored it, or it would be found again."""
    driver = Driver(2, spill=2)
    adopt(driver, [1], own=own)
    driver.acquire([1])
    (move,) = driver.moves
    driver.step(m.Finish((m.MoveResult(move.op, False, lost=True, damaged=damaged),)))
    assert driver.tiers(1) == set()
    assert driver.unlinked == [identity(1)] * damaged


def test_rows_are_bounded() -> None:
    """Found blocks take at most half of the catalog; beyond that those worth least are forgotten, never deleted,
    and never the ones that are in use or have another copy."""
    driver = Driver(2, spill=2, rows=32)
    adopt(driver, [100], record=m.Record(touches=1, wall=1.0))
    driver.acquire([100])
    driver.carry_out()
    for first in range(0, 60, 6):
        old = m.Record(touches=1, wall=900.0 + first)
        adopt(driver, range(first, first + 6), record=old)
        assert len(driver.present(m.Tier.SPILL, 200)) <= 32 // 2 + 1
    assert driver.tiers(100) == {m.Tier.HOST, m.Tier.SPILL}
    assert set(driver.present(m.Tier.SPILL, 100)) >= set(range(54, 60))
    assert driver.unlinked == []


def test_found_blocks_give_way_to_new_ones() -> None:
    """When rows run out, what can be found again is forgotten before anything is dropped."""
    driver = Driver(24, spill=4, rows=32)
    adopt(driver, range(100, 112))
    assert set(driver.put(range(24))) == {m.Reserved.GRANTED}
    assert len(driver.present(m.Tier.HOST)) == 24


def test_more_than_there_are_rows() -> None:
    """An answer of more blocks than fit is taken as far as it goes, from its start."""
    driver = Driver(4, spill=4, rows=16)
    taken = adopt(driver, range(40))
    assert 0 < taken <= 16
    assert sorted(driver.present(m.Tier.SPILL)) == list(range(taken))


def test_the_newer_statistics_count() -> None:
    """An adopted block has the record that came with it, or that of its ghost where it is newer; steps are
    converted by wall time at the rate of this clock, and ema of plain accesses to this policy's alpha."""
    driver = Driver(2, spill=2, policy="lrfu")
    driver.put([1])
    driver.step(m.Evict(ids_of([1]), None, allow_drop=True))
    for _ in range(9):
        driver.now += 2.0
        driver.put([8])
    adopt(driver, [1], record=m.Record(touches=9, wall=driver.now - 500))
    ghost = driver.describe(1)
    assert ghost is not None and ghost.record.touches == 1
    adopt(driver, [2], record=m.Record(touches=2, last=10**9, wall=driver.now - 8, ema=0.1, crf=3.0))
    view = driver.describe(2)
    assert view is not None
    step = driver.engine.state.clock.step
    assert (view.record.touches, view.record.last) == (2, step - 4)
    assert view.record.ema == pytest.approx(0.75) and view.record.crf == 3.0
    weighted = m.Record(touches=2, wall=driver.now + 99, ema=0.1, weighted=True)
    adopt(driver, [3], record=weighted)
    view = driver.describe(3)
    assert view is not None
    assert (view.record.last, view.record.wall, view.record.ema) == (step, driver.now, 0.1)


def test_found_copies_outlive_a_restart() -> None:
    """A new boot knows which spilled blocks are others'."""
    driver = Driver(2, spill=2)
    adopt(driver, [1, 2])
    adopt(driver, [3], own=True)
    again = Driver(2, spill=2, tables=driver.tables)
    row = spill_row(again)
    assert (row.blocks, row.used_bytes) == (3, BLOCK)
    again.step(m.Clear(m.BlockFilter()))
    assert again.unlinked == [identity(3)]


def test_nothing_is_adopted_while_down() -> None:
    """An answer that comes when the store is down or gone is not believed."""
    driver = Driver(2, spill=2)
    driver.step(m.SpillState(up=False))
    assert adopt(driver, [1]) == 0
    assert driver.tiers(1) == set()


def test_readers_of_the_catalog_are_told_which_tiers_can_be_reached() -> None:
    """The word of the header has the spill tier's bit while that tier is up."""
    driver = Driver(2, spill=2)
    words = driver.tables.catalog.words
    assert words[WORD_REACH] == 0b111
    driver.step(m.SpillState(up=False))
    assert words[WORD_REACH] == 0b011
    driver.step(m.SpillState(up=True))
    assert words[WORD_REACH] == 0b111


# --- a store that is given up ---------------------------------------------------------------------------


def test_forgotten_while_moves_run() -> None:
    """A store of before a flush counts as failed and a load of before it is used, but neither leaves a copy."""
    driver = Driver(3, spill=3)
    driver.put([1, 2])
    driver.step(m.Evict(ids_of([1]), m.Tier.SPILL))
    driver.carry_out()
    driver.acquire([1])
    driver.step(m.Evict(ids_of([2]), m.Tier.SPILL))
    driver.step(m.SpillState(up=True, forgotten=True))
    driver.carry_out()
    assert driver.tiers(1) == driver.tiers(2) == {m.Tier.HOST}
    assert driver.unlinked == []
    assert spill_row(driver).used_bytes == 0
    driver.step(m.Evict(ids_of([2]), m.Tier.SPILL))
    driver.carry_out()
    assert driver.tiers(2) == {m.Tier.SPILL}


def test_detached_and_attached() -> None:
    """Without a store the tier is off: named so, victims are dropped, nothing is held back; with one it is back."""
    driver = Driver(2, spill=2)
    driver.put([1, 2])
    driver.step(m.Evict(ids_of([1]), m.Tier.SPILL))
    driver.carry_out()
    driver.step(m.SpillState(up=False, forgotten=True, attached=False))
    assert driver.tiers(1) == set() and driver.tiers(2) == {m.Tier.HOST}
    reply = driver.step(m.Occupancy())
    assert isinstance(reply, m.OccupancyReply) and [one.tier for one in reply.tiers] == [m.Tier.HOST]
    with pytest.raises(Exception, match="spill tier is off"):
        driver.step(m.Evict(ids_of([2]), m.Tier.SPILL))
    assert driver.put([3, 4]) == [m.Reserved.GRANTED] * 2
    assert not driver.moves
    driver.step(m.SpillState(up=True, attached=True))
    driver.put([5])
    driver.carry_out()
    assert driver.present(m.Tier.SPILL)


def test_started_without_a_store() -> None:
    """A boot without a store believes in none of the copies that the boot before had there."""
    driver = Driver(2, spill=2)
    driver.put([1])
    driver.step(m.Evict(ids_of([1]), m.Tier.SPILL))
    driver.carry_out()
    tiers = (TierSpec(m.Tier.HOST, ((1, 2 * BLOCK),)), TierSpec(m.Tier.SPILL, capacity_bytes=2 * BLOCK))
    engine = Engine(EngineSettings(tiers, policy="lru", spill_attached=False), driver.tables)
    check(engine)
    assert engine.kept == 0


# --- statistics for others ------------------------------------------------------------------------------


def taken(driver: Driver, limit: int = 10) -> dict[bytes, m.Record]:
    reply = driver.step(m.TakeStatistics(limit))
    assert isinstance(reply, m.Taken)
    assert {namespace for namespace, _, _ in reply.records} <= {1}
    return {identity: record for _, identity, record in reply.records}


def test_statistics_that_changed() -> None:
    """What was accessed since it was spilled is told once, longest waiting first; what only lies above never."""
    driver = Driver(4, spill=4)
    driver.put([1, 2, 3])
    driver.step(m.Evict(ids_of([1, 2]), m.Tier.SPILL))
    driver.carry_out()
    assert taken(driver) == {}
    for number in (2, 1):
        driver.acquire([number])
        driver.carry_out()
        driver.now += 1
        driver.release(driver.acquire([number]))
    assert list(taken(driver, 1)) == [identity(2)]
    assert {key: record.touches for key, record in taken(driver).items()} == {identity(1): 2}
    assert taken(driver) == {}
    driver.step(m.Clear(m.BlockFilter()))
    driver.put([1])
    assert taken(driver) == {}


def test_an_access_while_it_is_stored() -> None:
    """An access that comes while a block is being stored is told afterwards: the envelope does not have it."""
    driver = Driver(4, spill=4)
    driver.put([1])
    driver.step(m.Evict(ids_of([1]), m.Tier.SPILL))
    driver.step(m.Reserve(SESSION, ids_of([1]), BLOCK))
    driver.carry_out()
    assert list(taken(driver)) == [identity(1)]
