"""Every k-th block of a chain stays: the others go first, the oldest before, of one request the front."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from tierd.core.policy.base import Parameters, common_spec
from tierd.core.policy.places import ByPlace

MOST_STRIDE = 1 << 16


@dataclass(frozen=True)
class Strided(ByPlace):
    name: ClassVar[str] = "strided"
    rule: ClassVar[str] = "off the stride first; older, then nearer to the front first"
    stride: int = 4

    @classmethod
    def parse(cls, parameters: Parameters) -> Strided:
        stride = parameters.integer("stride", 4, 1, MOST_STRIDE)
        return cls(parameters.common(alpha=0.5, leaf_only=False), stride)

    @property
    def spec(self) -> str:
        return f"strided({','.join([f'stride={self.stride}', *common_spec(self.common)])})"

    def kept(self, position: NDArray[np.int64]) -> NDArray[np.bool_]:
        kept: NDArray[np.bool_] = position % self.stride == 0
        return kept
