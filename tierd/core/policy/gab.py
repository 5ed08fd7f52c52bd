"""Smallest index first: what is least likely to be accessed soon, by what was learnt of gaps (core/gaps.py).

With learned admission (core/admission.py), its default, this is the policy that does best on recorded traffic of
conversations and agents.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from tierd.core.gaps import bins_of, classes_of
from tierd.core.policy.base import Common, FloatArray, IntArray, Moment, Parameters, Stats, common_spec


@dataclass(frozen=True)
class Gab:
    name: ClassVar[str] = "gab"
    common: Common
    rule: str = "-index(class, idle)"
    index: Literal["classes", "keys"] = "classes"

    @classmethod
    def parse(cls, parameters: Parameters) -> Gab:
        return cls(parameters.common(alpha=0.5, ghost_factor=float("inf"), admission="learned"))

    @property
    def spec(self) -> str:
        return f"gab({','.join(common_spec(self.common))})"

    def ranks(self, stats: Stats, now: Moment) -> FloatArray:
        ranks: FloatArray = -now.index[classes_of(stats.learnt), bins_of(now.step - stats.last)]
        return ranks

    def classes(self, stats: Stats) -> IntArray:
        return classes_of(stats.learnt)

    def terms(self, stats: Stats, now: Moment) -> dict[str, float]:
        return {"class": float(classes_of(stats.learnt)[0]), "idle_steps": float(now.step - stats.last[0])}
