"""What the OffloadingSpec and the secondary tier do with vLLM's own scheduler, case by case, and a running daemon.

usage: offloading_cases.py MODEL ADDRESS, in vLLM's environment (case_runner.py).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from unittest.mock import patch

os.environ |= {
    "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "OMP_NUM_THREADS": "1", "VLLM_TARGET_DEVICE": "cpu",
    "VLLM_LOGGING_LEVEL": "ERROR", "VLLM_CPU_KVCACHE_SPACE": "1",
}

import torch
from case_runner import run
from toy_engine import BLOCK, LAYERS, WITHIN_S, WORDS, ToyEngine, answer, blocks, settled, text
from vllm.config import set_current_vllm_config
from vllm.v1.kv_offload.base import CanonicalKVCacheRef, CanonicalKVCacheTensor, OffloadingWorker, TransferResult
from vllm.v1.kv_offload.cpu.shared_offload_region import SharedOffloadRegion

from tierd_client.errors import InvalidArgument
from tierd_client.integrations.vllm.geometry import chunk_layout, layouts_of
from tierd_client.integrations.vllm.offloading import (
    TierdOffloadingManager,
    TierdOffloadingSpec,
    TierdOffloadingWorker,
)
from tierd_client.integrations.vllm.versions import (
    CanonicalKVCaches,
    GPULoadStoreSpec,
    LookupResult,
    ReqContext,
    key_of_block,
)

PROMPT = 3 * BLOCK + 9
CHUNK_BYTES = 4096
PAGE_BYTES = BLOCK * WORDS * 4
KEYS = [key_of_block(bytes([number]) * 32) for number in range(2)]


def context(manager: Any, name: str) -> ReqContext:
    """A request of the blocks that KEYS name."""
    made = ReqContext(name)
    for number, key in enumerate(KEYS, 1):
        made.set_offload_key_position(key, number * BLOCK)
    manager.on_new_request(made)
    return made


def refused(make: Callable[[], Any]) -> str:
    """Why it is."""
    try:
        make()
    except InvalidArgument as error:
        return str(error)
    raise AssertionError("it is served")


def random_caches(seed: int) -> Any:
    """A worker's pages of the model's layers, as vLLM hands them over."""
    torch.manual_seed(seed)
    pages = [torch.randint(-128, 127, (8, PAGE_BYTES), dtype=torch.int8) for _ in LAYERS]
    return CanonicalKVCaches(
        [CanonicalKVCacheTensor(one, PAGE_BYTES) for one in pages],
        [[CanonicalKVCacheRef(number, PAGE_BYTES) for number in range(len(pages))]])


class SpecEngine(ToyEngine):
    """With the OffloadingSpec."""

    def __init__(self, model: str, address: str, **options: Any) -> None:
        super().__init__(model, {
            "kv_connector": "OffloadingConnector", "kv_connector_extra_config": {
                "spec_name": "TierdOffloadingSpec", "spec_module_path": "tierd_client.integrations.vllm.offloading",
                "offload_prompt_only": False, "tierd": {"address": address, "answer_ms": 10_000}}}, **options)
        self.manager = self.connector.connector_scheduler.manager

    @property
    def links(self) -> list[Any]:
        return [self.manager._link, self.worker.connector_worker.worker._link]

    @property
    def layout(self) -> Any:
        return self.manager._layouts[0]


class CopyingWorker(OffloadingWorker):
    """vLLM's worker of its CPU tier has CUDA's copies; this one has torch's, at once."""

    def __init__(self, spec: Any, kv_caches: Any) -> None:
        self._region = SharedOffloadRegion(
            spec.config.engine_id, spec.num_chunks, 0, spec.kv_bytes_per_chunk, spec.cpu_page_size_per_worker)
        self._pages = [one.tensor for one in kv_caches.tensors]
        self._chunks = [self._region.create_next_worker_view(one.page_size_bytes) for one in kv_caches.tensors]
        self._finished: list[int] = []

    def submit_store(self, job_id: int, src_spec: Any, dst_spec: Any) -> bool:
        return self._copy(job_id, self._pages, src_spec, self._chunks, dst_spec)

    def submit_load(self, job_id: int, src_spec: Any, dst_spec: Any, expedited: bool = False) -> bool:
        return self._copy(job_id, self._chunks, src_spec, self._pages, dst_spec)

    def get_finished(self) -> list[TransferResult]:
        finished, self._finished = self._finished, []
        return [TransferResult(job, True) for job in finished]

    def wait(self, job_ids: set[int]) -> None:
        """All is done."""

    def shutdown(self) -> None:
        self._chunks.clear()
        self._region.cleanup()

    def _copy(self, job: int, sources: list[Any], source: Any, targets: list[Any], target: Any) -> bool:
        for of, to in zip(sources, targets, strict=True):
            to[torch.from_numpy(target.block_ids).long()] = of[torch.from_numpy(source.block_ids).long()]
        self._finished.append(job)
        return True


