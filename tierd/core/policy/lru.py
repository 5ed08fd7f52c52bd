"""Least recently used: the rank is the idle time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from tierd.core.policy.base import Common, FloatArray, IntArray, Moment, Parameters, Stats, common_spec


@dataclass(frozen=True)
class Lru:
    name: ClassVar[str] = "lru"
    common: Common
    rule: str = "idle"
    index: Literal["classes", "keys"] = "classes"

    @classmethod
    def parse(cls, parameters: Parameters) -> Lru:
        return cls(parameters.common(alpha=0.5))

    @property
    def spec(self) -> str:
        return f"lru({','.join(common_spec(self.common))})"

    def ranks(self, stats: Stats, now: Moment) -> FloatArray:
        return (now.step - stats.last).astype(np.float64)

    def classes(self, stats: Stats) -> IntArray:
        return np.zeros(len(stats.last), np.int64)

    def keys(self, stats: Stats) -> FloatArray:
        return stats.last.astype(np.float64)

    def terms(self, stats: Stats, now: Moment) -> dict[str, float]:
        return {"idle_steps": float(now.step - stats.last[0])}
