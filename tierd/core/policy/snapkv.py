"""SnapKV over blocks: the least attention in the last reports goes first, a block counting with its neighbours.

Li et al., "SnapKV", NeurIPS 2024 (arXiv 2404.14469), lifted to blocks of all layers and heads. The paper pools
over 5 or 7 tokens; a block of 16 is wider than that by itself, so `pool` is 1 by default.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from tierd.core.errors import InvalidInput
from tierd.core.policy.attended import ByAttention, recent_blocks
from tierd.core.policy.base import WINDOW_REPORTS, Attended, FloatArray, Parameters

MOST_POOL = 33
POOLINGS = ("max", "average")


@dataclass(frozen=True)
class SnapKV(ByAttention):
    """`obs`: last reports that count. `pool`: blocks of the sequence that count together, an odd number; `pooling`:
    their best, or their average. Neighbours are those of the last report that named the block; before one under
    this policy it counts alone."""

    name: ClassVar[str] = "snapkv"
    rule: ClassVar[str] = "-pooled sum of the last shares"
    obs: int = WINDOW_REPORTS
    pool: int = 1
    pooling: str = "max"

    @classmethod
    def parse(cls, parameters: Parameters) -> SnapKV:
        pool = parameters.integer("pool", 1, 1, MOST_POOL)
        if pool % 2 == 0:
            raise InvalidInput("policy.pool", f"{pool} is even: a block has as many neighbours before as after it")
        pooling = parameters.choice("pooling", "max", POOLINGS)
        obs = parameters.integer("obs", WINDOW_REPORTS, 1, WINDOW_REPORTS)
        return cls(parameters.common(alpha=0.5), recent_blocks(parameters), obs, pool, pooling)

    def own_spec(self) -> list[str]:
        return [*super().own_spec(), f"obs={self.obs}", f"pool={self.pool}", f"pooling={self.pooling}"]

    def near(self, windows: FloatArray) -> FloatArray:
        """The pooled sum of each block of a sequence, from their windows (blocks, reports) in order."""
        reach = self.pool // 2
        sums = windows[:, : self.obs].sum(1)
        spans = sliding_window_view(np.pad(sums, reach, constant_values=np.nan), self.pool)
        pooled: FloatArray = np.nanmax(spans, 1) if self.pooling == "max" else np.nanmean(spans, 1)
        return pooled

    def worth(self, seen: Attended) -> FloatArray:
        alone: FloatArray = seen.window[:, : self.obs].sum(1)
        return alone if self.pool == 1 else np.where(seen.near > 0.0, seen.near, alone)
