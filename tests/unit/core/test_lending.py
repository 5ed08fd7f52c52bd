"""Lent pages in the engine: adopted, hit, copied from, withdrawn, and gone with their session."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from engine_driver import BLOCK, SESSION, Driver, identity, ids_of

from tierd.core import messages as m
from tierd.core.engine import Engine, EngineSettings, Tables, TierSpec
from tierd.core.errors import InvalidInput, Refused
from tierd.core.loans import FIRST_POOL, page_address

POOL = FIRST_POOL
OTHER = 8


def lender(host: int = 4, **settings: object) -> Driver:
    """An engine without hbm of its own, that takes loans."""
    return Driver(host, lends=True, **settings)  # type: ignore[arg-type]


def adopt(
    driver: Driver, numbers: Sequence[int], pages: Sequence[int], *, fences: Sequence[int] = (),
    session: int = SESSION,
) -> list[m.Adopted]:
    reach = np.array(fences or [0] * len(pages), np.uint64)
    command = m.Adopt(session, ids_of(numbers), BLOCK, POOL, np.array(pages, np.uint64), reach)
    reply = driver.step(command)
    assert isinstance(reply, m.Outcomes)
    return [m.Adopted(outcome) for outcome in reply.outcomes.tolist()]


def withdraw(driver: Driver, pages: Sequence[int] | None, *, save: bool = False) -> m.WithdrawReply:
    named = None if pages is None else np.array(pages, np.uint64)
    reply = driver.step(m.Withdraw(SESSION, POOL, named, save))
    assert isinstance(reply, m.WithdrawReply)
    return reply


def hbm(driver: Driver) -> m.TierOccupancy:
    reply = driver.step(m.Occupancy())
    assert isinstance(reply, m.OccupancyReply)
    return reply.tiers[0]


def evict(driver: Driver, number: int, to: m.Tier = m.Tier.HOST) -> m.Evicted:
    reply = driver.step(m.Evict(ids_of([number]), to))
    assert isinstance(reply, m.Outcomes)
    return m.Evicted(reply.outcomes[0])


def test_a_lent_block_is_known_and_takes_no_bytes() -> None:
    """An adopted block is in hbm, at its page, and no byte of any tier is used by it."""
    driver = lender()
    assert adopt(driver, [1, 2], [10, 11]) == [m.Adopted.ADOPTED] * 2
    assert driver.tiers(1) == {m.Tier.HBM}
    view = driver.describe(2)
    assert view is not None
    assert [(copy.address, copy.lent) for copy in view.copies] == [(page_address(POOL, 11), True)]
    now = hbm(driver)
    assert (now.capacity_bytes, now.used_bytes, now.lent_blocks, now.evictable_blocks) == (0, 0, 2, 0)


def test_a_lookup_says_that_a_lent_block_must_come_first() -> None:
    """A block that is only lent counts for the hit, but is not said to be readable at once."""
    driver = lender()
    adopt(driver, [1], [0])
    reply = driver.step(m.Lookup(ids_of([1, 2])))
    assert isinstance(reply, m.LookedUp)
    assert reply.presence.tolist() == [m.Presence.BELOW, m.Presence.MISS]
    assert (reply.hit_blocks, reply.below_bytes) == (1, BLOCK)


def test_others_get_a_lent_block_by_a_copy_in_host() -> None:
    """Acquire leases no page of an engine: the block is copied to host and leased there."""
    driver = lender()
    adopt(driver, [1], [3], fences=[77])
    assert driver.acquire([1]).outcomes.tolist() == [m.Acquired.PENDING]
    (move,) = driver.moves
    assert (move.source_address, move.lender, move.fence) == (page_address(POOL, 3), SESSION, 77)
    assert move.target is m.Tier.HOST
    driver.carry_out(checksum=41)
    reply = driver.acquire([1])
    assert (reply.outcomes[0], reply.tiers[0], reply.checksums[0]) == (m.Acquired.LEASED, m.Tier.HOST, 41)
    assert driver.tiers(1) == {m.Tier.HBM, m.Tier.HOST}
    driver.release(reply)


def test_evict_copies_from_the_page_and_ends_the_loan() -> None:
    """Evicting a lent block to host copies it there, with the checksum that was found, and the page is free."""
    driver = lender()
    adopt(driver, [1], [3])
    assert evict(driver, 1) is m.Evicted.PENDING
    driver.carry_out(checksum=9)
    assert driver.tiers(1) == {m.Tier.HOST}
    view = driver.describe(1)
    assert view is not None and view.checksum == 9
    assert withdraw(driver, [3]).outcomes.tolist() == [m.Withdrawn.WITHDRAWN]
    assert hbm(driver).lent_blocks == 0


def test_a_failed_copy_keeps_the_loan() -> None:
    """A fence that is not reached in time, or a failed copy: nothing is stored, the block stays lent."""
    driver = lender()
    adopt(driver, [1], [3], fences=[5])
    evict(driver, 1)
    driver.carry_out(ok=False)
    assert driver.tiers(1) == {m.Tier.HBM}
    reply = driver.step(m.Evict(ids_of([1]), m.Tier.HOST, retry=True))
    assert isinstance(reply, m.Outcomes) and reply.outcomes.tolist() == [m.Evicted.FAILED]


def test_withdrawing_drops_the_copy_at_once() -> None:
    """A page that nobody reads is its engine's again in the same step, and the block a miss."""
    driver = lender()
    adopt(driver, [1, 2], [3, 4])
    assert withdraw(driver, [3, 99]).outcomes.tolist() == [m.Withdrawn.WITHDRAWN] * 2
    assert driver.tiers(1) == set()
    assert driver.tiers(2) == {m.Tier.HBM}


