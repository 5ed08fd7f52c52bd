"""Least frequently used: the fewest accesses go first, of equals the older last access.

The count survives eviction with the record. With `persist=false` it starts anew when a block comes in: in-cache
LFU, as the distinction is drawn by Breslau et al., "Web Caching and Zipf-like Distributions", INFOCOM 1999.
"""

from __future__ import annotations

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
)


@dataclass(frozen=True)
class Lfu:
    name: ClassVar[str] = "lfu"
    common: Common
    rule: str = "-touches"
    index: Literal["classes", "keys"] = "classes"

    @classmethod
    def parse(cls, parameters: Parameters) -> Lfu:
        return cls(parameters.common(alpha=0.5))

    @property
    def spec(self) -> str:
        return f"lfu({','.join(common_spec(self.common))})"

    def ranks(self, stats: Stats, now: Moment) -> FloatArray:
        del now  # a count does not age
        return -self.keys(stats)

    def classes(self, stats: Stats) -> IntArray:
        return np.minimum(stats.touches, MOST_TOUCHES)

    def keys(self, stats: Stats) -> FloatArray:
        return self.classes(stats).astype(np.float64)

    def terms(self, stats: Stats, now: Moment) -> dict[str, float]:
        return {"idle_steps": float(now.step - stats.last[0])}
