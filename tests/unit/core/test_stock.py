"""Slots held ahead, and blocks stored out of them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from engine_driver import BLOCK, SESSION, Driver, ids_of

from tierd.core import messages as m
from tierd.core.errors import LimitReached, NotFound

OTHER = 8


def stock(driver: Driver, needed: int, spare: int = 0, session: int = SESSION) -> list[int]:
    """Generations of the slots got."""
    reply = driver.step(m.Stock(session, ids_of([90]), BLOCK, needed, spare))
    assert isinstance(reply, m.StockReply)
    return list(reply.generations.tolist())


def store(
    driver: Driver, numbers: Sequence[int], generations: Sequence[int], *, checksum: int = 5, retry: bool = False,
    session: int = SESSION, sequence: str = "",
) -> list[m.Stored]:
    reply = driver.step(m.Store(
        session, ids_of(numbers), BLOCK, np.array(generations, np.uint64),
        np.full(len(numbers), checksum, np.uint64), sequence=sequence, retry=retry))
    assert isinstance(reply, m.StoreReply)
    return [m.Stored(outcome) for outcome in reply.outcomes.tolist()]


def host(driver: Driver) -> m.TierOccupancy:
    reply = driver.step(m.Occupancy())
    assert isinstance(reply, m.OccupancyReply)
    return next(tier for tier in reply.tiers if tier.tier == m.Tier.HOST)


def test_a_stored_block_is_ready_with_its_slot_and_checksum() -> None:
    """What was written under a stocked slot's generation is found there, by that generation."""
    driver = Driver(host=8)
    generations = stock(driver, 2)
    assert store(driver, [0, 1], generations, checksum=9) == [m.Stored.STORED] * 2
    reply = driver.acquire([0, 1])
    assert reply.generations.tolist() == generations
    assert reply.checksums.tolist() == [9, 9]


def test_a_stocked_slot_counts_as_reserved_and_is_no_block() -> None:
    """Of three slots ahead all bytes are reserved and stocked, none is a block, and nothing is found."""
    driver = Driver(host=8)
    stock(driver, 3)
    tier = host(driver)
    assert (tier.reserved_bytes, tier.stocked_bytes, tier.blocks) == (3 * BLOCK, 3 * BLOCK, 0)
    assert driver.present() == []


def test_room_is_made_for_what_is_needed_and_never_for_itself() -> None:
    """A full tier gives up its oldest for a stock; what the request names stays."""
    driver = Driver(host=4)
    driver.put([0, 1, 2, 3])
    reply = driver.step(m.Stock(SESSION, ids_of([0, 1]), BLOCK, 3, 0))
    assert isinstance(reply, m.StockReply)
    assert len(reply.generations) == 2
    assert driver.present() == [0, 1]


def test_spare_slots_stay_within_the_limits_of_session_and_tier() -> None:
    """Of spare ones there are as many as the session's bytes and the share of all sessions allow."""
    driver = Driver(host=64, stock_share=0.25, stock_bytes=10 * BLOCK)
    driver.step(m.OpenSession(OTHER, bytes(16)))
    assert len(stock(driver, 0, 99)) == 10
    assert len(stock(driver, 0, 99, OTHER)) == 6
    assert len(stock(driver, 1, 99, OTHER)) == 1


def test_what_is_there_is_not_stored_again_and_counts_as_an_access() -> None:
    """EXISTS, with or without a slot; the slot stays in the stock, and the record has one access more."""
    driver = Driver(host=8)
    driver.put([0])
    (generation,) = stock(driver, 1)
    before = driver.describe(0)
    assert store(driver, [0, 0], [generation, 0]) == [m.Stored.EXISTS] * 2
    after = driver.describe(0)
    assert before is not None and after is not None
    assert after.record.touches == before.record.touches + 1
    assert store(driver, [1], [generation]) == [m.Stored.STORED]


def test_a_slot_holds_one_block_and_an_identity_is_stored_once() -> None:
    """Twice the same identity is a DUPLICATE, twice the same slot is STALE, no slot is ABSENT."""
    driver = Driver(host=8)
    first, second = stock(driver, 2)
    outcomes = store(driver, [0, 0, 1, 2], [first, second, first, 0])
    assert outcomes == [m.Stored.STORED, m.Stored.DUPLICATE, m.Stored.STALE, m.Stored.ABSENT]
    assert store(driver, [3], [second]) == [m.Stored.STORED]


