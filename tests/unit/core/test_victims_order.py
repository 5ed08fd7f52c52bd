"""The order of victims, against a plain sort of all rows, from seeds."""

from __future__ import annotations

import numpy as np
import pytest

from tierd.core import statistics, victim_rows, victims
from tierd.core.catalog import Catalog
from tierd.core.engine import Tables
from tierd.core.gaps import Gaps
from tierd.core.policy.base import Moment
from tierd.core.policy.registry import parse
from tierd.core.victims import make_victims

ROWS = 40


class Pins:
    def __init__(self) -> None:
        self.pinned = np.zeros(ROWS, bool)

    def one(self, row: int) -> bool:
        return bool(self.pinned[row])

    def many(self, rows: np.ndarray) -> np.ndarray:
        return self.pinned[rows]


class Play:
    """One tier without chains: rows come, are touched, pinned, chosen, taken or given back, from a seed."""

    def __init__(self, spec: str, seed: int) -> None:
        self.random = np.random.default_rng(seed)
        self.catalog, self.policy = Catalog(Tables.private(ROWS).catalog), parse(spec)
        rows = self.catalog.insert(self.random.integers(0, 256, (ROWS, 32)).astype(np.uint8))
        self.catalog.position[rows] = self.random.integers(0, 4, ROWS)
        self.victims, self.pins = make_victims(self.catalog, self.policy, np.zeros(ROWS, np.int32)), Pins()
        self.present = np.zeros(ROWS, bool)
        self.gaps = Gaps(Tables.private(1).learnt["gaps"])
        self.step, self.age = 0, 50.0

    def some(self, most: int) -> np.ndarray:
        return self.random.choice(ROWS, self.random.integers(1, most), replace=False)

    def turn(self) -> None:
        turns = [self.tick, self.touch, self.pin, self.unpin, self.discard, self.choose]
        turns[self.random.choice(len(turns), p=[0.3, 0.4, 0.04, 0.06, 0.03, 0.17])]()

    def tick(self) -> None:
        self.step += 1

    def touch(self) -> None:
        rows, common = self.some(8), self.policy.common
        if self.random.random() < 0.2:
            weight = self.random.random(len(rows))
            statistics.access_weighted(self.catalog, rows, weight, 1, self.step, float(self.step), common)
        else:
            by = statistics.Access(self.step, float(self.step), common, self.gaps, 0)
            statistics.access(self.catalog, rows, by)
        self.victims.insert(rows)
        self.present[rows] = True

    def pin(self) -> None:
        self.pins.pinned[self.some(4)] = True

    def unpin(self) -> None:
        rows = np.flatnonzero(self.pins.pinned)
        self.pins.pinned[:] = False
        self.victims.put_back(rows)

    def discard(self) -> None:
        rows = self.some(3)
        self.victims.discard(rows)
        self.present[rows] = False

    def choose(self) -> None:
        self.age = float(self.random.integers(1, 100))
        count, now = int(self.random.integers(1, 6)), Moment(self.step, float(self.step), self.age)
        wanted = self.sorted(now)[:count]
        chosen = self.victims.choose(count, now, self.pins).tolist()
        assert chosen == wanted
        rows = np.array(chosen, np.int64)
        if self.random.random() < 0.5:
            self.victims.put_back(rows)
        else:
            self.victims.discard(rows)
            self.present[rows] = False

    def sorted(self, now: Moment) -> list[int]:
        rows = np.flatnonzero(self.present & ~self.pins.pinned)
        stats, catalog = statistics.StatsOf(self.catalog, rows), self.catalog
        ranks = self.policy.ranks(stats, now) if self.policy.index == "classes" else -self.policy.keys(stats)
        places = [
            (-rank, int(catalog.last[row]), -int(catalog.position[row]), catalog.identity[row].tobytes(), row)
            for rank, row in zip(ranks.tolist(), rows.tolist(), strict=True)
        ]
        return [place[-1] for place in sorted(places)]


@pytest.mark.parametrize("ranking", ["lru", "lrfu", "lrfu(ranking=composite)", "lrfu(ranking=decayed)"])
@pytest.mark.parametrize("seed", range(6))
def test_victims_are_the_first_of_a_plain_sort(ranking: str, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever came, went, was touched or pinned, also within one step: victims are the first of all, sorted."""
    monkeypatch.setattr(victims, "COMPACT_ABOVE", 8 if seed % 2 else 4096)
    play = Play(ranking, seed)
    for _ in range(250):
        play.turn()


class Trees:
    """Orders of one tier whose rows are the nodes of random trees, accessed in some order, a few of them pinned."""

    def __init__(self, spec: str, seed: int) -> None:
        self.random = np.random.default_rng(seed)
        self.catalog, self.policy, self.pins = Catalog(Tables.private(ROWS).catalog), parse(spec), Pins()
        rows = self.catalog.insert(self.random.integers(0, 256, (ROWS, 32)).astype(np.uint8))
        for row in rows[1:].tolist():
            if (drawn := self.random.random()) < 0.5:
                continue
            parent = row - 1 if drawn < 0.9 else int(self.random.integers(row))
            self.catalog.parent[row], self.catalog.parent_birth[row] = parent, self.catalog.birth[parent]
            self.catalog.position[row] = self.catalog.position[parent] + 1
        steps = np.sort(self.random.integers(1, self.random.integers(2, ROWS), ROWS))
        self.catalog.last[rows] = steps[:: self.random.choice([1, -1])]
        self.pins.pinned[:] = self.random.random(ROWS) < 0.05

    def order(self) -> victims.Victims:
        children = np.zeros(ROWS, np.int32)
        np.add.at(children, self.catalog.linked(np.arange(ROWS)), 1)
        order = make_victims(self.catalog, self.policy, children)
        order.load(np.arange(ROWS))
        return order


@pytest.mark.parametrize("spec", ["lru", "lru(leaf_only=false)", "gittins"])
@pytest.mark.parametrize("seed", range(8))
def test_rows_that_go_together_are_those_that_go_one_by_one(
    spec: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of trees, as of chains, a run taken at once is what a look at one row after the other takes."""
    trees = Trees(spec, seed)
    together, one_by_one = trees.order(), trees.order()
    for turn in range(30):
        count, now, chosen = int(trees.random.integers(2, 9)), Moment(ROWS, float(ROWS), 50.0), []
        for order, least in ((together, 2), (one_by_one, ROWS + 1)):
            monkeypatch.setattr(victim_rows, "TOGETHER_FROM", least)
            chosen.append(order.choose(count, now, trees.pins))
            order.discard(chosen[-1])
        assert chosen[0].tolist() == chosen[1].tolist()
        if turn == 15:
            pinned = np.flatnonzero(trees.pins.pinned)
            trees.pins.pinned[:] = False
            together.put_back(pinned)
            one_by_one.put_back(pinned)
    assert not len(chosen[0])
