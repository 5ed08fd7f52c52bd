"""By lot: each block in the tier is as likely to go as any other.

A block that comes draws the time that it stays, exponentially distributed with mean 1, and the earliest time goes.
The clock stands at the time of the last victim: what remains to each of the others is then distributed as it was
when it came, so that the next is drawn from all alike. The same seed and history give the same victims.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from tierd.core.policy.base import Parameters, common_spec
from tierd.core.policy.queues import Counts, Queued, Spot

MOST_SEED = (1 << 32) - 1
_WORD = (1 << 64) - 1


@dataclass(frozen=True)
class Random(Queued):
    """A baseline: what is no better than this knows nothing of the trace."""

    name: ClassVar[str] = "random"
    rule: ClassVar[str] = "by lot"
    seed: int = 0

    @classmethod
    def parse(cls, parameters: Parameters) -> Random:
        seed = parameters.integer("seed", 0, 0, MOST_SEED)
        return cls(parameters.common(alpha=0.5), seed)

    @property
    def spec(self) -> str:
        return f"random({','.join([f'seed={self.seed}', *common_spec(self.common)])})"

    def queues(self) -> RandomQueues:
        return RandomQueues(self.seed)


class RandomQueues:
    """One queue. The key is the time at which a block goes."""

    count: ClassVar[int] = 1
    moves_when_accessed: ClassVar[bool] = False

    def __init__(self, seed: int) -> None:
        self.turn = 0
        self._drawn = _mix(seed)
        self._time = 0.0

    def expect(self, identity: bytes, counts: Counts) -> None:
        """What left is forgotten."""

    def enter(self, identity: bytes, counts: Counts) -> Spot:
        del counts
        self._drawn = _mix(self._drawn ^ int.from_bytes(identity[:8], "little"))
        lot = ((self._drawn >> 12) + 0.5) * 2.0**-52
        return Spot(0, key=self._time - math.log(lot))

    def enter_at_start(self, identity: bytes, touches: int) -> Spot:
        del touches
        return self.enter(identity, Counts([]))

    def accessed(self, spot: Spot) -> Spot:
        return spot

    def look_in(self, counts: Counts, newcomer: bytes) -> tuple[int, ...]:
        del counts, newcomer
        return (0,)

    def pass_over(self, spot: Spot) -> Spot | None:
        del spot
        return None

    def left(self, identity: bytes, spot: Spot, counts: Counts, newcomer: bytes) -> None:
        del identity, counts, newcomer
        self._time = max(self._time, spot.key)

    def terms(self, spot: Spot) -> dict[str, float]:
        return {"stays_until": spot.key, "time": self._time}


def _mix(value: int) -> int:
    """A step of SplitMix64 (Steele et al., "Fast Splittable Pseudorandom Number Generators", OOPSLA 2014)."""
    value = value + 0x9E3779B97F4A7C15 & _WORD
    value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9 & _WORD
    value = (value ^ value >> 27) * 0x94D049BB133111EB & _WORD
    return value ^ value >> 31