def test_a_page_that_is_read_is_not_given_back() -> None:
    """While a copy from it is under way a page is PENDING, the copy is to be abandoned, and no other begins."""
    driver = lender()
    adopt(driver, [1], [3])
    evict(driver, 1)
    reply = withdraw(driver, [3])
    assert reply.outcomes.tolist() == [m.Withdrawn.PENDING]
    assert reply.waiting == (driver.moves[0].op,) == tuple(driver.abandoned)
    assert driver.acquire([1]).outcomes.tolist() == [m.Acquired.PENDING]
    assert len(driver.moves) == 1
    driver.carry_out(ok=False)
    assert withdraw(driver, [3]).outcomes.tolist() == [m.Withdrawn.WITHDRAWN]
    assert driver.tiers(1) == set()


def test_a_copy_that_ended_before_the_page_went_back_counts() -> None:
    """What was being copied when the page was asked for, and arrives all the same, is kept."""
    driver = lender()
    adopt(driver, [1], [3])
    driver.acquire([1])
    withdraw(driver, [3])
    driver.carry_out()
    assert driver.tiers(1) == {m.Tier.HOST}
    assert hbm(driver).lent_blocks == 0


def test_save_copies_what_lies_nowhere_else() -> None:
    """Withdraw with `save` gives a page back when its block lies below, and copies no block that does already."""
    driver = lender()
    driver.put([1])
    adopt(driver, [1, 2], [3, 4])
    reply = withdraw(driver, [3, 4], save=True)
    assert reply.outcomes.tolist() == [m.Withdrawn.WITHDRAWN, m.Withdrawn.PENDING]
    assert len(driver.moves) == 1
    assert reply.waiting == (driver.moves[0].op,)
    driver.carry_out()
    assert withdraw(driver, [4], save=True).outcomes.tolist() == [m.Withdrawn.WITHDRAWN]
    assert driver.tiers(2) == {m.Tier.HOST}


def test_all_pages_of_a_pool_at_once() -> None:
    """Withdraw without pages is about every page of the pool that is lent, and of no other."""
    driver = lender()
    adopt(driver, [1, 2], [3, 4])
    driver.step(m.Adopt(SESSION, ids_of([5]), BLOCK, POOL + 1, np.array([3], np.uint64), np.zeros(1, np.uint64)))
    reply = withdraw(driver, None)
    assert sorted(reply.pages.tolist()) == [3, 4]
    assert hbm(driver).lent_blocks == 1


def test_save_that_fails_frees_the_page_and_says_so() -> None:
    """A block that cannot be saved is UNSAVED and gone: its page is free all the same."""
    driver = lender()
    adopt(driver, [2], [4])
    withdraw(driver, [4], save=True)
    driver.carry_out(ok=False)
    assert withdraw(driver, [4], save=True).outcomes.tolist() == [m.Withdrawn.UNSAVED]
    assert driver.tiers(2) == set()


