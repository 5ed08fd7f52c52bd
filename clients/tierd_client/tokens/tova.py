"""TOVA: the token that the last row of attention valued least goes.

Oren et al., "Transformers are Multi-State RNNs", 2024 (arXiv 2401.06104). The original shares one set of
tokens among all heads of a layer, by their mean: `HeldTokens(Tova(budget), batch, heads=1)`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from tierd_client.tokens.policy import Column, Slots, TokenPolicy

_LAST = Column("last", torch.float32, fresh=math.inf)


@dataclass(frozen=True)
class Tova(TokenPolicy):
    """A token that no row has seen yet is not chosen: with fewer seen ones than must go, fewer go."""

    name: ClassVar[str] = "tova"

    @property
    def columns(self) -> tuple[Column, ...]:
        return (_LAST,)

    def observe(self, slots: Slots, weights: Tensor) -> None:
        slots.columns[_LAST.name].copy_(weights[..., -1, :])

    def keys(self, slots: Slots) -> Tensor:
        return slots.columns[_LAST.name]
