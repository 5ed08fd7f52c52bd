"""Scissorhands: a token counts by how often it was given more than its share.

Liu et al., "Scissorhands: Exploiting the Persistence of Importance Hypothesis for LLM KV Cache Compression at Test
Time", NeurIPS 2023 (arXiv 2305.17118), as a count over all rows: a row over n tokens votes for those of weight
above 1 / n.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from tierd_client.tokens.policy import PADDING, Column, Slots, TokenPolicy, within_budget

_VOTES = Column("votes", torch.int32)


@dataclass(frozen=True)
class Scissorhands(TokenPolicy):
    """Outside the newest `recent` tokens the one with the fewest votes goes."""

    name: ClassVar[str] = "scissorhands"
    recent: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        within_budget("recent", self.recent, self.budget)

    @property
    def columns(self) -> tuple[Column, ...]:
        return (_VOTES,)

    def observe(self, slots: Slots, weights: Tensor) -> None:
        rows = weights.shape[-2]
        held = (slots.positions > PADDING).sum(-1)[..., None]
        visible = held - torch.arange(rows - 1, -1, -1, device=weights.device)
        slots.columns[_VOTES.name].add_((weights > 1.0 / visible[..., None]).sum(-2, dtype=torch.int32))

    def keys(self, slots: Slots) -> Tensor:
        return slots.columns[_VOTES.name]
