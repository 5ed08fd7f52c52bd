"""What an arena keeps of its memory: slots, extents and free ranges add up, also over a restart."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest

from tierd.core.arena import EXTENT_BYTES, Arena
from tierd_client.format import OFFSET_BITS

PAGE = 4096
SIZES = (PAGE, 3 * PAGE, 256 * PAGE, 1500 * PAGE)
FIRST, SECOND = 1 << OFFSET_BITS, 2 << OFFSET_BITS


def check_books(arena: Arena, taken: dict[int, int]) -> None:
    """Ranges and extents lie side by side and fill the segments; each slot lies in an extent of its size."""
    free = {slot: size for size, slots in arena._free.items() for slot in slots}
    assert not free.keys() & taken.keys()
    parts = sorted([*arena._ranges, *((start, stop) for start, stop, _ in arena._extents)])
    assert all(start < stop for start, stop in parts)
    assert all(stop <= start for (_, stop), (start, _) in pairwise(parts))
    assert sum(stop - start for start, stop in parts) == arena.capacity
    for start, stop, size in arena._extents:
        assert (stop - start) % size == 0
        for slot in range(start, stop, size):
            assert (free | taken).get(slot) == size
    assert sum(len(range(*extent)) for extent in arena._extents) == len(free) + len(taken)
    assert arena.free_bytes == arena.capacity - sum(taken.values())


@pytest.mark.parametrize("seed", range(20))
def test_books_add_up(seed: int) -> None:
    """After any takings and givings back, and after a restart over any of them, the books add up."""
    draw = random.Random(seed)
    segments = [(1, draw.randrange(1, 20) * EXTENT_BYTES), (2, draw.randrange(1, 6000) * PAGE)]
    arena, taken = Arena(segments), dict[int, int]()
    for _ in range(60):
        size = draw.choice(SIZES)
        if draw.random() < 0.55:
            got = arena.allocate(size, draw.randint(1, 30))
            assert not taken.keys() & set(got)
            taken |= dict.fromkeys(got, size)
        else:
            mine = sorted(address for address, of in taken.items() if of == size)
            gone = draw.sample(mine, draw.randint(0, len(mine)))
            arena.free(size, gone)
            taken = {address: of for address, of in taken.items() if address not in gone}
        if draw.random() < 0.1:
            arena = Arena(segments)
            arena.claim(sorted(taken.items()))
        check_books(arena, taken)
    for address, size in taken.items():
        arena.free(size, [address])
    assert len(arena.allocate(PAGE, arena.capacity // PAGE)) == arena.capacity // PAGE


def test_no_slot_crosses_two_segments() -> None:
    """Segments that follow each other in address are not one range, nor are claimed slots at their border."""
    arena = Arena([(1, 1 << OFFSET_BITS), (2, 4 * PAGE)])
    last = SECOND - PAGE
    arena.claim([(last, PAGE), (SECOND, PAGE)])
    assert sorted(extent[:2] for extent in arena._extents) == [(last, SECOND), (SECOND, SECOND + PAGE)]


@pytest.mark.parametrize(
    ("address", "size", "inside"),
    [
        (FIRST, PAGE, True),
        (FIRST, 8 * PAGE, True),
        (FIRST + 7 * PAGE, PAGE, True),
        (FIRST + 7 * PAGE, 2 * PAGE, False),
        (FIRST + 8 * PAGE, PAGE, False),
        (FIRST + 1, PAGE, False),
        (FIRST, 0, False),
        (SECOND, PAGE, False),
        (0, PAGE, False),
    ],
)
def test_where_a_slot_may_lie(address: int, size: int, inside: bool) -> None:
    """A slot starts at a page and ends within its segment."""
    assert Arena([(1, 8 * PAGE)]).contains(address, size) == inside


def test_slots_come_in_order() -> None:
    """A fresh arena hands out consecutive slots, the lowest first, and no more than there are."""
    arena = Arena([(1, 8 * PAGE)])
    assert arena.allocate(PAGE, 3) == [FIRST, FIRST + PAGE, FIRST + 2 * PAGE]
    assert len(arena.allocate(2 * PAGE, 9)) == 0
    assert len(arena.allocate(PAGE, 9)) == 5
    assert arena.largest_slot() == 8 * PAGE
