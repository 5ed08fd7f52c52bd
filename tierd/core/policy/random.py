"""By lot: each access draws a number from identity, step and seed, and the lowest goes first.

The same seed and history give the same victims. A baseline: what is no better than this knows nothing of the trace.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from tierd.core.policy.base import Common, FloatArray, Moment, Parameters, Stats, common_spec

MOST_SEED = (1 << 32) - 1
_GOLDEN, _FIRST, _SECOND = (np.uint64(n) for n in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))


@dataclass(frozen=True)
class Random:
    name: ClassVar[str] = "random"
    common: Common
    seed: int = 0
    rule: str = "by lot, drawn at the last access"
    index: Literal["keys"] = "keys"

    @classmethod
    def parse(cls, parameters: Parameters) -> Random:
        seed = parameters.integer("seed", 0, 0, MOST_SEED)
        return cls(parameters.common(alpha=0.5), seed)

    @property
    def spec(self) -> str:
        return f"random({','.join([f'seed={self.seed}', *common_spec(self.common)])})"

    def ranks(self, stats: Stats, now: Moment) -> FloatArray:
        del now  # a lot is kept until the next access
        return -self.keys(stats)

    def keys(self, stats: Stats) -> FloatArray:
        drawn = _mix(_mix(stats.last.astype(np.uint64) + np.uint64(self.seed) * _GOLDEN) ^ stats.lot)
        return (drawn >> np.uint64(11)).astype(np.float64) * 2.0**-53

    def terms(self, stats: Stats, now: Moment) -> dict[str, float]:
        return {"lot": float(self.keys(stats)[0]), "idle_steps": float(now.step - stats.last[0])}


def _mix(value: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The step of SplitMix64 (Steele et al., "Fast Splittable Pseudorandom Number Generators", OOPSLA 2014)."""
    value = value + _GOLDEN
    value = (value ^ value >> np.uint64(30)) * _FIRST
    value = (value ^ value >> np.uint64(27)) * _SECOND
    return value ^ value >> np.uint64(31)