def test_slots_of_others_or_of_another_size_are_stale() -> None:
    """Nobody publishes a block in a slot that is not his, or not of its size."""
    driver = Driver(host=16)
    driver.step(m.OpenSession(OTHER, bytes(16)))
    (mine,), (others,) = stock(driver, 1), stock(driver, 1, session=OTHER)
    assert store(driver, [0], [others]) == [m.Stored.STALE]
    generations, checksums = np.array([mine], np.uint64), np.zeros(1, np.uint64)
    reply = driver.step(m.Store(SESSION, ids_of([0]), 2 * BLOCK, generations, checksums))
    assert isinstance(reply, m.StoreReply) and reply.outcomes.tolist() == [m.Stored.STALE]
    assert driver.present() == []


def test_an_identity_that_another_session_reserved_is_busy() -> None:
    """Whoever reserved it first writes it; the slot stays in the stock."""
    driver = Driver(host=8)
    driver.step(m.OpenSession(OTHER, bytes(16)))
    driver.reserve(ids_of([0]))
    (slot,) = stock(driver, 1, session=OTHER)
    assert store(driver, [0], [slot], session=OTHER) == [m.Stored.BUSY]
    assert store(driver, [1], [slot], session=OTHER) == [m.Stored.STORED]


def test_other_bytes_of_a_block_in_use_below_stay() -> None:
    """A store against a spilled copy that is being read is BUSY, and never a second content."""
    driver = Driver(host=4, hbm=4, spill=8)
    driver.put([0])
    driver.step(m.Evict(ids_of([0]), m.Tier.SPILL))
    driver.carry_out()
    (slot,) = stock(driver, 1)
    driver.step(m.Readmit(ids_of([0]), m.Tier.HBM))
    assert store(driver, [0], [slot], checksum=6) == [m.Stored.BUSY]
    driver.carry_out()
    assert driver.tiers(0) == {m.Tier.HBM, m.Tier.SPILL}
    assert store(driver, [1], [slot]) == [m.Stored.STORED]


def test_a_store_replaces_other_bytes_below() -> None:
    """An idle spilled copy with another checksum goes when the block is stored anew."""
    driver = Driver(host=4, spill=8)
    driver.put([0])
    driver.step(m.Evict(ids_of([0]), m.Tier.SPILL))
    driver.carry_out()
    (slot,) = stock(driver, 1)
    assert store(driver, [0], [slot], checksum=6) == [m.Stored.STORED]
    assert driver.tiers(0) == {m.Tier.HOST}
    assert driver.acquire([0]).checksums.tolist() == [6]


def test_the_end_of_a_session_gives_its_stock_back() -> None:
    """At once when it is settled; else the slots are in quarantine until it is."""
    driver = Driver(host=8)
    driver.step(m.OpenSession(OTHER, bytes(16)))
    stock(driver, 3)
    stock(driver, 2, session=OTHER)
    driver.step(m.EndSession(SESSION, settled=True))
    driver.step(m.EndSession(OTHER, settled=False))
    assert (host(driver).reserved_bytes, host(driver).quarantined_bytes) == (0, 2 * BLOCK)
    driver.step(m.EndSession(OTHER, settled=True))
    assert host(driver).free_bytes == 8 * BLOCK


def test_a_restart_keeps_stocked_slots_out_of_use_while_their_process_may_write() -> None:
    """They are in quarantine until the session is settled, and free at once when its process is dead."""
    driver = Driver(host=8)
    stock(driver, 3)
    later = Driver(host=8, tables=driver.tables, survivors=frozenset({SESSION}))
    assert host(later).quarantined_bytes == 3 * BLOCK
    later.step(m.EndSession(SESSION, settled=True))
    assert host(later).free_bytes == 8 * BLOCK


