"""Read-ahead: what follows in a chain comes up from the spill tier before it is asked for, and harms nobody."""

from __future__ import annotations

import pytest
from engine_driver import BLOCK, SESSION, Driver, ids_of

from tierd.core import messages as m

CHAIN = list(range(16))
HOST = 128


def driver_of(host: int = HOST, ahead_blocks: int = 4, chain: list[int] = CHAIN, **settings: object) -> Driver:
    """A chain that lies in the spill tier alone."""
    driver = Driver(host, spill=256, read_ahead_bytes=ahead_blocks * BLOCK, **settings)
    put_below(driver, chain)
    return driver


def put_below(driver: Driver, chain: list[int]) -> None:
    driver.put(chain, chain=True)
    driver.step(m.Evict(ids_of(chain), m.Tier.SPILL))
    driver.carry_out()


def read(driver: Driver, numbers: list[int], *, chain: bool = True) -> m.AcquireReply:
    parent = numbers[0] - 1 if chain and numbers[0] in CHAIN[1:] else None
    first = numbers[0] if chain else 0
    reply = driver.acquire_ids(ids_of(numbers, chain=chain, first=first, parent=parent))
    if reply.lease:
        driver.release(reply)
    return reply


def loading(driver: Driver, *, ahead: bool) -> list[int]:
    """Numbers of the blocks that are being brought up."""
    moves = [move for move in driver.moves if move.target == m.Tier.HOST and move.ahead == ahead]
    return [int.from_bytes(move.identity[:8], "big") - 1 for move in moves]


def counted(driver: Driver) -> tuple[int, int]:
    """Blocks read ahead that were used, and that were not."""
    reply = driver.step(m.Occupancy())
    assert isinstance(reply, m.OccupancyReply)
    return reply.read_ahead_used_total, reply.read_ahead_wasted_total


def test_the_next_blocks_come_up() -> None:
    """With the blocks that a request waits for, those behind them in the chain are loaded as far as the setting
    goes, and a later request finds them ready; each is counted as used once."""
    driver = driver_of()
    read(driver, [0, 1])
    assert (loading(driver, ahead=False), loading(driver, ahead=True)) == ([0, 1], [2, 3, 4, 5])
    driver.carry_out()
    reply = read(driver, [2, 3])
    assert reply.outcomes.tolist() == [m.Acquired.LEASED] * 2
    assert loading(driver, ahead=True) == [6, 7]
    read(driver, [2, 3])
    assert counted(driver) == (2, 0)


def test_what_is_awaited_is_hurried() -> None:
    """A request for a block that is being loaded ahead waits for that load, which is told to be urgent, once."""
    driver = driver_of()
    read(driver, [0])
    reply = read(driver, [1, 2])
    assert reply.outcomes.tolist() == [m.Acquired.PENDING] * 2
    assert sorted(driver.hurried) == [move.op for move in driver.moves if move.position in (1, 2)]
    assert set(reply.waiting) == set(driver.hurried)
    read(driver, [1, 2])
    assert len(driver.hurried) == 2
    assert loading(driver, ahead=False) == [0]


@pytest.mark.parametrize("numbers", [[0, 40], [15], [3, 2]])
def test_nothing_follows(numbers: list[int]) -> None:
    """Behind a block that is not known, the end of a chain, or blocks that are no chain, nothing is loaded."""
    driver = driver_of()
    read(driver, numbers, chain=numbers != [3, 2])
    assert loading(driver, ahead=True) == []


def test_the_branch_that_was_named_last() -> None:
    """Where a chain goes on in two ways the one that a request named last is loaded."""
    driver = driver_of()
    driver.put_ids(ids_of([50, 51], chain=True, first=4, parent=3))
    driver.step(m.Evict(ids_of([50, 51]), m.Tier.SPILL))
    driver.carry_out()
    read(driver, [3])
    assert loading(driver, ahead=True) == [50, 51]
    driver.carry_out()
    driver.step(m.Readmit(ids_of([4], chain=True, first=4, parent=3), m.Tier.HOST))
    driver.carry_out()
    read(driver, [3])
    assert loading(driver, ahead=True) == [5, 6, 7]


def test_off_by_default() -> None:
    """Without the setting nothing is loaded that nobody asked for."""
    driver = driver_of(ahead_blocks=0)
    read(driver, [0])
    assert loading(driver, ahead=True) == []


def test_hot_blocks_stay() -> None:
    """Where no slot is free, only blocks that lie in the spill tier as well and were idle for longer than what is
    evicted as a rule make room for a load ahead; hot ones, and those that lie in memory alone, stay."""
    driver = driver_of(host=32)
    others = list(range(100, 131))
    driver.put(others)
    read(driver, [0])  # takes the last free slot
    assert loading(driver, ahead=True) == []
    driver.carry_out()
    for _ in range(60):
        read(driver, [0])
    assert loading(driver, ahead=True) == []
    driver.step(m.StoreBelow(ids_of(others).ids))
    driver.carry_out()
    read(driver, [0])
    assert loading(driver, ahead=True) == [1, 2, 3, 4]
    assert len(driver.present(m.Tier.HOST, 200)) == 28


def test_what_was_just_read_is_hot() -> None:
    """Blocks that lie in the spill tier too make no room for a load ahead shortly after they were read."""
    driver = driver_of(host=32, spill_write="through")
    driver.put(list(range(100, 131)))
    driver.carry_out()
    read(driver, [0])
    assert loading(driver, ahead=True) == []


def test_what_is_not_read_is_counted() -> None:
    """A block that was loaded ahead and leaves memory unread is wasted, one whose load fails too."""
    driver = driver_of()
    read(driver, [0])
    driver.carry_out()
    driver.step(m.Evict(ids_of([1, 2]), m.Tier.SPILL))
    assert counted(driver) == (0, 2)
    read(driver, [8])
    driver.carry_out(ok=False)
    assert counted(driver) == (0, 6)


def test_bounded_by_moves_and_memory() -> None:
    """Loads ahead take a quarter of the moves at most, and unread blocks a quarter of memory."""
    long = list(range(60))
    few_moves = driver_of(ahead_blocks=50, chain=long, max_moves=16, host=1024)
    read(few_moves, [0])
    assert len(loading(few_moves, ahead=True)) == 4
    small = driver_of(ahead_blocks=50, chain=long, host=64)
    read(small, [0])
    assert len(loading(small, ahead=True)) == 16


def test_none_while_the_store_is_down_or_the_rate_is_used_up() -> None:
    """Nothing is loaded ahead from a store that is down, nor when there is no rate to spare."""
    driver = driver_of()
    driver.step(m.SpillState(up=False))
    read(driver, [0])
    assert not driver.moves
    slow = driver_of(spill_bytes_per_s=1.0)
    read(slow, [0])
    assert (loading(slow, ahead=False), loading(slow, ahead=True)) == ([0], [])


def test_after_a_restart() -> None:
    """The next daemon knows from the records which block follows which."""
    driver = driver_of()
    again = Driver(HOST, spill=256, read_ahead_bytes=2 * BLOCK, tables=driver.tables)
    again.step(m.OpenSession(SESSION))
    read(again, [4])
    assert loading(again, ahead=True) == [5, 6]
