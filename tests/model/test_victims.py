"""The indexes of victims against a search over everything, one operation after the other."""

from __future__ import annotations

import os
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule
from pytest import MonkeyPatch

from tierd.core import victims
from tierd.core.catalog import FLAG_UNIT, Catalog
from tierd.core.gaps import Gaps
from tierd.core.policy.base import Moment
from tierd.core.policy.queues import ByQueues
from tierd.core.policy.registry import parse
from tierd.core.standing import next_use_of, priority_of, set_next_use, set_priority
from tierd.core.statistics import Access, StatsOf, access, access_weighted
from tierd.core.tables import Tables
from tierd.core.terms import NextUse, Priority
from tierd.testing.plain_queues import PlainQueues
from tierd_client.format import CATALOG_MAGIC, I64Array, Table, catalog_columns

FAST = os.environ.get("TIERD_TEST_EFFORT") == "fast"
ROWS = 10
PARENTS = (-1, 0, 1, 2, 1, 4, -1, 6, 6, -1)
"""Row -> row of its parent: a chain that forks, a short one, a single block."""
POLICIES = (
    "lru", "lru(leaf_only=false)", "lrfu", "lrfu(leaf_only=false)", "lrfu(ranking=decayed,lambda=0.25)",
    "gab", "gab(leaf_only=false)", "gittins", "gittins(leaf_only=false)",
    "lrfu(ranking=composite,alpha=0.3,leaf_only=false)", "lrfu(ranking=decayed,lambda=0.5,leaf_only=false)",
    "lfu", "ema(leaf_only=false)", "streaming", "strided(stride=2,leaf_only=true)",
    "arc", "arc(leaf_only=false)", "sieve", "sieve(leaf_only=false)", "s3fifo(small=0.3)",
    "s3fifo(small=0.3,leaf_only=false)", "random",
)

subsets = st.sets(st.integers(0, ROWS - 1), min_size=1)


def array(rows: set[int] | list[int]) -> I64Array:
    return np.array(sorted(rows) if isinstance(rows, set) else rows, np.int64)


class Protected:
    """The rows that may not go now."""

    def __init__(self) -> None:
        self.rows: set[int] = set()

    def one(self, row: int) -> bool:
        return row in self.rows

    def many(self, rows: I64Array) -> np.ndarray:
        return np.array([row in self.rows for row in rows.tolist()], bool)


