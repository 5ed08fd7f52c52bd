"""Rows until a time each, found when it has come without looking at all of them."""

from __future__ import annotations

from heapq import heapify, heappop, heappush

import numpy as np
from numpy.typing import NDArray

from tierd_client.format import I64Array

COMPACT_ABOVE = 1024


class Deadlines:
    """`until`: per row, in wall time (s since 1970), 0 for none; of two times given to a row the later one counts.

    A heap has an entry for each time given; those that a later one or an end has made void are skipped when they
    come up, and taken out when they are more than half.
    """

    def __init__(self, until: NDArray[np.float64]) -> None:
        self.until = until
        self._collect()

    def __len__(self) -> int:
        """Rows that have a time."""
        return self._count

    def rows(self) -> I64Array:
        return np.flatnonzero(self.until)

    def entries(self) -> list[tuple[float, int]]:
        """(time, row) of all that will come up, in no order."""
        return list(self._heap)

    def extend(self, rows: I64Array, until: float) -> I64Array:
        """Gives distinct rows this time, unless they have a later one; returns those that had none."""
        fresh: I64Array = rows[self.until[rows] == 0]
        later = rows[self.until[rows] < until]
        self.until[later] = until
        self._count += len(fresh)
        for row in later.tolist():
            heappush(self._heap, (until, row))
        if len(self._heap) > 2 * self._count + COMPACT_ABOVE:
            self._collect()
        return fresh

    def end(self, rows: I64Array) -> I64Array:
        """Takes their times from distinct rows; returns those that had one."""
        if not self._count:
            return rows[:0]
        had: I64Array = rows[self.until[rows] != 0]
        self.until[had] = 0
        self._count -= len(had)
        return had

    def passed(self, now: float) -> bool:
        """Whether the first time given may have come."""
        return bool(self._heap) and self._heap[0][0] <= now

    def due(self, now: float) -> I64Array:
        """Rows whose time has come, which have none from now on."""
        found = []
        while self.passed(now):
            _, row = heappop(self._heap)
            if 0 < self.until[row] <= now:
                self.until[row] = 0
                found.append(row)
        self._count -= len(found)
        return np.array(found, np.int64)

    def _collect(self) -> None:
        rows = self.rows()
        self._count = len(rows)
        self._heap = list(zip(self.until[rows].tolist(), rows.tolist(), strict=True))
        heapify(self._heap)
