"""Slots of exact sizes in segments.

A size class takes extents, runs of slots, out of a segment's free ranges, and gives an empty extent back
when another class needs the room. A slot never crosses a segment.

Address: segment id in the upper 16 bits, byte offset in the lower 48.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from tierd.core.arrays import constant
from tierd_client.format import OFFSET_BITS, OFFSET_MASK, PAGE_BYTES, I64Array

EXTENT_BYTES = 4 << 20
"""A class takes about so much at a time: little enough to be given back, enough to be rare."""

_BELOW_A_PAGE = constant(PAGE_BYTES - 1, np.int64)


def slot_bytes(size: int) -> int:
    """Bytes of the slot that holds a block of `size` bytes: rounded up to whole pages."""
    return (size + PAGE_BYTES - 1) // PAGE_BYTES * PAGE_BYTES


def slots_of(sizes: NDArray[np.uint32]) -> I64Array:
    """`slot_bytes` of each size."""
    slots: I64Array = (sizes.astype(np.int64) + _BELOW_A_PAGE) & ~_BELOW_A_PAGE
    return slots


def overlaps(slots: Sequence[tuple[int, int]], address: int, size: int) -> bool:
    """Whether a range touches one of these slots `(address, bytes)`, which are sorted."""
    at = bisect_right(slots, (address, 1 << 64))
    before = at > 0 and slots[at - 1][0] + slots[at - 1][1] > address
    return before or (at < len(slots) and slots[at][0] < address + size)


class Arena:
    """Allocator over segments `(id, bytes)`. Sizes are slot sizes, multiples of the page size."""

    def __init__(self, segments: Iterable[tuple[int, int]]) -> None:
        self.segments = dict(segments)
        self.capacity = sum(self.segments.values())
        self._ranges: list[tuple[int, int]] = sorted(
            (segment << OFFSET_BITS, (segment << OFFSET_BITS) + size) for segment, size in self.segments.items()
        )
        self._free: dict[int, list[int]] = {}
        self._extents: list[tuple[int, int, int]] = []
        """(start, end, slot size), sorted."""
        self._freed: set[int] = set()
        """Classes in which an extent may have become empty since `_reclaim` looked."""

    @property
    def free_bytes(self) -> int:
        ranges = sum(end - start for start, end in self._ranges)
        return ranges + sum(size * len(slots) for size, slots in self._free.items())

    def largest_slot(self) -> int:
        """Bytes of the largest block that could ever fit."""
        return max(self.segments.values(), default=0)

    def allocate(self, size: int, count: int) -> list[int]:
        """Up to `count` slots of `size` bytes; fewer when that is all there is."""
        slots = self._free.setdefault(size, [])
        while len(slots) < count and self._carve(size, slots, count - len(slots)):
            pass
        if len(slots) < count and self._reclaim(size):
            while len(slots) < count and self._carve(size, slots, count - len(slots)):
                pass
        first = max(0, len(slots) - count)
        taken = slots[first:]
        del slots[first:]
        return taken[::-1]

    def free(self, size: int, addresses: Sequence[int]) -> None:
        self._free.setdefault(size, []).extend(addresses)
        self._freed.add(size)

    def take_back(self, size: int, addresses: Sequence[int]) -> list[int]:
        """Takes those of these slots that were freed last, and no other since."""
        wanted, slots, taken = set(addresses), self._free.get(size, []), list[int]()
        while slots and slots[-1] in wanted:
            taken.append(slots.pop())
        return taken

    def claim(self, slots: Sequence[tuple[int, int]]) -> None:
        """Takes slots `(address, size)`, sorted and not overlapping, out of a fresh arena (restart)."""
        runs: list[list[int]] = []
        for address, size in slots:
            if runs and runs[-1][1] == address and runs[-1][2] == size and not self._starts_segment(address):
                runs[-1][1] = address + size
            else:
                runs.append([address, address + size, size])
        for start, end, size in runs:
            self._cut(start, end)
            self._extents += _extents(start, end, size)
        self._extents.sort()

    def contains(self, address: int, size: int) -> bool:
        """Whether a slot of that size may lie there at all."""
        length = self.segments.get(address >> OFFSET_BITS, 0)
        offset = address & OFFSET_MASK
        return size > 0 and offset % PAGE_BYTES == 0 and offset + size <= length

    def _starts_segment(self, address: int) -> bool:
        return address & OFFSET_MASK == 0

    def _carve(self, size: int, slots: list[int], wanted: int) -> bool:
        """Takes extents out of the first free range that has room for a slot."""
        for at, (start, end) in enumerate(self._ranges):
            fits = (end - start) // size
            if fits == 0:
                continue
            some = _slots_of_extent(size)
            stop = start + min(fits, -(-wanted // some) * some) * size
            self._ranges[at : at + 1] = [(stop, end)] if stop < end else []
            for extent in _extents(start, stop, size):
                insort(self._extents, extent)
            slots.extend(range(stop - size, start - 1, -size))
            return True
        return False

    def _cut(self, start: int, end: int) -> None:
        at = bisect_right(self._ranges, (start, 1 << 64)) - 1
        low, high = self._ranges[at]
        assert low <= start and end <= high, "claimed slots lie in free ranges"
        pieces = [(low, start), (end, high)]
        self._ranges[at : at + 1] = [piece for piece in pieces if piece[0] < piece[1]]

    def _reclaim(self, wanted: int) -> bool:
        """Gives back every extent of other classes that is empty. True when there was one."""
        others = [size for size in self._freed if size != wanted]
        self._freed.difference_update(others)
        empty = {extent for size in others for extent in self._take_empty(size)}
        if not empty:
            return False
        self._extents = [extent for extent in self._extents if extent not in empty]
        self._ranges = sorted([*self._ranges, *(extent[:2] for extent in empty)])
        self._coalesce()
        return True

    def _take_empty(self, size: int) -> list[tuple[int, int, int]]:
        """Extents of a class of which every slot is free; their slots are no longer counted as free."""
        slots = np.array(self._free[size], np.uint64)
        mine = [extent for extent in self._extents if extent[2] == size]
        extent_of = np.searchsorted(np.array([start for start, _, _ in mine], np.uint64), slots, "right") - 1
        free = np.bincount(extent_of, minlength=len(mine)).tolist()
        full = [(end - start) // size for start, end, _ in mine]
        empty = np.array([n == most for n, most in zip(free, full, strict=True)], bool)
        if empty.any():
            self._free[size] = slots[~empty[extent_of]].tolist()
        return [mine[at] for at in np.flatnonzero(empty).tolist()]

    def _coalesce(self) -> None:
        merged: list[tuple[int, int]] = []
        for start, end in self._ranges:
            if merged and merged[-1][1] == start and not self._starts_segment(start):
                merged[-1] = (merged[-1][0], end)
            else:
                merged.append((start, end))
        self._ranges = merged


def _slots_of_extent(size: int) -> int:
    return max(1, EXTENT_BYTES // size)


def _extents(start: int, end: int, size: int) -> list[tuple[int, int, int]]:
    """A run of slots, cut into extents."""
    step = _slots_of_extent(size) * size
    return [(at, min(at + step, end), size) for at in range(start, end, step)]