class Order(RuleBasedStateMachine):
    """`inside`: rows with a copy that was not chosen. The index must agree with `inside` in every choice."""

    def __init__(self) -> None:
        super().__init__()
        self.small = MonkeyPatch()

    @initialize(policy=st.sampled_from(POLICIES), stage=st.integers(1, 4), compact=st.sampled_from([0, 3, 4096]))
    def begin(self, policy: str, stage: int, compact: int) -> None:
        self.small.setattr(victims, "STAGE_ROWS", stage)
        self.small.setattr(victims, "COMPACT_ABOVE", compact)
        self.policy = parse(policy)
        self.catalog = Catalog(Table.create(CATALOG_MAGIC, catalog_columns(ROWS, 32)))
        identities = np.random.default_rng(ROWS).integers(0, 256, (ROWS, 32)).astype(np.uint8)
        assert self.catalog.insert(identities).tolist() == list(range(ROWS))
        for row, parent in enumerate(PARENTS):
            self.catalog.position[row] = 0 if parent < 0 else self.catalog.position[parent] + 1
            self.catalog.parent[row] = parent
            self.catalog.parent_birth[row] = self.catalog.birth[parent]
        self.children = np.zeros(ROWS, np.int32)
        self.index = victims.make_victims(self.catalog, self.policy, self.children)
        self.plain_children = np.zeros(ROWS, np.int32)
        self.plain: PlainQueues | None = None
        if self.policy.index == "queues":
            policy = cast(ByQueues, self.policy)
            self.plain = PlainQueues(self.catalog, policy, self.plain_children)
        self.protected = Protected()
        self.inside: set[int] = set()
        self.gaps = Gaps(Tables.private(1).learnt["gaps"])
        self.step = 0

    def teardown(self) -> None:
        self.small.undo()

    def count(self, rows: set[int] | list[int], change: int) -> None:
        for row in rows:
            if PARENTS[row] >= 0:
                self.children[PARENTS[row]] += change

    def one_access(self) -> Access:
        return Access(self.step, float(self.step), self.policy.common, self.gaps, 0)

    def give_back(self, rows: set[int], chosen: bool = False) -> None:
        """As the engine does, of all that may be out, whether it is in the tier or not."""
        self.index.put_back(array(rows & self.inside))
        if self.plain and chosen:
            self.plain.put_back(array(rows))

    def take_in(self, rows: I64Array) -> None:
        self.index.insert(rows)
        if self.plain:
            self.plain.insert(rows)

    def forget_copies(self, rows: I64Array) -> None:
        self.index.discard(rows)
        if self.plain:
            self.plain.discard(rows)

    @rule(rows=subsets)
    def announce(self, rows: set[int]) -> None:
        """Room is about to be made for blocks that are not in the tier."""
        places = array(rows - self.inside)
        self.index.expect(self.catalog.identity, places)
        if self.plain:
            self.plain.expect(self.catalog.identity, places)

    @rule(steps=st.integers(1, 30))
    def time_passes(self, steps: int) -> None:
        self.step += steps

    @rule(rows=subsets)
    def arrive(self, rows: set[int]) -> None:
        """Rows get a copy, and their first access with it."""
        rows -= self.inside
        if rows:
            access(self.catalog, array(rows), self.one_access())
            self.count(rows, 1)
            self.inside |= rows
            self.take_in(array(rows))

    @rule(rows=subsets)
    def touch(self, rows: set[int]) -> None:
        rows &= self.inside
        if rows:
            access(self.catalog, array(rows), self.one_access())
            self.take_in(array(rows))

    @rule(rows=subsets, weight=st.sampled_from([0.125, 0.5, 1.0]))
    def report(self, rows: set[int], weight: float) -> None:
        rows &= self.inside
        if rows:
            weights = np.full(len(rows), weight)
            access_weighted(
                self.catalog, array(rows), weights, 1, self.step, float(self.step), self.policy.common
            )
            self.take_in(array(rows))

    @rule(rows=subsets, priority=st.sampled_from([Priority.LOW, Priority.NORMAL, Priority.HIGH]))
    def prefer(self, rows: set[int], priority: Priority) -> None:
        rows &= self.inside
        if rows:
            set_priority(self.catalog, array(rows), priority)
            self.take_in(array(rows))

    @rule(rows=subsets, next_use=st.sampled_from(NextUse))
    def say_next(self, rows: set[int], next_use: NextUse) -> None:
        rows &= self.inside
        if rows:
            set_next_use(self.catalog, array(rows), next_use)
            self.take_in(array(rows))

    @rule(rows=subsets)
    def protect(self, rows: set[int]) -> None:
        self.protected.rows |= rows

    @rule(rows=subsets)
    def unprotect(self, rows: set[int]) -> None:
        rows &= self.protected.rows
        self.protected.rows -= rows
        self.give_back(rows)

    @rule(rows=subsets)
    def leave(self, rows: set[int]) -> None:
        """Copies are dropped by somebody's word."""
        rows &= self.inside
        if rows:
            self.inside -= rows
            self.forget_copies(array(rows))
            self.count(rows, -1)
            self.give_back({PARENTS[row] for row in rows if PARENTS[row] >= 0 and not self.children[PARENTS[row]]})
            self.forget(rows)

    def forget(self, rows: set[int]) -> None:
        """The next block in these rows is another one, without a past."""
        columns = self.catalog
        for row in rows:
            columns.touches[row] = columns.last[row] = 0
            columns.ema[row] = columns.crf[row] = columns.wall[row] = 0.0
            columns.flags[row] = FLAG_UNIT

    @rule(count=st.integers(1, ROWS), stay=st.booleans())
    def choose(self, count: int, stay: bool) -> None:
        expected = self.search(count)
        now = Moment(self.step, float(self.step), 50.0)
        chosen = self.index.choose(count, now, self.protected).tolist()
        assert chosen == expected
        if stay:
            self.count(chosen, 1)
            self.give_back(set(chosen), chosen=True)
        else:
            self.inside -= set(chosen)
            self.forget_copies(array(chosen))
            self.forget(set(chosen))

    def search(self, count: int) -> list[int]:
        """The next victims, by looking at all rows for each."""
        if self.plain:
            return self.search_queues(self.plain, count)
        everything = np.arange(ROWS)
        ranks = self.policy.ranks(StatsOf(self.catalog, everything), Moment(self.step, float(self.step), 50.0))
        left, chosen = set(self.inside), list[int]()
        while len(chosen) < count:
            parents = {PARENTS[row] for row in left} if self.policy.common.leaf_only else set()
            may_go = left - parents - self.protected.rows
            if not may_go:
                break
            chosen.append(min(may_go, key=lambda row: (self.standing(row), -ranks[row], self.place(row))))
            left.remove(chosen[-1])
        return chosen

    def search_queues(self, plain: PlainQueues, count: int) -> list[int]:
        self.plain_children[:] = self.children
        now = Moment(self.step, float(self.step), 50.0)
        return plain.choose(count, now, self.protected).tolist()

    def standing(self, row: int) -> int:
        by_next = {NextUse.CLOSED: 0, NextUse.HUMAN: 1, NextUse.SOON: 4}
        return by_next.get(next_use_of(self.catalog, row), priority_of(self.catalog, row).value)

    def place(self, row: int) -> tuple[int, int, bytes]:
        catalog = self.catalog
        return int(catalog.last[row]), -int(catalog.position[row]), catalog.identity[row].tobytes()


TestOrder = Order.TestCase
TestOrder.settings = settings(
    max_examples=int(os.environ.get("TIERD_TEST_EXAMPLES", 100 if FAST else 300)), stateful_step_count=40,
    deadline=None, phases=[Phase.generate] if FAST else list(Phase),
)


@pytest.mark.parametrize("policy", ["lru", "lrfu", "lrfu(ranking=decayed)"])
@pytest.mark.parametrize("pace", [0, 1])
def test_entries_do_not_pile_up(policy: str, pace: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """However often the same rows are touched, in one step or in many, the index holds few entries for each."""
    monkeypatch.setattr(victims, "COMPACT_ABOVE", 8)
    machine = Order()
    machine.begin(policy=policy, stage=2, compact=8)
    machine.arrive(set(range(ROWS)))
    for _ in range(300):
        machine.step += pace
        machine.touch({0, 3, 7})
        assert entries(machine.index) <= 4 * ROWS + 2 * victims.COMPACT_ABOVE
    machine.teardown()


def entries(index: Any) -> int:
    if isinstance(index, victims.KeyHeap):
        return len(index._heap)
    lists = index._lists
    logs = sum(one.tail - one.head + len(one.stage) + len(one.late) for one in lists)
    return logs + sum(len(rows) for one in lists for rows, _ in one.open)