def test_save_without_room_says_so_at_once() -> None:
    """Where everything in host is leased there is no room to wait for."""
    driver = lender(host=1)
    driver.put([1])
    leased = driver.acquire([1])
    adopt(driver, [2], [4])
    assert withdraw(driver, [4], save=True).outcomes.tolist() == [m.Withdrawn.UNSAVED]
    driver.release(leased)


def test_the_end_of_a_session_ends_its_loans() -> None:
    """With a session go its loans, those that are being read when that has ended; those of others stay."""
    driver = lender()
    driver.step(m.OpenSession(OTHER))
    adopt(driver, [1, 2], [3, 4], session=OTHER)
    adopt(driver, [5], [5])
    evict(driver, 1)
    driver.step(m.EndSession(OTHER, settled=True))
    assert driver.abandoned == [driver.moves[0].op]
    assert hbm(driver).lent_blocks == 2
    driver.carry_out(ok=False)
    assert driver.tiers(1) | driver.tiers(2) == set()
    assert driver.tiers(5) == {m.Tier.HBM}


def test_a_page_holds_one_block() -> None:
    """A page that is lent as one block is refused as another, and nothing of that call is done."""
    driver = lender()
    adopt(driver, [1], [3])
    with pytest.raises(Refused, match=r"page 3 .*withdraw it first"):
        adopt(driver, [2, 4], [9, 3])
    assert driver.tiers(2) == set()
    with pytest.raises(InvalidInput, match="pages"):
        adopt(driver, [2, 4], [9, 9])


def test_adopting_again_changes_nothing() -> None:
    """A block that hbm has in another page is EXISTS, and that page stays the one; in the same page it is ADOPTED
    once more, so that a call that was repeated does not make an engine take a lent page for its own."""
    driver = lender()
    assert adopt(driver, [1, 1], [3, 4]) == [m.Adopted.ADOPTED, m.Adopted.EXISTS]
    assert adopt(driver, [1], [4]) == [m.Adopted.EXISTS]
    assert adopt(driver, [1], [3], fences=[9]) == [m.Adopted.ADOPTED]
    assert hbm(driver).lent_blocks == 1
    driver.acquire([1])
    assert driver.moves[0].fence == 9


def test_a_page_on_its_way_back_is_not_lent_again() -> None:
    """A block cannot be adopted in a page that was asked for and is still being read."""
    driver = lender()
    adopt(driver, [1], [3])
    driver.acquire([1])
    withdraw(driver, [3])
    assert adopt(driver, [1], [3]) == [m.Adopted.BUSY]
    driver.carry_out(ok=False)
    assert adopt(driver, [1], [3]) == [m.Adopted.ADOPTED]


def test_a_put_does_not_rely_on_a_loan() -> None:
    """A put of a block that is only lent gets a slot: EXISTS would promise what its engine may take away."""
    driver = lender()
    adopt(driver, [1], [3])
    assert driver.put([1], checksum=6) == [m.Reserved.GRANTED]
    assert driver.tiers(1) == {m.Tier.HBM, m.Tier.HOST}
    withdraw(driver, [3])
    assert driver.acquire([1]).outcomes.tolist() == [m.Acquired.LEASED]


def test_an_identity_never_has_two_contents() -> None:
    """Bytes from a page that are not those of the block's other copies are not stored, and the loan ends."""
    driver = lender(host=1, spill=4)
    driver.put([1], checksum=6)
    evict(driver, 1, m.Tier.SPILL)
    driver.carry_out()
    adopt(driver, [1], [3])
    driver.acquire([1])
    assert driver.moves[0].lender == SESSION, "memory is nearer than the spill tier"
    driver.carry_out(checksum=7)
    assert driver.tiers(1) == {m.Tier.SPILL}


def test_lent_blocks_are_no_victims() -> None:
    """A full hbm tier of the daemon's own evicts its own blocks, never what is lent, and plans so."""
    driver = lender(hbm=1, policy="lru")
    adopt(driver, [1], [3])
    driver.put([2], tier=m.Tier.HBM)
    driver.put([3], tier=m.Tier.HBM)
    driver.carry_out()
    assert driver.tiers(1) == {m.Tier.HBM}
    assert driver.tiers(2) == {m.Tier.HOST}
    plan = driver.step(m.Plan(m.Tier.HBM, 8 * BLOCK, 10))
    assert isinstance(plan, m.Planned) and not plan.enough
    assert identity(1) not in [one.identity for one in plan.victims]


