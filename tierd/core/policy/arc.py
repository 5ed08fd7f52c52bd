"""ARC: blocks seen once and blocks seen again in two LRU lists, whose shares follow what was missed.

Megiddo and Modha, "ARC: A Self-Tuning, Low Overhead Replacement Cache", FAST 2003. Beside the lists T1 and T2 of
what is there, B1 and B2 remember what left them. A miss that B1 remembers says that T1 is too short, one that B2
remembers that T2 is; `target` is the length that T1 should have.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import ClassVar

from tierd.core.policy.base import Parameters, common_spec
from tierd.core.policy.queues import Counts, Queued, Spot

ONCE, AGAIN = 0, 1


@dataclass(frozen=True)
class Arc(Queued):
    name: ClassVar[str] = "arc"
    rule: ClassVar[str] = "first of T1 while that is over its target, else of T2"

    @classmethod
    def parse(cls, parameters: Parameters) -> Arc:
        return cls(parameters.common(alpha=0.5))

    @property
    def spec(self) -> str:
        return f"arc({','.join(common_spec(self.common))})"

    def queues(self) -> ArcQueues:
        return ArcQueues()


class ArcQueues:
    count: ClassVar[int] = 2
    moves_when_accessed: ClassVar[bool] = True

    def __init__(self) -> None:
        self.turn = 0
        self.target = 0.0
        self._gone: tuple[OrderedDict[bytes, bool], OrderedDict[bytes, bool]] = OrderedDict(), OrderedDict()
        """B1 and B2, the longest gone first: whether the target has followed the miss of each."""

    def expect(self, identity: bytes, counts: Counts) -> None:
        once, again = self._gone
        if once.get(identity) is False:
            self.target = min(counts.most, self.target + max(1.0, len(again) / len(once)))
            once[identity] = True
        elif again.get(identity) is False:
            self.target = max(0.0, self.target - max(1.0, len(once) / len(again)))
            again[identity] = True

    def enter(self, identity: bytes, counts: Counts) -> Spot:
        self.expect(identity, counts)
        known = [gone.pop(identity, None) for gone in self._gone]
        return Spot(ONCE if known == [None, None] else AGAIN)

    def enter_at_start(self, identity: bytes, touches: int) -> Spot:
        del identity
        return Spot(AGAIN if touches > 1 else ONCE)

    def accessed(self, spot: Spot) -> Spot:
        del spot
        return Spot(AGAIN)

    def look_in(self, counts: Counts, newcomer: bytes) -> tuple[int, ...]:
        length = counts.lengths[ONCE]
        over = length > self.target or (length == self.target and newcomer in self._gone[AGAIN])
        return (ONCE, AGAIN) if over else (AGAIN, ONCE)

    def pass_over(self, spot: Spot) -> Spot | None:
        del spot
        return None  # a list in the order of accesses has no second chance

    def left(self, identity: bytes, spot: Spot, counts: Counts, newcomer: bytes) -> None:
        once, again = self._gone
        self._gone[spot.queue][identity] = False
        if newcomer in once or newcomer in again:
            return
        while once and counts.lengths[ONCE] + len(once) >= counts.most:
            once.popitem(last=False)
        while again and sum(counts.lengths) + len(once) + len(again) >= 2 * counts.most:
            again.popitem(last=False)

    def terms(self, spot: Spot) -> dict[str, float]:
        return {"list": spot.queue + 1.0, "target": self.target}
