"""A cache of what a policy says in one number per record, with what the engine never does left to choose.

The engine pins the blocks of a request until it is served, and lets records age while their block is away. Some
simulations do neither. Here both are options, for policies whose order does not change while records are idle, so
that a heap is exact.

* pinned: room is made among the blocks of other requests; the leading blocks that fit are stored. Equals go by the
  older access, then the deeper block, as in the engine;
* unpinned: each missing block comes in by itself and pushes out whatever is least, be it of this very request.
  Equals go by the number of the block, as they lie in a heap;
* memory of records of evicted blocks: `reset` (none), `ageing` (it goes on as in the engine), `frozen` (an absence
  takes no time).
"""

from __future__ import annotations

import heapq
from typing import Literal, cast

import numpy as np

from tierd.core.errors import InvalidInput
from tierd.core.policy.base import ByKey, GivenStats, Policy
from tierd.core.policy.registry import parse
from tierd.sim.played import Advance, Played
from tierd.sim.traces import Trace
from tierd_client.format import I64Array

Memory = Literal["reset", "ageing", "frozen"]
MEMORIES: tuple[Memory, ...] = ("reset", "ageing", "frozen")
STATIC = ("lru", "lfu")
"""Policies by classes whose order does not change while records are idle."""
Key = tuple[float, int, int, int]


def has_static_order(policy: Policy) -> bool:
    return policy.index == "keys" or policy.name in STATIC


def replay_keyed(
    trace: Trace, spec: str, capacity: int, *, pinned: bool, memory: Memory, advance: Advance = lambda _: None
) -> Played:
    """Replays the whole trace. InvalidInput for a policy whose ranks change while records are idle."""
    policy = parse(spec)
    if not has_static_order(policy):
        raise InvalidInput("policy", f"{spec}: its ranks change while blocks are idle; only the engine plays it")
    cache = KeyedCache(policy, capacity, trace.distinct, pinned=pinned, memory=memory)
    played = Played.of(trace)
    asked, offsets = trace.asked.tolist(), trace.offsets.tolist()
    for number, (count, now_s) in enumerate(zip(asked, trace.times_s.tolist(), strict=True)):
        blocks = trace.blocks[offsets[number] : offsets[number + 1]]
        if len(blocks):
            played.count(number, cache.serve(blocks, now_s)[:count])
            advance(count)
    played.evictions, played.self_evictions = cache.evictions, cache.self_evictions
    return played


class KeyedCache:
    """A cache of `capacity` of the blocks 0 .. distinct - 1."""

    def __init__(self, policy: Policy, capacity: int, distinct: int, *, pinned: bool, memory: Memory) -> None:
        self.evictions = 0
        self.self_evictions = 0
        """Evictions of blocks of the request that is being served."""
        self._policy, self._capacity = cast(ByKey, policy), capacity
        self._pinned, self._memory = pinned, memory
        self._step = 0
        self._resident: dict[int, Key] = {}
        self._heap: list[Key] = []
        self._touches = np.zeros(distinct, np.int64)
        self._last = np.zeros(distinct, np.int64)
        self._wall = np.zeros(distinct)
        self._ema, self._crf = np.zeros(distinct), np.zeros(distinct)
        self._left: dict[int, tuple[int, float]] = {}
        """Step and time at which blocks with a record were evicted."""

    def serve(self, blocks: I64Array, now_s: float) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        """Takes in the blocks of a request; says which of them were there."""
        self._step += 1
        numbers = blocks.tolist()
        present = [number in self._resident for number in numbers]
        self._access(np.unique(blocks), now_s)
        keys = self._keys(blocks, numbers)
        own = set(numbers)
        for key, here in zip(keys, present, strict=True):
            if here:
                self._put(key)
        self._admit([key for key, here in zip(keys, present, strict=True) if not here], own, now_s)
        return np.array(present)

    def _access(self, blocks: I64Array, now_s: float) -> None:
        """One access to the record of each of these blocks, which are distinct."""
        if self._memory == "frozen":
            for number in blocks.tolist():
                if number in self._left:
                    step, left_s = self._left.pop(number)
                    self._last[number] += self._step - step
                    self._wall[number] += now_s - left_s
        common = self._policy.common
        faded = common.decay.factor(self._step - self._last[blocks], now_s - self._wall[blocks])
        self._crf[blocks] = 1.0 + self._crf[blocks] * faded
        self._ema[blocks] = (1.0 - common.alpha) * self._ema[blocks] + common.alpha
        self._touches[blocks] += 1
        self._last[blocks], self._wall[blocks] = self._step, now_s

    def _keys(self, blocks: I64Array, numbers: list[int]) -> list[Key]:
        """What the heap sorts blocks by, the least goes first."""
        stats = GivenStats(
            self._touches[blocks], self._last[blocks], self._wall[blocks], self._ema[blocks], self._crf[blocks],
            np.ones(len(blocks), bool),
        )
        values = self._policy.keys(stats).tolist()
        if not self._pinned:
            return [(value, 0, 0, number) for value, number in zip(values, numbers, strict=True)]
        places = zip(values, range(0, -len(numbers), -1), numbers, strict=True)
        return [(value, self._step, depth, number) for value, depth, number in places]

    def _put(self, key: Key) -> None:
        self._resident[key[3]] = key
        heapq.heappush(self._heap, key)

    def _admit(self, keys: list[Key], own: set[int], now_s: float) -> None:
        """Lets missing blocks in, in order. Pinned: until nothing but the request's own could go."""
        aside: list[Key] = []
        for key in keys:
            if key[3] in self._resident:  # the request names it twice
                continue
            if not self._pinned:
                self._put(key)
            self._make_room(own, aside, now_s)
            if self._pinned and len(self._resident) < self._capacity:
                self._put(key)
        for key in aside:
            heapq.heappush(self._heap, key)

    def _make_room(self, own: set[int], aside: list[Key], now_s: float) -> None:
        """Evicts what is least, as far as it must and may; puts aside what is pinned."""
        most = self._capacity - self._pinned
        while len(self._resident) > most and self._heap:
            key = heapq.heappop(self._heap)
            if self._resident.get(key[3]) != key:  # it was accessed since, or is gone
                continue
            if self._pinned and key[3] in own:
                aside.append(key)
            else:
                self._evict(key[3], own, now_s)

    def _evict(self, number: int, own: set[int], now_s: float) -> None:
        del self._resident[number]
        self.evictions += 1
        self.self_evictions += number in own
        if self._memory == "reset":
            self._touches[number] = 0
            self._ema[number] = self._crf[number] = 0.0
        elif self._memory == "frozen":
            self._left[number] = (self._step, now_s)
