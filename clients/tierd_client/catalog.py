"""Reading the catalog in shared memory without asking the daemon (docs/format.md, section 2).

The reader is optimistic: it notes a record's sequence word, its generation and address, uses them, and
checks all again. A difference means that the daemon changed the record meanwhile: whatever was read is
thrown away and the daemon is asked. It writes nothing, so it can neither pin nor wait.

Fields are read in program order through views of aligned words; that order is kept by x86-64 stores and
loads and by the interpreter's own work between two reads.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tierd_client.format import (
    BUCKET_EMPTY,
    BUCKET_TOMBSTONE,
    IDENTITY_BYTES,
    OFFSET_BITS,
    OFFSET_MASK,
    STATE_READY,
    TIERS,
    WORD_INDEX_EPOCH,
    WORD_REACH,
    WORD_SALT,
    BoolArray,
    I64Array,
    Table,
    U8Array,
    find_rows,
    same_identity,
    words_of,
)

HBM_PLANE, HOST_PLANE = 0, 1
MAPPABLE_PLANES = (HBM_PLANE, HOST_PLANE)
"""Planes of the tiers that have addresses."""

VECTOR_MIN = 4
"""From so many identities on they are found all at once."""

_MASK_64 = (1 << 64) - 1
_words_0_1 = struct.Struct("<QQ").unpack_from

SegmentView = Callable[[int], U8Array | None]
"""All bytes of a segment by its number; None where this process cannot map it."""

Owner = tuple[int, int]
"""Numbers of a namespace and of a group of it."""

Place = tuple[int, int, int, int, int, int]
"""A READY copy as it was found: row, sequence word, plane, generation, address, checksum. A plain tuple, made for
each block that is read."""
PLANE, CHECKSUM = 2, 5
"""Where these are in a Place."""


class CatalogReader:
    """Finds and reads blocks by the catalog of one domain. Thread-safe: it keeps nothing of a read.

    Scalar reads go through memoryviews cast to words: several times faster than numpy scalars (measured).
    """

    def __init__(self, table: Table) -> None:
        self._table = table
        self._identity_words = table["identity"].view("<u8")
        self._words = _memory(table.words)
        self._index = _memory(table["index"])
        self._identity = _memory(table["identity"].reshape(-1))
        self._sequence = _memory(table["sequence"])
        self._namespace = _memory(table["namespace"])
        self._group = _memory(table["group"])
        self._size = _memory(table["size"])
        self._checksum = _memory(table["checksum"])
        self._planes = [
            tuple(_memory(table[name][plane]) for name in ("state", "address", "generation"))
            for plane in range(TIERS)
        ]
        self._generations = [plane[2] for plane in self._planes]
        self._mask = len(self._index) - 1

    def find(self, identity: bytes) -> int:
        """The row of an identity; -1 when it has none, or when the index moved during the probe."""
        words, index, mask, identities = self._words, self._index, self._mask, self._identity
        epoch = words[WORD_INDEX_EPOCH]
        if epoch & 1:
            return -1
        word0, word1 = _words_0_1(identity)
        mixed = ((word0 ^ words[WORD_SALT]) * 0x9E3779B97F4A7C15 + word1) & _MASK_64
        bucket = (mixed ^ (mixed >> 29)) & mask
        for _ in range(mask + 1):
            entry = index[bucket]
            if entry == BUCKET_EMPTY:
                return -1
            if entry != BUCKET_TOMBSTONE:
                end = entry * IDENTITY_BYTES
                if identities[end - IDENTITY_BYTES : end] == identity:
                    return entry - 1 if words[WORD_INDEX_EPOCH] == epoch else -1
            bucket = (bucket + 1) & mask
        return -1

    def place(self, identity: bytes, size: int, owner: Owner | None = None) -> Place | None:
        """Where a block of `size` bytes can be read; None: it is absent, changing, of another size or owner."""
        row = self.find(identity)
        if row < 0:
            return None
        sequence = self._sequence[row]
        start = row * IDENTITY_BYTES
        if sequence & 1 or self._size[row] != size or self._identity[start : start + IDENTITY_BYTES] != identity:
            return None
        if owner is not None and (self._namespace[row] != owner[0] or self._group[row] != owner[1]):
            return None
        for plane in MAPPABLE_PLANES:
            state, address, generation = self._planes[plane]
            if state[row] == STATE_READY:
                return row, sequence, plane, generation[row], address[row], self._checksum[row]
        return None

    def places(self, packed: bytes, size: int, owner: Owner | None = None) -> list[Place | None]:
        """`place` of each of several identities."""
        count = len(packed) // IDENTITY_BYTES
        if count < VECTOR_MIN:
            starts = range(0, len(packed), IDENTITY_BYTES)
            return [self.place(packed[at : at + IDENTITY_BYTES], size, owner) for at in starts]
        words = np.frombuffer(packed, "<u8").reshape(count, -1)
        table, rows, sequence, sound = self._table, *self._sound(words, owner)
        sound &= table["size"].take(rows) == size
        in_hbm, in_host = (table["state"][plane].take(rows) == STATE_READY for plane in MAPPABLE_PLANES)
        plane = np.where(in_hbm, HBM_PLANE, HOST_PLANE)
        columns = (
            rows, sequence, plane, table["generation"][plane, rows], table["address"][plane, rows],
            table["checksum"].take(rows),
        )
        places: list[Place | None] = list(zip(*(column.tolist() for column in columns), strict=True))
        for missing in np.flatnonzero(~(sound & (in_hbm | in_host))).tolist():
            places[missing] = None
        return places

    def holds(self, place: Place) -> bool:
        """Whether nothing has changed of a copy since it was found: what was read there is of its block."""
        row, sequence, plane, generation, _, _ = place
        return self._sequence[row] == sequence and self._generations[plane][row] == generation

    def copy(self, place: Place, out: U8Array, view_of_segment: SegmentView) -> bool:
        """Copies a block out. False: its segment is not mapped, or it changed; `out` may hold anything."""
        row, sequence, plane, generation, address, _ = place
        segment = view_of_segment(address >> OFFSET_BITS)
        offset = address & OFFSET_MASK
        if segment is None or offset + out.size > segment.size:
            return False
        out[...] = segment[offset : offset + out.size]
        # As `holds`, without another call in the way of who reads many small blocks.
        return self._sequence[row] == sequence and self._generations[plane][row] == generation

    def read_into(
        self, identity: bytes, out: U8Array, view_of_segment: SegmentView, owner: Owner | None = None,
    ) -> bool:
        """Finds a block and copies it out. False: ask; `out` may hold anything then."""
        place = self.place(identity, out.size, owner)
        return place is not None and self.copy(place, out, view_of_segment)

    def lookup(self, ids: U8Array, owner: Owner | None = None) -> U8Array:
        """A bit per tier with a READY copy (1 hbm, 2 host, 4 spill) for each of the packed identities (n, 32).

        What is not known, was just being written, or could not be looked for because the index moved, reads as 0;
        so does the bit of a spill tier that is down.
        """
        rows, sequence, sound = self._sound(words_of(ids), owner)
        bits = _ready_bits(self._table["state"], rows)
        sound &= self._table["sequence"].take(rows) == sequence
        bits[~sound] = 0
        return bits & np.uint8(self._words[WORD_REACH])

    def _sound(
        self, words: NDArray[np.uint64], owner: Owner | None,
    ) -> tuple[I64Array, NDArray[np.uint32], BoolArray]:
        """Row of each identity (n, 4), 0 where it has none; its sequence word; and whether that row is the
        identity's, and whole."""
        table = self._table
        epoch = int(self._words[WORD_INDEX_EPOCH])
        rows = find_rows(table["index"], self._identity_words, words, int(self._words[WORD_SALT]))
        sequence = table["sequence"].take(rows, mode="clip")
        sound = (rows >= 0) & (sequence & np.uint32(1) == 0)
        rows = np.maximum(rows, 0)
        sound &= same_identity(self._identity_words, rows, words)
        if owner is not None:
            sound &= table["namespace"].take(rows) == owner[0]
            sound &= table["group"].take(rows) == owner[1]
        if epoch & 1 or self._words[WORD_INDEX_EPOCH] != epoch:
            sound[:] = False
        return rows, sequence, sound


def _ready_bits(state: NDArray[np.uint8], rows: NDArray[np.int64]) -> U8Array:
    bits = np.zeros(len(rows), np.uint8)
    for plane in range(TIERS):
        bits |= (state[plane].take(rows) == STATE_READY).view(np.uint8) << np.uint8(plane)
    return bits


def _memory(column: NDArray[Any]) -> memoryview:
    return memoryview(column)  # type: ignore[arg-type]
