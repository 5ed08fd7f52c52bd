"""SnapKV: a token counts by its attention in a window of the last rows, and by that of its neighbours.

Li et al., "SnapKV: LLM Knows What You are Looking for Before Generation", NeurIPS 2024 (arXiv 2404.14469), which
compresses a prompt once. Here the window is a ring that decoding goes on to write: the same policy compresses a
prompt (one `observe` of its last rows, one `evict`) and keeps the cache at its budget afterwards.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from tierd_client.errors import InvalidArgument
from tierd_client.tokens.policy import (
    PADDING,
    TOKENS_MAX,
    Column,
    Slots,
    TokenPolicy,
    choice,
    count,
    within_budget,
)

POOLINGS = ("max", "average")
WINDOW_MAX = 4096
"""Most rows of the window: each is four bytes per held token."""


@dataclass(frozen=True)
class SnapKV(TokenPolicy):
    """`obs`: rows of the window. `pool`: neighbours in kept order, an odd number, 1 for none; protected ones
    count, and at the ends there are fewer. `pooling`: their maximum, or their average."""

    name: ClassVar[str] = "snapkv"
    recent: int = 32
    obs: int = 16
    pool: int = 7
    pooling: str = "max"

    def __post_init__(self) -> None:
        super().__post_init__()
        within_budget("recent", self.recent, self.budget)
        count("obs", self.obs, 1, WINDOW_MAX)
        if count("pool", self.pool, 1, TOKENS_MAX) % 2 == 0:
            raise InvalidArgument(f"pool: {self.pool} is even: a token has as many neighbours before as after it")
        choice("pooling", self.pooling, POOLINGS)

    @property
    def columns(self) -> tuple[Column, ...]:
        return (Column("window", torch.float32, shape=(self.obs,)),)

    def observe(self, slots: Slots, weights: Tensor) -> None:
        newest = weights[..., -self.obs :, :]
        first = slots.rows + weights.shape[-2] - newest.shape[-2]
        places = torch.arange(first, first + newest.shape[-2], device=weights.device) % self.obs
        slots.columns["window"].index_copy_(-1, places, newest.transpose(-1, -2))

    def keys(self, slots: Slots) -> Tensor:
        sums = slots.columns["window"].sum(-1, dtype=torch.float64)
        if self.pool == 1:
            return sums
        if self.pooling == "max":
            return functional.max_pool1d(sums, self.pool, stride=1, padding=self.pool // 2)
        held = (slots.positions > PADDING).to(sums.dtype)
        return self._average(sums) / self._average(held)

    def _average(self, values: Tensor) -> Tensor:
        return functional.avg_pool1d(values, self.pool, stride=1, padding=self.pool // 2)
