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
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tierd_client.format import (
    BUCKET_EMPTY,
    IDENTITY_BYTES,
    OFFSET_BITS,
    OFFSET_MASK,
    STATE_READY,
    TIERS,
    WORD_REACH,
    WORD_SALT,
    BoolArray,
    I64Array,
    Table,
    U8Array,
    U64Array,
    find_rows,
    same_identity,
    words_of,
)

HBM_PLANE, HOST_PLANE = 0, 1
MAPPABLE_PLANES = (HOST_PLANE, HBM_PLANE)
"""Planes of the tiers that have addresses, in the order in which they are read."""
FASTEST_FIRST = (HBM_PLANE, HOST_PLANE)

_MASK_64 = (1 << 64) - 1
_words_0_1 = struct.Struct("<QQ").unpack_from
_identity_at = struct.Struct(f"{IDENTITY_BYTES}s").unpack_from

SegmentView = Callable[[int], U8Array | None]
"""All bytes of a segment by its number; None where this process cannot map it."""

Owner = tuple[int, int]
"""Numbers of a namespace and of a group of it."""

Place = tuple[int, int, int, int, int, int]
"""A READY copy as it was found: row, sequence word, generation, address, checksum, plane. A plain tuple, made for
each block that is read."""
CHECKSUM, PLANE = 4, 5
"""Where these are in a Place."""


@dataclass(frozen=True, slots=True)
class PlaceColumns:
    """The same of several blocks in one tier, by columns. `known`: there is a row; `found`: there is a READY
    copy, and only then do the other columns mean anything."""

    known: BoolArray
    found: BoolArray
    rows: I64Array
    sequence: NDArray[np.uint32]
    generation: U64Array
    address: U64Array
    plane: int


