"""What a replay counts: hits of each request, and what it cost."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from tierd.sim.traces import Trace
from tierd_client.format import I64Array

Advance = Callable[[int], None]
"""Is told of block accesses that have been replayed."""


@dataclass(slots=True)
class Played:
    """Hits of each request, shape (requests,). A prefix hit is a block of the leading run of those that were there.
    `self_evictions`: evictions of blocks of the request that was being served."""

    block_hits: I64Array
    prefix_hits: I64Array
    evictions: int = 0
    self_evictions: int = 0
    moved: dict[str, int] = field(default_factory=dict)
    """Blocks by edge, `engine>host` for those that came in."""
    tiers: dict[str, Played] = field(default_factory=dict)
    """Hits of each tier, where there is more than one: of a block in the uppermost that has it."""

    @classmethod
    def of(cls, trace: Trace) -> Played:
        return cls(np.zeros(trace.requests, np.int64), np.zeros(trace.requests, np.int64))

    def count(self, request: int, present: NDArray[np.bool_]) -> None:
        """Counts which of the blocks that a request asked for were there."""
        hits = int(np.count_nonzero(present))
        self.block_hits[request] = hits
        self.prefix_hits[request] = hits if hits == len(present) else int(present.argmin())
