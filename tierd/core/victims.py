"""Choosing victims in a tier without looking at all blocks.

An index holds the rows of one tier in the order of eviction and gives them up one by one (victim_rows.py).

`ClassLists` (policies whose index is "classes"): one list per class and standing, ordered by (older access, deeper,
smaller identity); the candidates are the heads of the lowest standing that has any. `KeyHeap` ("keys"): one heap of
keys that do not change while idle, each behind its standing. `QueueOrder` ("queues", queue_order.py): queues of the
policy's own.
"""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import cast

import numpy as np
from numpy.typing import NDArray

from tierd.core.arrays import Mask, alike, every, groups, indices, some
from tierd.core.catalog import Catalog
from tierd.core.hashindex import NO_ROW
from tierd.core.heads import Heads
from tierd.core.policy.base import CLASS_BITS, ByClass, ByKey, Moment, Policy, ranks_of
from tierd.core.policy.queues import ByQueues
from tierd.core.protection import Protection
from tierd.core.queue_order import QueueOrder
from tierd.core.standing import standings
from tierd.core.statistics import StatsOf
from tierd.core.victim_rows import NONE, Lets, Place, Spot, TokenArray, VictimRows, Victims
from tierd_client.format import I64Array

STAGE_ROWS = 256
LATE_ROWS = 64
LISTS = 16
"""For so many there is room at first."""
COMPACT_ABOVE = 4096
_NO_ROWS = np.empty(0, np.int64)




