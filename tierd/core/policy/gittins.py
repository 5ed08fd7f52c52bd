"""Smallest index first, by the number of accesses: what was learnt of how long blocks with so many stay away.

The index is Gittins' (core/gaps.py), for 1 to 8 accesses; more count as 8.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from tierd.core.gaps import bins_of, touch_rows
from tierd.core.policy.base import Common, FloatArray, IntArray, Moment, Parameters, Stats, common_spec


@dataclass(frozen=True)
class Gittins:
    name: ClassVar[str] = "gittins"
    common: Common
    rule: str = "-index(touches, idle)"
    index: Literal["classes", "keys"] = "classes"

    @classmethod
    def parse(cls, parameters: Parameters) -> Gittins:
        return cls(parameters.common(alpha=0.5, ghost_factor=float("inf")))

    @property
    def spec(self) -> str:
        return f"gittins({','.join(common_spec(self.common))})"

    def ranks(self, stats: Stats, now: Moment) -> FloatArray:
        ranks: FloatArray = -now.index[touch_rows(stats.touches), bins_of(now.step - stats.last)]
        return ranks

    def classes(self, stats: Stats) -> IntArray:
        return touch_rows(stats.touches)

    def terms(self, stats: Stats, now: Moment) -> dict[str, float]:
        idle, row = now.step - stats.last, touch_rows(stats.touches)
        index = float(now.index[row, bins_of(idle)][0])
        return {"touches": float(stats.touches[0]), "idle_steps": float(idle[0]), "index": index}
