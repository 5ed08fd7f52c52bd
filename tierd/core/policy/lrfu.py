"""LRFU: recency and frequency in one rank, over statistics that survive eviction.

`ranking`:

* `composite`: priority = (1 - s) (1 - exp(-beta idle)), s = ema, highest goes first;
* `auto` (default): the same, with both time constants tied to the tier's own characteristic age T (the mean
  idle age of what it evicts): s = ema 2^(-idle / (2 T)), beta = 1 / (4 T). T enters the rank, never a record;
* `decayed`: the original of Lee et al. (IEEE TC 50(12), 2001): smallest CRF, decayed to now, goes first.

The classes are those of scores.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from tierd.core.policy.base import (
    Common,
    FloatArray,
    IntArray,
    Moment,
    Parameters,
    Stats,
    common_spec,
    in_spec,
)
from tierd.core.policy.scores import score, score_classes

RANKINGS = ("auto", "composite", "decayed")
DEFAULT_BETA = 0.001
DEFAULT_ALPHA = {"auto": 0.5, "composite": 0.05, "decayed": 0.05}


@dataclass(frozen=True)
class Lrfu:
    name: ClassVar[str] = "lrfu"
    common: Common
    ranking: str = "auto"
    beta: float = DEFAULT_BETA

    @classmethod
    def parse(cls, parameters: Parameters) -> Lrfu:
        ranking = parameters.choice("ranking", "auto", RANKINGS)
        admission, fallback = ("learned", "lru") if ranking == "auto" else ("none", "none")
        common = parameters.common(DEFAULT_ALPHA[ranking], admission=admission, fallback=fallback)
        if ranking == "composite":
            return cls(common, ranking, parameters.number("beta", DEFAULT_BETA, 0.0, 1e6))
        return cls(common, ranking)

    @property
    def index(self) -> Literal["classes", "keys"]:
        return "keys" if self.ranking == "decayed" else "classes"

    @property
    def rule(self) -> str:
        return {
            "auto": "(1 - ema 2^(-idle / 2T)) (1 - exp(-idle / 4T))",
            "composite": "(1 - ema) (1 - exp(-beta idle))",
            "decayed": "-crf 2^(-lambda idle)",
        }[self.ranking]

    @property
    def spec(self) -> str:
        beta = [f"beta={in_spec(self.beta)}"] if self.ranking == "composite" else []
        return f"lrfu({','.join([f'ranking={self.ranking}', *beta, *common_spec(self.common)])})"

    def ranks(self, stats: Stats, now: Moment) -> FloatArray:
        if self.ranking == "decayed":
            return -self._crf_now(stats, now)
        idle = (now.step - stats.last).astype(np.float64)
        return self._priority(score(stats), idle, now.age)

    def _priority(self, scores: FloatArray, idle: FloatArray, age: float) -> FloatArray:
        beta = self.beta
        if self.ranking == "auto":
            beta = 1.0 / (4.0 * age)
            scores = scores * np.exp2(-idle / (2.0 * age))
        priority: FloatArray = (1.0 - scores) * (1.0 - np.exp(-beta * idle))
        return priority

    def classes(self, stats: Stats) -> IntArray:
        return score_classes(stats)

    def keys(self, stats: Stats) -> FloatArray:
        with np.errstate(divide="ignore"):
            return np.log2(stats.crf) + self.common.decay.clock(stats.last, stats.wall)

    def terms(self, stats: Stats, now: Moment) -> dict[str, float]:
        idle = float(now.step - stats.last[0])
        if self.ranking == "decayed":
            return {"crf": float(stats.crf[0]), "idle_steps": idle, "crf_now": float(self._crf_now(stats, now)[0])}
        terms = {"ema": float(stats.ema[0]), "idle_steps": idle}
        if self.ranking == "auto":
            return terms | {"characteristic_age_steps": now.age}
        return terms | {"beta": self.beta}

    def _crf_now(self, stats: Stats, now: Moment) -> FloatArray:
        return stats.crf * self.common.decay.factor(now.step - stats.last, now.wall_s - stats.wall)
