"""A sliding window: whatever is oldest goes first, of one request the front."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from tierd.core.policy.base import Parameters, common_spec
from tierd.core.policy.places import ByPlace


@dataclass(frozen=True)
class SlidingWindow(ByPlace):
    name: ClassVar[str] = "sliding_window"
    rule: ClassVar[str] = "older, then nearer to the front first"

    @classmethod
    def parse(cls, parameters: Parameters) -> SlidingWindow:
        return cls(parameters.common(alpha=0.5, leaf_only=False))

    @property
    def spec(self) -> str:
        return f"sliding_window({','.join(common_spec(self.common))})"

    def kept(self, position: NDArray[np.int64]) -> NDArray[np.bool_]:
        return np.zeros(len(position), bool)
