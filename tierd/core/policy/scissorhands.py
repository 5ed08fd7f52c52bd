"""Scissorhands over blocks: the fewest reports in which a block had more than an even share go first.

Liu et al., "Scissorhands", NeurIPS 2023 (arXiv 2305.17118), lifted to blocks of all layers and heads.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from tierd.core.policy.attended import ByAttention, recent_blocks
from tierd.core.policy.base import Attended, FloatArray, Parameters


@dataclass(frozen=True)
class Scissorhands(ByAttention):
    name: ClassVar[str] = "scissorhands"
    rule: ClassVar[str] = "-reports with a share above 1"

    @classmethod
    def parse(cls, parameters: Parameters) -> Scissorhands:
        return cls(parameters.common(alpha=0.5), recent_blocks(parameters))

    def worth(self, seen: Attended) -> FloatArray:
        return seen.votes.astype(np.float64)
