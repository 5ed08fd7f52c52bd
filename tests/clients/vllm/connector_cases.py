"""What the connector does with vLLM's own scheduler, case by case, against a running daemon.

usage: connector_cases.py MODEL ADDRESS, in vLLM's environment (case_runner.py).
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

os.environ |= {
    "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "OMP_NUM_THREADS": "1", "VLLM_TARGET_DEVICE": "cpu",
    "VLLM_LOGGING_LEVEL": "ERROR", "VLLM_CPU_KVCACHE_SPACE": "1",
}

from case_runner import run
from toy_engine import BLOCK, WITHIN_S, ToyEngine, answer, blocks, settled, text
from vllm.v1.core.kv_cache_utils import BlockHash
from vllm.v1.kv_offload.base import make_offload_key
from vllm.v1.request import RequestStatus

from tierd_client.errors import Unavailable
from tierd_client.handover import LeasedReader
from tierd_client.integrations import transfers
from tierd_client.integrations.vllm.versions import key_of_block

PROMPT = 3 * BLOCK + 9


class Lost:
    """In place of a worker's reader: it can map nothing, and its daemon is away."""

    def scatter(self, *arguments: Any) -> None:
        raise Unavailable("for the test")


class Held:
    """In place of a worker's reader: it reads once `go` is set."""

    def __init__(self, reader: LeasedReader) -> None:
        self.go = threading.Event()
        self._reader = reader

    def scatter(self, *arguments: Any) -> None:
        assert self.go.wait(WITHIN_S)
        self._reader.scatter(*arguments)


@contextmanager
def failing_loads(engine: ToyEngine) -> Iterator[None]:
    moves, within_s = engine.worker._worker._transfers, transfers.LOAD_WITHIN_S
    moves._reader, transfers.LOAD_WITHIN_S = Lost(), 0.0
    yield
    moves._reader, transfers.LOAD_WITHIN_S = None, within_s


class ConnectorEngine(ToyEngine):
    """With the KV connector."""

    def __init__(self, model: str, address: str, *, load_async: bool = True, **options: Any) -> None:
        super().__init__(model, {
            "kv_connector": "TierdConnector", "kv_load_failure_policy": "recompute",
            "kv_connector_module_path": "tierd_client.integrations.vllm.connector",
            "kv_connector_extra_config": {
                "load_async": load_async, "tierd": {"address": address, "answer_ms": 10_000}}}, **options)

    @property
    def links(self) -> list[Any]:
        return [self.connector._scheduler._link, self.worker._worker._link]

    @property
    def layout(self) -> Any:
        return self.connector._scheduler._layouts[0]