class TieringEngine(ToyEngine):
    """With vLLM's own CPU tier of so many `chunks`, and tierd below it."""

    def __init__(self, model: str, address: str, *, chunks: int = 8, **options: Any) -> None:
        super().__init__(model, {
            "kv_connector": "OffloadingConnector", "kv_connector_extra_config": {
                "spec_name": "TieringOffloadingSpec", "cpu_bytes_to_use": chunks * CHUNK_BYTES,
                "offload_prompt_only": False, "eviction_policy": "LRFUPolicy",
                "cache_policy_module_path": "tierd_client.integrations.vllm.policy", "secondary_tiers": [{
                    "type": "TierdTier", "module_path": "tierd_client.integrations.vllm.tier", "address": address,
                    "answer_ms": 10_000}]}}, **options)
        (self.tier,) = self.connector.connector_scheduler.manager.secondary_tiers

    @property
    def links(self) -> list[Any]:
        return [self.tier._link]

    @property
    def layout(self) -> Any:
        return self.tier._layout

    def _adapt_worker(self) -> None:
        spec = self.worker.connector_worker.spec
        spec.get_worker = lambda kv_caches: CopyingWorker(spec, kv_caches)

    def lose_cpu_tier(self) -> None:
        """What was in vLLM's CPU tier is only in tierd."""
        assert settled(lambda: self.step() and not self.tier._jobs)
        self.forget()
        manager = self.connector.connector_scheduler.manager
        keys = list(manager.primary_tier._policy._entries)
        for key, chunk in manager.primary_tier._policy.evict(len(keys), set()):
            manager.primary_tier._free_chunk(chunk)
            manager.primary_tier._num_evictable_cache_chunks -= 1
            assert key in keys


