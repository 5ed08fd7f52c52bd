"""Slots of exact sizes in segments.

A size class takes extents, runs of slots, out of a segment's free ranges, and gives an empty extent back
when another class needs the room. A slot never crosses a segment.

Address: segment id in the upper 16 bits, byte offset in the lower 48.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Iterable, Sequence

from tierd_client.format import PAGE_BYTES

SEGMENT_SHIFT = 48
EXTENT_BYTES = 4 << 20
"""A class takes about so much at a time: little enough to be given back, enough to be rare."""


def slot_bytes(size: int) -> int:
    """Bytes of the slot that holds a block of `size` bytes: rounded up to whole pages."""
    return (size + PAGE_BYTES - 1) // PAGE_BYTES * PAGE_BYTES


class Arena:
    """Allocator over segments `(id, bytes)`. Sizes are slot sizes, multiples of the page size."""

    def __init__(self, segments: Iterable[tuple[int, int]]) -> None:
        self.segments = dict(segments)
        self.capacity = sum(self.segments.values())
        self._ranges: list[tuple[int, int]] = sorted(
            (segment << SEGMENT_SHIFT, (segment << SEGMENT_SHIFT) + size) for segment, size in self.segments.items()
        )
        self._free: dict[int, list[int]] = {}
        self._extents: list[tuple[int, int, int]] = []

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
            self._extents.append((start, end, size))
        self._extents.sort()

    def contains(self, address: int, size: int) -> bool:
        """Whether a slot of that size may lie there at all."""
        length = self.segments.get(address >> SEGMENT_SHIFT, 0)
        offset = address & ((1 << SEGMENT_SHIFT) - 1)
        return size > 0 and offset % PAGE_BYTES == 0 and offset + size <= length

    def _starts_segment(self, address: int) -> bool:
        return address & ((1 << SEGMENT_SHIFT) - 1) == 0

    def _carve(self, size: int, slots: list[int], wanted: int) -> bool:
        """Takes one extent out of the first free range that has room for a slot."""
        for at, (start, end) in enumerate(self._ranges):
            fits = (end - start) // size
            if fits == 0:
                continue
            count = min(fits, max(1, EXTENT_BYTES // size, min(wanted, 1024)))
            stop = start + count * size
            self._ranges[at : at + 1] = [(stop, end)] if stop < end else []
            insort(self._extents, (start, stop, size))
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
        empty: list[tuple[int, int, int]] = []
        for size, slots in self._free.items():
            if size != wanted and slots:
                empty += self._empty_extents(size, slots)
        for extent in empty:
            self._extents.remove(extent)
            insort(self._ranges, extent[:2])
        self._coalesce()
        return bool(empty)

    def _empty_extents(self, size: int, slots: list[int]) -> list[tuple[int, int, int]]:
        count: dict[tuple[int, int, int], int] = {}
        for address in slots:
            extent = self._extent_of(address)
            count[extent] = count.get(extent, 0) + 1
        empty = [extent for extent, n in count.items() if n * size == extent[1] - extent[0]]
        gone = set(empty)
        slots[:] = [address for address in slots if self._extent_of(address) not in gone]
        return empty

    def _extent_of(self, address: int) -> tuple[int, int, int]:
        return self._extents[bisect_right(self._extents, (address, 1 << 64, 0)) - 1]

    def _coalesce(self) -> None:
        merged: list[tuple[int, int]] = []
        for start, end in self._ranges:
            if merged and merged[-1][1] == start and not self._starts_segment(start):
                merged[-1] = (merged[-1][0], end)
            else:
                merged.append((start, end))
        self._ranges = merged
