"""What people and clients are told: listings, explanations, occupancy, and the numbers of a lease."""

from __future__ import annotations

import numpy as np
import pytest
from engine_driver import BLOCK, SESSION, Driver, identity, ids_of

from tierd.core import messages as m
from tierd.core.errors import InvalidInput, LimitReached
from tierd.core.victim_rows import VictimRows
from tierd.core.victims import _ClassList


def listed(driver: Driver, where: m.BlockFilter, **how: object) -> list[bytes]:
    page = driver.step(m.ListBlocks(where, 100, **how))
    assert isinstance(page, m.BlockPage)
    return [view.identity for view in page.blocks if view is not None]


def occupancy(driver: Driver) -> m.OccupancyReply:
    reply = driver.step(m.Occupancy())
    assert isinstance(reply, m.OccupancyReply)
    return reply


def test_a_lease_says_where_the_bytes_are_and_what_they_are() -> None:
    """Address, generation, tier and checksum of a lease are those of the record."""
    driver = Driver(host=4, hbm=2)
    driver.put([0], checksum=11)
    driver.put([1], tier=m.Tier.HBM, checksum=12)
    reply = driver.acquire([0, 9, 1])
    assert reply.outcomes.tolist() == [m.Acquired.LEASED, m.Acquired.MISS, m.Acquired.LEASED]
    assert reply.tiers.tolist() == [m.Tier.HOST, 0, m.Tier.HBM] and reply.checksums.tolist() == [11, 0, 12]
    for place, number in ((0, 0), (2, 1)):
        view = driver.describe(number)
        assert view is not None
        (copy,) = view.copies
        assert (copy.address, copy.generation) == (reply.addresses[place], reply.generations[place])
        assert copy.leases == 1 and copy.ready
    told = occupancy(driver)
    assert [(tier.hits_total, tier.leased_blocks) for tier in told.tiers] == [(1, 1), (1, 1)]
    assert (told.misses_total, told.leases) == (1, 2)
    driver.release(reply)
    assert [tier.leased_blocks for tier in occupancy(driver).tiers] == [0, 0]


def test_the_listing_by_rank_is_the_order_of_eviction_down_to_the_last_word_of_the_identity() -> None:
    """Blocks with the same rank, access and depth are listed by identity, and are evicted in that order."""
    driver = Driver(host=8)
    raw = [bytes(8) + bytes([1]) + bytes(22) + bytes([n]) for n in (3, 1, 2)]
    raw += [bytes(8) + bytes([2]) + bytes(23), bytes([1]) + bytes(31), bytes(16) + bytes([5]) + bytes(15)]
    packed = np.frombuffer(b"".join(raw), np.uint8).reshape(-1, 32)
    driver.put_ids(m.Ids(1, 0, packed))
    by_rank = listed(driver, m.BlockFilter(tier=m.Tier.HOST), by_rank=True)
    assert by_rank == sorted(raw)
    assert listed(driver, m.BlockFilter()) == sorted(raw)
    plan = driver.step(m.Plan(m.Tier.HOST, 8 * BLOCK, 10))
    assert isinstance(plan, m.Planned)
    assert [victim.identity for victim in plan.victims] == by_rank
    assert (plan.free_bytes, plan.victim_bytes, plan.enough) == (2 * BLOCK, 6 * BLOCK, True)


@pytest.mark.parametrize("by_rank", [False, True])
def test_pages_hold_each_block_once(by_rank: bool) -> None:
    """Pages of two, put together, are the listing; the last has no token; a foreign token is refused."""
    driver = Driver(host=8)
    for number in (4, 0, 3, 1, 2):
        driver.put([number])
    where, seen, after, pages = m.BlockFilter(tier=m.Tier.HOST), [], b"", 0
    while True:
        page = driver.step(m.ListBlocks(where, 2, after, by_rank))
        assert isinstance(page, m.BlockPage) and len(page.blocks) <= 2
        seen += [view.identity for view in page.blocks if view is not None]
        after, pages = page.next, pages + 1
        if not after:
            break
    assert pages == 3
    assert seen == [identity(n) for n in ((4, 0, 3, 1, 2) if by_rank else range(5))]
    with pytest.raises(InvalidInput, match="page_token"):
        driver.step(m.ListBlocks(where, 2, b"xyz", by_rank))


def test_filters_take_what_they_say() -> None:
    """By tier, by the first bytes of the identity, by use, by namespace."""
    driver = Driver(host=8, hbm=4)
    driver.put([0, 1])
    driver.put([2], tier=m.Tier.HBM)
    lease = driver.acquire([1])
    assert listed(driver, m.BlockFilter(tier=m.Tier.HBM)) == [identity(2)]
    assert listed(driver, m.BlockFilter(identity_prefix=identity(1)[:8])) == [identity(1)]
    assert listed(driver, m.BlockFilter(in_use=True)) == [identity(1)]
    assert listed(driver, m.BlockFilter(in_use=False)) == [identity(0), identity(2)]
    assert listed(driver, m.BlockFilter(namespace=2)) == []
    assert len(listed(driver, m.BlockFilter(namespace=1))) == 3
    driver.release(lease)