class _ClassList:
    """One class, in order: a log, read ahead into `stage`; the entries of the latest step, not yet sorted
    (`open`); and a heap of those that came too late for their place in the log."""

    def __init__(self) -> None:
        self.rows: NDArray[np.int32] = np.empty(16, np.int32)
        self.tokens: TokenArray = np.empty(16, np.uint32)
        self.head = self.tail = 0
        self.step = NONE
        """Last access of all that is open, and after that of anything in the log."""
        self.open: list[tuple[I64Array, TokenArray]] = []
        self._staged = _NO_ROWS, self.tokens[:0]
        self._at = 0
        """Where the stage begins in what is staged."""
        self._checked_in = self._checked = 0
        """Number of the choice that last looked at what is staged, and up to where it did."""
        self.late: list[tuple[Place, int, int]] = []

    @property
    def stage(self) -> I64Array:
        """Rows read ahead, in order."""
        return self._staged[0][self._at :]

    @property
    def empty(self) -> bool:
        return not (len(self.stage) or self.late or self.open or self.head < self.tail)

    def add(self, known: VictimRows, rows: I64Array, tokens: TokenArray, step: int) -> bool:
        """Takes in rows last accessed at `step`. False when they come too late for that."""
        if step < self.step:
            return False
        if step > self.step:
            self.close(known)
            self.step = step
        self.open.append((rows, tokens))
        return True

    def close(self, known: VictimRows) -> None:
        """Sorts what is open into the log; whatever else comes of its step is late."""
        if not self.open:
            return
        self.step += 1
        if len(self.open) == 1:
            rows, tokens = self.open[0]
        else:
            rows = np.concatenate([rows for rows, _ in self.open])
            tokens = np.concatenate([tokens for _, tokens in self.open])
        self.open.clear()
        rows = rows[known.all_valid(rows, tokens)]
        if len(rows) > 1:
            rows = known.in_order(rows)
        self._append(rows, known.token[rows])

    def _append(self, rows: I64Array, tokens: TokenArray) -> None:
        count = len(rows)
        if self.tail + count > len(self.rows):
            self._grow(count)
        self.rows[self.tail : self.tail + count] = rows
        self.tokens[self.tail : self.tail + count] = tokens
        self.tail += count

    def _grow(self, count: int) -> None:
        live = self.tail - self.head
        size = max(16, 2 * (live + count))
        rows, tokens = np.empty(size, np.int32), np.empty(size, np.uint32)
        rows[:live], tokens[:live] = self.rows[self.head : self.tail], self.tokens[self.head : self.tail]
        self.rows, self.tokens, self.head, self.tail = rows, tokens, 0, live

    def compact(self, known: VictimRows) -> int:
        """Drops the entries whose token is old; how many are left, latecomers aside."""
        rows, tokens = self.rows[self.head : self.tail], self.tokens[self.head : self.tail]
        valid = known.all_valid(rows.astype(np.int64), tokens)
        self.rows, self.tokens, self.head = rows[valid], tokens[valid], 0
        self.tail = len(self.rows)
        valid_of = [known.all_valid(rows, tokens) for rows, tokens in self.open]
        opened = zip(self.open, valid_of, strict=True)
        self.open = [(rows[valid], tokens[valid]) for (rows, tokens), valid in opened if valid.any()]
        self.late = [entry for entry in self.late if known.valid(entry[1], entry[2])]
        heapify(self.late)
        return self.tail + sum(len(rows) for rows, _ in self.open)

    def first(self, known: VictimRows, protection: Protection) -> int:
        """The first row that may go as far as pins are concerned, or NONE; it is not taken out."""
        while True:
            if self._settle_stage(known, protection):
                break
            if self.head == self.tail:
                self.close(known)
                if self.head == self.tail:
                    break
            self._fill_stage(known, protection)
        while self.late and self._skip_late(known, protection):
            pass
        rows, _ = self._staged
        if self._at == len(rows):
            return self.late[0][1] if self.late else NONE
        row = rows.item(self._at)
        return self.late[0][1] if self.late and self.late[0][0] < known.place(row) else row

    def _settle_stage(self, known: VictimRows, protection: Protection) -> bool:
        """Drops what may no longer go from the front of the stage. True when a row is left there."""
        if self._surely(known):
            return True
        rows, tokens = self._staged
        while self._at < len(rows):
            row = rows.item(self._at)
            if known.valid(row, tokens.item(self._at)):
                if not protection.one(row):
                    return True
                known.out[row] = True
            self._at += 1
        return False

    def _fill_stage(self, known: VictimRows, protection: Protection) -> None:
        stop = min(self.tail, self.head + STAGE_ROWS)
        self._stage(self.rows[self.head : stop].astype(np.int64), self.tokens[self.head : stop], known, protection)
        self.head = stop

    def _stage(self, rows: I64Array, tokens: TokenArray, known: VictimRows, protection: Protection) -> None:
        """Makes the stage those of these rows that may go, as far as pins are concerned."""
        if not every(going := self._going(rows, tokens, known, protection)):
            rows, tokens = rows[going], tokens[going]
        self._staged, self._at = (rows, tokens), 0
        self._checked_in, self._checked = known.choice, len(rows)

    @staticmethod
    def _going(rows: I64Array, tokens: TokenArray, known: VictimRows, protection: Protection) -> Mask:
        """Which of these entries stand for a row that may go, as far as pins are concerned; protected rows are out
        from now on."""
        going = known.all_valid(rows, tokens)
        if some(barred := going & protection.many(rows)):
            known.out[rows[barred]] = True
            going &= ~barred
        return going

    def _skip_late(self, known: VictimRows, protection: Protection) -> bool:
        """Removes the first latecomer if it is stale or protected."""
        _, row, token = self.late[0]
        if known.valid(row, token):
            if not protection.one(row):
                return False
            known.out[row] = True
        heappop(self.late)
        return True

    def _surely(self, known: VictimRows) -> bool:
        """Whether the choice that is being made has looked at the first row of the stage: within one choice nothing
        there loses its place."""
        return self._checked_in == known.choice and self._at < self._checked

    def going(self, most: int, known: VictimRows, protection: Protection) -> I64Array:
        """The first rows of the stage, `most` at most; from now on these may go, as far as pins are concerned."""
        if not self._surely(known):
            rows, tokens = self.stage, self._staged[1][self._at :]
            going = self._going(rows[:most], tokens[:most], known, protection)
            count = len(going)
            if not every(going):
                rows = np.concatenate([rows[:most][going], rows[most:]])
                tokens = np.concatenate([tokens[:most][going], tokens[most:]])
                count = int(np.count_nonzero(going))
            self._staged, self._at = (rows, tokens), 0
            self._checked_in, self._checked = known.choice, count
        return self._staged[0][self._at : min(self._checked, self._at + most)]

    def is_late(self, row: int) -> bool:
        """Whether a row that `first` returned is a latecomer. False: it is the first on the stage."""
        return bool(self.late) and self.late[0][1] == row

    def drop_late(self) -> None:
        """Takes the first latecomer out."""
        heappop(self.late)

    def drop_staged(self, count: int) -> None:
        """Takes the first rows off the stage."""
        self._at += count

    def late_rows(self) -> list[int]:
        """Latecomers that are likely to be first soon."""
        return [entry[1] for entry in self.late[:LATE_ROWS]]


