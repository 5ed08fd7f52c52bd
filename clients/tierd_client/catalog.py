"""Reading the catalog in shared memory without asking the daemon (docs/format.md, section 2).

The reader is optimistic: it notes a record's sequence word, its generation and address, uses them, and
checks all again. A difference means that the daemon changed the record meanwhile: whatever was read is
thrown away and the daemon is asked. It writes nothing, so it can neither pin nor wait.

Fields are read in program order through views of aligned words; that order is kept by x86-64 stores and
loads and by the interpreter's own work between two reads.
"""

from __future__ import annotations

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
    WORD_SALT,
    Table,
    U8Array,
    find_rows,
    words_of,
)

MAPPABLE_PLANES = (0, 1)
"""Planes of the tiers that have addresses: hbm, host."""

_MASK_64 = (1 << 64) - 1

SegmentView = Callable[[int], U8Array | None]
"""All bytes of a segment by its number; None where this process cannot map it."""


class CatalogReader:
    """Finds and reads blocks by the catalog of one domain. Thread-safe: it keeps nothing of a read.

    Scalar reads go through memoryviews cast to words: several times faster than numpy scalars (measured).
    """

    def __init__(self, table: Table) -> None:
        self._table = table
        self._identity_words = table["identity"].view("<u8")
        self._words = _memory(table.words)
        self._index = _memory(table["index"])
        self._identity = memoryview(table.buffer).cast("B")
        self._identity_at = _offset_of(table, "identity")
        self._sequence = _memory(table["sequence"])
        self._namespace = _memory(table["namespace"])
        self._size = _memory(table["size"])
        self._checksum = _memory(table["checksum"])
        self._planes = [
            tuple(_memory(table[name][plane]) for name in ("state", "address", "generation"))
            for plane in range(TIERS)
        ]
        self._mask = len(self._index) - 1

    def find(self, identity: bytes) -> int:
        """The row of an identity; -1 when it has none, or when the index moved during the probe."""
        words, index = self._words, self._index
        epoch = words[WORD_INDEX_EPOCH]
        if epoch & 1:
            return -1
        bucket = _first_bucket(identity, words[WORD_SALT], self._mask)
        for _ in range(len(index)):
            entry = index[bucket]
            if entry == BUCKET_EMPTY:
                return -1
            if entry != BUCKET_TOMBSTONE and self._has(entry - 1, identity):
                return entry - 1 if words[WORD_INDEX_EPOCH] == epoch else -1
            bucket = (bucket + 1) & self._mask
        return -1

    def read_into(
        self, identity: bytes, out: U8Array, view_of_segment: SegmentView, namespace: int | None = None,
    ) -> bool:
        """Copies a block out. False: it is absent, moved during the copy or of another size or namespace: ask.

        On False `out` may hold anything.
        """
        return self.read(identity, out, view_of_segment, namespace) is not None

    def read(
        self, identity: bytes, out: U8Array, view_of_segment: SegmentView, namespace: int | None = None,
    ) -> int | None:
        """As `read_into`; the checksum that the bytes should have, None instead of False."""
        row = self.find(identity)
        if row < 0:
            return None
        sequence = self._sequence[row]
        if sequence & 1 or not self._has(row, identity) or self._size[row] != out.size:
            return None
        if namespace is not None and self._namespace[row] != namespace:
            return None
        checksum: int = self._checksum[row]
        for plane in MAPPABLE_PLANES:
            state, address, generation = self._planes[plane]
            if state[row] != STATE_READY:
                continue
            where, which = address[row], generation[row]
            segment = view_of_segment(where >> OFFSET_BITS)
            offset = where & OFFSET_MASK
            if segment is None or offset + out.size > segment.size:
                continue
            np.copyto(out, segment[offset : offset + out.size])
            return checksum if self._sequence[row] == sequence and generation[row] == which else None
        return None

    def lookup(self, ids: U8Array, namespace: int | None = None) -> U8Array | None:
        """A bit per tier with a READY copy (1 hbm, 2 host, 4 spill) for each of the packed identities (n, 32).

        None: the index moved meanwhile, ask the daemon. A row that was being written reads as absent.
        """
        table = self._table
        epoch = int(table.words[WORD_INDEX_EPOCH])
        if epoch & 1:
            return None
        words = words_of(ids)
        rows = find_rows(table["index"], self._identity_words, words, int(table.words[WORD_SALT]))
        at = np.where(rows < 0, 0, rows)
        before = table["sequence"][at]
        bits = _ready_bits(table["state"], at)
        sound = (rows >= 0) & (before & 1 == 0) & (self._identity_words[at] == words).all(axis=1)
        if namespace is not None:
            sound &= table["namespace"][at] == namespace
        sound &= table["sequence"][at] == before
        if int(table.words[WORD_INDEX_EPOCH]) != epoch:
            return None
        return np.where(sound, bits, np.uint8(0))

    def _has(self, row: int, identity: bytes) -> bool:
        start = self._identity_at + row * IDENTITY_BYTES
        return self._identity[start : start + IDENTITY_BYTES] == identity


def _ready_bits(state: NDArray[np.uint8], rows: NDArray[np.int64]) -> U8Array:
    bits = np.zeros(len(rows), np.uint8)
    for plane in range(TIERS):
        bits |= (state[plane][rows] == STATE_READY).astype(np.uint8) << np.uint8(plane)
    return bits


def _first_bucket(identity: bytes, salt: int, mask: int) -> int:
    """As format.first_bucket, for one identity."""
    word0, word1 = int.from_bytes(identity[:8], "little"), int.from_bytes(identity[8:16], "little")
    mixed = ((word0 ^ salt) * 0x9E3779B97F4A7C15 + word1) & _MASK_64
    return (mixed ^ (mixed >> 29)) & mask


def _memory(column: NDArray[Any]) -> memoryview:
    return memoryview(column)  # type: ignore[arg-type]


def _offset_of(table: Table, name: str) -> int:
    """Where a column starts in the table's buffer."""
    start = np.frombuffer(table.buffer, np.uint8, 1)
    column: Any = table[name]
    return int(column.__array_interface__["data"][0] - start.__array_interface__["data"][0])
