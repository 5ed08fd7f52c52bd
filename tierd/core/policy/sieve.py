"""SIEVE: a queue in the order of arrival, and a hand that takes the first block not accessed since it last came by.

Zhang et al., "SIEVE is Simpler than LRU", NSDI 2024. The queue is held as two: what the hand comes to next, and
what it has passed. New blocks are at the end of the former; when that is empty the hand begins anew.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tierd.core.policy.base import Parameters, common_spec
from tierd.core.policy.queues import Counts, Queued, Spot


@dataclass(frozen=True)
class Sieve(Queued):
    name: ClassVar[str] = "sieve"
    rule: ClassVar[str] = "first before the hand that was not accessed since"

    @classmethod
    def parse(cls, parameters: Parameters) -> Sieve:
        return cls(parameters.common(alpha=0.5))

    @property
    def spec(self) -> str:
        return f"sieve({','.join(common_spec(self.common))})"

    def queues(self) -> SieveQueues:
        return SieveQueues()


class SieveQueues:
    """The mark is 1 when a block was accessed since the hand last came by. `turn`: the queue before the hand."""

    count: ClassVar[int] = 2
    moves_when_accessed: ClassVar[bool] = False

    def __init__(self) -> None:
        self.turn = 0

    def expect(self, identity: bytes, counts: Counts) -> None:
        """What left is forgotten."""

    def enter(self, identity: bytes, counts: Counts) -> Spot:
        del identity
        self._begin_anew(counts)
        return Spot(self.turn)

    def enter_at_start(self, identity: bytes, touches: int) -> Spot:
        del identity, touches
        return Spot(self.turn)

    def accessed(self, spot: Spot) -> Spot:
        return Spot(spot.queue, 1)

    def look_in(self, counts: Counts, newcomer: bytes) -> tuple[int, ...]:
        del newcomer
        self._begin_anew(counts)
        return self.turn, 1 - self.turn

    def pass_over(self, spot: Spot) -> Spot | None:
        return Spot(1 - self.turn) if spot.mark else None

    def left(self, identity: bytes, spot: Spot, counts: Counts, newcomer: bytes) -> None:
        """What left is forgotten."""

    def terms(self, spot: Spot) -> dict[str, float]:
        return {"accessed_since": float(spot.mark), "passed": float(spot.queue != self.turn)}

    def _begin_anew(self, counts: Counts) -> None:
        if not counts.lengths[self.turn]:
            self.turn = 1 - self.turn
