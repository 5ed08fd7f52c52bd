"""Where attention lies: what guides to eviction claim of it, as figures of a recorded trace."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np

from tierd.sim.attention_trace import AttentionTrace, F32Array

DECILES = 10
RECENT_SHARE = 0.1
"""Of the places, the newest that count as the recent window."""

NEAR_ZERO = 1e-4
SMALL_BESIDE_MAXIMUM = 0.01


@dataclass(frozen=True, slots=True)
class Sparsity:
    """Shares from 0 to 1, means over the steps, layers and heads of a trace.

    `first_place`: mass of the oldest place. `recent_tenth`: of the newest tenth of the places. `deciles`: of each
    tenth, the oldest first. `below_1e_4`: weights below 1e-4, of all. `below_percent_of_maximum`: below 1 % of
    their row's largest. `places_for_half`, `places_for_90`, `places_for_99`: fewest places of a row with that much
    of its mass. `same_for_all_heads_90`: the same of the mean row of all layers and heads. `risen`: of the second
    half's mass, what is on places outside the recent tenth that were below their row's median in the first half.
    """

    first_place: float
    recent_tenth: float
    deciles: tuple[float, ...]
    below_1e_4: float
    below_percent_of_maximum: float
    places_for_half: float
    places_for_90: float
    places_for_99: float
    same_for_all_heads_90: float
    risen: float


def sparsity(trace: AttentionTrace) -> Sparsity:
    """The figures of a trace; each step counts alike, with the places that it has."""
    rows = [trace.weights[step, ..., : trace.places[step]] for step in range(trace.steps)]
    recent = [max(1, round(RECENT_SHARE * row.shape[-1])) for row in rows]
    mean = [row.mean((0, 1)) for row in rows]
    return Sparsity(
        first_place=_mean([float(row[0]) for row in mean]),
        recent_tenth=_mean([float(row[-newest:].sum()) for row, newest in zip(mean, recent, strict=True)]),
        deciles=tuple(_mean([one[tenth] for one in map(_deciles, mean)]) for tenth in range(DECILES)),
        below_1e_4=_mean([float((row < NEAR_ZERO).mean()) for row in rows]),
        below_percent_of_maximum=_mean([
            float((row < SMALL_BESIDE_MAXIMUM * row.max(-1, keepdims=True)).mean()) for row in rows
        ]),
        places_for_half=_mean([places_for(row, 0.5) for row in rows]),
        places_for_90=_mean([places_for(row, 0.9) for row in rows]),
        places_for_99=_mean([places_for(row, 0.99) for row in rows]),
        same_for_all_heads_90=_mean([places_for(row, 0.9) for row in mean]),
        risen=_risen(trace),
    )


def places_for(rows: F32Array, mass: float) -> float:
    """Share of the places that the heaviest with `mass` of a row are, mean over rows [..., places]."""
    heaviest = np.sort(rows, axis=-1)[..., ::-1].cumsum(-1, dtype=np.float64)
    needed = (heaviest < mass * heaviest[..., -1:]).sum(-1) + 1
    return float(np.mean(needed)) / int(rows.shape[-1])


def _deciles(row: F32Array) -> list[float]:
    edges = np.linspace(0, len(row), DECILES + 1).round().astype(int)
    return [float(row[low:high].sum()) for low, high in itertools.pairwise(edges.tolist())]


def _risen(trace: AttentionTrace) -> float:
    """0 for a trace of one step."""
    half = trace.steps // 2
    if not half:
        return 0.0
    known = int(trace.places[half - 1])
    old = known - max(1, round(RECENT_SHARE * known))
    before = trace.weights[:half, ..., :old].sum(0)
    light = before < np.median(before, axis=-1, keepdims=True)
    after = trace.weights[half:].mean(0)
    return float((after[..., :old] * light).sum(-1).mean())


def _mean(values: list[float]) -> float:
    return float(np.mean(values))