class CatalogReader:
    """Finds and reads blocks by the catalog of one domain. Thread-safe: it keeps nothing of a read.

    Scalar reads go through memoryviews cast to words: several times faster than numpy scalars (measured).
    """

    def __init__(self, table: Table) -> None:
        self._table = table
        self._identity_words = table["identity"].view("<u8")
        self._words = _memory(table.words)
        self._salt = int(table.words[WORD_SALT])
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
        self._columns = [(table["generation"][p], table["address"][p], table["state"][p]) for p in range(TIERS)]
        self._mask = len(self._index) - 1
        self._probes = range(len(self._index))

    def find(self, identity: bytes) -> tuple[int, int]:
        """The row of an identity and its sequence word, noted before the row was looked at. (-1, 0): it has none,
        or it could not be found because the index moves."""
        index, rows, mask, sequences = self._index, len(self._sequence), self._mask, self._sequence
        word0, word1 = _words_0_1(identity)
        mixed = ((word0 ^ self._salt) * 0x9E3779B97F4A7C15 + word1) & _MASK_64
        bucket = (mixed ^ (mixed >> 29)) & mask
        for _ in self._probes:
            entry = index[bucket]
            if entry == BUCKET_EMPTY:
                break
            if entry <= rows:  # no tombstone
                row = entry - 1
                sequence = sequences[row]
                if _identity_at(self._identity, row * IDENTITY_BYTES) == (identity,):
                    return row, sequence
            bucket = (bucket + 1) & mask
        return -1, 0

    def place(self, identity: bytes, size: int, owner: Owner | None = None) -> Place | None:
        """Where a block of `size` bytes can be read; None: it is absent, changing, of another size or owner."""
        row, sequence = self.find(identity)
        if row < 0 or sequence & 1 or self._size[row] != size:
            return None
        if owner is not None and (self._namespace[row] != owner[0] or self._group[row] != owner[1]):
            return None
        for plane in MAPPABLE_PLANES:
            state, address, generation = self._planes[plane]
            if state[row] == STATE_READY:
                return row, sequence, generation[row], address[row], self._checksum[row], plane
        return None

    def places(self, packed: bytes, size: int, owner: Owner | None = None, plane: int = HOST_PLANE) -> PlaceColumns:
        """`place` of several identities, of those that are in one tier."""
        words = np.frombuffer(packed, "<u8").reshape(-1, IDENTITY_BYTES // 8)
        rows, sequence, known = self._known(words, owner)
        generation, address, state = (column.take(rows, mode="clip") for column in self._columns[plane])
        found = known & (sequence & _ONE == 0)
        found &= self._table["size"].take(rows, mode="clip") == size
        found &= state == STATE_READY
        return PlaceColumns(known, found, rows, sequence, generation, address, plane)

    def still_there(self, places: PlaceColumns, chosen: I64Array) -> BoolArray:
        """Whether nothing has changed of copies since they were found: what was read there is of their blocks."""
        rows = places.rows.take(chosen)
        same: BoolArray = self._table["sequence"].take(rows) == places.sequence.take(chosen)
        same &= self._columns[places.plane][0].take(rows) == places.generation.take(chosen)
        return same

    def still_ready(self, places: PlaceColumns, chosen: I64Array) -> BoolArray:
        """The same, and whether they are READY: a daemon that starts ends copies before it moves sequence words."""
        state = self._columns[places.plane][2].take(places.rows.take(chosen))
        same = self.still_there(places, chosen)
        same &= state == STATE_READY
        return same

    def checksums(self, places: PlaceColumns, chosen: I64Array) -> U64Array:
        """Of blocks that were found; right if they are still there afterwards."""
        checksums: U64Array = self._table["checksum"].take(places.rows.take(chosen))
        return checksums

    def copy(self, place: Place, out: U8Array, view_of_segment: SegmentView) -> bool:
        """Copies a block out. False: its segment is not mapped, or it changed; `out` may hold anything."""
        row, sequence, generation, address, _, plane = place
        slot = slot_of(address, out.size, view_of_segment)
        if slot is None:
            return False
        out[...] = slot
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
        rows, sequence, sound = self._known(words_of(ids), owner)
        if 1 not in sound.tobytes():
            return np.zeros(len(rows), np.uint8)
        bits = _ready_bits(self._table["state"], rows)
        sound &= sequence & _ONE == 0
        sound &= self._table["sequence"].take(rows, mode="clip") == sequence
        bits[~sound] = 0
        return bits & np.uint8(self._words[WORD_REACH])

    def _known(
        self, words: NDArray[np.uint64], owner: Owner | None,
    ) -> tuple[I64Array, NDArray[np.uint32], BoolArray]:
        """Row of each identity (n, 4), out of range where it has none; its sequence word; and whether that row was
        the identity's after the word was noted. Rows are to be taken with mode "clip"."""
        table = self._table
        rows = find_rows(table["index"], self._identity_words, words, self._salt)
        sequence = table["sequence"].take(rows, mode="clip")
        known = same_identity(self._identity_words, rows, words)
        known &= rows >= 0
        if owner is not None:
            known &= table["namespace"].take(rows, mode="clip") == owner[0]
            known &= table["group"].take(rows, mode="clip") == owner[1]
        return rows, sequence, known


_ONE = np.uint32(1)


def slot_of(address: int, size: int, view_of_segment: SegmentView) -> U8Array | None:
    """The bytes of a slot; None where its segment is not mapped, or ends before it does."""
    segment = view_of_segment(address >> OFFSET_BITS)
    start = address & OFFSET_MASK
    end = start + size
    return None if segment is None or end > segment.size else segment[start:end]


def _ready_bits(state: NDArray[np.uint8], rows: NDArray[np.int64]) -> U8Array:
    bits = np.zeros(len(rows), np.uint8)
    for plane in range(TIERS):
        bits |= (state[plane].take(rows, mode="clip") == STATE_READY).view(np.uint8) << np.uint8(plane)
    return bits


def _memory(column: NDArray[Any]) -> memoryview:
    return memoryview(column)  # type: ignore[arg-type]
