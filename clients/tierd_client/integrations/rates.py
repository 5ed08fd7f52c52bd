"""Whether a block is loaded or computed: what either took in this engine of late.

Both are medians over a few measurements, in seconds a block, so that one that met a busy or an idle moment tells
nothing. A way that loses is tried again now and then, or it could never win back.
"""

from __future__ import annotations

from collections import deque
from enum import Enum, auto
from itertools import count
from statistics import median

KEPT = 9
"""Measurements of each way."""

LEAST_BLOCKS = 32
"""Of a measurement: with fewer it is one of the engine's steps around them, not of the blocks."""

TRIED_AGAIN = 32
"""Of so many refusals of a way one is not made."""


class Way(Enum):
    """How the engine comes by a block."""

    COMPUTED = auto()
    HOST = auto()
    SPILL = auto()


class Rates:
    """Of one engine. Thread-safe: each step of it is one of the interpreter's."""

    def __init__(self) -> None:
        self._seconds: dict[Way, deque[float]] = {way: deque(maxlen=KEPT) for way in Way}
        self._refusals = count(1)

    def note(self, way: Way, blocks: int, seconds: float) -> None:
        """So many blocks took so long."""
        if blocks >= LEAST_BLOCKS:
            self._seconds[way].append(seconds / blocks)

    def block_seconds(self, way: Way) -> float | None:
        """What a block takes; None before it was measured."""
        return median(self._seconds[way]) if self._seconds[way] else None

    def is_worth(self, way: Way) -> bool:
        """Whether blocks are to come that way rather than be computed; so as long as not both are known."""
        loaded, computed = self.block_seconds(way), self.block_seconds(Way.COMPUTED)
        if loaded is None or computed is None or loaded <= computed:
            return True
        return next(self._refusals) % TRIED_AGAIN == 0