class ClassLists(Victims):
    """`_heads` remembers the first row of each list; a list into which one may have come before it is `_unsure`.

    What is remembered may have gone, or be protected, since: then what is first now comes later in the list, and
    ranks no higher. So a choice looks again only at heads that rank highest; lists that it looked at are `_sure`.
    """

    def __init__(self, catalog: Catalog, policy: ByClass, children: NDArray[np.int32]) -> None:
        self._rows = VictimRows(catalog, children, leaf_only=policy.common.leaf_only)
        self.out = self._rows.out
        self._catalog, self._policy = catalog, policy
        self._number: dict[int, int] = {}
        self._lists: list[_ClassList] = []
        self._heads = Heads(catalog, LISTS)
        self._standings: I64Array = np.zeros(LISTS, np.int64)
        self._several_standings = False
        self._unsure: set[int] = set()
        self._sure: set[int] = set()
        self._reranked: list[int] = []
        """Lists whose heads have other ranks than the choice that is being made knows."""
        self._logged = 0

    def insert(self, rows: I64Array) -> None:
        if not len(rows):
            return
        tokens = self._rows.renew(rows)
        classes = self._classes(rows)
        last = self._catalog.last[rows]
        if not alike(last):
            for part in groups(last):
                self._insert_by_class(rows[part], tokens[part], classes[part], int(last[part[0]]))
        else:
            self._insert_by_class(rows, tokens, classes, int(last[0]))
        self._logged += len(rows)
        if self._logged > 2 * self._rows.members + COMPACT_ABOVE:
            self._compact()

    def _classes(self, rows: I64Array) -> I64Array:
        """Number of the list of each row."""
        numbers: I64Array = standings(self._catalog, rows) << CLASS_BITS
        return numbers + self._policy.classes(StatsOf(self._catalog, rows))

    def _insert_by_class(self, rows: I64Array, tokens: TokenArray, classes: I64Array, step: int) -> None:
        if alike(classes):
            self._add(int(classes[0]), rows, tokens, step)
            return
        for part in groups(classes):
            self._add(int(classes[part[0]]), rows[part], tokens[part], step)

    def _add(self, number: int, rows: I64Array, tokens: TokenArray, step: int) -> None:
        at = self._list_of(number)
        if not self._lists[at].add(self._rows, rows, tokens, step):
            self._add_late(at, rows.tolist(), tokens.tolist())
        elif self._heads.rows[at] == NONE:
            self._unsure.add(at)

    def _add_late(self, at: int, rows: list[int], tokens: list[int]) -> None:
        late = self._lists[at].late
        for row, token in zip(rows, tokens, strict=True):
            heappush(late, (self._rows.place(row), row, token))
        self._unsure.add(at)

    def _list_of(self, number: int) -> int:
        at = self._number.get(number)
        if at is None:
            at = self._number[number] = len(self._lists)
            self._lists.append(_ClassList())
            if at == len(self._standings):
                self._heads = self._heads.twice()
                self._standings = np.concatenate([self._standings, np.zeros(at, np.int64)])
            self._standings[at] = number >> CLASS_BITS
            self._several_standings |= bool(self._standings[at] != self._standings[0])
        return at

    def discard(self, rows: I64Array) -> None:
        self._rows.discard(rows)

    def put_back(self, rows: I64Array) -> None:
        rows = self._rows.returning(rows)
        if not len(rows):
            return
        tokens = self._rows.renew(rows)
        classes = self._classes(rows).tolist()
        for number, row, token in zip(classes, rows.tolist(), tokens.tolist(), strict=True):
            self._add_late(self._list_of(number), [row], [token])

    def _compact(self) -> None:
        kept = [(number, self._lists[at]) for number, at in self._number.items()]
        self._logged = sum(found.compact(self._rows) for _, found in kept)
        kept = [(number, found) for number, found in kept if not found.empty]
        self._number = {number: at for at, (number, _) in enumerate(kept)}
        self._lists = [found for _, found in kept]
        self._standings = np.zeros(max(LISTS, len(kept)), np.int64)
        self._heads = Heads(self._catalog, len(self._standings))
        self._standings[: len(kept)] = [number >> CLASS_BITS for number, _ in kept]
        self._several_standings = some(self._standings[: len(kept)] != self._standings[0])
        self._unsure = set(range(len(kept)))

    def choose(self, count: int, now: Moment, protection: Protection, lets: Lets | None = None) -> I64Array:
        self._rows.choice += 1
        self._sure.clear()
        self._reranked.clear()
        merge = _Merge(self._catalog, self._policy, now, self._rows)
        ranks: NDArray[np.float64] | None = None
        chosen, went_on = list[I64Array](), True
        while count and went_on:
            if len(self._lists) == 1:
                bar = self._alone(protection)
            else:
                ranks = self._refresh(merge, ranks, protection)
                bar = self._bar(self._rivals(ranks))
            if bar is None:
                break
            if self._find_heads(protection):
                continue
            head, found = self._heads.rows.item(bar.at), self._lists[bar.at]
            run = merge.run(head, found, bar, count, protection)
            self._unsure.add(bar.at)
            taken, went_on = self._take_run(found, run, lets)
            chosen.append(taken)
            count -= len(taken)
        return self._rows.take(chosen[0] if len(chosen) == 1 else np.concatenate([_NO_ROWS, *chosen]))

    def _alone(self, protection: Protection) -> _Bar | None:
        """As `_bar` where there is one list only, whatever its ranks are."""
        self._unsure |= {0} - self._sure
        self._find_heads(protection)
        return None if self._heads.rows.item(0) == NONE else _Bar(0, np.inf, -np.inf, None)

    def _bar(self, ranks: NDArray[np.float64]) -> _Bar | None:
        """The list whose head goes first, and how far its rows go before all others; None where no list has a head.
        Lists whose heads may be the first, and are not sure, are `_unsure` now: it holds if these are as known."""
        at = int(ranks.argmax()) if len(ranks) else NONE
        if at == NONE or (rank := ranks.item(at)) == -np.inf:
            return None
        if len(ties := indices(ranks == rank)) > 1:
            return self._first_of(ties.tolist(), rank)
        ranks[at] = -np.inf
        others = ranks.item(ranks.argmax())
        ranks[at] = rank
        self._unsure.update({at} - self._sure)
        return _Bar(at, rank, others, None)

    def _first_of(self, ties: list[int], rank: float) -> _Bar:
        """As `_bar`, of lists whose heads rank alike."""
        spots = sorted(self._heads.spots(ties))
        (spot, at), (following, _) = spots[:2]
        if spot < following:
            self._unsure.update({at} - self._sure)
            return _Bar(at, rank, rank, following)
        level = {tie for other, tie in spots if other == spot}
        self._unsure.update(level - self._sure)
        at = min(level, key=lambda tie: self._rows.place(self._heads.rows.item(tie)))
        return _Bar(at, rank, rank, spot)

    def _rivals(self, ranks: NDArray[np.float64]) -> NDArray[np.float64]:
        """Ranks of the heads of the lowest standing that has one, minus infinity for all others."""
        if not self._several_standings:
            return ranks
        standing = self._standings[: len(ranks)]
        lowest = standing.min(initial=1 << CLASS_BITS, where=ranks != -np.inf)
        return np.where(standing == lowest, ranks, -np.inf)

    def _take_run(self, found: _ClassList, run: I64Array, lets: Lets | None) -> tuple[I64Array, bool]:
        """Takes rows that go one after the other, until one that goes lets its parent come back into the order.
        Those that go; False when one was not let go."""
        if lets is None and self._rows.go_together(run):
            found.drop_staged(len(run))
            return run, True
        rows = cast(list[int], run.tolist())
        late = found.is_late(rows[0])
        taken, looked_at, freed = self._one_by_one(rows, run, lets)
        if not late:
            found.drop_staged(looked_at)
        elif looked_at:
            found.drop_late()
        if freed != NONE:
            self.put_back(np.array([freed]))
        went_on = looked_at == len(rows) or freed != NONE
        return run if len(taken) == len(rows) else np.array(taken, np.int64), went_on

    def _one_by_one(self, rows: list[int], run: I64Array, lets: Lets | None) -> tuple[list[int], int, int]:
        """As `_take_run`: the rows that go, how many were looked at, and the parent that comes back, or NONE."""
        known = self._rows
        children, out, leaf_only = known.children_at, known.out_at, known.leaf_only
        parents = self._catalog.parents(run).tolist() if len(rows) > 1 else [self._catalog.parent_of(rows[0])]
        taken = list[int]()
        for at, (row, parent) in enumerate(zip(rows, parents, strict=True)):
            if leaf_only and children[row]:
                out[row] = True
                continue
            if lets is not None and not lets(row):
                return taken, at, NONE
            taken.append(row)
            if parent >= 0:
                left = children[parent] = children[parent] - 1
                if leaf_only and not left and out[parent]:
                    return taken, at + 1, parent
        return taken, len(rows), NONE

    def _find_heads(self, protection: Protection) -> bool:
        """Finds the first rows of `_unsure` lists. False: all are what they were known as."""
        if not self._unsure:
            return False
        moved = False
        for at in self._unsure:
            row = self._lists[at].first(self._rows, protection)
            if self._heads.shows(at, row):
                continue
            moved = True
            if self._heads.put(at, row):
                self._reranked.append(at)
        self._sure |= self._unsure
        self._unsure.clear()
        return moved

    def _refresh(
        self, merge: _Merge, ranks: NDArray[np.float64] | None, protection: Protection
    ) -> NDArray[np.float64]:
        """Brings the heads of lists that changed, and their ranks, up to date."""
        self._find_heads(protection)
        if ranks is None:
            ranks = self._heads.ranks(self._policy, merge.now, len(self._lists))
        else:
            if len(self._lists) > len(ranks):
                ranks = np.concatenate([ranks, np.full(len(self._lists) - len(ranks), -np.inf)])
            for at in self._reranked:
                ranks[at] = merge.rank(self._heads.rows.item(at), self._lists[at])
        self._reranked.clear()
        return ranks


