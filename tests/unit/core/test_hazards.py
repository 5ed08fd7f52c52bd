"""Slots that clients look at without asking: they are not handed out, whenever they are named."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from engine_driver import BLOCK, SESSION, Driver, ids_of

from tierd.core import messages as m
from tierd.core.hazards import Hazards
from tierd.core.tables import Tables
from tierd_client.format import HAZARD_PAGE_BYTES, I64Array, U64Array
from tierd_client.hazards import HazardPage

HOST = m.Tier.HOST


class Reader:
    """A session's page, and the engine that reads it. `steps`: what happens at each reading of the pages."""

    def __init__(self) -> None:
        words = np.zeros(HAZARD_PAGE_BYTES, np.uint8)
        self.page = HazardPage(words)
        self.words: U64Array = words.view("<u8").reshape(-1, 2)
        self.steps: list[Callable[[], object]] = []

    def barrier(self) -> None:
        if self.steps:
            self.steps.pop(0)()

    def driver(self, host: int, **options: object) -> Driver:
        driver = Driver(host, looked_at=Hazards(barrier=self.barrier), **options)
        driver.step(m.OpenPage(SESSION, self.words))
        return driver

    def restarted(self, tables: Tables, host: int) -> Driver:
        """The next boot, which finds the session alive."""
        looked_at = Hazards({SESSION: self.words}, self.barrier)
        return Driver(host, tables=tables, survivors=frozenset({SESSION}), looked_at=looked_at)

    def name(self, driver: Driver, number: int) -> I64Array:
        """Publishes the slot that a block has in host."""
        row = int(driver.engine.state.catalog.find(ids_of([number]).ids)[0])
        address = driver.engine.state.tiers[HOST].copies.address[[row]]
        entries = self.page.publish(address, np.array([row]), BLOCK)
        assert entries is not None
        return entries


def occupancy(driver: Driver) -> m.TierOccupancy:
    reply = driver.step(m.Occupancy())
    assert isinstance(reply, m.OccupancyReply)
    return reply.tiers[-1]


@pytest.fixture
def reader() -> Reader:
    return Reader()


def test_what_is_looked_at_is_no_victim(reader: Reader) -> None:
    """A block that a page names stays, whatever its rank, and nobody's word drops it; when it is named no more it
    goes in its turn."""
    driver = reader.driver(4)
    driver.put([0, 1, 2, 3])
    entries = reader.name(driver, 0)
    driver.put([4, 5])
    assert driver.present() == [0, 3, 4, 5]
    drop = m.Evict(ids_of([0]), None, allow_drop=True)
    assert driver.step(drop).outcomes.tolist() == [m.Evicted.IN_USE]
    assert occupancy(driver).leased_blocks == 1
    reader.page.withdraw(entries)
    driver.put([6])
    assert driver.present() == [3, 4, 5, 6]
    assert occupancy(driver).leased_blocks == 0


def test_a_slot_that_is_named_while_its_block_goes_stays_aside(reader: Reader) -> None:
    """A client that publishes a slot after the engine looked which blocks are in use, and before it looks which of
    the slots that became free are named, keeps that slot from all others until it withdraws it."""
    driver = reader.driver(4)
    driver.put([0, 1, 2, 3])
    slot = int(driver.engine.state.tiers[HOST].copies.address[driver.engine.state.catalog.find(ids_of([0]).ids)[0]])
    named: list[I64Array] = []
    reader.steps = [lambda: None, lambda: named.append(reader.name(driver, 0))]
    drop = m.Evict(ids_of([0]), None, allow_drop=True)
    assert driver.step(drop).outcomes.tolist() == [m.Evicted.DROPPED]
    assert (occupancy(driver).quarantined_bytes, occupancy(driver).free_bytes) == (BLOCK, 0)
    for number in range(4, 16):
        driver.put([number])
        given = driver.engine.state.tiers[HOST].copies
        assert slot not in given.address[given.state != 0].tolist()
    reader.page.withdraw(named[0])
    assert (occupancy(driver).quarantined_bytes, occupancy(driver).free_bytes) == (0, BLOCK)