class Cases:
    """Each method is a case."""

    def __init__(self, model: str, address: str) -> None:
        self._model, self._address = model, address
        self._engines: list[ConnectorEngine] = []

    def _made(self, **options: Any) -> ConnectorEngine:
        """An engine that ends with the case."""
        self._engines.append(ConnectorEngine(self._model, **{"address": self._address} | options))
        return self._engines[-1]

    def _engine(self, **options: Any) -> ConnectorEngine:
        self._made(**options).wait_up()
        return self._engines[-1]

    def _end(self) -> None:
        while self._engines:
            self._engines.pop().close()

    def a_prompt_is_loaded(self, load_async: bool) -> None:
        """A prompt, and one with the same beginning, are answered out of the daemon as they were computed; no lease
        is left."""
        engine, prompt = self._engine(load_async=load_async), text(1 + load_async, PROMPT)
        assert engine.generate("cold", prompt) == (answer(prompt), 0)
        assert engine.stored(prompt) == blocks(prompt, 1)
        engine.forget()
        assert engine.generate("loaded", prompt) == (answer(prompt), 3 * BLOCK)
        engine.forget()
        other = prompt[: 2 * BLOCK] + text(3, 70)
        assert engine.generate("other end", other) == (answer(other), 2 * BLOCK)
        assert settled(lambda: not engine.leases())
        assert not engine.connector._scheduler._requests

    def another_engine_has_it(self) -> None:
        """What one engine stored before its step ended is there for the next one."""
        prompt = text(4, PROMPT)
        self._engine(load_async=False).generate("stored", prompt)
        self._end()
        assert self._engine().generate("loaded", prompt) == (answer(prompt), 3 * BLOCK)

    def a_load_that_fails_is_computed(self, load_async: bool) -> None:
        """A failed load is reported by its pages, computed by vLLM, not tried again by the request, and what is
        stored is right."""
        engine, prompt = self._engine(load_async=load_async), text(5 + load_async, PROMPT)
        engine.generate("cold", prompt)
        engine.forget()
        with failing_loads(engine):
            assert engine.generate("failed", prompt, 40)[0] == answer(prompt, 40)
        assert any(output.invalid_block_ids for output in engine.outputs)
        assert engine.moved()["failed_loads"] == 1
        assert not engine.wrong(prompt + answer(prompt, 40), 1)
        assert settled(lambda: not engine.leases())
        engine.forget()
        longer = prompt + answer(prompt, 40)[:-1]
        assert engine.generate("after", longer) == (answer(longer), len(longer) // BLOCK * BLOCK)

    def nothing_is_stored_out_of_pages_that_a_load_left_unfilled(self) -> None:
        """Requests that compute on, in the same step, from pages whose load fails store none of it."""
        engine, prompt = self._engine(load_async=False), text(7, 2 * BLOCK)
        engine.generate("cold", prompt)
        engine.forget()
        ends = [prompt + text(seed, 2 * BLOCK + 5) for seed in (8, 9, 10)]
        with failing_loads(engine):
            for number, one in enumerate(ends):
                engine.add(f"shared {number}", one, 2)
            engine.run()
        assert any(output.invalid_block_ids for output in engine.outputs)
        for number, one in enumerate(ends):
            assert engine.answers[f"shared {number}"] == answer(one, 2)
            assert not engine.wrong(one)
        assert engine.stored(ends[0]) == blocks(ends[0])

    def a_failed_load_is_computed_in_pieces(self) -> None:
        """Nor do those that compute on later, while the pages are mended piece by piece."""
        engine, prompt = self._engine(load_async=False, request_tokens=BLOCK), text(11, 4 * BLOCK)
        engine.generate("cold", prompt)
        engine.forget()
        first, second = prompt + text(12, 40), prompt + text(13, 40)
        with failing_loads(engine):
            engine.add("first", first, 2)
            engine.add("second", second, 2)  # vLLM computes it on before the first one's pages are mended
            engine.run()
        assert engine.answers["first"] == answer(first, 2)
        assert not engine.wrong(first)
        assert not engine.wrong(second)

    def a_preempted_request_comes_back(self, load_async: bool) -> None:
        """Requests that lose their pages load what was stored of them, prompt and decoded, and end as ever."""
        engine = self._engine(load_async=load_async, pages=10)
        prompts = [text(20 + 2 * seed + load_async, 2 * BLOCK + 20) for seed in range(3)]
        for number, prompt in enumerate(prompts):
            engine.add(f"request {number}", prompt, 80)
        engine.run()
        assert any(request.num_preemptions for request in engine.requests.values())
        for number, prompt in enumerate(prompts):
            assert engine.answers[f"request {number}"] == answer(prompt, 80)
            assert not engine.wrong(prompt + answer(prompt, 80))
        assert engine.moved()["loaded_bytes"]
        assert settled(lambda: not engine.leases())

    def a_long_prompt_is_stored_in_pieces(self) -> None:
        """A prompt that is computed in chunks is stored whole, also of a request that ends with its first token."""
        engine, prompt = self._engine(step_tokens=BLOCK + 7), text(30, 6 * BLOCK)
        assert engine.generate("cold", prompt, 1)[0] == answer(prompt, 1)
        assert engine.stored(prompt) == blocks(prompt, 1)

    def what_a_request_decodes_is_stored(self) -> None:
        """Blocks that become full while a request decodes are stored."""
        engine, prompt = self._engine(), text(31, BLOCK - 3)
        engine.generate("cold", prompt, 50)
        whole = prompt + answer(prompt, 50)[:-1]
        assert engine.stored(whole) == blocks(whole, 1)

    def a_request_ends_while_it_is_loaded(self) -> None:
        """A request that is aborted under a load leaves nothing leased, and the next one is answered."""
        engine, prompt = self._engine(), text(32, PROMPT)
        engine.generate("cold", prompt)
        engine.forget()
        held = engine.worker._worker._transfers._reader = Held(LeasedReader(engine.links[1].client()))
        engine.add("ends", prompt)
        assert settled(lambda: engine.step() and engine.connector._scheduler._jobs)
        engine.scheduler.finish_requests("ends", RequestStatus.FINISHED_ABORTED)
        held.go.set()
        assert settled(lambda: engine.step() and not engine.connector._scheduler._requests)
        assert settled(lambda: not engine.leases())
        assert engine.generate("next", prompt)[0] == answer(prompt)

    def a_reset_forgets_what_was_stored(self) -> None:
        """After a reset nothing of before is found, and a request that was running then stores nothing under the
        new name."""
        engine, prompt, running = self._engine(), text(33, PROMPT), text(34, BLOCK)
        engine.generate("cold", prompt)
        engine.add("running", running, 80)
        assert settled(lambda: engine.step() and len(engine.answers["running"]) > 20)
        old = engine.layout
        assert engine.connector.reset_cache()
        engine.run()
        assert engine.answers["running"] == answer(running, 80)
        assert engine.stored(running + answer(running, 80)) == [None] * 3
        engine.forget()
        assert engine.generate("again", prompt) == (answer(prompt), 0)
        assert engine.stored(prompt) == engine.stored(prompt, old) == blocks(prompt, 1)

    def events_are_those_of_vllm(self) -> None:
        """What is stored is published as vLLM publishes its own blocks, but for the medium."""
        engine, prompt, told = self._engine(), text(35, PROMPT), []
        engine.scheduler.kv_event_publisher.publish = lambda batch: told.extend(batch.events)
        engine.generate("told", prompt)
        own, *ours = told
        assert (own.medium, [one.medium for one in ours]) == ("GPU", ["CPU"] * 3)
        assert [one.block_hashes for one in ours] == [[one] for one in own.block_hashes]
        assert [one.parent_block_hash for one in ours] == [None, *own.block_hashes[:2]]
        assert [token for one in ours for token in one.token_ids] == own.token_ids == prompt[: 3 * BLOCK]
        assert {(one.block_size, one.lora_id, one.group_idx) for one in ours} == {(BLOCK, None, own.group_idx)}

    def keys_are_those_of_offloading(self) -> None:
        """A block has one name, by whichever of vLLM's interfaces it is stored."""
        block_hash = bytes(range(32))
        assert key_of_block(block_hash) == make_offload_key(BlockHash(block_hash), 0)

    def statistics_count_what_was_moved(self) -> None:
        """The statistics have the bytes of each way."""
        engine, prompt = self._engine(load_async=False), text(36, PROMPT)
        engine.generate("cold", prompt)
        engine.forget()
        engine.generate("loaded", prompt)
        size = len(b"".join(blocks(prompt, 1)))
        assert (engine.moved()["stored_bytes"], engine.moved()["loaded_bytes"]) == (size, size)

    def hints_reach_the_daemon(self) -> None:
        """A request's time to live pins its blocks."""
        engine, prompt = self._engine(), text(37, PROMPT)
        engine.generate("hinted", prompt, priority="high", ttl_s=600)
        client = engine.links[0].client()
        assert settled(lambda: client.admin.occupancy().pinned_blocks)

    def without_a_daemon_prompts_are_computed(self) -> None:
        """Without a daemon prompts are computed."""
        engine = self._made(address="unix:///nowhere/tierd.sock")
        prompt = text(38, PROMPT)
        assert engine.generate("cold", prompt) == (answer(prompt), 0)

    def what_was_computed_before_the_daemon_was_found_is_stored(self) -> None:
        """A request that began without the daemon stores its blocks once it is there."""
        engine, prompt = self._engine(), text(39, PROMPT)
        link = engine.links[0]
        link._up.clear()
        engine.add("early", prompt)
        engine.step()
        engine.step()
        link._up.set()
        engine.run()
        assert engine.stored(prompt) == blocks(prompt, 1)


if __name__ == "__main__":
    run(Cases(*sys.argv[1:3]), tuple(sys.argv[3:]))
