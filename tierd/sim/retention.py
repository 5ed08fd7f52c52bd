"""How much of recorded attention falls on what a policy over tokens holds: the measure of a policy without a model.

The trace is of a model that saw everything, so it says what would have been attended to. Step after step new
places are appended, the mass on what is held is counted, the policy sees that attention and evicts down to its
budget. The first steps, the warm-up, are seen whole and not counted.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from tierd.core.errors import InvalidInput
from tierd.sim.attention_trace import AttentionTrace
from tierd_client.tokens import (
    HeldTokens,
    TokenPolicy,
    adaptive_budgets,
    guide_recents,
    policy_of,
    pyramid_budgets,
)

SHARINGS = ("even", "pyramid", "adaptive", "guide")
"""How layers and heads share a budget: all alike; fewer with depth (PyramidKV); by head (Ada-KV); alike, but with
recent windows that shrink with depth (the H2O guide)."""

BEST = "best"
"""Not a policy: the heaviest places of each step, chosen anew with knowledge of it. No policy retains more."""

Advance = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class Retained:
    """Share of the mass that is on what is held, mean over counted steps, layers and heads. `worst_layer`: of the
    layer where it is least."""

    policy: str
    parameters: str
    budget: int
    sharing: str
    mean: float
    worst_layer: float


@dataclass(frozen=True, slots=True)
class Plan:
    """What is swept: each policy with each budget, each sharing that means something to it, and SnapKV with each of
    `windows` (its rows) and `pools`. `recent` places are protected where a policy protects any. `heads`: held ones
    per layer, to which query heads are grouped by `grouping`; 0: as many as query heads."""

    policies: tuple[str, ...]
    budgets: tuple[int, ...]
    windows: tuple[int, ...] = (16,)
    pools: tuple[int, ...] = (1,)
    recent: int = 1
    sharings: tuple[str, ...] = ("even",)
    warm_up_steps: int = 1
    heads: int = 0
    grouping: str = "mean"


def sweep(trace: AttentionTrace, plan: Plan, advance: Advance = lambda _: None) -> list[Retained]:
    """A row for everything in the plan, and the best that each budget could retain. InvalidInput for a plan that
    does not fit the trace, InvalidArgument as the policies raise it. `advance` is told of each row."""
    query_heads = trace.weights.shape[2]
    if plan.heads < 0 or (plan.heads and query_heads % plan.heads):
        raise InvalidInput("heads", f"{plan.heads} do not divide {query_heads} query heads")
    if not 0 < plan.warm_up_steps < trace.steps:
        raise InvalidInput("warm_up_steps", f"{plan.warm_up_steps} is not from 1 to {trace.steps - 1} steps")
    rows = []
    for budget in plan.budgets:
        rows.append(_row(BEST, {}, budget, "", best(trace, budget, plan.warm_up_steps)))
        for name, parameters, sharing in configurations(plan):
            policy = policy_of(name, **{"budget": budget, **parameters})
            layers = retained(trace, policy, plan, sharing)
            rows.append(_row(name, parameters, budget, sharing, layers))
            advance(1)
    return rows


def configurations(plan: Plan) -> list[tuple[str, dict[str, Any], str]]:
    """Name, parameters beside the budget, and sharing of each row that is swept for a budget."""
    for one in plan.sharings:
        if one not in SHARINGS:
            raise InvalidInput("sharing", f"{one!r} is none of {', '.join(SHARINGS)}")
    return [
        (name, parameters, sharing) for name in plan.policies for parameters in _parameters(name, plan)
        for sharing in plan.sharings if _means_something(sharing, name, parameters)
    ]


def retained(trace: AttentionTrace, policy: TokenPolicy, plan: Plan, sharing: str = "even") -> list[float]:
    """Share of the query heads' mass that a policy retains, per layer; of the plan it takes warm-up and heads."""
    layers = trace.weights.shape[1]
    if sharing != "guide":
        return _replayed(trace, policy, plan, sharing)
    parts = [replace(trace, weights=trace.weights[:, layer : layer + 1]) for layer in range(layers)]
    policies = [policy_of(policy.name, **(vars(policy) | {"recent": one}))
                for one in guide_recents(policy.budget, layers)]
    return [_replayed(*pair, plan, "even")[0] for pair in zip(parts, policies, strict=True)]


def best(trace: AttentionTrace, budget: int, warm_up_steps: int) -> list[float]:
    """What the heaviest `budget` places of each step have of its mass, per layer."""
    counted = np.sort(trace.weights[warm_up_steps:], axis=-1)[..., -budget:]
    return [float(layer) for layer in counted.sum(-1).mean((0, 2))]


def _replayed(trace: AttentionTrace, policy: TokenPolicy, plan: Plan, sharing: str) -> list[float]:
    _, layers, query_heads, _ = trace.weights.shape
    held = HeldTokens(policy, layers, plan.heads or query_heads, grouping=plan.grouping)
    counted = []
    for step, places in enumerate(trace.places.tolist()):
        if places > held.appended:
            held.append(places - held.appended)
        seen = _on_held(torch.from_numpy(trace.weights[step]), held.positions)
        if step >= plan.warm_up_steps:
            counted.append(seen.sum(-1).mean(-1))
        held.observe(seen)
        if step + 1 >= plan.warm_up_steps:
            held.evict(_target(held, sharing))
    return [float(layer) for layer in torch.stack(counted).mean(0)]


def _on_held(weights: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """The weights [layers, query heads, places] of the held places, 0 on padding."""
    positions = positions.repeat_interleave(weights.shape[1] // positions.shape[1], 1)
    return weights.gather(-1, positions.clamp(min=0).long()).masked_fill(positions < 0, 0.0)


def _target(held: HeldTokens, sharing: str) -> torch.Tensor | None:
    """What each head is to hold; None for the policy's budget."""
    policy, (layers, heads) = held.policy, held.shape
    if sharing == "pyramid":
        budgets = pyramid_budgets(policy.budget, layers, recent=policy.recent)
        return torch.tensor(budgets)[:, None].expand(layers, heads)
    return adaptive_budgets(held.keys(), policy.budget) if sharing == "adaptive" else None


def _parameters(name: str, plan: Plan) -> list[dict[str, Any]]:
    fields = policy_of(name).__dataclass_fields__
    recent = {"recent": plan.recent} if "recent" in fields else {}
    sinks = {"sinks": 1} if "sinks" in fields else {}
    if "obs" not in fields:
        return [recent | sinks]
    return [recent | {"obs": rows, "pool": pool} for rows in plan.windows for pool in plan.pools]


def _means_something(sharing: str, name: str, parameters: dict[str, Any]) -> bool:
    """Keys of different heads compare where they are sums of attention; a window is split where there is one."""
    if sharing == "adaptive":
        return name in ("h2o", "snapkv")
    return sharing != "guide" or "recent" in parameters


def _row(name: str, parameters: dict[str, Any], budget: int, sharing: str, layers: list[float]) -> Retained:
    said = ", ".join(f"{key} {value}" for key, value in parameters.items())
    return Retained(name, said, budget, sharing, float(np.mean(layers)), min(layers))