@dataclass(slots=True)
class _Bar:
    """How far the rows of the list `at` go before all others. `rank`: of its head; `others`: the highest of other
    heads, not above it; `spot`: where there are heads of the same rank, that of the first of them."""

    at: int
    rank: float
    others: float
    spot: Spot | None


class _Merge:
    """The ranks of heads at one moment."""

    def __init__(self, catalog: Catalog, policy: Policy, now: Moment, rows: VictimRows) -> None:
        self._catalog, self._policy, self.now, self._rows = catalog, policy, now, rows
        self._known: dict[int, float] = {}

    def rank(self, row: int, found: _ClassList) -> float:
        """Rank of one row, learnt together with those of latecomers that may follow it."""
        if row == NONE:
            return -np.inf
        if row not in self._known:
            rows = [row, *found.late_rows()]
            stats = StatsOf(self._catalog, np.array(rows, np.int64))
            self._known.update(zip(rows, ranks_of(self._policy, stats, self.now).tolist(), strict=True))
        return self._known[row]

    def run(self, row: int, found: _ClassList, bar: _Bar, most: int, protection: Protection) -> I64Array:
        """The first row of a class, which goes first of all, and those behind it that go before all other heads: a
        latecomer has none."""
        last_at = self._rows.last_at
        if most == 1 or len(found.stage) <= 1 or row != found.stage.item(0):
            return np.array([row])
        rows = found.going(most, self._rows, protection)
        if found.late:
            before = self._catalog.last[rows] < found.late[0][0][0]
            rows = rows[: max(1, len(rows) if every(before) else int(before.argmin()))]
        if bar.others == -np.inf or (self._goes_by_last(bar, row) and last_at[rows.item(-1)] == last_at[row]):
            return rows
        ahead = found.stage[: len(rows) + 1]
        ranks = ranks_of(self._policy, StatsOf(self._catalog, ahead), self.now)
        behind = indices(~self._pass(bar, rows[1:], ranks[1 : len(rows)]))
        count = int(behind[0]) + 1 if len(behind) else len(rows)
        if count < len(ahead):  # likely to be the head then
            self._known[ahead.item(count)] = ranks.item(count)
        return rows[:count]

    def _goes_by_last(self, bar: _Bar, row: int) -> bool:
        """Whether all of a list that were last accessed with this row, its head, go before all other heads."""
        return bar.rank > bar.others or (bar.spot is not None and self._rows.last_at[row] < bar.spot[0])

    def _pass(self, bar: _Bar, rows: I64Array, ranks: NDArray[np.float64]) -> NDArray[np.bool_]:
        """Which of these rows surely go before all other heads. Of several with one last access and depth the
        identities are not compared."""
        if bar.spot is None:
            ahead: NDArray[np.bool_] = ranks > bar.others
            return ahead
        last = self._catalog.last[rows]
        before = last < bar.spot[0]
        if some(level := last == bar.spot[0]):
            before |= level & (-self._catalog.position[rows].astype(np.int64) < bar.spot[1])
        passing: NDArray[np.bool_] = before & (ranks == bar.others)
        return passing


