"""LRFU for vLLM's own CPU tier, which has no daemon: recency and frequency in one score, kept beyond eviction.

    "kv_connector_extra_config": {"spec_name": "CPUOffloadingSpec", "cpu_bytes_to_use": 17179869184,
      "eviction_policy": "LRFUPolicy", "cache_policy_module_path": "tierd_client.integrations.vllm.policy"}

Each access adds one to a chunk's score, and scores halve as other chunks are accessed (Lee et al., IEEE TC 50(12),
2001). A request counts once, at one moment for all its chunks: of its chain none goes before those behind it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from itertools import count
from math import log2
from typing import Any

from tierd_client.integrations.vllm.versions import CachePolicy, order_request_keys

HALF_LIFE = 1.0
"""Of a score: accesses of chunks, in capacities of the tier."""

REMEMBERED = 4
"""Scores of chunks that are gone, in capacities of the tier."""

LEAST_HEAP = 64

Rank = tuple[float, int]
"""Lower goes sooner; the second one decides between chunks of one request: its last ones first."""


@dataclass(slots=True)
class _Entry:
    """One chunk. `score`: as of the moment `at`; `ordered`: its place among those with the same."""

    chunk: Any
    score: float
    at: int
    ordered: int


class LRFUPolicy(CachePolicy):
    """Named in `kv_connector_extra_config`."""

    def __init__(self, cache_capacity: int) -> None:
        super().__init__(cache_capacity)
        self._half_life = max(1.0, HALF_LIFE * cache_capacity)
        self.clear()

    def clear(self) -> None:
        self._entries: dict[bytes, _Entry] = {}
        self._gone: OrderedDict[bytes, tuple[float, int]] = OrderedDict()
        self._evictable: set[bytes] = set()
        self._heap: list[tuple[Rank, bytes]] = []
        self._now = 0
        self._order = count()

    def get(self, key: bytes) -> Any:
        entry = self._entries.get(key)
        return None if entry is None else entry.chunk

    def insert(self, key: bytes, chunk: Any) -> None:
        """The access that stores it counts."""
        score, at = self._gone.pop(key, (0.0, self._now))
        self._entries[key] = _Entry(chunk, self._decayed(score, at) + 1.0, self._now, next(self._order))
        if chunk.ref_cnt == 0:
            self.mark_evictable(key)

    def remove(self, key: bytes) -> None:
        """A store failed: its access counts, the chunk is gone."""
        entry = self._entries.pop(key)
        self._evictable.discard(key)
        self._remember(key, entry)

    def touch(self, keys: Iterable[bytes], req_context: Any) -> None:
        self._access(list(keys), set())

    def on_store_miss(self, keys: Iterable[bytes], req_context: Any) -> None:
        """Nothing: what is stored of them is inserted, and counts then."""

    def on_request_finished(
        self, key_groups: Sequence[Sequence[bytes]], insertion_only_keys: set[bytes], reused_keys: set[bytes],
        req_context: Any,
    ) -> None:
        self._access(order_request_keys(key_groups, req_context), insertion_only_keys)

    def evict(self, n: int, protected: set[bytes]) -> list[tuple[bytes, Any]] | None:
        chosen: list[bytes] = []
        kept: list[tuple[Rank, bytes]] = []
        while len(chosen) < n and self._heap:
            rank, key = heappop(self._heap)
            if key in self._evictable and rank == self._rank(self._entries[key]):
                self._evictable.discard(key)
                if key in protected:
                    kept.append((rank, key))
                else:
                    chosen.append(key)
        self._return([key for _, key in kept])
        if len(chosen) < n:
            self._return(chosen)
            return None
        return [(key, self._evicted(key)) for key in chosen]

    def mark_evictable(self, key: bytes) -> None:
        self._return([key])

    def mark_non_evictable(self, key: bytes) -> None:
        self._evictable.discard(key)

    def _access(self, keys: Sequence[bytes], counted: set[bytes]) -> None:
        """One request's access to chunks, from the first to the last; that of those that are `counted` already is
        taken to be now."""
        self._now += len(keys)
        for key in reversed(keys):
            entry = self._entries.get(key)
            if entry is not None:
                before = entry.score - 1.0 if key in counted else entry.score
                entry.score, entry.at = self._decayed(before, entry.at) + 1.0, self._now
                entry.ordered = next(self._order)
        self._return([key for key in keys if key in self._evictable])

    def _decayed(self, score: float, at: int) -> float:
        return float(score * 2.0 ** ((at - self._now) / self._half_life))

    def _rank(self, entry: _Entry) -> Rank:
        """By the score at any one moment: they all fall alike, so that the order stays."""
        return log2(entry.score) + entry.at / self._half_life, entry.ordered

    def _return(self, keys: Sequence[bytes]) -> None:
        """Makes chunks evictable, with the ranks that they have now."""
        self._evictable.update(keys)
        if len(self._heap) + len(keys) > max(LEAST_HEAP, 2 * len(self._evictable)):
            self._heap = [(self._rank(self._entries[key]), key) for key in self._evictable]
            heapify(self._heap)
        else:
            for key in keys:
                heappush(self._heap, (self._rank(self._entries[key]), key))

    def _evicted(self, key: bytes) -> Any:
        entry = self._entries.pop(key)
        self._remember(key, entry)
        return entry.chunk

    def _remember(self, key: bytes, entry: _Entry) -> None:
        self._gone[key] = entry.score, entry.at
        if len(self._gone) > REMEMBERED * self.cache_capacity:
            self._gone.popitem(last=False)
