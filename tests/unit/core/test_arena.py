"""The allocator of slots: what it hands out never overlaps, and one class makes way for another."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
from engine_driver import BLOCK, SESSION, Driver, ids_of

from tierd.core import messages as m
from tierd.core.arena import Arena
from tierd.core.engine import Tables

MIB = 1 << 20
SIZES = (4096, 12_288, MIB, 3 * MIB, 5 * MIB)


@pytest.mark.parametrize("seed", range(30))
def test_slots_never_overlap_and_add_up(seed: int) -> None:
    """Whatever is taken and freed in classes that crowd each other out, slots are disjoint, free and taken
    bytes are the capacity, and when all is free the largest class can be served."""
    random_ = random.Random(seed)
    arena = Arena([(1, random_.randrange(5, 40) * MIB), (2, random_.randrange(1, 20) * MIB)])
    taken: dict[int, int] = {}
    for _ in range(100):
        size = random_.choice(SIZES)
        if random_.random() < 0.5:
            taken |= dict.fromkeys(arena.allocate(size, random_.randrange(1, 40)), size)
        else:
            mine = [address for address, of in taken.items() if of == size]
            gone = random_.sample(mine, random_.randrange(len(mine) + 1))
            arena.free(size, gone)
            taken = {address: of for address, of in taken.items() if address not in gone}
        assert all(arena.contains(address, of) for address, of in taken.items())
        assert all(address + of <= after for (address, of), (after, _) in pairwise(sorted(taken.items())))
        assert arena.free_bytes + sum(taken.values()) == arena.capacity
    for address, of in taken.items():
        arena.free(of, [address])
    assert arena.allocate(5 * MIB, 1)


@pytest.mark.parametrize("restarts", [0, 1])
def test_another_size_takes_one_extent_also_after_a_restart(restarts: int) -> None:
    """The first block of another size costs the blocks of one extent and at most an eighth more, whether or not the
    daemon was restarted over a full tier."""
    tables = Tables.private(2048)
    driver = Driver(2048, tables=tables)
    driver.step(m.OpenSession(SESSION))
    for first in range(0, 2048, 256):
        driver.put(range(first, first + 256))
    for _ in range(restarts):
        driver = Driver(2048, tables=tables)
        driver.step(m.OpenSession(SESSION))
    reply = driver.step(m.Reserve(SESSION, ids_of([9999]), 2 * BLOCK))
    assert reply.outcomes.tolist() == [m.Reserved.GRANTED]
    assert 7 * 128 <= len(driver.engine.state.catalog) - 1 <= 1024


def test_a_large_request_of_large_blocks_is_not_one_extent() -> None:
    """Slots above the size of an extent come back one by one, though one request took many of them."""
    arena = Arena([(1, 64 * MIB)])
    slots = arena.allocate(8 * MIB, 8)
    assert slots == sorted(slots), "neighbours lie in order"
    arena.free(8 * MIB, slots[3:4])
    assert len(arena.allocate(4 * MIB, 3)) == 2


def test_a_large_block_among_small_ones_is_not_sought_after_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """When one block needs the room of many, more go each time: the search for empty extents does not come to
    the square of the tier."""
    driver = Driver(2048, rows=2100)
    for first in range(0, 2048, 128):
        driver.put(range(first, first + 128))
    for number in (0, 1024):
        driver.release(driver.acquire([number]))
    calls: list[int] = []
    allocate = Arena.allocate

    def counted(arena: Arena, size: int, count: int) -> list[int]:
        calls.append(size)
        return allocate(arena, size, count)

    monkeypatch.setattr(Arena, "allocate", counted)
    reply = driver.step(m.Reserve(SESSION, ids_of([9999]), 1024 * BLOCK))
    assert reply.outcomes.tolist() == [m.Reserved.GRANTED]
    assert len(calls) < 80


def test_what_was_freed_last_is_taken_back() -> None:
    """Of slots that were freed just now those that are free still are taken out again, and no others."""
    arena = Arena([(1, MIB)])
    first, second, third = arena.allocate(4096, 3)
    arena.free(4096, [first])
    arena.free(4096, [third])
    assert arena.take_back(4096, [second, third]) == [third]
    assert arena.take_back(4096, [third]) == []
    assert arena.allocate(4096, 1) == [first]