def test_what_is_given_back_is_free_and_of_no_use_any_more() -> None:
    """A slot after Unstock belongs to nobody; a second Unstock passes it over."""
    driver = Driver(host=8)
    generations = np.array(stock(driver, 2), np.uint64)
    driver.step(m.Unstock(SESSION, generations))
    driver.step(m.Unstock(SESSION, generations))
    assert host(driver).free_bytes == 8 * BLOCK
    assert store(driver, [0], generations[:1].tolist()) == [m.Stored.STALE]


def test_a_stock_takes_nothing_of_what_a_session_may_lease() -> None:
    """`max_held` is for leases and reservations; the stock has as many of its own, and ends there."""
    driver = Driver(host=16, max_held=4, stock_share=1.0)
    assert len(stock(driver, 2, 99)) == 4
    driver.reserve(ids_of([0, 1, 2, 3]))
    with pytest.raises(LimitReached, match="max_held"):
        driver.reserve(ids_of([4]))


def test_a_store_in_a_sequence_that_is_not_open_does_nothing() -> None:
    """NotFound, and the slot is still the session's."""
    driver = Driver(host=8)
    (slot,) = stock(driver, 1)
    with pytest.raises(NotFound):
        store(driver, [0], [slot], sequence="none")
    assert store(driver, [0], [slot]) == [m.Stored.STORED]


def test_a_further_part_of_a_call_is_no_tick() -> None:
    """Two Stores of one call move the clock of requests by one step."""
    driver = Driver(host=8)
    slots = stock(driver, 2)
    step = driver.engine.state.clock.step
    store(driver, [0], slots[:1])
    store(driver, [1], slots[1:], retry=True)
    assert driver.engine.state.clock.step == step + 1


def test_without_a_row_left_a_store_is_full_and_keeps_its_slot() -> None:
    """FULL when the catalog has no row and none can be freed; the slot serves the next block."""
    driver = Driver(host=8, rows=2)
    driver.put([0, 1])
    lease = driver.acquire([0, 1])
    slots = stock(driver, 1)
    assert store(driver, [2], slots) == [m.Stored.FULL]
    driver.release(lease)
    assert store(driver, [2], slots) == [m.Stored.STORED]


def claim(
    driver: Driver, numbers: Sequence[int], generations: Sequence[int], session: int = SESSION
) -> list[m.Stored]:
    """Says what is to be written, before it is."""
    reply = driver.step(m.Store(
        session, ids_of(numbers), BLOCK, np.array(generations, np.uint64), np.empty(0, np.uint64),
        commit_later=True))
    assert isinstance(reply, m.StoreReply)
    return [m.Stored(outcome) for outcome in reply.outcomes.tolist()]


def commit(
    driver: Driver, numbers: Sequence[int], generations: Sequence[int], checksum: int = 5
) -> list[m.Committed]:
    reply = driver.step(m.Commit(
        SESSION, ids_of(numbers).ids, np.array(generations, np.uint64), np.full(len(numbers), checksum, np.uint64)))
    assert isinstance(reply, m.Outcomes)
    return [m.Committed(outcome) for outcome in reply.outcomes.tolist()]


def test_what_is_committed_later_is_found_by_nobody_before() -> None:
    """A claimed block is GRANTED and absent; its Commit makes it READY, by the slot's generation, accessed once."""
    driver = Driver(host=8)
    slots = stock(driver, 2)
    assert claim(driver, [0, 1], slots) == [m.Stored.GRANTED] * 2
    assert driver.present() == []
    assert commit(driver, [0, 1], slots, checksum=9) == [m.Committed.COMMITTED] * 2
    view = driver.describe(0)
    assert view is not None and view.record.touches == 1
    reply = driver.acquire([0, 1])
    assert (reply.generations.tolist(), reply.checksums.tolist()) == (slots, [9, 9])


def test_what_was_claimed_is_victim_as_any_other_once_it_is_committed() -> None:
    """Room is made out of committed claims, and never out of those that are being written."""
    driver = Driver(host=4, stock_share=1.0)
    slots = stock(driver, 4)
    claim(driver, [0, 1, 2, 3], slots)
    commit(driver, [0, 1], slots[:2])
    assert len(stock(driver, 4)) == 2
    assert commit(driver, [2, 3], slots[2:]) == [m.Committed.COMMITTED] * 2
    assert driver.present() == [2, 3]


