"""The first rows of lists, with the statistics that their ranks are made of.

These are copies: heads lie far from each other in the catalog, so that looking at each of some hundreds costs more
than ranking them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tierd.core.arrays import constant, scalars, some
from tierd.core.attention import Attention
from tierd.core.catalog import FLAG_UNIT, Catalog
from tierd.core.policy.base import Attended, FloatArray, Moment, Policy, ranks_of
from tierd.core.statistics import StatsOf
from tierd.core.victim_rows import NONE, Spot
from tierd_client.format import I64Array

_NO_HEAD, _LOWEST = constant(NONE, np.int64), constant(-np.inf, np.float64)
COLUMNS = ("touches", "last", "wall", "ema", "crf", "flags", "position", "learnt")


@dataclass(frozen=True, slots=True)
class _AttentionOfHeads:
    """What is noted of heads, looked up when it is asked for: their order within a class does not depend on it."""

    attention: Attention
    rows: I64Array

    def of(self, which: slice) -> Attended:
        return self.attention.of(self.rows[which])


class Heads:
    """A row for each of at most `lists` lists, `NONE` where it has none, and its statistics as they were when it
    became the head. A head that was accessed since ranks no lower by them than what is now first in its list."""

    def __init__(self, catalog: Catalog, lists: int) -> None:
        self.rows: I64Array = np.full(lists, NONE, np.int64)
        columns = {name: np.zeros(lists, getattr(catalog, name).dtype) for name in COLUMNS}
        self.touches, self.last, self.wall = columns["touches"], columns["last"], columns["wall"]
        self.ema, self.crf, self.flags = columns["ema"], columns["crf"], columns["flags"]
        self.position, self.learnt = columns["position"], columns["learnt"]
        self.attention = _AttentionOfHeads(catalog.attention, self.rows)
        self.flags[:] = FLAG_UNIT
        self._catalog = catalog
        self._row_at, self._last_at, self._last_of = scalars(self.rows), scalars(self.last), scalars(catalog.last)
        self._position_at, self._position_of = scalars(self.position), scalars(catalog.position)
        self._copied = [(scalars(getattr(catalog, name)), scalars(column)) for name, column in columns.items()]

    def shows(self, at: int, row: int) -> bool:
        """Whether this row is known as the head of a list, with the last access and depth that it has now."""
        if self._row_at[at] != row:
            return False
        return row == NONE or (
            self._last_at[at] == self._last_of[row] and self._position_at[at] == self._position_of[row]
        )

    def put(self, at: int, row: int) -> bool:
        """This row is the head of a list. True when its rank may be another than that of the last one: by equal
        class and last access it is the same, and so is what it is made of."""
        had, self._row_at[at] = self._row_at[at], row
        if row == NONE:
            return bool(had != NONE)
        if had != NONE and self._last_at[at] == self._last_of[row]:
            self._position_at[at] = self._position_of[row]
            return False
        for of_row, of_head in self._copied:
            of_head[at] = of_row[row]
        return True

    def spots(self, ats: list[int]) -> list[tuple[Spot, int]]:
        """Those of the heads of these lists, as they were when they became heads: what is first now comes no
        sooner. Each with the number of its list."""
        last, position = self._last_at, self._position_at
        return [((last[at], -position[at]), at) for at in ats]

    def ranks(self, policy: Policy, now: Moment, count: int) -> FloatArray:
        """Rank of the heads of the first so many lists, minus infinity where there is none."""
        if not count:
            return np.empty(0)
        ranks = np.array(ranks_of(policy, StatsOf(self, slice(count)), now))  # a policy may return its columns
        if some(missing := self.rows[:count] == _NO_HEAD):
            ranks[missing] = _LOWEST
        return ranks

    def twice(self) -> Heads:
        """The same with room for twice as many lists."""
        larger = Heads(self._catalog, 2 * len(self.rows))
        larger.rows[: len(self.rows)] = self.rows
        for name in COLUMNS:
            getattr(larger, name)[: len(self.rows)] = getattr(self, name)
        return larger