class Cases:
    """Each method is a case."""

    def __init__(self, model: str, address: str) -> None:
        self._model, self._address = model, address
        self._engines: list[ToyEngine] = []

    def _spec(self, **options: Any) -> SpecEngine:
        engine = SpecEngine(self._model, self._address, **options)
        self._engines.append(engine.wait_up())
        return engine

    def _tiering(self, **options: Any) -> TieringEngine:
        engine = TieringEngine(self._model, self._address, **options)
        self._engines.append(engine.wait_up())
        return engine

    def _end(self) -> None:
        while self._engines:
            self._engines.pop().close()

    def the_spec_loads_what_it_stored(self) -> None:
        """A prompt is answered out of the daemon as it was computed; no lease is left."""
        engine, prompt = self._spec(), text(1, PROMPT)
        assert engine.generate("cold", prompt) == (answer(prompt), 0)
        assert settled(lambda: engine.step() and engine.stored(prompt) == blocks(prompt, 1))
        engine.forget()
        assert engine.generate("loaded", prompt) == (answer(prompt), 3 * BLOCK)
        assert settled(lambda: engine.step() and not engine.leases())

    def after_a_reset_the_spec_stores_nothing_of_before(self) -> None:
        """A request that runs on over a reset stores nothing under the new name, and is answered; the next does."""
        engine, running, prompt = self._spec(), text(2, BLOCK), text(3, PROMPT)
        engine.add("running", running, 90)
        assert settled(lambda: engine.step() and len(engine.answers["running"]) > 20)
        assert engine.connector.reset_cache()
        engine.run()
        assert engine.answers["running"] == answer(running, 90)
        engine.generate("next", prompt)
        assert settled(lambda: engine.step() and engine.stored(prompt) == blocks(prompt, 1))
        assert engine.stored(running + answer(running, 90)) == [None] * 3

    def ranks_have_namespaces_of_their_own(self) -> None:
        """With tensor parallelism a block is found once all ranks have stored it, and each loads what it stored; an
        engine of one rank finds none of it. Pipeline parallelism is refused."""
        one = self._spec()
        config, options = one.manager._config, one.links[0].options
        ranks = [replace(config, parallel=replace(config.parallel, tp_size=2, world_size=2, rank=rank))
                 for rank in range(2)]
        assert layouts_of(ranks[0], options) == layouts_of(ranks[1], options)
        fingerprints = [one.layout.fingerprint, *(each.fingerprint for each in layouts_of(ranks[0], options))]
        assert len(set(fingerprints)) == 3
        chunks = {chunk_layout(each, options, CHUNK_BYTES).fingerprint for each in (config, *ranks)}
        assert len(chunks) == 2
        manager = TierdOffloadingManager(ranks[0], options)
        caches = [random_caches(rank) for rank in range(2)]
        workers = [TierdOffloadingWorker(*each) for each in zip(ranks, [options] * 2, caches, strict=True)]
        assert manager._link.wait_up(WITHIN_S) and all(worker._link.wait_up(WITHIN_S) for worker in workers)
        stored = manager.prepare_store(KEYS, context(manager, "stores"))
        for worker, found in zip(workers, (LookupResult.MISS, LookupResult.HIT), strict=True):
            worker.submit_store(1, GPULoadStoreSpec([0, 1], [2], [0]), stored.store_spec)
            worker.wait({1})
            asks = context(manager, f"asks {found}")
            assert settled(lambda asks=asks: manager.lookup(KEYS[0], asks) is not LookupResult.RETRY)
            assert [manager.lookup(key, asks) for key in KEYS] == [found] * 2
        places = manager.prepare_load(KEYS, asks)
        for worker, each in zip(workers, caches, strict=True):
            worker.submit_load(2, places, GPULoadStoreSpec([5, 6], [2], [0]))
            worker.wait({2})
            assert all(torch.equal(layer.tensor[5:7], layer.tensor[:2]) for layer in each.tensors)
        assert "pipeline" in refused(
            lambda: layouts_of(replace(config, parallel=replace(config.parallel, pp_size=2)), options))
        for side in (manager, *workers):
            side.shutdown()

    def what_no_file_of_the_model_says_is_named(self) -> None:
        """Told of other KV than the model's files say, or of no files, an engine is refused that does not name it;
        CPUs whose pages are ordered otherwise have namespaces of their own."""
        one = SpecEngine(self._model, self._address)
        self._engines.append(one)
        config, options = one.manager._config, one.links[0].options
        with set_current_vllm_config(one.config):
            TierdOffloadingSpec(config)
            one.config.model_config.hf_overrides = {"rope_theta": 5000.0}
            one.config.load_config.load_format = "dummy"
            assert "--hf-overrides, --load-format dummy" in refused(lambda: TierdOffloadingSpec(config))
            TierdOffloadingSpec(replace(config, extra_config={"tierd": {"revision": "mine"}}))
        absent = replace(config, model=replace(config.model, name="/of/nobody/model.gguf"))
        assert "no files" in refused(lambda: layouts_of(absent, options))
        assert layouts_of(absent, replace(options, revision="mine"))[0].revision == "mine"
        engines = set()
        for amx in (False, True):
            with patch.object(torch.cpu, "_is_amx_tile_supported", lambda amx=amx: amx):
                engines.add(layouts_of(config, options)[0].fingerprint)
        assert len(engines) == 2

    def chunks_come_back_that_the_cpu_tier_has_lost(self) -> None:
        """What went down from vLLM's CPU tier comes up again into other chunks, and the answer is the same."""
        engine, prompt = self._tiering(), text(4, PROMPT)
        assert engine.generate("cold", prompt) == (answer(prompt), 0)
        assert settled(lambda: engine.step() and engine.stored(prompt) == blocks(prompt, 1))
        engine.lose_cpu_tier()
        assert engine.generate("loaded", prompt) == (answer(prompt), 3 * BLOCK)
        assert settled(lambda: engine.step() and not engine.leases())
        assert not engine.tier._requests and not engine.tier._jobs

    def more_than_the_cpu_tier_holds_is_kept(self) -> None:
        """Of prompts that do not fit into vLLM's CPU tier together each comes back whole, from both tiers."""
        engine, prompts = self._tiering(chunks=8), [text(10 + seed, PROMPT) for seed in range(5)]
        for number, prompt in enumerate(prompts):
            assert engine.generate(f"cold {number}", prompt)[0] == answer(prompt)
            assert settled(lambda: engine.step() and not engine.tier._jobs)
        engine.forget()
        for number, prompt in enumerate(prompts):
            assert engine.generate(f"again {number}", prompt) == (answer(prompt), 3 * BLOCK)
            assert not engine.wrong(prompt)
        assert settled(lambda: engine.step() and not engine.leases())

    def another_engine_has_the_chunks(self) -> None:
        """What one engine's tier stored the tier of the next one finds; engines of the other ways do not."""
        prompt = text(20, PROMPT)
        first = self._tiering()
        first.generate("cold", prompt)
        assert settled(lambda: first.step() and not first.tier._jobs)
        self._end()
        assert self._tiering().generate("loaded", prompt) == (answer(prompt), 3 * BLOCK)
        self._end()
        assert self._spec().generate("cold", prompt) == (answer(prompt), 0)

    def a_load_that_cannot_be_done_is_computed(self) -> None:
        """A job for chunks that are not leased any more fails and touches no chunk; vLLM computes the prompt."""
        engine, prompt = self._tiering(), text(21, PROMPT)
        engine.generate("cold", prompt)
        engine.lose_cpu_tier()
        submit = engine.tier.submit_load

        def too_late(job: Any) -> None:
            engine.tier._requests[job.req_context.req_id].prompt.release()
            engine.tier._link._up.clear()
            submit(job)
            engine.tier._link._up.set()

        engine.tier.submit_load = too_late
        chunks = engine.tier._primary_kv_view.tobytes()
        engine.add("late", prompt)
        assert settled(lambda: engine.step() and engine.tier._refused)
        assert chunks == engine.tier._primary_kv_view.tobytes()
        engine.tier._link._up.clear()
        engine.run()
        assert engine.answers["late"] == answer(prompt)

    def a_reset_separates_chunks(self) -> None:
        """After a reset nothing of before comes up, and a request that was running stores nothing."""
        engine, running, prompt = self._tiering(), text(22, BLOCK), text(23, PROMPT)
        engine.generate("cold", prompt)
        engine.add("running", running, 90)
        assert settled(lambda: engine.step() and len(engine.answers["running"]) > 20)
        old = engine.layout
        engine.connector.reset_cache()
        engine.run()
        assert engine.answers["running"] == answer(running, 90)
        engine.forget()
        assert engine.generate("again", prompt) == (answer(prompt), 0)
        assert settled(lambda: engine.step() and engine.stored(prompt) == blocks(prompt, 1))
        assert engine.stored(prompt, old) == blocks(prompt, 1)
        assert engine.stored(running + answer(running, 90)) == [None] * 3

    def without_a_daemon_the_cpu_tier_serves(self) -> None:
        """Stores succeed with nothing stored, lookups are misses, and vLLM's CPU tier answers alone."""
        engine, prompt = TieringEngine(self._model, "unix:///nowhere/tierd.sock"), text(24, PROMPT)
        self._engines.append(engine)
        engine.generate("cold", prompt)
        engine.step()
        engine.forget()
        assert engine.generate("from cpu", prompt) == (answer(prompt), 3 * BLOCK)


if __name__ == "__main__":
    run(Cases(*sys.argv[1:3]), tuple(sys.argv[3:]))
