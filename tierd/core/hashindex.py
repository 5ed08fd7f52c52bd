"""An open-addressing index from identities to rows, vectorised over the ids of a command.

It owns no identities: `words` is the column they lie in, as (rows, 4) 64-bit words. docs/format.md,
section 2, has the layout; a client probes the same buckets.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tierd.core.arrays import constant, every, indices, scalars
from tierd_client.format import (
    BUCKET_EMPTY,
    BUCKET_TOMBSTONE,
    I64Array,
    U8Array,
    U64Array,
    find_rows,
    hashes,
    words_of,
)

U32Array = NDArray[np.uint32]
NO_ROW = -1
UNKNOWN = constant(NO_ROW, np.int64)
"""The same, beside arrays of rows."""
_ONE, _EMPTY = constant(1, np.uint32), constant(BUCKET_EMPTY, np.uint32)
_TOMBSTONE, _NEXT = constant(BUCKET_TOMBSTONE, np.uint32), constant(1, np.int64)
FEW = 96
"""So many rows are inserted one by one in less time than the fixed price of trying buckets together."""


class HashIndex:
    def __init__(self, buckets: NDArray[np.uint32], words: U64Array, salt: int = 0) -> None:
        self.buckets, self.words, self.salt = buckets, words, salt
        self.mask = len(buckets) - 1
        self._mask = constant(self.mask, np.uint32)
        self.tombstones = 0
        self._bucket_of = np.zeros(len(words), np.uint32)
        """Where each row that is indexed stands."""
        self._scalar: Any = scalars(buckets)
        self._bucket_of_scalar: Any = scalars(self._bucket_of)

    @property
    def crowded(self) -> bool:
        """Whether tombstones make probes long enough to be worth a rebuild."""
        return self.tombstones * 4 > len(self.buckets)

    def find(self, ids: U8Array) -> I64Array:
        """Row of each identity (n, 32), `NO_ROW` where it has none."""
        return find_rows(self.buckets, self.words, words_of(ids), self.salt)

    def hashes_of(self, rows: I64Array) -> U32Array:
        """Hashes of the identities of these rows, as far as an index of any size looks at them."""
        return hashes(self.words.take(rows, axis=0), self.salt).astype(np.uint32)

    def insert(self, rows: I64Array, hashed: U32Array | None = None) -> None:
        """Indexes rows whose identities are distinct and not yet indexed; `hashed`: their `hashes_of`, where known.

        Many go at once; where several want one bucket the last write stands and the others go on.
        """
        bucket = ((self.hashes_of(rows) if hashed is None else hashed) & self._mask).astype(np.int64)
        while len(rows) > FEW:
            rows, bucket = self._place(rows, bucket)
        self.buckets.take(bucket)  # into the processor's cache, together: one by one each would be waited for
        self._bucket_of[rows] = bucket
        self._insert_few(rows.tolist(), bucket.tolist())

    def _place(self, rows: I64Array, bucket: I64Array) -> tuple[I64Array, I64Array]:
        """Tries one bucket for each row; the rows that did not get it, and their next ones."""
        before = self.buckets.take(bucket)
        value = rows.astype(np.uint32) + _ONE
        free = before + _ONE <= _ONE  # empty, or a tombstone
        if every(free):
            self.buckets[bucket] = value
        else:
            self.buckets[bucket[free]] = value[free]
        placed = self.buckets.take(bucket) == value
        if self.tombstones:
            self.tombstones -= int(np.count_nonzero(before[placed] == _TOMBSTONE))
        if every(placed):
            self._bucket_of[rows] = bucket
            return rows[:0], bucket[:0]
        self._bucket_of[rows[placed]] = bucket[placed]
        left = ~placed
        return rows[left], (bucket[left] + _NEXT) & self._mask

    def remove(self, rows: I64Array) -> None:
        """Takes out rows that are indexed. Where a probe would end at the next bucket anyway none need go on."""
        at = self._bucket_of[rows].astype(np.int64)  # numpy converts indices of other types more dearly
        following = self.buckets.take(at + _NEXT, mode="wrap")
        self.buckets[at] = -np.minimum(following, _ONE)  # a tombstone, or empty as the next one
        self.tombstones += len(indices(following))

    def _insert_few(self, rows: list[int], starts: list[int]) -> None:
        buckets = self._scalar
        for row, bucket in zip(rows, starts, strict=True):
            if buckets[bucket]:
                bucket = self._bucket_of_scalar[row] = self._free_from(bucket)
            buckets[bucket] = row + 1

    def _free_from(self, bucket: int) -> int:
        """The first bucket from there that may be taken; a tombstone is taken for it."""
        buckets = self._scalar
        while 0 < (entry := buckets[bucket]) < BUCKET_TOMBSTONE:
            bucket = (bucket + 1) & self.mask
        if entry:
            self.tombstones -= 1
        return bucket

    def rebuild(self, rows: I64Array) -> None:
        """Starts over with exactly these rows."""
        self.buckets[:] = BUCKET_EMPTY
        self.tombstones = 0
        self.insert(rows)
