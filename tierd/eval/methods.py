"""The ways to keep a budget that are compared, each as a cache for a model and a number of tokens."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tierd_client.integrations.transformers import HeldCache, OffloadedCache
from tierd_client.tokens import (
    H2O,
    Random,
    Scissorhands,
    SlidingWindow,
    SnapKV,
    StreamingLLM,
    Strided,
    Tova,
    guide_recents,
    pyramid_budgets,
)

FULL = "full"
ALL_TOKENS = 1 << 30
BLOCK_TOKENS = 8
"""Of blocks that come back: small, as budgets here are."""

LEAST_BUDGET = 6 * BLOCK_TOKENS
FLOOR = 0.2
"""Ada-KV's: share of an even budget that every head keeps."""

Make = Callable[[Any, int, str], Any]


def _recent(budget: int) -> int:
    """Newest tokens that scored policies keep."""
    return min(32, budget // 4)


def _snapkv(budget: int) -> SnapKV:
    return SnapKV(budget=budget, recent=_recent(budget))


def _pyramid(model: Any, budget: int) -> HeldCache:
    budgets = pyramid_budgets(budget, model.config.num_hidden_layers, recent=_recent(budget))
    return HeldCache(model, [SnapKV(budget=one, recent=_recent(budget)) for one in budgets])


def _guide(model: Any, budget: int) -> HeldCache:
    recents = guide_recents(budget, model.config.num_hidden_layers)
    return HeldCache(model, [H2O(budget=budget, recent=one) for one in recents])


def _offloaded(model: Any, budget: int, address: str, index: str = "keys") -> OffloadedCache:
    """Newest tokens and blocks together are the budget, on average."""
    recent = _recent(budget)
    old = max(2, (budget - recent - BLOCK_TOKENS // 2) // BLOCK_TOKENS) * BLOCK_TOKENS
    return OffloadedCache(
        model, address=address, budget_tokens=old, recent_tokens=recent, block_tokens=BLOCK_TOKENS,
        index=index)


METHODS: dict[str, Make] = {
    FULL: lambda model, _, __: HeldCache(model, SlidingWindow(budget=ALL_TOKENS), per_head=False),
    "sliding_window": lambda model, budget, _: HeldCache(model, SlidingWindow(budget=budget), per_head=False),
    "strided": lambda model, budget, _: HeldCache(model, Strided(budget=budget), per_head=False),
    "random": lambda model, budget, _: HeldCache(model, Random(budget=budget), per_head=False),
    "streaming": lambda model, budget, _: HeldCache(model, StreamingLLM(budget=budget), per_head=False),
    "h2o": lambda model, budget, _: HeldCache(model, H2O(budget=budget, recent=budget // 2)),
    "snapkv": lambda model, budget, _: HeldCache(model, _snapkv(budget)),
    "tova": lambda model, budget, _: HeldCache(model, Tova(budget=budget), per_head=False),
    "scissorhands": lambda model, budget, _: HeldCache(
        model, Scissorhands(budget=budget, recent=_recent(budget))),
    "pyramidkv": lambda model, budget, _: _pyramid(model, budget),
    "adakv": lambda model, budget, _: HeldCache(model, _snapkv(budget), adaptive=FLOOR),
    "guide_split": lambda model, budget, _: _guide(model, budget),
    "offload": _offloaded,
    "offload_bounds": lambda model, budget, address: _offloaded(model, budget, address, "bounds"),
}
"""By name, in the order of the table. `guide_split`: H2O with the guide's share of recent tokens per layer;
`offload`: evicted blocks lie in the daemon and come back when a query needs them, by keys or by bounds of keys."""
