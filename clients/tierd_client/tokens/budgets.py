"""How a budget is shared: among layers (PyramidKV), among heads (Ada-KV), or between the two pools of a layer."""

from __future__ import annotations

import math
from fractions import Fraction

import torch
from torch import Tensor

from tierd_client.errors import InvalidArgument
from tierd_client.tokens.policy import TOKENS_MAX, count, share, within_budget

LAYERS_MAX = 10_000


def pyramid_budgets(budget: int, layers: int, *, ratio: int = 4, recent: int = 0) -> list[int]:
    """Budgets per layer that fall linearly with depth, the first `ratio` times the last, `budget` on average.

    Cai et al., "PyramidKV", 2024 (arXiv 2406.02069). Layer k of L has
    floor(2 B (r (L-1) - k (r-1)) / ((r+1) (L-1))) tokens, at least `recent` + 1: through the floors the mean is at
    most `budget`, unless layers were raised.
    """
    count("budget", budget, 1, TOKENS_MAX)
    count("layers", layers, 1, LAYERS_MAX)
    count("ratio", ratio, 1, TOKENS_MAX)
    within_budget("recent", recent, budget)
    if layers == 1:
        return [budget]
    steps = layers - 1
    shares = [Fraction(2 * (ratio * steps - layer * (ratio - 1)), (ratio + 1) * steps) for layer in range(layers)]
    return [max(recent + 1, math.floor(budget * one)) for one in shares]


def guide_recents(budget: int, layers: int, *, first: float = 0.75, last: float = 0.25) -> list[int]:
    """Tokens of the recent window per layer, from a share `first` of the budget to `last`; the rest is for heavy
    hitters.

    The H2O guide's schedule: larger recent windows in early layers, larger heavy pools in deep ones. It gives no
    numbers; with these the mean is its half and half.
    """
    count("budget", budget, 2, TOKENS_MAX)
    count("layers", layers, 1, LAYERS_MAX)
    for name, value in (("first", first), ("last", last)):
        share(name, value, 0.0, 1.0)
    steps = max(1, layers - 1)
    shares = [first + (last - first) * layer / steps for layer in range(layers)]
    return [min(max(round(budget * one), 1), budget - 1) for one in shares]


def adaptive_budgets(keys: Tensor, budget: int, *, floor: float = 0.2) -> Tensor:
    """Budgets per head, int64 [batch, heads], of `budget` on average: heads whose keys lead get more.

    Feng et al., "Ada-KV", 2024 (arXiv 2407.11550): of all heads' tokens the best by key stay, and each head
    keeps at least a share `floor` of the budget. `keys` is `HeldTokens.keys()`, of a policy whose keys of
    different heads can be compared (H2O, SnapKV). The result is handed to `HeldTokens.evict`.
    """
    batch, heads, slots = keys.shape
    budget = min(count("budget", budget, 1, TOKENS_MAX), slots)
    safe = math.floor(budget * share("floor", floor, 0.0, 1.0))
    if bool(keys.isnan().any()):
        raise InvalidArgument("keys: not a number")
    order = keys.argsort(dim=-1, descending=True, stable=True)
    lifted = keys.scatter(-1, order[..., :safe], math.inf)
    best = lifted.reshape(batch, heads * slots).argsort(dim=-1, descending=True, stable=True)[:, : heads * budget]
    chosen = torch.zeros(batch, heads * slots, dtype=torch.int64, device=keys.device).scatter_(-1, best, 1)
    return chosen.reshape(batch, heads, slots).sum(-1)
