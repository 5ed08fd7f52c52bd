"""Replay of a trace through the daemon's own engine: one host tier, exact eviction, no bytes.

Semantics (the same for every policy): a request is atomic. All its blocks are looked up and pinned, room is
made among the others, what is missing is stored (of a request larger than the tier, the leading blocks that
fit), each block is accessed once, the deepest first. The clock counts requests; the cold start is included.
"""

from __future__ import annotations

import gc
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from tierd.core.errors import InvalidInput
from tierd.core.messages import Ids, Note, Occupancy, OccupancyReply, OpenSession, Outcomes, Reserved
from tierd.core.policy.registry import parse
from tierd.sim.belady import replay_optimum
from tierd.sim.host import BLOCK_BYTES, host_engine
from tierd.sim.traces import Trace, identities_of
from tierd_client.format import U8Array

BELADY = "belady"
_SESSION = 1

Advance = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class Row:
    """What one policy made of one trace in a cache of `capacity_blocks`."""

    trace: str
    policy: str
    capacity_blocks: int
    accesses: int
    block_hits: int
    prefix_hits: int
    evictions: int

    def as_json(self) -> dict[str, int | str]:
        return asdict(self)


def parse_capacities(text: str, distinct: int) -> list[int]:
    """Capacities in blocks from `9139,5%,10%`: integers, or percent of the distinct blocks, rounded down."""
    return [_capacity(one.strip(), distinct) for one in text.split(",")]


def replay_all(
    trace: Trace, policies: Sequence[str], capacities: Sequence[int], advance: Advance = lambda _: None
) -> list[Row]:
    """One row per policy and capacity, the policies outermost. `advance` is told each request's accesses.

    InvalidInput, before any work, when a policy is none.
    """
    for policy in policies:
        if policy.strip() != BELADY:
            parse(policy)
    return [replay(trace, policy, capacity, advance) for policy in policies for capacity in capacities]


def replay(trace: Trace, policy: str, capacity: int, advance: Advance = lambda _: None) -> Row:
    """Replays the whole trace through one policy (`belady`: the offline optimum) at one capacity."""
    if policy.strip() == BELADY:
        block_hits, prefix_hits, evictions = replay_optimum(trace, capacity, advance)
    else:
        block_hits, prefix_hits, evictions = _replay_engine(trace, policy, capacity, advance)
    return Row(trace.name, policy, capacity, trace.accesses, block_hits, prefix_hits, evictions)


class Requests:
    """Plays requests into an engine, one at a time."""

    def __init__(self, policy: str, capacity: int, distinct: int) -> None:
        self.engine = host_engine(policy, capacity, distinct)
        self.engine.step(OpenSession(_SESSION), 0.0)
        self.block_hits = 0
        self.prefix_hits = 0

    def serve(self, ids: U8Array, now: float) -> None:
        """Stores the blocks of a request that are missing, and counts those that were there.

        One Note of all ids is the request: it is a tick, finds what is there, protects it and accesses it, makes
        room among the others, and accesses what is new.
        """
        noted = self.engine.step(Note(_SESSION, Ids(0, 0, ids, chain=True), BLOCK_BYTES), now).reply
        assert isinstance(noted, Outcomes)
        self._count(noted.outcomes == Reserved.EXISTS.value)

    def evictions(self, now: float) -> int:
        reply = self.engine.step(Occupancy(), now).reply
        assert isinstance(reply, OccupancyReply)
        return sum(tier.evicted_total for tier in reply.tiers)

    def _count(self, present: NDArray[np.bool_]) -> None:
        hits = int(np.count_nonzero(present))
        self.block_hits += hits
        self.prefix_hits += hits if hits == len(present) else int(present.argmin())


@contextmanager
def _no_collections() -> Iterator[None]:
    """The engine makes no cycles: looking for some would take a tenth of the time of a replay."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _replay_engine(trace: Trace, policy: str, capacity: int, advance: Advance) -> tuple[int, int, int]:
    requests = Requests(policy, capacity, trace.distinct)
    identities = identities_of(trace.distinct)
    offsets, times_s = trace.offsets.tolist(), trace.times_s.tolist()
    with _no_collections():
        for start, end, now in zip(offsets[:-1], offsets[1:], times_s, strict=True):
            if end > start:
                requests.serve(identities.take(trace.blocks[start:end], axis=0), now)
                advance(end - start)
    last = times_s[-1] if times_s else 0.0
    return requests.block_hits, requests.prefix_hits, requests.evictions(last)


def _capacity(text: str, distinct: int) -> int:
    try:
        percent = text.endswith("%")
        blocks = math.floor(Fraction(text[:-1]) * distinct / 100) if percent else int(text)
    except (ValueError, ZeroDivisionError) as error:
        raise InvalidInput("--capacity", f"{text!r} is neither blocks nor percent") from error
    if blocks < 1:
        raise InvalidInput("--capacity", f"{text!r} is less than one block of {distinct}")
    return blocks