def test_an_aborted_claim_leaves_a_free_slot() -> None:
    """The slot is neither a block's nor in the stock; the identity can be stored anew."""
    driver = Driver(host=8)
    first, second = stock(driver, 2)
    claim(driver, [0], [first])
    driver.step(m.Abort(SESSION, ids_of([0]).ids, np.array([first], np.uint64)))
    assert host(driver).reserved_bytes == BLOCK
    assert commit(driver, [0], [first]) == [m.Committed.STALE]
    assert store(driver, [0], [first]) == [m.Stored.STALE]
    assert store(driver, [0], [second]) == [m.Stored.STORED]


def test_an_identity_that_is_claimed_is_busy_for_others() -> None:
    """A claim and a Store of another session meet BUSY, keep their slots, and are EXISTS after the Commit."""
    driver = Driver(host=8)
    driver.step(m.OpenSession(OTHER, bytes(16)))
    (mine,), (others,) = stock(driver, 1), stock(driver, 1, session=OTHER)
    claim(driver, [0], [mine])
    assert claim(driver, [0], [others], OTHER) == store(driver, [0], [others], session=OTHER) == [m.Stored.BUSY]
    commit(driver, [0], [mine])
    assert claim(driver, [0], [others], OTHER) == [m.Stored.EXISTS]
    assert claim(driver, [1], [others], OTHER) == [m.Stored.GRANTED]


def test_evict_and_clear_pass_over_what_is_claimed() -> None:
    """Its writer is not disturbed, and commits."""
    driver = Driver(host=8)
    (slot,) = stock(driver, 1)
    claim(driver, [0], [slot])
    driver.step(m.Evict(ids_of([0]), None, allow_drop=True))
    driver.step(m.Clear(m.BlockFilter()))
    assert commit(driver, [0], [slot]) == [m.Committed.COMMITTED]
    assert driver.present() == [0]


@pytest.mark.parametrize("settled", [True, False])
def test_the_end_of_a_session_ends_its_claims(settled: bool) -> None:
    """The identity is free for others at once, the slot only when nobody can write it any more."""
    driver = Driver(host=8)
    driver.step(m.OpenSession(OTHER, bytes(16)))
    claim(driver, [0], stock(driver, 1))
    driver.step(m.EndSession(SESSION, settled=settled))
    assert host(driver).quarantined_bytes == (0 if settled else BLOCK)
    assert store(driver, [0], stock(driver, 1, session=OTHER), session=OTHER) == [m.Stored.STORED]


def test_a_restart_forgets_claims_and_keeps_their_slots_out_of_use() -> None:
    """Nothing half-written is found by the next daemon, and its slot is nobody's while the writer may live."""
    driver = Driver(host=8)
    claim(driver, [0], stock(driver, 1))
    later = Driver(host=8, tables=driver.tables, survivors=frozenset({SESSION}))
    assert later.present() == []
    assert host(later).quarantined_bytes == BLOCK


def test_a_claim_against_other_bytes_in_use_is_not_committed() -> None:
    """An identity never has two contents: the Commit is STALE, the copy below stays, the slot is free."""
    driver = Driver(host=4, hbm=4, spill=8)
    driver.put([0])
    driver.step(m.Evict(ids_of([0]), m.Tier.SPILL))
    driver.carry_out()
    (slot,) = stock(driver, 1)
    claim(driver, [0], [slot])
    driver.step(m.Readmit(ids_of([0]), m.Tier.HBM))
    assert commit(driver, [0], [slot], checksum=6) == [m.Committed.STALE]
    driver.carry_out()
    assert driver.tiers(0) == {m.Tier.HBM, m.Tier.SPILL}
    assert host(driver).free_bytes == 4 * BLOCK


def test_claims_count_as_held() -> None:
    """A stock is beyond `max_held`, what is claimed out of it is not; a claim over it changes nothing."""
    driver = Driver(host=16, max_held=2, stock_share=1.0)
    slots = stock(driver, 2)
    driver.reserve(ids_of([5]))
    with pytest.raises(LimitReached, match="max_held"):
        claim(driver, [0, 1], slots)
    assert claim(driver, [0], slots[:1]) == [m.Stored.GRANTED]
