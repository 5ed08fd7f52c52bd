"""Idle time per use: a block that was used n times may be idle n^power times as long as one that was used once."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from tierd.core.policy.base import (
    MOST_TOUCHES,
    Common,
    FloatArray,
    IntArray,
    Moment,
    Parameters,
    Stats,
    common_spec,
    in_spec,
)


@dataclass(frozen=True)
class PerUse:
    name: ClassVar[str] = "per_use"
    rule: ClassVar[str] = "idle / touches^power"
    index: ClassVar[Literal["classes"]] = "classes"
    common: Common
    power: float = 1.0

    @classmethod
    def parse(cls, parameters: Parameters) -> "PerUse":
        power = parameters.number("power", 1.0, 0.0, 8.0)
        return cls(parameters.common(alpha=0.5), power)

    @property
    def spec(self) -> str:
        return f"per_use({','.join([f'power={in_spec(self.power)}', *common_spec(self.common)])})"

    def ranks(self, stats: Stats, now: Moment) -> FloatArray:
        ranks: FloatArray = (now.step - stats.last) / self.classes(stats).astype(np.float64) ** self.power
        return ranks

    def classes(self, stats: Stats) -> IntArray:
        return np.clip(stats.touches, 1, MOST_TOUCHES)

    def terms(self, stats: Stats, now: Moment) -> dict[str, float]:
        return {"idle_steps": float(now.step - stats.last[0])}
