"""Caches that hold only the tokens that a policy keeps (tierd_client/tokens): what is evicted is gone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache

from tierd_client.errors import InvalidArgument
from tierd_client.integrations.transformers.attention import (
    ROWS,
    full_attention_only,
    output_of,
    weights_of,
)
from tierd_client.integrations.transformers.layer import AttendedLayer
from tierd_client.tokens import HeldTokens, TokenPolicy, adaptive_budgets, kept_of
from tierd_client.tokens.policy import PADDING


class HeldCache(Cache):
    """A cache of one sequence under a policy; the model must use this package's attention (`use_attention`).

    `policies`: one for all layers, or one each (PyramidKV: budgets by `pyramid_budgets`). `per_head`: KV heads
    keep tokens of their own, else all of a layer the same. `adaptive`: heads share a layer's budget by need, each
    at least this share of an even one (Ada-KV). `grouping`: of query heads, as in `HeldTokens`. A prompt is
    attended to in full, then cut to the budget.
    """

    layers: list[Any]

    def __init__(
        self, model: Any, policies: TokenPolicy | Sequence[TokenPolicy], *, per_head: bool = True,
        adaptive: float | None = None, grouping: str = "mean",
    ) -> None:
        count = full_attention_only(model).num_hidden_layers
        each = [policies] * count if isinstance(policies, TokenPolicy) else list(policies)
        if len(each) != count:
            raise InvalidArgument(f"policies: {len(each)}, the model has {count} layers")
        if adaptive is not None and not per_head:
            raise InvalidArgument("adaptive: shares a budget among heads, and per_head is off")
        super().__init__(layers=[HeldLayer(policy, per_head, adaptive, grouping) for policy in each])

    @property
    def held_bytes(self) -> int:
        """Of keys and values now."""
        return sum(layer.held_bytes for layer in self.layers)


class HeldLayer(AttendedLayer):
    """Keys and values [1, kv_heads, slots, head_dim] of the tokens held."""

    def __init__(self, policy: TokenPolicy, per_head: bool, adaptive: float | None, grouping: str) -> None:
        super().__init__()
        self._policy, self._per_head, self._adaptive, self._grouping = policy, per_head, adaptive, grouping
        self.held: HeldTokens | None = None

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        super().lazy_initialization(key_states, value_states)
        heads = key_states.shape[1] if self._per_head else 1
        self.held = HeldTokens(
            self._policy, 1, heads, grouping=self._grouping, device=self.device, checked=False)

    def attend(self, query: Tensor, scaling: float) -> Tensor:
        assert self.held is not None
        past, new = self.keys.shape[2] - self._unseen, query.shape[2]
        outputs = []
        for start in range(0, new, ROWS):
            end = min(new, start + ROWS)
            self.held.append(end - start)
            hidden = self._hidden()
            weights = weights_of(query[:, :, start:end], self.keys[:, :, : past + end], scaling, hidden)
            outputs.append(output_of(weights, self.values[:, :, : past + end]))
            self.held.observe(weights)
        self.settle()
        return torch.cat(outputs, 2)

    def saw(self, weights: Tensor) -> None:
        """Attention of the next tokens of a prompt, computed elsewhere: [1, query heads, rows, tokens so far]."""
        assert self.held is not None
        self.held.append(weights.shape[2])
        self.held.observe(weights)

    def settle(self) -> None:
        """All new tokens have been attended with: what is beyond the budget goes."""
        assert self.held is not None
        self._unseen = 0
        if self.held.excess:
            self._shrink(self.held)

    def get_seq_length(self) -> int:
        return self.held.appended if self.held else 0

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        slots = self.keys.shape[2] if self.is_initialized else 0
        return slots + query_length, self.get_seq_length() - slots

    @property
    def held_bytes(self) -> int:
        """Of keys and values now."""
        return self.keys.nbytes + self.values.nbytes if self.is_initialized else 0

    def _hidden(self) -> Tensor | None:
        """Slots of padding, where heads hold different numbers."""
        if self._adaptive is None or self.held is None:
            return None
        return self.held.positions == PADDING

    def _shrink(self, held: HeldTokens) -> None:
        target = None
        if self._adaptive is not None:
            target = adaptive_budgets(held.keys(), self._policy.budget, floor=self._adaptive)
        keep = held.evict(target)
        self.keys, self.values = kept_of(self.keys, keep), kept_of(self.values, keep)
