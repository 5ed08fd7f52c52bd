"""Orders by place in the chain: whoever keeps the end of a text, or a pattern of it, lets its front go first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from tierd.core.policy.base import Common, FloatArray, Moment, Stats

_POSITION_BITS = 18
"""Deeper blocks (4 million tokens in blocks of 16) count as equally deep."""
_EXACT = 1 << 53
"""Integers below are exact in a float. A wall clock of more than 20 steps a second runs past them: then what is
kept still goes last, and the rest is up to the order of equals."""


@dataclass(frozen=True)
class ByPlace:
    """Blocks that are not `kept` go before the others; then by older access, then from the front."""

    index: ClassVar[Literal["keys"]] = "keys"
    common: Common

    def kept(self, position: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Which of these places in a chain go last."""
        raise NotImplementedError

    def ranks(self, stats: Stats, now: Moment) -> FloatArray:
        del now  # a place does not age
        return -self.keys(stats)

    def keys(self, stats: Stats) -> FloatArray:
        steps = np.clip(stats.last, 0, (_EXACT >> _POSITION_BITS) - 1)
        position = np.minimum(stats.position, (1 << _POSITION_BITS) - 1)
        place = (steps << _POSITION_BITS | position).astype(np.float64)
        return np.where(self.kept(stats.position), place, place - _EXACT)

    def terms(self, stats: Stats, now: Moment) -> dict[str, float]:
        return {"position": float(stats.position[0]), "idle_steps": float(now.step - stats.last[0])}
