"""LRFUPolicy under vLLM's own CPU tier manager, case by case (case_runner.py), in vLLM's environment."""

from __future__ import annotations

import os
import random
import sys
from collections import defaultdict, deque
from typing import Any

os.environ |= {"VLLM_TARGET_DEVICE": "cpu", "VLLM_LOGGING_LEVEL": "ERROR", "OMP_NUM_THREADS": "1"}

from case_runner import run
from vllm.v1.kv_offload.base import LookupResult, ReqContext, make_offload_key
from vllm.v1.kv_offload.cpu.manager import CPUOffloadingManager
from vllm.v1.kv_offload.cpu.policies.base import CachePolicy, order_request_keys

from tierd_client.integrations.vllm import policy
from tierd_client.integrations.vllm.policy import LRFUPolicy

MODULE = policy.__name__


def keys_of(*numbers: int) -> list[bytes]:
    return [make_offload_key(number.to_bytes(32, "big"), 0) for number in numbers]


class EveryAccess(CachePolicy):
    """The same by brute force: the moments of all accesses of each chunk, summed up anew for each eviction."""

    def __init__(self, cache_capacity: int) -> None:
        super().__init__(cache_capacity)
        self.chunks: dict[bytes, Any] = {}
        self.moments: dict[bytes, list[int]] = defaultdict(list)
        self.gone: deque[bytes] = deque()
        self.order: dict[bytes, int] = {}
        self.now = 0

    def get(self, key: bytes) -> Any:
        return self.chunks.get(key)

    def insert(self, key: bytes, chunk: Any) -> None:
        if key in self.gone:
            self.gone.remove(key)
        self.chunks[key] = chunk
        self.moments[key].append(self.now)
        self.order[key] = max(self.order.values(), default=0) + 1

    def remove(self, key: bytes) -> None:
        del self.chunks[key]
        self.gone.append(key)
        if len(self.gone) > policy.REMEMBERED * self.cache_capacity:
            del self.moments[self.gone.popleft()]

    def touch(self, keys: Any, req_context: Any) -> None:
        self.access(list(keys), set())

    def on_store_miss(self, keys: Any, req_context: Any) -> None:
        pass

    def on_request_finished(self, key_groups: Any, insertion_only_keys: Any, reused_keys: Any, ctx: Any) -> None:
        self.access(order_request_keys(key_groups, ctx), insertion_only_keys)

    def access(self, keys: list[bytes], counted: set[bytes]) -> None:
        self.now += len(keys)
        for key in reversed(keys):
            if key in self.chunks:
                if key in counted:
                    self.moments[key].pop()
                self.moments[key].append(self.now)
                self.order[key] = max(self.order.values()) + 1

    def score(self, key: bytes) -> float:
        half_life = policy.HALF_LIFE * self.cache_capacity
        return sum(2.0 ** ((moment - self.now) / half_life) for moment in self.moments[key])

    def evict(self, n: int, protected: set[bytes]) -> Any:
        free = [key for key, chunk in self.chunks.items() if chunk.ref_cnt == 0 and key not in protected]
        if len(free) < n:
            return None
        victims = sorted(free, key=lambda key: (round(self.score(key), 12), self.order[key]))[:n]
        return [(key, self.chunks[key], self.remove(key))[:2] for key in victims]

    def clear(self) -> None:
        self.__init__(self.cache_capacity)  # type: ignore[misc]


class Tier:
    """vLLM's manager of its CPU tier."""

    def __init__(self, chunks: int, name: str = "LRFUPolicy", module: str | None = MODULE) -> None:
        self.manager = CPUOffloadingManager(num_chunks=chunks, cache_policy=name, cache_policy_module_path=module)
        self.policy: Any = self.manager._policy
        self._requests = 0

    def request(self, *numbers: int, ends: bool = True, fails: bool = False) -> tuple[int, list[bytes] | None, Any]:
        """A request with these blocks: how many were there, which went for the rest, and its context."""
        self._requests += 1
        context, keys = ReqContext(str(self._requests)), keys_of(*numbers)
        for position, key in enumerate(keys, 1):
            context.set_offload_key_position(key, position)
        self.manager.on_new_request(context)
        looked_up = [self.manager.lookup(key, context) is LookupResult.HIT for key in keys]
        hits = looked_up.index(False) if False in looked_up else len(keys)
        if hits:
            self.manager.prepare_load(keys[:hits], context)
        stored = self.manager.prepare_store(keys, context)
        if hits and ends:
            self.manager.complete_load(keys[:hits], context)
        if stored is not None:
            self.manager.complete_store(stored.keys_to_store, context, success=not fails)
        if ends:
            self.manager.on_request_finished(context)
        return hits, None if stored is None else list(stored.evicted_keys), context

    def has(self, number: int) -> bool:
        return self.policy.get(*keys_of(number)) is not None


