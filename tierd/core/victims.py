"""Choosing victims in a tier without looking at all blocks.

Both indexes hold the rows of one tier in the order of eviction and give them up one by one. Entries are
never searched for: a row has a token, an entry carries the token it was made with, and an entry whose token
is old is skipped when it comes up. A row that comes up while it is protected leaves its list ("out") and is
put back when the protection ends, so that a choice never walks over the same protected rows twice.

`ClassLists` (policies whose index is "classes"): one list per class, ordered by (older access, deeper, smaller
identity); the candidates are the heads. `KeyHeap` ("keys"): one heap of keys that do not change while idle.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from heapq import heapify, heappop, heappush, heapreplace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from tierd.core.catalog import Catalog
from tierd.core.policy.base import Moment, Policy
from tierd.core.statistics import stats_of
from tierd_client.format import I64Array

Protected = Callable[[I64Array], NDArray[np.bool_]]
Departed = Callable[[int], None]
Place = tuple[int, int, bytes]
"""(last, -position, identity): the order within a class."""

STAGE_ROWS = 64
COMPACT_ABOVE = 4096


class Victims(Protocol):
    """Rows of one tier, in the order of eviction."""

    def insert(self, rows: I64Array) -> None:
        """Takes in distinct rows, or moves those that are in to where their statistics now put them."""

    def discard(self, rows: I64Array) -> None:
        """Forgets rows; those that are not in are ignored."""

    def put_back(self, rows: I64Array) -> None:
        """The protection of these rows may have ended, or they were chosen and stay after all."""

    def choose(self, count: int, now: Moment, protected: Protected, departed: Departed) -> list[int]:
        """The next `count` victims, in order, taken out. `departed` is told each one as it is chosen."""


class _Rows:
    """Tokens and places of rows: what both indexes share."""

    def __init__(self, catalog: Catalog, children: NDArray[np.int32] | None) -> None:
        self.catalog = catalog
        self.children = children
        """Children of each row that are still in the tier; None when any block may go before them."""
        self.token = np.zeros(catalog.capacity, np.uint32)
        """Moves with each insertion of the row, modulo 2^32."""
        self.member = np.zeros(catalog.capacity, bool)
        self.out = np.zeros(catalog.capacity, bool)
        self.members = 0

    def renew(self, rows: I64Array) -> NDArray[np.uint32]:
        """New tokens of rows that are in from now on."""
        self.members += int(np.count_nonzero(~self.member[rows]))
        self.member[rows] = True
        self.out[rows] = False
        tokens: NDArray[np.uint32] = self.token[rows] + np.uint32(1)
        self.token[rows] = tokens
        return tokens

    def valid(self, row: int, token: int) -> bool:
        """Whether an entry still stands for its row."""
        return bool(self.token[row] == token and self.member[row])

    def all_valid(self, rows: I64Array, tokens: NDArray[np.uint32]) -> NDArray[np.bool_]:
        """As `valid`, for many."""
        current: NDArray[np.bool_] = (self.token[rows] == tokens) & self.member[rows]
        return current

    def discard(self, rows: I64Array) -> None:
        self.members -= int(np.count_nonzero(self.member[rows]))
        self.member[rows] = False
        self.out[rows] = False

    def take(self, row: int) -> None:
        self.member[row] = False
        self.out[row] = True
        self.members -= 1

    def place(self, row: int) -> Place:
        catalog = self.catalog
        return int(catalog.last[row]), -int(catalog.position[row]), catalog.identity[row].tobytes()

    def in_order(self, rows: I64Array) -> I64Array:
        """Rows sorted by their places."""
        catalog = self.catalog
        last, position = catalog.last[rows], catalog.position[rows]
        order = np.lexsort((-position.astype(np.int64), last))
        ties = (np.diff(last[order]) == 0) & (np.diff(position[order].astype(np.int64)) == 0)
        if ties.any():
            words = catalog.identity[rows].view(">u8").T
            order = np.lexsort((words[3], words[2], words[1], words[0], -position.astype(np.int64), last))
        return rows[order]


class _ClassList:
    """One class: a log in order (appended at the end), read ahead into `stage`, and a heap of latecomers."""

    def __init__(self) -> None:
        self.rows: NDArray[np.int32] = np.empty(16, np.int32)
        self.tokens: NDArray[np.uint32] = np.empty(16, np.uint32)
        self.head = self.tail = 0
        self.end: Place = (-1, 0, b"")
        """Place of the last entry of the log: what comes before it is a latecomer."""
        self.stage: deque[tuple[int, int]] = deque()
        self.late: list[tuple[Place, int, int]] = []

    def append(self, rows: I64Array, tokens: NDArray[np.uint32], end: Place) -> None:
        count = len(rows)
        if self.tail + count > len(self.rows):
            self._grow(count)
        self.rows[self.tail : self.tail + count] = rows
        self.tokens[self.tail : self.tail + count] = tokens
        self.tail += count
        self.end = end

    def _grow(self, count: int) -> None:
        live = self.tail - self.head
        size = max(16, 2 * (live + count))
        rows, tokens = np.empty(size, np.int32), np.empty(size, np.uint32)
        rows[:live], tokens[:live] = self.rows[self.head : self.tail], self.tokens[self.head : self.tail]
        self.rows, self.tokens, self.head, self.tail = rows, tokens, 0, live

    def keep(self, known: _Rows) -> None:
        """Drops the entries whose token is old."""
        rows, tokens = self.rows[self.head : self.tail], self.tokens[self.head : self.tail]
        valid = known.all_valid(rows.astype(np.int64), tokens)
        self.rows, self.tokens, self.head = rows[valid], tokens[valid], 0
        self.tail = len(self.rows)
        self.late = [entry for entry in self.late if known.valid(entry[1], entry[2])]
        heapify(self.late)


class ClassLists:
    def __init__(self, catalog: Catalog, policy: Policy, children: NDArray[np.int32] | None) -> None:
        self._rows = _Rows(catalog, children)
        self._catalog, self._policy = catalog, policy
        self._lists: dict[int, _ClassList] = {}
        self._logged = 0
        self._latecomers = 0

    def insert(self, rows: I64Array) -> None:
        if not len(rows):
            return
        rows = self._rows.in_order(rows)
        tokens = self._rows.renew(rows)
        classes = self._policy.classes(stats_of(self._catalog, rows))
        if (classes == classes[0]).all():
            self._append(int(classes[0]), rows, tokens)
        else:
            order = np.argsort(classes, kind="stable")
            cuts = np.flatnonzero(np.diff(classes[order])) + 1
            for part in np.split(order, cuts):
                self._append(int(classes[part[0]]), rows[part], tokens[part])
        self._logged += len(rows)
        if self._logged > 2 * self._rows.members + COMPACT_ABOVE:
            self._compact()

    def _append(self, number: int, rows: I64Array, tokens: NDArray[np.uint32]) -> None:
        found = self._lists.get(number)
        if found is None:
            found = self._lists[number] = _ClassList()
        first = 0
        if self._rows.place(int(rows[0])) < found.end:
            places = [self._rows.place(row) for row in rows.tolist()]
            while first < len(rows) and places[first] < found.end:
                heappush(found.late, (places[first], int(rows[first]), int(tokens[first])))
                first += 1
        if first < len(rows):
            found.append(rows[first:], tokens[first:], self._rows.place(int(rows[-1])))

    def discard(self, rows: I64Array) -> None:
        self._rows.discard(rows)

    def put_back(self, rows: I64Array) -> None:
        out = self._rows.out[rows]
        if out.any():
            self._add_late(rows[out])

    def _add_late(self, rows: I64Array) -> None:
        tokens = self._rows.renew(rows)
        self._latecomers += len(rows)
        classes = self._policy.classes(stats_of(self._catalog, rows)).tolist()
        for number, row, token in zip(classes, rows.tolist(), tokens.tolist(), strict=True):
            found = self._lists.setdefault(number, _ClassList())
            heappush(found.late, (self._rows.place(row), row, token))

    def choose(self, count: int, now: Moment, protected: Protected, departed: Departed) -> list[int]:
        merge = _Merge(self, now, protected)
        chosen: list[int] = []
        while len(chosen) < count and (row := merge.pop()) is not None:
            chosen.append(row)
            self._rows.take(row)
            before = self._latecomers
            departed(row)
            if self._latecomers != before:
                merge.refresh()
        return chosen

    def _compact(self) -> None:
        for number, found in list(self._lists.items()):
            found.keep(self._rows)
            if found.head == found.tail and not found.late and not found.stage:
                del self._lists[number]
        self._logged = sum(found.tail for found in self._lists.values())

    def lists(self) -> dict[int, _ClassList]:
        return self._lists

    def head(self, found: _ClassList, protected: Protected) -> int | None:
        """The first row of a class that may go as far as pins are concerned; nothing is taken out."""
        valid = self._rows.valid
        while True:
            if not found.stage and found.head < found.tail:
                self._fill_stage(found, protected)
            while found.stage and not valid(*found.stage[0]):
                found.stage.popleft()
            if not found.stage and found.head < found.tail:
                continue
            while found.late and self._skip_late(found, protected):
                pass
            if found.late and (not found.stage or found.late[0][0] < self._rows.place(found.stage[0][0])):
                return found.late[0][1]
            return found.stage[0][0] if found.stage else None

    def _skip_late(self, found: _ClassList, protected: Protected) -> bool:
        """Removes the first latecomer if it is stale or protected."""
        _, row, token = found.late[0]
        if self._rows.valid(row, token):
            if not protected(np.array([row]))[0]:
                return False
            self._rows.out[row] = True
        heappop(found.late)
        return True

    def _fill_stage(self, found: _ClassList, protected: Protected) -> None:
        stop = min(found.tail, found.head + STAGE_ROWS)
        rows = found.rows[found.head : stop].astype(np.int64)
        tokens = found.tokens[found.head : stop]
        found.head = stop
        valid = self._rows.all_valid(rows, tokens)
        rows, tokens = rows[valid], tokens[valid]
        barred = protected(rows)
        self._rows.out[rows[barred]] = True
        found.stage.extend(zip(rows[~barred].tolist(), tokens[~barred].tolist(), strict=True))

    def drop_head(self, found: _ClassList, row: int) -> None:
        """Takes the row that `head` returned out of its class."""
        if found.late and found.late[0][1] == row:
            heappop(found.late)
        else:
            found.stage.popleft()

    def recheck_stages(self, protected: Protected) -> None:
        """Protection may have begun since rows were staged: those rows step out."""
        for found in self._lists.values():
            if found.stage:
                rows = np.array([row for row, _ in found.stage], np.int64)
                tokens = np.array([token for _, token in found.stage], np.uint32)
                barred = self._rows.all_valid(rows, tokens) & protected(rows)
                if barred.any():
                    self._rows.out[rows[barred]] = True
                    kept = zip(rows[~barred].tolist(), tokens[~barred].tolist(), strict=True)
                    found.stage = deque(kept)


class _Merge:
    """One choice: the heads of all classes, ranked at one moment."""

    def __init__(self, lists: ClassLists, now: Moment, protected: Protected) -> None:
        self._lists, self._now, self._protected = lists, now, protected
        self._ranks: dict[int, float] = {}
        self._heap: list[tuple[float, Place, int, int]] = []
        lists.recheck_stages(protected)
        self.refresh()

    def refresh(self) -> None:
        """Looks at all heads anew."""
        lists, heads = self._lists, []
        for number, found in lists.lists().items():
            row = lists.head(found, self._protected)
            if row is not None:
                heads.append((number, row))
        self._rank([row for _, row in heads if row not in self._ranks])
        self._heap = [(-self._ranks[row], lists._rows.place(row), number, row) for number, row in heads]
        heapify(self._heap)

    def _rank(self, rows: list[int]) -> None:
        if rows:
            stats = stats_of(self._lists._catalog, np.array(rows, np.int64))
            self._ranks.update(zip(rows, self._lists._policy.ranks(stats, self._now).tolist(), strict=True))

    def pop(self) -> int | None:
        """The best row that has no child left in the tier; those before it that have step out."""
        lists, children = self._lists, self._lists._rows.children
        while self._heap:
            _, _, number, row = self._heap[0]
            lists.drop_head(lists.lists()[number], row)
            self._advance(number)
            if children is None or children[row] == 0:
                return row
            lists._rows.out[row] = True
        return None

    def _advance(self, number: int) -> None:
        lists = self._lists
        found = lists.lists()[number]
        row = lists.head(found, self._protected)
        if row is None:
            heappop(self._heap)
            return
        if row not in self._ranks:
            self._rank([row, *(staged for staged, _ in found.stage if staged != row and staged not in self._ranks)])
        heapreplace(self._heap, (-self._ranks[row], lists._rows.place(row), number, row))


class KeyHeap:
    """One heap of (key, place)."""

    def __init__(self, catalog: Catalog, policy: Policy, children: NDArray[np.int32] | None) -> None:
        self._rows = _Rows(catalog, children)
        self._catalog, self._policy = catalog, policy
        self._heap: list[tuple[float, Place, int, int]] = []

    def insert(self, rows: I64Array) -> None:
        if not len(rows):
            return
        tokens = self._rows.renew(rows)
        keys = self._policy.keys(stats_of(self._catalog, rows)).tolist()
        for key, row, token in zip(keys, rows.tolist(), tokens.tolist(), strict=True):
            heappush(self._heap, (key, self._rows.place(row), row, token))
        if len(self._heap) > 2 * self._rows.members + COMPACT_ABOVE:
            self._heap = [entry for entry in self._heap if self._rows.valid(entry[2], entry[3])]
            heapify(self._heap)

    def discard(self, rows: I64Array) -> None:
        self._rows.discard(rows)

    def put_back(self, rows: I64Array) -> None:
        self.insert(rows[self._rows.out[rows]])

    def choose(self, count: int, now: Moment, protected: Protected, departed: Departed) -> list[int]:
        del now  # the order does not change with time
        chosen: list[int] = []
        out, children = self._rows.out, self._rows.children
        while len(chosen) < count and self._heap:
            _, _, row, mark = heappop(self._heap)
            if not self._rows.valid(row, mark):
                continue
            if protected(np.array([row]))[0] or (children is not None and children[row]):
                out[row] = True
                continue
            chosen.append(row)
            self._rows.take(row)
            departed(row)
        return chosen


def make_victims(catalog: Catalog, policy: Policy, children: NDArray[np.int32] | None) -> Victims:
    kind = KeyHeap if policy.index == "keys" else ClassLists
    return kind(catalog, policy, children)
