"""What an engine is told once, when it is made: its tiers and its limits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tierd.core.messages import Tier


@dataclass(frozen=True, slots=True)
class TierSpec:
    """A tier that is on: segments `(id, bytes)` of an arena, or the byte limit of the spill tier.

    `readable`: clients can read its copies where they lie; else blocks are brought to one that is. `lends`:
    engines may lend copies of this tier in their own memory; it needs no segments then. `footprints`: bytes that a
    block takes where there is no arena, by its size, as far as an earlier daemon has learnt them."""

    tier: Tier
    segments: tuple[tuple[int, int], ...] = ()
    capacity_bytes: int = 0
    readable: bool = True
    lends: bool = False
    footprints: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """`max_moves`: moves in flight. `spill_grace_s`: how long what cannot be spilled is kept after that tier went
    down. `spill_write`: a key of STORED_FROM. `spill_bytes_per_s`: to and from that tier, 0 without a limit.
    `spill_high`, `spill_low`: watermarks, as shares of its bytes. `spill_ahead`: next victims that are stored
    before. `read_ahead_bytes`: of a chain, behind what is read. `pin_share`: of the lowest tier, that pins may
    keep. `stock_bytes`: slots that a session holds ahead; `stock_share`: of an arena, that all do.
    `max_prefetches`: of a session; `max_prefetch_moves`: at once."""

    tiers: tuple[TierSpec, ...]
    policy: str = "lrfu"
    clock: str = "request"
    steps_per_second: float = 10.0
    max_moves: int = 256
    max_held: int = 16_384
    max_sequences: int = 4_096
    spill_grace_s: float = 60.0
    pin_share: float = 0.5
    stock_bytes: int = 128 << 20
    stock_share: float = 1 / 16
    pin_ttl_s: float = 3_600.0
    pin_ttl_max_s: float = 86_400.0
    tool_call_s: float = 30.0
    tool_call_max_s: float = 600.0
    max_prefetches: int = 64
    max_prefetch_moves: int = 32
    spill_attached: bool = True
    spill_write: str = "on_evict"
    spill_bytes_per_s: float = 0.0
    spill_high: float = 1.0
    spill_low: float = 1.0
    spill_ahead: int = 0
    read_ahead_bytes: int = 0
