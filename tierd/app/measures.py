"""What is counted and timed while the daemon works: moves of bytes, and calls.

Everything here belongs to the event loop's thread, and costs a few additions each time. What the engine counts
itself (hits, evictions, ...) is read from it when somebody asks.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from enum import StrEnum

from tierd.core.messages import MoveResult, Tier

BOUNDS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 0.5, 2.5, 10.0)
"""Upper bounds of the buckets of every histogram, seconds: from a copy of a small block to a deadline."""

Edge = tuple[Tier, Tier]
"""From and to."""


class Cause(StrEnum):
    """Why a move failed."""

    LOST = "lost"
    """The source had vanished, or its bytes were not those of the record."""
    FULL = "full"
    DOWN = "down"
    STOPPING = "stopping"
    LIMIT = "limit"
    """More moves were waiting than may."""
    FENCE = "fence"
    """The page of an engine was not ready in time."""
    WITHDRAWN = "withdrawn"
    """The engine took its page back before the copy began, or went away."""
    ERROR = "error"
    """Anything else; the log has it."""


def cause_of(result: MoveResult) -> Cause:
    """Of a move that was tried and failed."""
    named = ((result.lost, Cause.LOST), (result.full, Cause.FULL), (result.down, Cause.DOWN))
    return next((cause for true, cause in named if true), Cause.ERROR)


@dataclass(slots=True)
class Histogram:
    """How many durations fell into each bucket (the last has no bound), and their sum, seconds."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(BOUNDS_S) + 1))
    sum_s: float = 0.0

    def add(self, seconds: float) -> None:
        self.counts[bisect_left(BOUNDS_S, seconds)] += 1
        self.sum_s += seconds


@dataclass(slots=True)
class Measures:
    """Since this boot. `rpc_codes` by call and status; `rpc_seconds` leaves the sessions' own streams out, which
    last as long as their clients."""

    moved_bytes: Counter[Edge] = field(default_factory=Counter)
    move_seconds: defaultdict[Edge, Histogram] = field(default_factory=lambda: defaultdict(Histogram))
    failed_moves: Counter[tuple[Edge, Cause]] = field(default_factory=Counter)
    rpc_codes: Counter[tuple[str, str]] = field(default_factory=Counter)
    rpc_seconds: dict[str, Histogram] = field(default_factory=dict)
    rpcs_in_flight: int = 0
    spill_outages: int = 0

    def moved(self, edge: Edge, size: int, seconds: float) -> None:
        """A move of `size` bytes has succeeded."""
        self.moved_bytes[edge] += size
        self.move_seconds[edge].add(seconds)

    def moves_of(self, tier: Tier) -> int:
        """Moves from and to a tier that have succeeded."""
        return sum(sum(one.counts) for edge, one in self.move_seconds.items() if tier in edge)

    def called(self, rpc: str, code: str, seconds: float, *, timed: bool) -> None:
        self.rpc_codes[rpc, code] += 1
        if timed:
            self.rpc_seconds.setdefault(rpc, Histogram()).add(seconds)
