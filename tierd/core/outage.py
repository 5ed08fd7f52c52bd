"""Whether the spill tier is up, and for how long nothing could be stored there."""

from __future__ import annotations

import numpy as np

from tierd_client.format import WORD_REACH, U64Array

REACH_UP, REACH_DOWN = np.uint8(0b111), np.uint8(0b011)
"""A bit per tier whose copies can be reached: hbm, host, spill."""


class Outage:
    """Of one spill tier. Times are wall time, seconds.

    A server that answers probes and takes nothing (read-only, or it cannot save its data) goes up and down by
    turns, or is up all the time and refuses: it is failing since the first of it, until a store succeeds.
    """

    def __init__(self, grace_s: float, words: U64Array) -> None:
        """`grace_s`: how long victims that cannot be stored are kept. A time up of as much ends the trouble,
        too. `words`: of the catalog's header, for who looks there."""
        self._words = words
        self._set(up=True)
        self._grace_s = grace_s
        self._failing_since: float | None = None
        self._back_at = 0.0

    def is_too_long(self, now_s: float) -> bool:
        """Whether nothing could be stored for longer than victims are kept."""
        return self._failing_since is not None and now_s - self._failing_since >= self._grace_s

    def change(self, up: bool, now_s: float) -> None:
        """The tier goes up or down, or stays what it is."""
        if up and not self.up:
            self._back_at = now_s
        if self.up and not up and (self._failing_since is None or now_s - self._back_at >= self._grace_s):
            self._failing_since = now_s
        self._set(up=up)

    @property
    def reach(self) -> np.uint8:
        return REACH_UP if self.up else REACH_DOWN

    def _set(self, *, up: bool) -> None:
        self.up = up
        self._words[WORD_REACH] = self.reach

    def store_failed(self, now_s: float) -> None:
        if self._failing_since is None:
            self._failing_since = now_s

    def store_succeeded(self) -> None:
        self._failing_since = None
