"""Orders by the attention that blocks were given: what all such policies share.

A policy over tokens (tierd_client.tokens) takes a block for a token: its share of a report for the token's weight.
A block that no report named is worth nothing and goes first, the least recently used before.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from tierd.core.policy.base import Attended, Common, FloatArray, Moment, Parameters, Stats, common_spec

MOST_RECENT = 1 << 16
_FAR = float(1 << 40)
"""Added to what is recent: more than any block can be worth."""


@dataclass(frozen=True)
class ByAttention:
    """`recent_blocks`: last blocks of a sequence that go after all others. Of use with `leaf_only=false`, where
    blocks in the middle of a chain may go."""

    name: ClassVar[str]
    index: ClassVar[Literal["keys"]] = "keys"
    common: Common
    recent_blocks: int = 0

    @property
    def spec(self) -> str:
        return f"{self.name}({','.join([*self.own_spec(), *common_spec(self.common)])})"

    def own_spec(self) -> list[str]:
        """The policy's own parameters as they stand in a spec."""
        return [f"recent_blocks={self.recent_blocks}"]

    def worth(self, seen: Attended) -> FloatArray:
        """What each block is worth, not negative: the least goes first."""
        raise NotImplementedError

    def keys(self, stats: Stats) -> FloatArray:
        seen = stats.attention
        worth = self.worth(seen)
        return np.where(seen.known & (seen.behind < self.recent_blocks), worth + _FAR, worth)

    def ranks(self, stats: Stats, now: Moment) -> FloatArray:
        del now  # worth changes with reports alone
        return -self.keys(stats)

    def terms(self, stats: Stats, now: Moment) -> dict[str, float]:
        seen = stats.attention
        return {
            "worth": float(self.worth(seen)[0]), "reports": float(seen.reports[0]),
            "blocks_behind": float(seen.behind[0]), "idle_steps": float(now.step - stats.last[0]),
        }


def recent_blocks(parameters: Parameters) -> int:
    """The parameter of that name."""
    return parameters.integer("recent_blocks", 0, 0, MOST_RECENT)
