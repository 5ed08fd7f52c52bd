"""Ghosts: records of identities that have no copy left, so that a block that comes back resumes its score.

A ring in the order of eviction, oldest out first (docs/format.md, section 3). An identity that comes back
leaves a hole, which keeps its place in the order until its turn to go, or until holes are closed.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tierd.core.arrays import constant, every, indices, some
from tierd.core.ghost_index import MOST_NUMBER, GhostIndex
from tierd.core.hashindex import UNKNOWN, U32Array
from tierd_client.format import WORD_HEAD, WORD_ROWS, WORD_TAIL, I64Array, Table, U8Array, same_identity, words_of

UNIT_BIT = constant(1 << 31, np.uint32)
_COUNT = constant((1 << 31) - 1, np.uint32)
_NONE = constant(0, np.uint32)
WORD_CLOSING_HOLES = 7
"""Header word of the ghost table: 1 while entries move."""
MANY_HOLES = 8
"""Holes are closed when at least one in so many places is one."""
FORGET_STRIDE = 64


@dataclass(slots=True)
class Records:
    """Statistics of several identities, as arrays."""

    touches: NDArray[np.uint32]
    last: NDArray[np.int64]
    wall: NDArray[np.float64]
    ema: NDArray[np.float64]
    crf: NDArray[np.float64]
    unit: NDArray[np.bool_]
    learnt: U8Array

    def last_ones(self, count: int) -> Records:
        """Those of the last so many identities."""
        start = len(self.touches) - count
        return Records(*(getattr(self, name)[start:] for name in self.__slots__))


class Ghosts:
    """At most `limit` ghosts, never more than the table holds. Places are numbered from 0 for ever."""

    def __init__(self, table: Table, learnt: U8Array | None = None, salt: int = 0) -> None:
        """`learnt`: a byte for each place, in memory that survives the process; None: private memory. `salt`: that
        of hashes that `add` is told."""
        self.table = table
        self.identity: U8Array = table["identity"]
        self.touches: NDArray[np.uint32] = table["touches"]
        self.ema: NDArray[np.float64] = table["ema"]
        self.last: NDArray[np.int64] = table["last"]
        self.capacity = len(self.identity)
        self.learnt = np.zeros(self.capacity, np.uint8) if learnt is None else learnt
        table.words[WORD_ROWS] = self.capacity
        self.head, self.tail = int(table.words[WORD_HEAD]), int(table.words[WORD_TAIL])
        self._index = GhostIndex(self.identity, self.touches, salt)
        if table.words[WORD_CLOSING_HOLES]:  # a kill in the middle left entries that are half one, half another
            self.touches[:] = 0
            self._move(0, 0)
            table.words[WORD_CLOSING_HOLES] = 0
        self._count = len(self._live())
        if self.tail < MOST_NUMBER:
            self._index.rebuild(self.head + 1, self._at(self.head, self.tail))
        else:
            self._close_holes()

    def __len__(self) -> int:
        return self._count

    def add(self, ids: U8Array, records: Records, limit: int, hashed: U32Array | None = None) -> None:
        """Remembers identities, oldest first in the order given, forgetting the oldest over `limit`. Each was
        accessed. `hashed`: their hashes, where known."""
        limit = min(limit, self.capacity)
        if len(ids) > limit:
            ids, records, hashed = ids[len(ids) - limit :], records.last_ones(limit), None
        self._forget(self._count + len(ids) - limit)
        if not len(ids):
            return
        self._make_places(len(ids))
        start = self.tail % self.capacity
        # A slice, unless they go round the end: it is written in a third of the time.
        put: slice | I64Array = slice(start, start + len(ids))
        if start + len(ids) > self.capacity:
            put = self._at(self.tail, self.tail + len(ids))
        column = self.table.columns
        self.identity[put], self.ema[put], column["crf"][put] = ids, records.ema, records.crf
        self.last[put], column["wall"][put] = records.last, records.wall
        self.touches[put] = _with_unit_bit(records)
        self.learnt[put] = records.learnt
        self._index.add(self.tail + 1, put, self._index.hashes_of(put) if hashed is None else hashed)
        self._count += len(ids)
        self._move(self.head, self.tail + len(ids))

    def _at(self, head: int, tail: int) -> I64Array:
        """Where the columns have those of these places of the ring."""
        return np.arange(head, tail) % max(1, self.capacity)

    def _forget(self, count: int) -> None:
        """Forgets the `count` oldest."""
        while count > 0:
            head = min(self.tail, self.head + max(FORGET_STRIDE, count))
            at = self._at(self.head, head)
            live = indices(self.touches[at] != 0)
            if len(live) > count:
                head, live = self.head + int(live[count]), live[:count]
            count -= len(live)
            self._remove(at[live])
            self._move(head, self.tail)

    def _forget_before(self, head: int) -> None:
        """Forgets all up to a place."""
        at = self._at(self.head, head)
        self._remove(at[self.touches[at] != 0])
        self._move(head, self.tail)

    def _make_places(self, count: int) -> None:
        """Makes room at the end of the ring: closes its holes where there are many, else forgets the oldest."""
        if self.tail - self.head + count <= self.capacity and self.tail + count < MOST_NUMBER:
            return
        holes = self.tail - self.head - self._count
        if holes >= max(count, self.capacity // MANY_HOLES) or self.tail + count >= MOST_NUMBER:
            self._close_holes()
        self._forget_before(max(self.head, self.tail + count - self.capacity))

    def _close_holes(self) -> None:
        live = self._live()
        self.table.words[WORD_CLOSING_HOLES] = 1
        for column in (*self.table.columns.values(), self.learnt):
            column[: len(live)] = column[live]
        self.touches[len(live) :] = 0
        self._move(0, len(live))
        self.table.words[WORD_CLOSING_HOLES] = 0
        self._index.rebuild(1, np.arange(len(live)))

    def take(self, ids: U8Array, stood: I64Array) -> tuple[I64Array, Records]:
        """Hands over and forgets what is remembered of `ids`: indices of those found, and their records. `stood`:
        their places, since which others may have come and gone."""
        rows = self._places_now(ids, stood)
        found = indices(rows >= 0)
        records = self.records(rows[found])
        self._remove(rows[found])
        return found, records

    def _places_now(self, ids: U8Array, stood: I64Array) -> I64Array:
        if not self._count:
            return self.places(ids)
        same = same_identity(words_of(self.identity), stood, words_of(ids)) & (self.touches[stood] != _NONE)
        if not some(moved := (stood != UNKNOWN) & ~same):
            return stood
        stood = stood.copy()
        stood[moved] = self.places(ids[moved])
        return stood

    def take_or_new(self, ids: U8Array, stood: I64Array, learnt: U8Array) -> Records:
        """As `take`; new records, with this `learnt`, for those of which nothing is remembered."""
        count = len(ids)
        found, known = self.take(ids, stood)
        if len(found) == count:
            return known
        records = Records(
            np.zeros(count, np.uint32), np.zeros(count, np.int64), np.zeros(count), np.zeros(count),
            np.zeros(count), np.ones(count, bool), learnt,
        )
        for name in Records.__slots__:
            getattr(records, name)[found] = getattr(known, name)
        return records

    def _remove(self, at: I64Array) -> None:
        if not len(at):
            return
        self.touches[at] = 0
        self._count -= len(at)

    def live(self) -> tuple[I64Array, Records]:
        """Places of all ghosts in the columns, oldest out first, and their records."""
        at = self._live()
        return at, self.records(at)

    def _live(self) -> I64Array:
        at = self._at(self.head, self.tail)
        live: I64Array = at[self.touches[at] != 0]
        return live

    def peek(self, ids: U8Array) -> tuple[I64Array, Records]:
        """As `take`, but nothing changes."""
        rows = self.places(ids)
        found = indices(rows >= 0)
        return found, self.records(rows[found])

    def places(self, ids: U8Array) -> I64Array:
        """Place of each identity in the columns, -1 where there is no ghost of it."""
        return self._index.find(ids, self.head + 1) if self._count else np.full(len(ids), -1, np.int64)

    def update(self, at: I64Array, records: Records) -> None:
        """Other statistics for ghosts that stay in their places, which are distinct. `unit` stays."""
        column = self.table.columns
        self.ema[at], column["crf"][at], self.last[at] = records.ema, records.crf, records.last
        column["wall"][at] = records.wall.astype(np.uint32)
        self.touches[at] = (self.touches[at] & UNIT_BIT) | (records.touches & _COUNT)
        self.learnt[at] = records.learnt

    def clear(self) -> int:
        """Forgets all; returns how many there were."""
        count = self._count
        self._forget(count)
        return count

    def records(self, at: I64Array) -> Records:
        """Records of the ghosts at these places."""
        column = self.table.columns
        touches = self.touches[at]
        return Records(
            touches & _COUNT, self.last[at], column["wall"][at].astype(np.float64), self.ema[at],
            column["crf"][at], (touches & UNIT_BIT) != 0, self.learnt[at],
        )

    def _move(self, head: int, tail: int) -> None:
        self.head, self.tail = head, tail
        self.table.words[WORD_HEAD], self.table.words[WORD_TAIL] = head, tail


def _with_unit_bit(records: Records) -> NDArray[np.uint32]:
    """The column `touches` of the table."""
    unit: NDArray[np.uint32] = UNIT_BIT if every(records.unit) else records.unit * UNIT_BIT
    both: NDArray[np.uint32] = (records.touches & _COUNT) | unit
    return both
