"""Runs of attention for tests of policies over tokens, and one head's decisions by plain lists, as an oracle."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from tierd_client.tokens import HeldTokens, TokenPolicy

Row = list[float] | None
Score = Callable[[list[Row]], float]
"""What a token's history is worth: its weight in each row since it was appended; None for what nobody saw."""


def as_row(row: Sequence[float] | str | None) -> Tensor | None:
    """One row for one head, as `observe` takes it."""
    return None if row is None or isinstance(row, str) else torch.tensor(row, dtype=torch.float32)[None, None]


def started(policy: TokenPolicy, batch: int = 1, heads: int = 1) -> HeldTokens:
    """A cache that holds its first token."""
    held = HeldTokens(policy, batch, heads)
    held.append()
    return held


def after(policy: TokenPolicy, rows: Sequence[Sequence[float] | str]) -> HeldTokens:
    """One head after a run without evictions."""
    held = started(policy)
    for row in rows:
        held.observe(as_row(row))
        held.append()
    return held


def positions(held: HeldTokens) -> list[int]:
    """What the first head holds."""
    return [int(one) for one in held.positions[0, 0]]


def evicted(held: HeldTokens, target: int) -> list[int]:
    """Positions that go from the first head."""
    before = positions(held)
    keep = held.evict(target)[0, 0].tolist()
    return [one for slot, one in enumerate(before) if slot not in keep]


def attention(draw: random.Random, shape: tuple[int, int], slots: int) -> Tensor:
    """A row per sequence and head of weights that sum to at most 1 and are whole multiples of 2^-24: sums of them
    are exact, whatever their order."""
    grid = 1 << 24
    rows = []
    for _ in range(shape[0] * shape[1]):
        weights = [draw.random() ** 4 for _ in range(slots)]
        rows.append([math.floor(one / sum(weights) * grid) / grid for one in weights])
    return torch.tensor(rows, dtype=torch.float32).reshape(*shape, slots)


def decisions(policy: TokenPolicy, seed: int, steps: int, *, nulls: float = 0.0) -> list[list[int]]:
    """What one head holds after each step, decoding within the budget over random attention."""
    draw, held, seen = random.Random(seed), started(policy), []
    for _ in range(steps):
        row = attention(draw, (1, 1), held.slots)
        held.step(None if draw.random() < nulls else row)
        seen.append(positions(held))
    return seen


class PlainHead:
    """One head by lists: the least score goes that is outside the last `recent`, on a tie the lowest position."""

    def __init__(self, score: Score, recent: int, pool: int = 1) -> None:
        self.score, self.recent, self.reach = score, recent, pool // 2
        self.held: list[int] = [0]
        self.history: dict[int, list[Row]] = {0: []}

    def step(self, row: Sequence[float], budget: int) -> None:
        for position, weight in zip(self.held, row, strict=True):
            self.history[position].append([weight, len(row)])
        self.held.append(self.held[-1] + 1)
        self.history[self.held[-1]] = []
        while len(self.held) > budget:
            keys = self.keys()
            free = len(self.held) - self.recent
            self.held.pop(min(range(free), key=lambda slot: (keys[slot], slot)))

    def keys(self) -> list[float]:
        own = [self.score(self.history[position]) for position in self.held]
        spans = [range(max(0, at - self.reach), min(len(own), at + self.reach + 1)) for at in range(len(own))]
        return [max(own[near] for near in span) for span in spans]