class KeyHeap(Victims):
    """One heap of (standing, key, place)."""

    def __init__(self, catalog: Catalog, policy: ByKey, children: NDArray[np.int32]) -> None:
        self._rows = VictimRows(catalog, children, leaf_only=policy.common.leaf_only)
        self.out = self._rows.out
        self._catalog, self._policy = catalog, policy
        self._heap: list[tuple[int, float, Place, int, int]] = []

    def insert(self, rows: I64Array) -> None:
        if not len(rows):
            return
        tokens = self._rows.renew(rows)
        keys = self._policy.keys(StatsOf(self._catalog, rows)).tolist()
        standing = standings(self._catalog, rows).tolist()
        for first, key, row, token in zip(standing, keys, rows.tolist(), tokens.tolist(), strict=True):
            heappush(self._heap, (first, key, self._rows.place(row), row, token))
        if len(self._heap) > 2 * self._rows.members + COMPACT_ABOVE:
            self._heap = [entry for entry in self._heap if self._rows.valid(entry[3], entry[4])]
            heapify(self._heap)

    def discard(self, rows: I64Array) -> None:
        self._rows.discard(rows)

    def put_back(self, rows: I64Array) -> None:
        self.insert(self._rows.returning(rows))

    def choose(self, count: int, now: Moment, protection: Protection, lets: Lets | None = None) -> I64Array:
        del now  # the order does not change with time
        chosen: list[int] = []
        while len(chosen) < count and self._heap:
            *_, row, token = entry = heappop(self._heap)
            if not self._rows.valid(row, token):
                continue
            if protection.one(row) or self._rows.stays(row):
                self.out[row] = True
                continue
            if lets is not None and not lets(row):
                heappush(self._heap, entry)
                break
            chosen.append(row)
            parent = self._catalog.parent_of(row)
            if parent != NO_ROW and self._rows.child_goes(parent):
                self.put_back(np.array([parent]))
        return self._rows.take(np.array(chosen, np.int64))


def make_victims(catalog: Catalog, policy: Policy, children: NDArray[np.int32]) -> Victims:
    """`children` of each row in the tier: a choice counts down those of the parents of its victims."""
    if policy.index == "queues":
        return QueueOrder(catalog, cast(ByQueues, policy), children)
    if policy.index == "keys":
        return KeyHeap(catalog, cast(ByKey, policy), children)
    return ClassLists(catalog, cast(ByClass, policy), children)
