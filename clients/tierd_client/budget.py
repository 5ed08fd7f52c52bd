"""Budgets of sequences: how much of one may lie in hbm at once, as its caller says it, and what does."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from numbers import Real
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tierd_client.arguments import text, whole
from tierd_client.errors import BrokenPeer, InvalidArgument

TOKENS_MAX = 1 << 30
BLOCKS_MAX = 1 << 18
POLICY_BYTES_MAX = 1024


class BlockResidency(IntEnum):
    """KEPT: in hbm, and counted. AWAY: held, and not in hbm, or there for others. LEAVING: being copied down.
    GIVEN_UP: not held any more, perhaps gone."""

    KEPT = 1
    AWAY = 2
    LEAVING = 3
    GIVEN_UP = 4


@dataclass(frozen=True)
class Budget:
    """Most tokens of a sequence in hbm, in whole blocks: `tokens` is rounded down, its parts up.

    `recent_tokens`, or else `recent_share` of it, are for the last tokens, `sink_tokens` for the first ones, the
    rest for those that were given most attention, as `policy` counts it ("h2o", "snapkv(obs=8)", "tova",
    "scissorhands"). What is over is copied down; of a `lossy` sequence, which reads it no more, it is given up.
    """

    tokens: int
    recent_tokens: int | None = None
    recent_share: float = 0.5
    sink_tokens: int = 0
    lossy: bool = False
    policy: str = "h2o"

    def __post_init__(self) -> None:
        whole(self.tokens, "budget.tokens", 1, TOKENS_MAX)
        whole(self.sink_tokens, "budget.sink_tokens", 0, TOKENS_MAX)
        text(self.policy, "budget.policy", POLICY_BYTES_MAX)
        if self.recent_tokens is not None:
            whole(self.recent_tokens, "budget.recent_tokens", 1, TOKENS_MAX)
        share = self.recent_share
        if not isinstance(share, Real) or isinstance(share, bool) or not 0.0 < share <= 1.0:
            raise InvalidArgument(f"budget.recent_share: {share!r} is not above 0 and at most 1")
        if not isinstance(self.lossy, bool | np.bool_):
            raise InvalidArgument(f"budget.lossy: {self.lossy!r} is neither True nor False")

    def in_blocks(self, block_tokens: int) -> dict[str, Any]:
        """The fields of the wire's SequenceBudget, for blocks of so many tokens."""
        blocks = self.tokens // block_tokens
        if not 1 <= blocks <= BLOCKS_MAX:
            problem = f"{self.tokens} are {blocks} whole blocks of {block_tokens}, not 1 to {BLOCKS_MAX:,}"
            raise InvalidArgument(f"budget.tokens: {problem}")
        if self.recent_tokens is None:
            recent = int(np.ceil(blocks * self.recent_share))
        else:
            recent = -(-self.recent_tokens // block_tokens)
        sinks = -(-self.sink_tokens // block_tokens)
        if blocks < recent + sinks:
            problem = f"{blocks} blocks are less than {sinks} of sink_tokens and {recent} of the recent ones"
            raise InvalidArgument(f"budget.tokens: {problem}")
        return {
            "blocks": blocks, "recent_blocks": recent, "sink_blocks": sinks, "lossy": bool(self.lossy),
            "policy": self.policy,
        }


PRESETS = {"guide": Budget(1024, recent_share=0.5), "registry": Budget(512, recent_tokens=32)}
"""`guide`: `max_budget` 1024 and `recent_ratio` 0.5 of the H2O guide. `registry`: the defaults of the SnapKV page's
registry of policies. Both lossless."""


def budget_of(budget: Budget | str) -> Budget:
    """A budget, or a preset by its name."""
    if isinstance(budget, Budget):
        return budget
    if not isinstance(budget, str) or budget not in PRESETS:
        raise InvalidArgument(f"budget: {budget!r} is no Budget, and none of {', '.join(PRESETS)}")
    return PRESETS[budget]


@dataclass(frozen=True)
class Resident:
    """What of a sequence is in hbm. `residency`: a BlockResidency per block from its start, uint8. `budget_blocks`,
    `recent_blocks`, `sink_blocks`: the budget in force."""

    residency: NDArray[np.uint8]
    budget_blocks: int
    recent_blocks: int
    sink_blocks: int

    @classmethod
    def told(cls, reply: Any) -> Resident:
        """From the reply to a SetBudget."""
        residency = np.array(reply.residency, np.int64)
        if len(residency) and not (residency.min() >= 1 and residency.max() <= max(BlockResidency)):
            raise BrokenPeer("SetBudget: the reply names no BlockResidency")
        budget = reply.budget
        return cls(residency.astype(np.uint8), budget.blocks, budget.recent_blocks, budget.sink_blocks)

    @property
    def kept(self) -> NDArray[np.int64]:
        """Places in the sequence, growing, of the blocks that stay: what an engine keeps in its page table."""
        return np.flatnonzero(self.residency == BlockResidency.KEPT)

    @property
    def done(self) -> bool:
        """Nothing is over the budget or on its way down."""
        return len(self.kept) <= self.budget_blocks and not (self.residency == BlockResidency.LEAVING).any()
