"""The engine as the simulator uses it: one host tier of so many slots, in private memory."""

from __future__ import annotations

from tierd.core.engine import Engine
from tierd.core.engine_settings import EngineSettings, TierSpec
from tierd.core.messages import Tier
from tierd.core.policy.registry import parse
from tierd.core.tables import Tables
from tierd_client.format import PAGE_BYTES

BLOCK_BYTES = PAGE_BYTES
"""Size of a simulated block: one slot of the smallest class. No bytes exist."""


def host_engine(policy: str, capacity: int, distinct: int) -> Engine:
    """An engine whose host tier has exactly `capacity` slots, for a trace of `distinct` blocks."""
    rows = min(capacity, distinct)
    # Twice as many places as ghosts: holes are closed seldom, and none is forgotten for want of a place.
    ghosts = 2 * min(distinct, parse(policy).common.ghosts_for(rows))
    host = TierSpec(Tier.HOST, ((1, capacity * BLOCK_BYTES),))
    return Engine(
        EngineSettings((host,), policy, max_held=distinct), Tables.private(rows, ghosts, sessions=1, holds=distinct)
    )