class Cases:
    """Each method is a case."""

    def _end(self) -> None:
        """Nothing is left of a case."""

    def victims_are_those_of_brute_force(self) -> None:
        """Over random requests, some of which run on, fail or find no room, LRFU evicts what a sum over all
        accesses says, one after the other."""
        for seed in range(20):
            draw = random.Random(seed)
            tiers = [Tier(12), Tier(12, "EveryAccess", __name__)]
            running: list[tuple[list[bytes], tuple[Any, Any]]] = []
            for _ in range(250):
                first = min(int(draw.expovariate(0.12)), 40)
                numbers = [100 * first + depth for depth in range(draw.randint(1, 5))]
                options = {"ends": draw.random() < 0.9, "fails": draw.random() < 0.05}
                (hits, evicted, mine), (others, expected, theirs) = [
                    tier.request(*numbers, **options) for tier in tiers]
                assert (hits, evicted) == (others, expected)
                if not options["ends"]:
                    running.append((keys_of(*numbers[:hits]), (mine, theirs)))
                while running and (len(running) > 2 or draw.random() < 0.2):
                    keys, contexts = running.pop(0)
                    for tier, context in zip(tiers, contexts, strict=True):
                        if keys:
                            tier.manager.complete_load(keys, context)
                        tier.manager.on_request_finished(context)

    def an_eviction_is_all_or_nothing(self) -> None:
        """As with vLLM's own policies: chunks that are protected, read, or not written yet stay; where too few are
        left nothing changes."""
        for name, module in (("lru", None), ("arc", None), ("LRFUPolicy", MODULE)):
            tier = Tier(6, name, module)
            tier.request(1, 2, 3)
            tier.request(4, ends=True)
            _, _, reading = tier.request(1, ends=False)
            context = ReqContext("writing")
            tier.manager.on_new_request(context)
            assert tier.manager.prepare_store(keys_of(9), context) is not None
            assert tier.policy.evict(0, set()) == []
            assert tier.policy.evict(3, set(keys_of(4))) is None
            assert all(tier.has(number) for number in (1, 2, 3, 4, 9))
            assert {key for key, _ in tier.policy.evict(2, set(keys_of(4)))} == set(keys_of(2, 3))
            tier.manager.complete_load(keys_of(1), reading)
            tier.manager.complete_store(keys_of(9), context)
            assert {key for key, _ in tier.policy.evict(3, set())} == set(keys_of(1, 4, 9))
            assert tier.policy.evict(1, set()) is None

    def the_end_of_a_prompt_goes_first(self) -> None:
        """Of one request the last chunk goes first, also where the chunks were stored piece by piece."""
        tier = Tier(6)
        tier.request(1, 2, 3, 4, 5, 6)
        assert [key for key, _ in tier.policy.evict(6, set())] == keys_of(6, 5, 4, 3, 2, 1)
        context, keys = ReqContext("chunked"), keys_of(11, 12, 13)
        for position, key in enumerate(keys, 1):
            context.set_offload_key_position(key, position)
        tier.manager.reset_cache()
        tier.manager.on_new_request(context)
        for key in keys:
            tier.manager.complete_store(tier.manager.prepare_store([key], context).keys_to_store, context)
            tier.request(20 + len(tier.policy._entries))
        tier.manager.on_request_finished(context)
        order = [key for key, _ in tier.policy.evict(6, set()) if key in keys]
        assert order == keys_of(13, 12, 11)

    def what_is_used_often_outlives_a_scan(self) -> None:
        """A prompt that comes again and again stays while more passes than the tier holds; with LRU it goes."""
        kept = {}
        for name, module in (("lru", None), ("LRFUPolicy", MODULE)):
            tier = Tier(8, name, module)
            for _ in range(6):
                tier.request(1, 2)
            for number in range(100, 110):
                tier.request(number)
            kept[name] = tier.has(1) and tier.has(2)
        assert kept == {"lru": False, "LRFUPolicy": True}

    def a_score_outlives_its_chunk(self) -> None:
        """A chunk that went and comes back goes after chunks that are new, as if it had never gone."""
        tier = Tier(4)
        for _ in range(5):
            tier.request(1)
        assert [key for key, _ in tier.policy.evict(1, set())] == keys_of(1)
        tier.request(1)
        tier.request(2)
        tier.request(3)
        assert [key for key, _ in tier.policy.evict(3, set())] == keys_of(2, 3, 1)

    def memory_is_bounded(self) -> None:
        """However many chunks pass, what is kept of them is a small multiple of the tier's capacity."""
        tier = Tier(50)
        for number in range(3_000):
            tier.request(number, number % 40)
        assert len(tier.policy._gone) <= policy.REMEMBERED * 50
        assert len(tier.policy._heap) <= max(policy.LEAST_HEAP, 2 * 50) + 2
        tier.manager.reset_cache()
        assert not (tier.policy._gone or tier.policy._heap or tier.policy._entries)
        assert issubclass(LRFUPolicy, CachePolicy)


if __name__ == "__main__":
    run(Cases(), tuple(sys.argv[1:]))
