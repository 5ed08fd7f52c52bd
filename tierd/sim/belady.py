"""The offline optimum: what a cache that knows the future could have hit.

Belady's rule (1966) with bypass, lifted to requests: a request is looked up as a whole, and of what is then
resident or was just served the blocks whose next use is farthest away go first, until the capacity holds;
a block that was just served may be among them. Equal next uses (blocks of one later request): the deeper
block goes first, so what remains of a chain is always its head, and block hits equal prefix hits.
"""

from __future__ import annotations

import heapq
import itertools

import numpy as np

from tierd.sim.played import Advance, Played
from tierd.sim.traces import Trace
from tierd_client.format import I64Array

_DEPTH_BITS = 24


def next_uses(trace: Trace) -> I64Array:
    """For each block of each request, answers with them, the number of the next request that uses it; `requests` if
    there is none."""
    request_of = np.repeat(np.arange(trace.requests, dtype=np.int64), np.diff(trace.offsets))
    following = np.full(len(trace.blocks), trace.requests, np.int64)
    order = np.argsort(trace.blocks, kind="stable")
    same = trace.blocks[order[:-1]] == trace.blocks[order[1:]]
    following[order[:-1][same]] = request_of[order[1:][same]]
    return following


class Optimum:
    """A cache of `capacity` blocks that evicts by next use."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.evictions = 0
        self._due: dict[int, int] = {}
        self._heap: list[tuple[int, int]] = []

    def resident(self, block: int) -> bool:
        return block in self._due

    def serve(self, blocks: list[int], following: list[int]) -> None:
        """Takes in a request's blocks, each with the number of the request that uses it next."""
        newcomers = {block for block in blocks if block not in self._due}
        for depth, (block, due) in enumerate(zip(blocks, following, strict=True)):
            urgency = due << _DEPTH_BITS | min(depth, (1 << _DEPTH_BITS) - 1)
            self._due[block] = urgency
            heapq.heappush(self._heap, (-urgency, block))
        while len(self._due) > self.capacity:
            urgency, block = heapq.heappop(self._heap)
            if self._due.get(block) == -urgency:
                del self._due[block]
                self.evictions += block not in newcomers


def replay_optimum(trace: Trace, capacity: int, advance: Advance = lambda _: None) -> Played:
    """What the optimum makes of a trace. A block that is bypassed counts no eviction."""
    cache, played = Optimum(capacity), Played.of(trace)
    blocks, following = trace.blocks.tolist(), next_uses(trace).tolist()
    asked, offsets = trace.asked.tolist(), trace.offsets.tolist()
    for number, (start, end) in enumerate(itertools.pairwise(offsets)):
        request = blocks[start:end]
        present = [cache.resident(block) for block in request[: asked[number]]]
        played.count(number, np.array(present, bool))
        cache.serve(request, following[start:end])
        advance(asked[number])
    played.evictions = cache.evictions
    return played
