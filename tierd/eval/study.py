"""The comparison: every method at every budget, on pieces of one text."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from tierd.eval.measure import found, surprise, tokens_per_s
from tierd.eval.methods import FULL, LEAST_BUDGET, METHODS
from tierd_client.errors import InvalidArgument

NEEDLE = "\nRemember this: the pass key is {key}.\n"
QUESTION = "\nQuestion: what is the pass key? Answer: the pass key is"
DEPTHS = (0.1, 0.3, 0.5, 0.7, 0.9)
CONFIDENCE = 0.95
SPEED_TOKENS = 18


@dataclass(frozen=True, slots=True)
class Plan:
    """How much is measured. `budgets`: percent of a prompt's tokens."""

    methods: tuple[str, ...]
    budgets: tuple[int, ...]
    texts: int
    needles: int
    prompt_tokens: int
    answer_tokens: int
    seed: int

    def cells(self) -> list[tuple[str, int]]:
        """What becomes a row of the batch: the whole cache once, the others at each budget."""
        some = [name for name in self.methods if name != FULL]
        return [(FULL, 100), *((name, budget) for name in some for budget in self.budgets)]

    def tokens(self, percent: int) -> int:
        """Of a budget."""
        return self.prompt_tokens * percent // 100


@dataclass(slots=True)
class Cell:
    """One method at one budget. `nats`: mean surprise by text; `extra`: the same above that of the whole cache."""

    method: str
    percent: int
    nats: list[float] = field(default_factory=list)
    extra: list[float] = field(default_factory=list)
    needles: list[bool] = field(default_factory=list)
    held_bytes: int = 0
    tokens_per_s: float = math.nan

    def perplexity(self) -> tuple[float, float, float]:
        """Its estimate and the ends of its confidence interval, over texts."""
        middle, half = interval(self.nats)
        return math.exp(middle), math.exp(middle - half), math.exp(middle + half)


class Study:
    """Runs a plan with a model of transformers that uses this package's attention."""

    def __init__(self, plan: Plan, model: Any, encode: Callable[[str], list[int]], text: str, address: str) -> None:
        self._plan, self._model, self._address = plan, model, address
        self._ids = torch.tensor(encode(text))
        self._encode = encode
        self.cells = [Cell(method, percent) for method, percent in plan.cells()]
        least = plan.prompt_tokens + plan.answer_tokens
        if len(self._ids) < least * max(1, plan.texts):
            raise InvalidArgument(f"dataset: {len(self._ids):,} tokens, {plan.texts} texts take {least} each")
        if plan.tokens(min(plan.budgets)) < LEAST_BUDGET:
            raise InvalidArgument(
                f"budgets: {min(plan.budgets)} % of {plan.prompt_tokens} tokens is below {LEAST_BUDGET}")

    def steps(self) -> int:
        """Parts of the work that `run` tells of."""
        return self._plan.texts + self._plan.needles * len(DEPTHS) + len(self._plan.methods)

    def run(self, done: Callable[[str], None]) -> list[Cell]:
        """All cells, filled. `done` is told what is next."""
        with torch.no_grad():
            for number in range(self._plan.texts):
                done(f"text {number + 1}")
                self._read(number)
            for number in range(self._plan.needles):
                for depth in DEPTHS:
                    done(f"needle {number + 1} at {depth:.0%}")
                    self._search(number, depth)
            for method in self._plan.methods:
                done(f"speed of {method}")
                self._time(method)
        return self.cells

    def _read(self, number: int) -> None:
        prompt, answer = self._piece(number)
        with self._caches() as caches:
            nats = surprise(self._model, caches, prompt, answer).mean(1).tolist()
            for cell, cache, mean in zip(self.cells, caches, nats, strict=True):
                cell.nats.append(mean)
                cell.extra.append(mean - nats[0])
                cell.held_bytes = cache.held_bytes

    def _search(self, number: int, depth: float) -> None:
        key = str(random.Random(self._plan.seed * 1000 + number).randint(10_000, 99_999))
        needle = torch.tensor(self._encode(NEEDLE.format(key=key)))
        hay = self._piece(number)[0][: self._plan.prompt_tokens - len(needle)]
        at = int(len(hay) * depth)
        prompt = torch.cat((hay[:at], needle, hay[at:]))
        question, wanted = (torch.tensor(self._encode(one)) for one in (QUESTION, f" {key}"))
        with self._caches() as caches:
            answers = found(self._model, caches, prompt, question, wanted)
            for cell, right in zip(self.cells, answers, strict=True):
                cell.needles.append(right)

    def _time(self, method: str) -> None:
        prompt, answer = self._piece(0)
        for cell in self.cells:
            if cell.method == method and cell.percent in (100, self._timed_budget()):
                with self._cache(cell) as cache:
                    cell.tokens_per_s = tokens_per_s(self._model, cache, prompt, answer[:SPEED_TOKENS])

    def _timed_budget(self) -> int:
        """The middle one."""
        return sorted(self._plan.budgets)[len(self._plan.budgets) // 2]

    def _piece(self, number: int) -> tuple[Tensor, Tensor]:
        """The pieces are spread over the text."""
        size = self._plan.prompt_tokens + self._plan.answer_tokens
        start = (len(self._ids) - size) * number // max(1, self._plan.texts - 1) if self._plan.texts > 1 else 0
        piece = self._ids[start : start + size]
        return piece[: self._plan.prompt_tokens], piece[self._plan.prompt_tokens :]

    @contextmanager
    def _caches(self) -> Iterator[list[Any]]:
        with ExitStack() as stack:
            yield [stack.enter_context(self._cache(cell)) for cell in self.cells]

    @contextmanager
    def _cache(self, cell: Cell) -> Iterator[Any]:
        cache = METHODS[cell.method](self._model, self._plan.tokens(cell.percent), self._address)
        try:
            yield cache
        finally:
            getattr(cache, "close", lambda: None)()


def interval(samples: Sequence[float]) -> tuple[float, float]:
    """Mean of independent samples, and half the width of its confidence interval (Student's t)."""
    if len(samples) < 2:
        return statistics.fmean(samples) if samples else math.nan, math.nan
    deviation = statistics.stdev(samples) / math.sqrt(len(samples))
    return statistics.fmean(samples), student_t(len(samples) - 1) * deviation


def student_t(freedom: int) -> float:
    """Two-sided quantile of Student's distribution, to one percent from 3 degrees of freedom on (the expansion of
    Cornish and Fisher)."""
    z = statistics.NormalDist().inv_cdf((1 + CONFIDENCE) / 2)
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + first / freedom + second / freedom**2 + third / freedom**3
