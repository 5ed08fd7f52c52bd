"""The result of a replay as a row, and what it is worth: tokens and seconds of prefill, share of the possible."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tierd.sim.played import Played
from tierd.sim.traces import Trace

BELADY = "belady"
GIB = 1 << 30
KV_BYTES_PER_TOKEN = 320 << 10
"""Of a 70B model with 8 KV heads in 80 layers, 16 bits, unless another one is said."""
PREFILL_TOKENS_PER_S = 5_000.0


@dataclass(frozen=True, slots=True)
class Row:
    """What one policy made of one trace in a cache of `capacity_blocks`. Of `accesses` blocks asked for."""

    trace: str
    policy: str
    capacity_blocks: int
    accesses: int
    block_hits: int
    prefix_hits: int
    evictions: int
    self_evictions: int
    block_tokens: int
    moved_blocks: dict[str, int] = field(default_factory=dict)
    """By edge, `engine>host` and so on."""
    tier_hits: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Block hits and prefix hits of each tier, where there is more than one."""
    blocks_in_all: int = 0
    """Capacity of all tiers together."""

    @property
    def prefix_percent(self) -> float:
        return 100 * self.prefix_hits / max(1, self.accesses)

    @property
    def block_percent(self) -> float:
        return 100 * self.block_hits / max(1, self.accesses)


@dataclass(frozen=True, slots=True)
class Costs:
    """Of the model that a trace is replayed for."""

    kv_bytes_per_token: int = KV_BYTES_PER_TOKEN
    prefill_tokens_per_s: float = PREFILL_TOKENS_PER_S

    def tokens_per_gib(self, row: Row) -> float:
        """Tokens of prefill that a GiB of the tiers has saved over the trace."""
        gib = row.blocks_in_all * row.block_tokens * self.kv_bytes_per_token / GIB
        return row.prefix_hits * row.block_tokens / gib

    def seconds_per_gib(self, row: Row) -> float:
        return self.tokens_per_gib(row) / self.prefill_tokens_per_s

    def block_bytes(self, row: Row) -> int:
        return row.block_tokens * self.kv_bytes_per_token


def row_of(
    trace: Trace, policy: str, capacity: int, played: Played, first: int = 0, below_and_above: int = 0
) -> Row:
    """Sums up what was counted from the request `first` on; evictions and moves are of the whole trace.
    `below_and_above`: blocks that fit into other tiers than the host tier."""
    tier_hits = {
        name: (int(of.block_hits[first:].sum()), int(of.prefix_hits[first:].sum()))
        for name, of in played.tiers.items()
    }
    return Row(
        trace.name, policy, capacity, int(trace.asked[first:].sum()), int(played.block_hits[first:].sum()),
        int(played.prefix_hits[first:].sum()), played.evictions, played.self_evictions, trace.block_tokens,
        dict(played.moved), tier_hits, capacity + below_and_above,
    )


def gap_closed(row: Row, rows: Sequence[Row]) -> float | None:
    """Share of the way from `lru` to the optimum that a policy goes, at its capacity; None where one of the two was
    not replayed, or there is no way to go."""
    beside = {one.policy.strip(): one for one in rows if one.capacity_blocks == row.capacity_blocks}
    if "lru" not in beside or BELADY not in beside:
        return None
    least, most = beside["lru"].prefix_hits, beside[BELADY].prefix_hits
    return None if most <= least else (row.prefix_hits - least) / (most - least)


def as_record(row: Row, rows: Sequence[Row], costs: Costs) -> dict[str, Any]:
    """A row with all that is derived from it, for programs."""
    closed = gap_closed(row, rows)
    return {
        "trace": row.trace, "policy": row.policy, "capacity_blocks": row.capacity_blocks,
        "accesses": row.accesses, "block_hits": row.block_hits, "prefix_hits": row.prefix_hits,
        "evictions": row.evictions, "self_evictions": row.self_evictions,
        "block_percent": round(row.block_percent, 4), "prefix_percent": round(row.prefix_percent, 4),
        "gap_closed": None if closed is None else round(closed, 4),
        "tokens_saved_per_gib": round(costs.tokens_per_gib(row), 1),
        "seconds_saved_per_gib": round(costs.seconds_per_gib(row), 3),
        "tiers": {
            name: {"block_hits": block_hits, "prefix_hits": prefix_hits}
            for name, (block_hits, prefix_hits) in row.tier_hits.items()
        },
        "moved_bytes": {edge: blocks * costs.block_bytes(row) for edge, blocks in row.moved_blocks.items()},
    }
