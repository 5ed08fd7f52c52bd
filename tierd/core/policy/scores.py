"""ema as a policy sorts by it: exact while every access had weight 1, in steps otherwise.

With accesses of weight 1 only, ema is a function of the number of accesses, so that records fall into classes
by that number. A record that ever met another weight is sorted by -log2(1 - ema), to 1/64, and ranked by the
middle of its step: an order that is total, and as fine as attention is exact.
"""

from __future__ import annotations

import numpy as np

from tierd.core.arrays import every
from tierd.core.policy.base import MOST_TOUCHES, FloatArray, IntArray, Stats

STEPS_PER_HALVING = 64
MOST_HALVINGS = 64


def score_classes(stats: Stats) -> IntArray:
    """Class of each record, such that all of a class have one score."""
    unit, exact = stats.unit, np.minimum(stats.touches, MOST_TOUCHES)
    return exact if every(unit) else np.where(unit, exact, MOST_TOUCHES + 1 + _step(stats.ema))


def score(stats: Stats) -> FloatArray:
    """ema where it is exact, else the middle of its step."""
    unit, ema = stats.unit, stats.ema
    if every(unit):
        return ema
    middle = 1.0 - np.exp2(-(_step(ema) + 0.5) / STEPS_PER_HALVING)
    return np.where(unit, ema, middle)


def _step(ema: FloatArray) -> IntArray:
    """Number of the step of -log2(1 - ema) in which a score lies."""
    halvings = -np.log2(np.maximum(1.0 - ema, 2.0**-MOST_HALVINGS))
    return (halvings * STEPS_PER_HALVING).astype(np.int64)
