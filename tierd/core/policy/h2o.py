"""H2O over blocks: the least sum of attention goes first.

Zhang et al., "H2O: Heavy-Hitter Oracle", NeurIPS 2023 (arXiv 2306.14048), lifted to blocks of all layers and heads.
Its two pools are `recent_blocks` of each sequence, and the heavy rest.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from tierd.core.policy.attended import ByAttention, recent_blocks
from tierd.core.policy.base import Attended, FloatArray, Parameters


@dataclass(frozen=True)
class H2O(ByAttention):
    """`normalise`: the sum by the number of reports, so that old blocks do not lead by their age."""

    name: ClassVar[str] = "h2o"
    normalise: bool = False

    @classmethod
    def parse(cls, parameters: Parameters) -> H2O:
        normalise = parameters.flag("normalise", False)
        return cls(parameters.common(alpha=0.5), recent_blocks(parameters), normalise)

    @property
    def rule(self) -> str:
        return "-sum of shares / reports" if self.normalise else "-sum of shares"

    def own_spec(self) -> list[str]:
        return [*super().own_spec(), f"normalise={str(self.normalise).lower()}"]

    def worth(self, seen: Attended) -> FloatArray:
        return seen.total / np.maximum(seen.reports, 1) if self.normalise else seen.total
