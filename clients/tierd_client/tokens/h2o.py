"""H2O: heavy hitters and a recent window.

Zhang et al., "H2O: Heavy-Hitter Oracle for Efficient Generative Inference of Large Language Models", NeurIPS 2023
(arXiv 2306.14048): the score of a token is the sum of the attention it was given; of the tokens outside the
window of the newest `recent` the one with the least score goes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from tierd_client.errors import InvalidArgument
from tierd_client.tokens.policy import Column, Slots, TokenPolicy, rows_that_saw, share, within_budget

_SCORE = Column("score", torch.float64)
_SEEN = Column("seen", torch.int32)


@dataclass(frozen=True)
class H2O(TokenPolicy):
    """`normalise`: divide a score by the rows that could see the token, so that old ones do not lead by their age.
    `forgetting`: S <- forgetting S + A, in (0, 1] (A2SF, arXiv 2407.20485); 1 is H2O."""

    name: ClassVar[str] = "h2o"
    recent: int = 0
    normalise: bool = False
    forgetting: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        within_budget("recent", self.recent, self.budget)
        if share("forgetting", self.forgetting, 0.0, 1.0) == 0.0:
            raise InvalidArgument("forgetting: 0 remembers nothing; Tova keeps the last row alone")

    @property
    def columns(self) -> tuple[Column, ...]:
        return (_SCORE, _SEEN) if self.normalise else (_SCORE,)

    def observe(self, slots: Slots, weights: Tensor) -> None:
        rows, held = weights.shape[-2:]
        score = slots.columns[_SCORE.name]
        if self.forgetting < 1.0:
            fading = self.forgetting ** torch.arange(rows - 1, -1, -1, dtype=torch.float64, device=weights.device)
            score.mul_(self.forgetting ** rows).add_((weights * fading[:, None]).sum(-2))
        else:
            score.add_(weights.sum(-2, dtype=torch.float64))
        if self.normalise:
            slots.columns[_SEEN.name].add_(rows_that_saw(rows, held, weights.device))

    def keys(self, slots: Slots) -> Tensor:
        score = slots.columns[_SCORE.name]
        return score / slots.columns[_SEEN.name].clamp(min=1) if self.normalise else score
