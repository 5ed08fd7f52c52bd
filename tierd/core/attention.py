"""What attention blocks were given, as policies over attention count it; kept beside the records.

A report gives each block of a sequence its share: its mass times the number of blocks, so that 1 is as much as an
even share, made monotone along the chain: a block is never worth less than what follows it. What is noted stays for
as long as the identity has a copy in any tier, whatever the policy; it does not survive a restart. Memory that no
report ever wrote is not there: a daemon without reports pays nothing.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from tierd.core.policy.base import WINDOW_REPORTS, Attended, FloatArray
from tierd_client.format import I64Array

Near = Callable[[FloatArray], FloatArray]
"""From the windows of a sequence's blocks (blocks, reports), in order, to a number for each block."""


class Attention:
    """Columns over the rows of a catalog; `birth` is the catalog's, by which a row of a new identity is known."""

    def __init__(self, birth: NDArray[np.uint32]) -> None:
        rows = len(birth)
        self._birth = birth
        self._of = np.zeros(rows, np.uint32)
        self._total = np.zeros(rows)
        self._near = np.zeros(rows)
        self._latest = np.zeros(rows, np.float32)
        self._votes = np.zeros(rows, np.uint32)
        self._reports = np.zeros(rows, np.uint32)
        self._behind = np.zeros(rows, np.uint32)
        self._window = np.zeros((rows, WINDOW_REPORTS), np.float32)

    def report(self, rows: I64Array, shares: FloatArray, behind: I64Array, near: Near | None) -> None:
        """Takes in the shares of distinct rows, in order of the chain, with as many blocks `behind` each. `near`
        makes the number that a policy wants of neighbouring blocks."""
        self._forget(rows[self._of[rows] != self._birth[rows]])
        self._total[rows] += shares
        self._latest[rows], self._behind[rows] = shares, behind
        self._votes[rows] += shares > 1.0
        self._window[rows, self._reports[rows] % WINDOW_REPORTS] = shares
        self._reports[rows] += np.uint32(1)
        self._near[rows] = 0.0 if near is None else near(self._windows(rows))

    def of(self, rows: I64Array) -> Attended:
        """What is noted of rows; of one that no report named, nothing."""
        known = self._of[rows] == self._birth[rows]
        return Attended(
            np.where(known, self._total[rows], 0.0), np.where(known, self._latest[rows], 0.0),
            np.where(known, self._votes[rows], 0), np.where(known, self._reports[rows], 0),
            np.where(known[:, None], self._windows(rows), 0.0),
            np.where(known, self._near[rows], 0.0), np.where(known, self._behind[rows], 0), known,
        )

    def _windows(self, rows: I64Array) -> FloatArray:
        """Shares in the last reports of each row, the latest first."""
        latest = self._reports[rows].astype(np.int64)[:, None] - 1
        places = (latest - np.arange(WINDOW_REPORTS)) % WINDOW_REPORTS
        windows: FloatArray = self._window[rows[:, None], places].astype(np.float64)
        return windows

    def _forget(self, rows: I64Array) -> None:
        self._of[rows] = self._birth[rows]
        for column in (self._total, self._votes, self._reports, self._window):
            column[rows] = 0
