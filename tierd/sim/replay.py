"""Replay of a trace through the daemon's own engine: one host tier, exact eviction, no bytes.

Semantics (the same for every policy): a request is atomic. All its blocks are looked up and pinned, room is
made among the others, what is missing is stored (of a request larger than the tier, the leading blocks that
fit), each block is accessed once, the deepest first. The clock counts requests; the cold start is included.
"""

from __future__ import annotations

import gc
import itertools
import math
import re
from collections.abc import Iterator
from contextlib import contextmanager
from fractions import Fraction

from tierd.core.errors import InvalidInput
from tierd.core.policy.registry import parse
from tierd.core.shadow import Requests
from tierd.sim.belady import replay_optimum
from tierd.sim.keyed import Memory, has_static_order, replay_keyed
from tierd.sim.played import Advance, Played
from tierd.sim.rows import BELADY, row_of
from tierd.sim.rows import Row as Row
from tierd.sim.tiers import ONE_TIER, Tiers, replay_tiers
from tierd.sim.traces import Trace, identities_of

LOOK_AGAIN_EVERY = 8
"""Of so many requests one is looked up again when it has been served: no block of it may be gone then."""
MOST_CAPACITY = 1 << 40
"""Blocks."""
_CAPACITY = re.compile(r"-?\d{1,15}|(\d{1,15}(\.\d{0,15})?|\.\d{1,15})%")


def parse_capacities(text: str, distinct: int, option: str = "--capacity") -> list[int]:
    """Capacities in blocks from `9139,5%,10%`: integers, or percent of the distinct blocks, rounded down. `option`:
    where they were given."""
    return [_capacity(one.strip(), distinct, option) for one in text.split(",")]


def check_policy(spec: str, *, pinned: bool = True) -> None:
    """InvalidInput for what is no policy, or cannot be replayed like this."""
    if spec.strip() != BELADY and not has_static_order(parse(spec)) and not pinned:
        raise InvalidInput("--unpinned", f"{spec}: for policies whose ranks do not change while blocks are idle")


def play(
    trace: Trace, policy: str, capacity: int, advance: Advance = lambda _: None,
    *, pinned: bool = True, memory: Memory | None = None, tiers: Tiers = ONE_TIER,
) -> Played:
    """Replays the whole trace through one policy (`belady`: the offline optimum) at one capacity.

    `memory`: what becomes of the records of evicted blocks; the policy's own `persist` says it for None. What is
    unpinned or frozen is not the engine's, but that of `tierd.sim.keyed`. `tiers`: others beside the host tier; the
    optimum is that of one as large as all of them.
    """
    if policy.strip() == BELADY:
        return replay_optimum(trace, capacity + tiers.hbm + tiers.spill, advance)
    if tiers != ONE_TIER:
        return replay_tiers(trace, policy, capacity, tiers, advance)
    if pinned and memory is None:
        return _replay_engine(trace, policy, capacity, advance)
    memory = memory or ("ageing" if parse(policy).common.persist else "reset")
    return replay_keyed(trace, policy, capacity, pinned=pinned, memory=memory, advance=advance)


def replay(trace: Trace, policy: str, capacity: int, advance: Advance = lambda _: None) -> Row:
    """What one policy makes of the whole trace in the engine, at one capacity."""
    return row_of(trace, policy, capacity, play(trace, policy, capacity, advance))


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


def _replay_engine(trace: Trace, policy: str, capacity: int, advance: Advance) -> Played:
    requests = Requests(policy, capacity, trace.distinct, trace.block_tokens, LOOK_AGAIN_EVERY)
    played = Played.of(trace)
    identities = identities_of(trace.distinct)
    asked, offsets, times_s = trace.asked.tolist(), trace.offsets.tolist(), trace.times_s.tolist()
    with _no_collections():
        for number, (start, end) in enumerate(itertools.pairwise(offsets)):
            if end > start:
                ids = identities.take(trace.blocks[start:end], axis=0)
                present = requests.serve(ids, times_s[number], chain=trace.chained)
                played.count(number, present[: asked[number]])
                advance(asked[number])
    played.self_evictions = requests.self_evictions
    counters = requests.counters
    played.evictions, played.moved = counters.evicted, {"engine>host": counters.stored}
    return played


def _capacity(text: str, distinct: int, option: str) -> int:
    if not _CAPACITY.fullmatch(text):
        raise InvalidInput(option, f"{text[:80]!r} is neither blocks nor percent")
    blocks = math.floor(Fraction(text[:-1]) * distinct / 100) if text.endswith("%") else int(text)
    if blocks < 1:
        raise InvalidInput(option, f"{text!r} is less than one block of {distinct}")
    if blocks > MOST_CAPACITY:
        raise InvalidInput(option, f"{text!r} is more than {MOST_CAPACITY:,} blocks")
    return blocks
