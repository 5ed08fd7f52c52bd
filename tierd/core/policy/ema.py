"""Smallest moving average first: the score of `lrfu` without its recency, of equals the older last access.

For attention: a block that running sequences look at stays, however long ago it was stored. With accesses of
weight 1 alone it is LFU.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from tierd.core.policy.base import Common, FloatArray, IntArray, Moment, Parameters, Stats, common_spec
from tierd.core.policy.scores import score, score_classes


@dataclass(frozen=True)
class Ema:
    name: ClassVar[str] = "ema"
    common: Common
    rule: str = "1 - ema"
    index: Literal["classes", "keys"] = "classes"

    @classmethod
    def parse(cls, parameters: Parameters) -> Ema:
        return cls(parameters.common(alpha=0.05))

    @property
    def spec(self) -> str:
        return f"ema({','.join(common_spec(self.common))})"

    def ranks(self, stats: Stats, now: Moment) -> FloatArray:
        del now  # the score is unchanged between accesses
        return 1.0 - score(stats)

    def classes(self, stats: Stats) -> IntArray:
        return score_classes(stats)

    def terms(self, stats: Stats, now: Moment) -> dict[str, float]:
        return {"ema": float(stats.ema[0]), "idle_steps": float(now.step - stats.last[0])}
