"""What a policy is that keeps queues: FIFO and LRU lists, the hand of a clock, and what left them.

The queues are those of one tier. tierd/core/queue_order.py holds the blocks in them, tells what happens to each,
and asks in which queue to look for a victim; it passes over blocks that may not go now. Queues are no part of a
record: when the policy changes or the daemon starts, they are made of the records, in the order of last accesses.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple, Protocol

import numpy as np

from tierd.core.policy.base import Common, FloatArray, Moment, Policy, Stats


class Spot(NamedTuple):
    """Where a block stands: the number of its queue, a mark of the policy's own, and what it is sorted by there: a
    lower key goes first, of equals who joined before."""

    queue: int
    mark: int = 0
    key: float = 0.0


@dataclass(slots=True)
class Counts:
    """Blocks in each queue; and the most that the tier ever held, which is what fits into it once it was full."""

    lengths: list[int]
    most: int = 0


class Queues(Protocol):
    """The queues of one tier. The first of a queue is its candidate.

    `turn` is whatever `look_in` changes: a choice that is taken back sets it back.
    """

    count: ClassVar[int]
    moves_when_accessed: ClassVar[bool]
    """Whether a block that is accessed joins anew; else it keeps its place, with another mark."""
    turn: int

    def expect(self, identity: bytes, counts: Counts) -> None:
        """A block that is not in the tier is about to come; it may be told again, and may come untold."""

    def enter(self, identity: bytes, counts: Counts) -> Spot:
        """Where a block that comes joins."""

    def enter_at_start(self, identity: bytes, touches: int) -> Spot:
        """Where a block joins that was there before the queues were, with so many accesses."""

    def accessed(self, spot: Spot) -> Spot:
        """Where a block stands after an access."""

    def look_in(self, counts: Counts, newcomer: bytes) -> tuple[int, ...]:
        """All queues, in the order in which a victim is looked for. `newcomer`: the block that it makes room for,
        empty where none is known."""

    def pass_over(self, spot: Spot) -> Spot | None:
        """Where the first of a queue joins instead of going; None when it goes."""

    def left(self, identity: bytes, spot: Spot, counts: Counts, newcomer: bytes) -> None:
        """A victim has left the tier, from there."""

    def terms(self, spot: Spot) -> dict[str, float]:
        """What its place says, for people."""


class ByQueues(Policy, Protocol):
    """A policy whose index is "queues"."""

    def queues(self) -> Queues:
        """New ones, for a tier."""


@dataclass(frozen=True)
class Queued:
    """What such policies have in common: of blocks outside of queues, the longest unused goes first."""

    index: ClassVar[Literal["queues"]] = "queues"
    common: Common

    def ranks(self, stats: Stats, now: Moment) -> FloatArray:
        return (now.step - stats.last).astype(np.float64)

    def terms(self, stats: Stats, now: Moment) -> dict[str, float]:
        return {"idle_steps": float(now.step - stats.last[0])}
