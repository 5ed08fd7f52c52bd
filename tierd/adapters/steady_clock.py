"""The time of day by a clock that nobody sets."""

from __future__ import annotations

import time


class SteadyClock:
    """Seconds since 1970 when it was made, and from then on those that pass, also while the machine sleeps.

    A machine's wall clock that is set forward or back meanwhile neither ends what lasts until a time nor makes it
    last: pins, the rate of stores, the grace of an outage, the next try of a server that was full.
    """

    def __init__(self) -> None:
        self._ahead_s = time.time() - _since_boot_s()

    def __call__(self) -> float:
        return self._ahead_s + _since_boot_s()


def _since_boot_s() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)
