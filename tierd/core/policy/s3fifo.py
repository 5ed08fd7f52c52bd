"""S3-FIFO: what is accessed once only goes through a small queue, and is soon gone.

Yang et al., "FIFO queues are all you need for cache eviction", SOSP 2023. New blocks join the small queue. Its
first goes on into the main one when it was accessed twice there, else it leaves and is remembered; what is missed
while it is remembered joins the main queue. There each access buys another round, three at most.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import ClassVar

from tierd.core.policy.base import Parameters, common_spec, in_spec
from tierd.core.policy.queues import Counts, Queued, Spot

SMALL, MAIN = 0, 1
MOST_ACCESSES = 3
"""Accesses are counted up to here."""
TO_MAIN = 2
"""Accesses in the small queue that let a block go on."""


@dataclass(frozen=True)
class S3Fifo(Queued):
    """`small`: the small queue's share of the blocks."""

    name: ClassVar[str] = "s3fifo"
    rule: ClassVar[str] = "first of the small queue while that is over its share, else of the main one"
    small: float = 0.1

    @classmethod
    def parse(cls, parameters: Parameters) -> S3Fifo:
        small = parameters.number("small", 0.1, 0.0, 1.0, above_low=True)
        return cls(parameters.common(alpha=0.5), small)

    @property
    def spec(self) -> str:
        return f"s3fifo({','.join([f'small={in_spec(self.small)}', *common_spec(self.common)])})"

    def queues(self) -> S3FifoQueues:
        return S3FifoQueues(self.small)


class S3FifoQueues:
    """The mark counts accesses."""

    count: ClassVar[int] = 2
    moves_when_accessed: ClassVar[bool] = False

    def __init__(self, small: float) -> None:
        self.turn = 0
        self._small = small
        self._gone: OrderedDict[bytes, None] = OrderedDict()
        """What left the small queue, the longest gone first."""
        self._missed: OrderedDict[bytes, None] = OrderedDict()
        """What was missed since, and has not come yet."""

    def expect(self, identity: bytes, counts: Counts) -> None:
        if identity in self._gone:
            del self._gone[identity]
            self._missed[identity] = None
            if len(self._missed) > counts.most:
                self._missed.popitem(last=False)

    def enter(self, identity: bytes, counts: Counts) -> Spot:
        self.expect(identity, counts)
        if identity not in self._missed:
            return Spot(SMALL)
        del self._missed[identity]
        return Spot(MAIN)

    def enter_at_start(self, identity: bytes, touches: int) -> Spot:
        del identity
        return Spot(MAIN if touches > TO_MAIN else SMALL)

    def accessed(self, spot: Spot) -> Spot:
        return Spot(spot.queue, min(MOST_ACCESSES, spot.mark + 1))

    def look_in(self, counts: Counts, newcomer: bytes) -> tuple[int, ...]:
        del newcomer
        over = counts.lengths[SMALL] >= self._small * counts.most
        return (SMALL, MAIN) if over else (MAIN, SMALL)

    def pass_over(self, spot: Spot) -> Spot | None:
        if spot.queue == SMALL:
            return Spot(MAIN) if spot.mark >= TO_MAIN else None
        return Spot(MAIN, spot.mark - 1) if spot.mark else None

    def left(self, identity: bytes, spot: Spot, counts: Counts, newcomer: bytes) -> None:
        del newcomer
        if spot.queue == SMALL:
            self._gone[identity] = None
        while len(self._gone) > (1.0 - self._small) * counts.most:
            self._gone.popitem(last=False)

    def terms(self, spot: Spot) -> dict[str, float]:
        return {"main_queue": float(spot.queue == MAIN), "accesses": float(spot.mark)}
