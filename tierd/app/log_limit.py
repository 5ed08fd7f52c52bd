"""A limit on how often one kind of trouble is logged: a store that is broken fails thousands of times."""

from __future__ import annotations

import time
from collections.abc import Callable

LOG_EVERY_S = 10.0


class LogLimit:
    """Lets one line pass per LOG_EVERY_S and counts the others. From several threads one too many may pass."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._quiet_until = float("-inf")
        self._suppressed = 0

    def suppressed(self) -> int | None:
        """Lines kept back before this one, which is to be logged; None when it is to be kept back too."""
        now = self._clock()
        if now < self._quiet_until:
            self._suppressed += 1
            return None
        self._quiet_until = now + LOG_EVERY_S
        before, self._suppressed = self._suppressed, 0
        return before