@pytest.mark.parametrize("settled", [True, False], ids=["dead", "alive"])
def test_the_end_of_a_session_ends_what_it_looks_at_once_its_process_is_gone(reader: Reader, settled: bool) -> None:
    """What a session names is free when its process is dead or has said so, and not before."""
    driver = reader.driver(2)
    driver.put([0, 1])
    reader.name(driver, 0)
    reader.steps = [lambda: None, lambda: reader.name(driver, 1)]
    driver.step(m.Evict(ids_of([1]), None, allow_drop=True))
    driver.step(m.EndSession(SESSION, settled))
    assert occupancy(driver).quarantined_bytes == (0 if settled else BLOCK)
    assert occupancy(driver).leased_blocks == (0 if settled else 1)
    assert len(driver.engine.orphans()) == (0 if settled else 1)
    driver.step(m.EndSession(SESSION, settled=True))
    assert occupancy(driver).free_bytes == BLOCK
    assert not driver.engine.orphans()


def test_slots_stay_aside_over_restarts(reader: Reader) -> None:
    """The next daemon keeps what pages of living sessions name: the block where it is there, the bare slot where it
    had gone; both until they are named no more."""
    driver = reader.driver(4)
    driver.put([0, 1, 2, 3])
    entries = [reader.name(driver, 0)]
    reader.steps = [lambda: None, lambda: entries.append(reader.name(driver, 1))]
    driver.step(m.Evict(ids_of([1]), None, allow_drop=True))
    slot = reader.words[2, 0]
    driver = reader.restarted(driver.tables, 4)
    assert (occupancy(driver).quarantined_bytes, occupancy(driver).leased_blocks) == (BLOCK, 1)
    driver.step(m.OpenSession(SESSION + 1))
    for number in range(10, 20):
        reply = driver.step(m.Reserve(SESSION + 1, ids_of([number]), BLOCK))
        assert slot not in reply.addresses.tolist()
        driver.step(m.Abort(SESSION + 1, ids_of([number]).ids, reply.generations))
    for each in entries:
        reader.page.withdraw(each)
    assert (occupancy(driver).quarantined_bytes, occupancy(driver).leased_blocks) == (0, 0)


def test_a_restart_without_the_session_frees_what_it_named(reader: Reader) -> None:
    """Of a process that ended while no daemon ran nothing stays out of use."""
    driver = reader.driver(4)
    driver.put([0, 1])
    reader.name(driver, 0)
    driver = Driver(4, tables=driver.tables)
    assert (occupancy(driver).quarantined_bytes, occupancy(driver).leased_blocks) == (0, 0)


def test_overlapping_ranges_of_an_earlier_boot_are_free_together(reader: Reader) -> None:
    """Where a page names a slot and, by a look at an older record, a larger one over it, no byte of either is
    handed out by the next daemon before both are withdrawn."""
    driver = reader.driver(8)
    first = 1 << 48
    stale = reader.page.publish(np.array([first], np.uint64), np.array([0]), 2 * BLOCK)
    valid = reader.page.publish(np.array([first + BLOCK], np.uint64), np.array([1]), BLOCK)
    assert stale is not None and valid is not None
    driver = reader.restarted(driver.tables, 8)
    assert occupancy(driver).quarantined_bytes == 2 * BLOCK
    reader.page.withdraw(stale)
    assert occupancy(driver).quarantined_bytes == 2 * BLOCK
    reader.page.withdraw(valid)
    assert occupancy(driver).free_bytes == 8 * BLOCK


@pytest.mark.parametrize("seed", range(8))
def test_nonsense_in_a_page_costs_room_at_most(reader: Reader, seed: int) -> None:
    """Whatever a client writes into its page, the engine goes on, also over a restart; and with the session's end
    all of it is forgotten."""
    random = np.random.default_rng(seed)
    driver = reader.driver(16)
    for number in range(40):
        words = random.integers(0, 1 << 63, reader.words.shape, np.uint64)
        plausible = random.random(len(words)) < 0.5
        words[plausible, 0] = (1 << 48) + random.integers(0, 16, plausible.sum(), np.uint64) * np.uint64(BLOCK)
        words[plausible, 1] %= np.uint64(1 << 40)
        reader.words[:] = words
        driver.put([number])
        driver.step(m.Evict(ids_of([max(0, number - 3)]), None, allow_drop=True))
    driver = reader.restarted(driver.tables, 16)
    driver.step(m.EndSession(SESSION, settled=True))
    left = occupancy(driver)
    assert (left.quarantined_bytes, left.leased_blocks) == (0, 0)
