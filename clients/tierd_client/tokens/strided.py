"""Strided: every k-th token and the newest, as in the fixed patterns of Child et al., "Generating Long Sequences
with Sparse Transformers", 2019 (arXiv 1904.10509). Attention is not looked at."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from tierd_client.tokens.policy import TOKENS_MAX, Slots, TokenPolicy, count, within_budget


@dataclass(frozen=True)
class Strided(TokenPolicy):
    """Outside the newest `recent` tokens the oldest goes whose position is no multiple of `stride`, and where all
    are, the oldest of these."""

    name: ClassVar[str] = "strided"
    needs_attention: ClassVar[bool] = False
    recent: int = 0
    stride: int = 4

    def __post_init__(self) -> None:
        super().__post_init__()
        within_budget("recent", self.recent, self.budget)
        count("stride", self.stride, 1, TOKENS_MAX)

    def keys(self, slots: Slots) -> Tensor:
        positions = slots.positions.long()
        return positions + (positions % self.stride == 0) * TOKENS_MAX
