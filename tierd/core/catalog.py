"""The catalog: one row per identity that has a copy in some tier, and the index that finds it.

The rows live in a table of columns that other processes read while the daemon writes (docs/format.md,
section 2). What identifies a row, and its copies, change only between two moves of its `sequence` word.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tierd.core.arrays import cells, constant, scalars
from tierd.core.attention import Attention
from tierd.core.errors import LimitReached
from tierd.core.hashindex import NO_ROW, UNKNOWN, HashIndex, U32Array
from tierd.core.underway import Ahead
from tierd_client.format import (
    WORD_BUCKETS,
    WORD_INDEX_EPOCH,
    WORD_ROWS,
    WORD_SALT,
    I64Array,
    Table,
    U8Array,
    U64Array,
    words_of,
)

_ONE = constant(1, np.uint32)
FLAG_UNIT = 1
"""Every access of the record so far had weight 1."""


class _Writing:
    """See `Catalog.writing`. A class, because entering a generator costs twice as much."""

    __slots__ = ("_numbers", "_rows", "_sequence")

    def __init__(self, sequence: NDArray[np.uint32], rows: Any) -> None:
        self._sequence, self._rows = sequence, rows

    def __enter__(self) -> None:
        self._numbers = self._sequence[self._rows] + _ONE
        self._sequence[self._rows] = self._numbers

    def __exit__(self, *failed: object) -> None:
        if failed[0] is None:
            self._sequence[self._rows] = self._numbers + _ONE


class Catalog:
    """Rows and index over a table. Rows are int64 arrays; `NO_ROW` stands for none."""

    def __init__(self, table: Table) -> None:
        self.table = table
        column = table.columns
        self.identity: U8Array = column["identity"]
        self.words: U64Array = words_of(self.identity)
        """The identities as (rows, 4) words."""
        self.index = HashIndex(column["index"], self.words, int(table.words[WORD_SALT]))
        self.hashes: U32Array = np.zeros(len(self.identity), np.uint32)
        """Of the identities in use."""
        self.sequence, self.birth = column["sequence"], column["birth"]
        self.namespace, self.group = column["namespace"], column["group"]
        self.position, self.size = column["position"], column["size"]
        self.parent, self.parent_birth = column["parent"], column["parent_birth"]
        self._birth_at, self._parent_at = scalars(self.birth), scalars(self.parent)
        self._parent_birth_at = scalars(self.parent_birth)
        self._identities, self._policies = cells(self.identity), cells(column["policy"])
        self.checksum, self.flags = column["checksum"], column["flags"]
        self.state, self.address, self.generation = column["state"], column["address"], column["generation"]
        self.touches, self.last, self.wall = column["touches"], column["last"], column["wall"]
        self.ema, self.crf = column["ema"], column["crf"]
        self.pinned_until: NDArray[np.float64] = column["policy"].view("<f8")[:, 2]
        """Wall time (s since 1970) until which the identity is pinned, 0 for none."""
        self.learnt: U8Array = column["policy"][:, 0]
        """Class and followers of each row, see gaps.py."""
        self.attention = Attention(self.birth)
        self.capacity = len(self.identity)
        table.words[WORD_ROWS], table.words[WORD_BUCKETS] = self.capacity, len(column["index"])
        self.used = np.zeros(self.capacity, bool)
        self.ahead = Ahead(np.zeros(self.capacity, bool))
        self.followers: NDArray[np.int32] = np.full(self.capacity, NO_ROW, np.int32)
        """The child of each row that was named last. It may be another's by now: see `follower_of`."""
        self._free: NDArray[np.int32] = np.arange(self.capacity - 1, -1, -1, dtype=np.int32)
        self._free_count = self.capacity

    def __len__(self) -> int:
        return self.capacity - self._free_count

    @property
    def free_rows(self) -> int:
        return self._free_count

    def find(self, ids: U8Array) -> I64Array:
        """Row of each identity (n, 32), `NO_ROW` where it has none."""
        return self.index.find(ids)

    def insert(self, ids: U8Array) -> I64Array:
        """New rows for identities that are distinct and have none. LimitReached when rows run out."""
        count = len(ids)
        if count > self._free_count:
            raise LimitReached(f"catalog_rows: {count} rows wanted, {self._free_count} of {self.capacity} free")
        rows = self._free[self._free_count - count : self._free_count][::-1].astype(np.int64)
        self._free_count -= count
        self.used[rows] = True
        with self.writing(rows):
            self._identities[rows] = cells(ids)
            self.birth[rows] += _ONE
            self.parent[rows] = NO_ROW
            self.flags[rows] = FLAG_UNIT
            for column in (self.touches, self.last, self.wall, self.ema, self.crf, self.checksum):
                column[rows] = 0
            self._policies[rows] = b""
        hashed = self.hashes[rows] = self.index.hashes_of(rows)
        self.index.insert(rows, hashed)
        return rows

    def remove(self, rows: I64Array) -> None:
        """Frees rows that have no copy left, within the section in which the last one ended."""
        self.index.remove(rows)
        self._identities[rows] = b""
        self.birth[rows] += _ONE
        self.used[rows] = False
        self._free[self._free_count : self._free_count + len(rows)] = rows
        self._free_count += len(rows)
        if self.index.crowded:
            self._rebuild_index()

    def writing(self, rows: Any) -> _Writing:
        """Makes readers in other processes wait, or throw away what they read. `rows` are distinct."""
        return _Writing(self.sequence, rows)

    def take_over(self, rows: I64Array) -> None:
        """Takes over rows that survived in the table, and no others; rebuilds index and free list."""
        self.used[:] = False
        self.used[rows] = True
        free = np.flatnonzero(~self.used)[::-1]
        self._free_count = len(free)
        self._free[: len(free)] = free
        self.hashes[rows] = self.index.hashes_of(rows)
        self._rebuild_index()

    def parents(self, rows: I64Array) -> I64Array:
        """Row of each row's parent, `NO_ROW` where it has none or the parent has left."""
        parent = self.parent[rows].astype(np.int64)
        parent[self.birth[parent] != self.parent_birth[rows]] = NO_ROW  # or is that already
        return parent

    def linked(self, rows: I64Array) -> I64Array:
        """The parents of those of these rows that have one."""
        parent = self.parent[rows].astype(np.int64)
        linked = (self.birth[parent] == self.parent_birth[rows]) & (parent != UNKNOWN)
        parents: I64Array = parent[linked]
        return parents

    def parent_of(self, row: int) -> int:
        """As `parents`, for one row and many times faster."""
        parent = int(self._parent_at[row])
        return parent if parent >= 0 and self._birth_at[parent] == self._parent_birth_at[row] else NO_ROW

    def follower_of(self, row: int) -> int:
        """The child of a row that was named last, NO_ROW where there is none any more."""
        after = int(self.followers[row])
        return after if after != NO_ROW and self.used[after] and self.parent_of(after) == row else NO_ROW

    def _rebuild_index(self) -> None:
        words = self.table.words
        # Odd already where a daemon was killed in the middle of this.
        words[WORD_INDEX_EPOCH] |= np.uint64(1)
        self.index.rebuild(np.flatnonzero(self.used))
        words[WORD_INDEX_EPOCH] += np.uint64(1)
