"""The cached heads of the classes of victims: a row that was touched is a head of its old class no more."""

from __future__ import annotations

import numpy as np
import pytest

from tierd.core import statistics
from tierd.core.catalog import Catalog
from tierd.core.gaps import Gaps
from tierd.core.policy.base import Moment
from tierd.core.policy.registry import parse
from tierd.core.tables import Tables
from tierd.core.victims import Victims, make_victims
from tierd_client.format import CATALOG_MAGIC, Table, catalog_columns

ROWS = 8
POLICY = parse("lrfu(leaf_only=false)")


class Unprotected:
    def one(self, row: int) -> bool:
        return False

    def many(self, rows: np.ndarray) -> np.ndarray:
        return np.zeros(len(rows), bool)


class Tier:
    """Rows that were all accessed once, row n at step n + 1, and their order of eviction."""

    def __init__(self) -> None:
        self.catalog = Catalog(Table.create(CATALOG_MAGIC, catalog_columns(ROWS, 16)))
        ids = np.zeros((ROWS, 32), np.uint8)
        ids[:, 0] = np.arange(1, ROWS + 1)
        self.catalog.insert(ids)
        self.victims: Victims = make_victims(self.catalog, POLICY, np.zeros(ROWS, np.int32))
        for row in range(ROWS):
            self.touch(row, row + 1)

    def touch(self, row: int, step: int) -> None:
        rows = np.array([row])
        by = statistics.Access(step, 0.0, POLICY.common, Gaps(Tables.private(1).learnt["gaps"]), 0)
        statistics.access(self.catalog, rows, by)
        self.victims.insert(rows)

    def choose(self, count: int) -> list[int]:
        return self.victims.choose(count, Moment(100, 0.0, 50.0), Unprotected()).tolist()


@pytest.mark.parametrize("count", [1, 3, ROWS])
def test_a_touched_head_hides_nothing_behind_it(count: int) -> None:
    """When the head of a class is touched, the next row of that class is its head, whatever was cached."""
    tier = Tier()
    assert tier.choose(0) == []
    tier.touch(0, 99)
    assert tier.choose(count) == [*range(1, ROWS), 0][:count]


def test_a_touched_head_that_is_alone_leaves_an_empty_class() -> None:
    """When the last row of a class is touched, its class has no head, and nothing is taken from it."""
    tier = Tier()
    assert tier.choose(ROWS - 2) == [*range(ROWS - 2)]
    tier.touch(ROWS - 2, 98)
    tier.touch(ROWS - 1, 99)
    assert tier.choose(ROWS) == [ROWS - 2, ROWS - 1]
