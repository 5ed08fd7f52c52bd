"""Attention sinks and a window: the first blocks of a chain stay, of the others the oldest go first.

Xiao et al., "Efficient Streaming Language Models with Attention Sinks", ICLR 2024, lifted to blocks: 4 sink tokens
are one block, the window is what there is room for.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from tierd.core.policy.base import Parameters, common_spec
from tierd.core.policy.places import ByPlace

MOST_SINKS = 1 << 16


@dataclass(frozen=True)
class Streaming(ByPlace):
    name: ClassVar[str] = "streaming"
    rule: ClassVar[str] = "sinks last; older, then nearer to the front first"
    sink_blocks: int = 1

    @classmethod
    def parse(cls, parameters: Parameters) -> Streaming:
        sink_blocks = parameters.integer("sink_blocks", 1, 0, MOST_SINKS)
        return cls(parameters.common(alpha=0.5, leaf_only=False), sink_blocks)

    @property
    def spec(self) -> str:
        return f"streaming({','.join([f'sink_blocks={self.sink_blocks}', *common_spec(self.common)])})"

    def kept(self, position: NDArray[np.int64]) -> NDArray[np.bool_]:
        return position < self.sink_blocks
