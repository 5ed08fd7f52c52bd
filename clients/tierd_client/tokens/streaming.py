"""StreamingLLM: the first tokens and the newest; without the first ones, a sliding window.

Xiao et al., "Efficient Streaming Language Models with Attention Sinks", ICLR 2024 (arXiv 2309.17453). Attention is
not looked at. The original rotates keys by their place in the cache, which is the model's to do.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from tierd_client.tokens.policy import Slots, TokenPolicy, within_budget


@dataclass(frozen=True)
class StreamingLLM(TokenPolicy):
    """The oldest token goes that is not among the first `sinks` positions."""

    name: ClassVar[str] = "streaming"
    needs_attention: ClassVar[bool] = False
    sinks: int = 4

    def __post_init__(self) -> None:
        super().__post_init__()
        within_budget("sinks", self.sinks, self.budget)

    def keys(self, slots: Slots) -> Tensor:
        return slots.positions


@dataclass(frozen=True)
class SlidingWindow(TokenPolicy):
    """The oldest token goes."""

    name: ClassVar[str] = "sliding_window"
    needs_attention: ClassVar[bool] = False

    def keys(self, slots: Slots) -> Tensor:
        return slots.positions
