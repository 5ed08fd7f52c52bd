"""How far a difference between two replays of one trace could be chance.

The bootstrap over blocks of consecutive requests (Künsch, Annals of Statistics 17, 1989): requests near each other
are of the same sessions, and so say less than as many independent ones.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tierd_client.format import I64Array

BLOCK_REQUESTS = 100
LEAST_BLOCKS = 10
RESAMPLES = 1_000
SHARE = 0.90


@dataclass(frozen=True, slots=True)
class Interval:
    """A difference in points of hit rate, and between which values nine of ten resamples of it lie."""

    points: float
    low: float
    high: float

    def as_text(self) -> str:
        return f"{self.points:+.2f} points ({self.low:+.2f} to {self.high:+.2f})"


def difference(hits: I64Array, base: I64Array, asked: I64Array, seed: int = 1) -> Interval:
    """Of the hits of each request over those of another replay; all of shape (requests,)."""
    gains, weights = _by_block(hits - base), _by_block(asked)
    rng = np.random.default_rng(seed)
    draws = rng.integers(0, len(gains), (RESAMPLES, len(gains)))
    resampled = 100 * gains[draws].sum(axis=1) / np.maximum(1, weights[draws].sum(axis=1))
    low, high = np.quantile(resampled, [(1 - SHARE) / 2, (1 + SHARE) / 2])
    return Interval(float(100 * gains.sum() / max(1, weights.sum())), float(low), float(high))


def _by_block(values: I64Array) -> I64Array:
    """Sums over blocks of requests, of which there are enough for a resample to mean something."""
    size = max(1, min(BLOCK_REQUESTS, len(values) // LEAST_BLOCKS))
    sums: I64Array = np.add.reduceat(values, np.arange(0, len(values), size))
    return sums