def test_clear_says_what_went_and_what_was_in_use() -> None:
    """A dry run changes nothing; the real one drops what it announced, twice nothing; ghosts go if asked."""
    driver = Driver(host=8, hbm=4)
    driver.put([0, 1, 2])
    driver.put([3], tier=m.Tier.HBM)
    lease = driver.acquire([1])
    dry = driver.step(m.Clear(m.BlockFilter(), dry_run=True))
    assert isinstance(dry, m.Cleared)
    assert (dry.copies, dry.in_use) == ({m.Tier.HBM: 1, m.Tier.HOST: 2}, 1)
    assert len(listed(driver, m.BlockFilter())) == 4
    assert driver.step(m.Clear(m.BlockFilter())) == dry
    assert listed(driver, m.BlockFilter()) == [identity(1)]
    driver.release(lease)
    gone = driver.step(m.Clear(m.BlockFilter(), ghosts=True))
    assert isinstance(gone, m.Cleared) and gone.copies[m.Tier.HOST] == 1 and gone.ghosts == 4
    assert occupancy(driver).ghosts == 0
    assert occupancy(driver).identities == 0


def test_explain_says_what_protects_a_block_and_where_it_would_go() -> None:
    """Sequences, leases, moves and later blocks of the chain are named; so is the destination."""
    driver = Driver(host=4, spill=8)
    driver.put([0, 1], chain=True)
    driver.put([2])

    def told(number: int) -> m.Explanation:
        reply = driver.step(m.Explain(ids_of([number]).ids, m.Tier.HOST))
        assert isinstance(reply, m.Explained) and reply.policy.startswith("lru(")
        return reply.blocks[0]

    assert "1 later blocks" in told(0).protected_by and told(1).protected_by == ""
    assert told(2).rule == "idle" and told(1).rank == told(1).terms["idle_steps"] == 1.0
    assert told(2).rank == 0.0 and told(2).terms["touches"] == 1.0
    assert told(2).destination == "spill"
    assert told(9).rule == "" and told(9).terms == {}
    lease = driver.acquire([2])
    assert "1 leases" in told(2).protected_by
    driver.release(lease)
    driver.step(m.OpenSequence(SESSION, "s", ids_of([2])))
    assert "1 running sequences" in told(2).protected_by
    driver.step(m.CloseSequence(SESSION, "s"))
    driver.step(m.Evict(ids_of([2]), m.Tier.SPILL))
    assert "being copied" in told(2).protected_by
    driver.carry_out()
    driver.step(m.Readmit(ids_of([2])))
    driver.carry_out()
    assert told(2).destination == "dropped (spill holds it)"
    driver.step(m.SpillState(up=False))
    assert told(1).destination == "kept (spill is down)"


def test_occupancy_counts_what_moves() -> None:
    """Stored, demoted, promoted, evicted and failed moves are counted once each, where they happened."""
    driver = Driver(host=2, spill=8)
    driver.put([0])
    driver.put([1])
    driver.reserve(ids_of([2]))
    driver.carry_out(ok=False)
    driver.reserve(ids_of([2]))
    driver.carry_out()
    driver.put([2])
    driver.step(m.Evict(ids_of([1]), m.Tier.SPILL))
    driver.carry_out()
    driver.step(m.Readmit(ids_of([0])))
    driver.carry_out()
    host, spill = occupancy(driver).tiers
    assert (host.stored_total, host.demoted_total, host.evicted_total, host.failed_moves_total) == (3, 2, 1, 1)
    assert (host.promoted_total, host.blocks, host.evictable_blocks, spill.blocks) == (1, 2, 2, 2)
    assert host.free_bytes == 0 and spill.free_bytes == 6 * BLOCK and spill.capacity_bytes == 8 * BLOCK
    assert occupancy(driver).moves_in_flight == 0


def test_a_session_holds_no_more_than_it_may() -> None:
    """max_held counts leases and reservations together; a refused call changes nothing."""
    driver = Driver(host=8, max_held=3)
    driver.put([0, 1])
    lease = driver.acquire([0, 1])
    with pytest.raises(LimitReached, match="max_held"):
        driver.reserve(ids_of([5, 6]))
    with pytest.raises(LimitReached, match="max_held"):
        driver.acquire([0, 1])
    assert driver.reserve(ids_of([5])).outcomes.tolist() == [m.Reserved.GRANTED]
    driver.release(lease)
    assert driver.acquire([0, 1]).outcomes.tolist() == [m.Acquired.LEASED] * 2


def test_latecomers_are_a_heap_also_after_a_compaction() -> None:
    """Dropping stale latecomers leaves the first of the rest at the top."""
    driver = Driver(host=8)
    driver.put(range(7))
    catalog = driver.engine.state.catalog
    rows = VictimRows(catalog, np.zeros(catalog.capacity, np.int32), leaf_only=False)
    every = np.arange(7)
    tokens = rows.renew(every)
    found = _ClassList()
    for place, row in zip((1, 5, 2, 6, 7, 3, 4), range(7), strict=True):
        found.late.append(((place, 0, b""), row, int(tokens[row])))
    rows.discard(np.array([0]))
    found.compact(rows)
    assert found.late[0][0][0] == 2 and len(found.late) == 6