def test_loans_give_way_when_rows_run_out() -> None:
    """A catalog full of loans still takes a block that is stored: the longest unused loans are forgotten."""
    driver = lender(host=8, rows=4)
    adopt(driver, [1, 2], [1, 2])
    adopt(driver, [3, 4, 5], [3, 4, 5])
    assert hbm(driver).lent_blocks == 4, "a fifth has no row"
    assert driver.put([7, 8]) == [m.Reserved.GRANTED] * 2
    assert {number for number in range(6) if driver.tiers(number)} == {3, 4}


def test_lending_never_costs_a_stored_block_its_row() -> None:
    """Without a free row a loan is FULL, and what is stored stays."""
    driver = lender(host=4, rows=4)
    driver.put([1, 2, 3, 4])
    assert adopt(driver, [5], [0]) == [m.Adopted.FULL]
    assert driver.present() == [1, 2, 3, 4]


def test_adopting_touches_the_chain_before_once_a_sequence() -> None:
    """In a sequence an adopted block is an access to it and to its ancestors, once however many calls name them."""
    driver = lender()
    driver.put([1, 2], chain=True)
    blocks = ids_of([1, 2, 3, 4], chain=True)
    driver.step(m.OpenSequence(SESSION, "s", blocks))
    for number, page in ((3, 0), (4, 1)):
        at = m.Ids(1, 0, ids_of([number]).ids, True, number - 1, identity(number - 1))
        driver.step(m.Adopt(SESSION, at, BLOCK, POOL, np.array([page], np.uint64), np.zeros(1, np.uint64), "s"))
    touches = [view.record.touches for number in (1, 2, 3, 4) if (view := driver.describe(number))]
    assert touches == [2, 2, 1, 1]


def test_a_restart_forgets_loans() -> None:
    """The next boot finds no lent copy, and what was stored as well is there."""
    driver = lender()
    driver.put([1])
    adopt(driver, [1, 2], [3, 4])
    again = Driver(4, lends=True, tables=driver.tables)
    assert again.tiers(1) == {m.Tier.HOST}
    assert again.tiers(2) == set()


def test_without_the_setting_nothing_is_lent() -> None:
    """Adopt and Withdraw are refused in words where lending is off, and where hbm is only lent it takes no puts."""
    driver = Driver(4)
    with pytest.raises(Refused, match="max_lent_pools"):
        adopt(driver, [1], [0])
    with pytest.raises(InvalidInput, match="no memory of the daemon"):
        lender().put([1], tier=m.Tier.HBM)


def test_readmit_to_hbm_means_host_where_hbm_is_only_lent() -> None:
    """Where the daemon has no hbm of its own, as high as can be is host."""
    driver = lender(spill=4)
    driver.put([1])
    evict(driver, 1, m.Tier.SPILL)
    driver.carry_out()
    driver.step(m.Readmit(ids_of([1]), m.Tier.HBM))
    assert driver.moves[0].target is m.Tier.HOST


def test_device_memory_is_leased_to_who_reads_there() -> None:
    """A copy in hbm that nobody can map is leased to a client that reads on the device; others get one in host."""
    tiers = (TierSpec(m.Tier.HBM, ((0x4000, 2 * BLOCK),), readable=False), TierSpec(m.Tier.HOST, ((1, 2 * BLOCK),)))
    driver = Driver(2, hbm=2)
    driver.engine = Engine(EngineSettings(tiers, policy="lru"), Tables.private(16))
    driver.step(m.OpenSession(SESSION))
    driver.put([1], tier=m.Tier.HBM)
    reply = driver.step(m.Acquire(SESSION, ids_of([1]), device=True))
    assert isinstance(reply, m.AcquireReply)
    assert (reply.outcomes[0], reply.tiers[0]) == (m.Acquired.LEASED, m.Tier.HBM)
    driver.release(reply)
    assert driver.acquire([1]).outcomes.tolist() == [m.Acquired.PENDING]
    assert driver.moves[0].target is m.Tier.HOST


def test_an_engine_s_page_cannot_be_pinned() -> None:
    """A block that lies in lent pages alone is a MISS to Pin: its engine may take the page back at any time."""
    driver = lender()
    adopt(driver, [1], [0])
    driver.put([2])
    reply = driver.step(m.Pin(ids_of([1, 2])))
    assert isinstance(reply, m.PinReply)
    assert reply.outcomes.tolist() == [m.Pinned.MISS, m.Pinned.PINNED]
