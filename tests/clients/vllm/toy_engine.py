"""vLLM's own scheduler and a connector around a model of a few lines, in one process.

The KV of a token is a checksum of the token and of all KV before it, read from the engine's pages: one wrong byte
of a page changes everything computed after it. `answer` and `blocks` say what is right, from the tokens alone.
"""

from __future__ import annotations

import threading
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from vllm import SamplingParams
from vllm.distributed.kv_transfer import kv_transfer_state
from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
from vllm.engine.arg_utils import EngineArgs
from vllm.forward_context import set_forward_context
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec, KVCacheTensor
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request
from vllm.v1.structured_output import StructuredOutputManager
from vllm.v1.worker.kv_connector_model_runner_mixin import KVConnectorModelRunnerMixin

from tierd_client.integrations.keys import Run
from tierd_client.integrations.vllm.versions import KVConnectorRole, key_of_block

BLOCK, LAYERS, WORDS, VOCABULARY = 32, ("first", "second"), 8, 40_000
WITHIN_S = 20.0
PAUSE = threading.Event()
init_none_hash(sha256)
HASHES = get_request_block_hasher(BLOCK, sha256)


def text(seed: int, count: int) -> list[int]:
    """Tokens of a prompt."""
    drawn: list[int] = np.random.default_rng(seed).integers(0, VOCABULARY, count).tolist()
    return drawn


def computed(before: bytes, token: int) -> np.ndarray[tuple[int, int], np.dtype[np.int32]]:
    """The KV of a token, a row for each layer."""
    rows = [[zlib.crc32(before, token + layer) >> 1] * WORDS for layer in range(len(LAYERS))]
    return np.array(rows, np.int32)


def sampled(before: bytes) -> int:
    return zlib.crc32(before) % VOCABULARY


def run_through(tokens: list[int], new: int) -> tuple[list[int], bytes]:
    """The tokens that follow, and the KV of all but the last of them, token by token."""
    before, known = b"", list(tokens)
    for position in range(len(tokens) + new - 1):
        before += computed(before, known[position]).tobytes()
        if position >= len(tokens) - 1:
            known.append(sampled(before))
    return known[len(tokens) :], before


def answer(tokens: list[int], new: int = 4) -> list[int]:
    return run_through(tokens, new)[0]


def blocks(tokens: list[int], new: int = 4) -> list[bytes]:
    """The bytes that the daemon may have of each full block."""
    rows = np.frombuffer(run_through(tokens, new)[1], np.int32).reshape(-1, len(LAYERS), WORDS)
    full = len(rows) // BLOCK
    return [part.swapaxes(0, 1).tobytes() for part in rows[: full * BLOCK].reshape(full, BLOCK, len(LAYERS), WORDS)]


class ToyEngine:
    """One engine; `pages` of its KV cache, at most `step_tokens` in a step and `request_tokens` of each request."""

    def __init__(
        self, model: str, transfer: dict[str, Any], *, pages: int = 64, step_tokens: int = 512,
        request_tokens: int = 512,
    ) -> None:
        self.config = EngineArgs(
            model=model, max_model_len=512, max_num_batched_tokens=step_tokens, max_num_seqs=8, block_size=BLOCK,
            long_prefill_token_threshold=request_tokens, dtype="float32", skip_tokenizer_init=True,
            enforce_eager=True, async_scheduling=False, disable_hybrid_kv_cache_manager=True,
            enable_prefix_caching=True, kv_transfer_config={"kv_role": "kv_both"} | transfer,
            kv_events_config={"enable_kv_cache_events": True, "publisher": "null"}).create_engine_config()
        self.config.cache_config.num_gpu_blocks = pages
        spec = FullAttentionSpec(block_size=BLOCK, num_kv_heads=1, head_size=WORDS // 2, dtype=torch.float32)
        page, layers = spec.page_size_bytes, list(LAYERS)
        caches = KVCacheConfig(
            num_blocks=pages, kv_cache_groups=[KVCacheGroupSpec(layers, spec)], kv_cache_tensors=[
                KVCacheTensor(len(layers) * page * pages, layers, page * pages, page)])
        self.scheduler = Scheduler(
            self.config, caches, StructuredOutputManager(self.config), block_size=BLOCK, log_stats=True)
        self.kv = torch.randint(1 << 30, (len(layers), pages, 1, BLOCK, WORDS), dtype=torch.int32)
        self.connector: Any = self.scheduler.connector
        self.worker: Any = KVConnectorFactory.create_connector(self.config, KVConnectorRole.WORKER, caches)
        self._adapt_worker()
        self.worker.register_kv_caches(
            {name: self.kv[number].view(torch.float32) for number, name in enumerate(layers)})
        kv_transfer_state._KV_CONNECTOR_AGENT = self.worker
        self.answers: dict[str, list[int]] = {}
        self.requests: dict[str, Any] = {}
        self.computed: Counter[str] = Counter()
        self.outputs: list[Any] = []

    @property
    def links(self) -> list[Any]:
        """Ways to the daemon: of the scheduler first."""
        raise NotImplementedError

    @property
    def layout(self) -> Any:
        """Of the blocks that are stored now."""
        raise NotImplementedError

    def _adapt_worker(self) -> None:
        """What the worker needs on a machine like this, before it has the pages."""

    def wait_up(self) -> ToyEngine:
        assert all(link.wait_up(WITHIN_S) for link in self.links)
        return self

    def leases(self) -> int:
        """That anyone holds."""
        return int(self.links[0].client().admin.occupancy().leases)

    def add(self, name: str, tokens: list[int], new: int = 4, **hints: Any) -> Any:
        """A request that is to be answered with `new` tokens."""
        request = Request(
            name, tokens, SamplingParams(max_tokens=new, ignore_eos=True, temperature=0, extra_args={
                "kv_transfer_params": {"tierd": hints}} if hints else None), None, block_hasher=HASHES)
        self.requests[name], self.answers[name] = request, []
        self.scheduler.add_request(request)
        return request

    def step(self) -> Any:
        """One step as vLLM's engine makes it; what the scheduler has said of it."""
        said = self.scheduler.schedule()
        with (
            set_forward_context(None, self.config),
            KVConnectorModelRunnerMixin._get_kv_connector_output(said) as output,
        ):
            # Pages that requests share are read by those that begin behind them, as in a model's layers.
            tokens = {name: self._computed(name, start, said) for start, name in sorted(started(said))}
        self.computed.update(said.num_scheduled_tokens)
        result = self.scheduler.update_from_output(said, ModelRunnerOutput(
            list(tokens), {name: index for index, name in enumerate(tokens)}, list(tokens.values()),
            kv_connector_output=output))
        for outputs in result.values():
            for one in outputs.outputs:
                self.answers[one.request_id] += one.new_token_ids
        self.outputs.append(output)
        return said

    def moved(self) -> dict[str, float]:
        """What the connector has said that it moved."""
        said = [output.kv_connector_stats for output in self.outputs if output.kv_connector_stats]
        total = self.connector.build_kv_connector_stats()
        for stats in said:
            total = total.aggregate(self.connector.build_kv_connector_stats(stats.to_dict()))
        moved: dict[str, float] = total.reduce()
        return moved

    def run(self) -> None:
        """Steps until all requests are answered."""
        until = time.monotonic() + WITHIN_S
        while self.scheduler.has_unfinished_requests():
            self.step()
            assert time.monotonic() < until, "requests are not answered"

    def generate(self, name: str, tokens: list[int], new: int = 4, **hints: Any) -> tuple[list[int], int]:
        """The answer to one request, and how many of its tokens were not computed."""
        self.add(name, tokens, new, **hints)
        self.run()
        return self.answers[name], len(tokens) + new - 1 - self.computed[name]

    def forget(self) -> None:
        """Drops what the engine itself has, and overwrites it."""
        assert self.scheduler.reset_prefix_cache()
        self.kv.random_(1 << 30)

    def stored(self, tokens: list[int], layout: Any = None) -> list[bytes | None]:
        """What the daemon has of each full block of a prompt."""
        request = Request("keys", tokens, SamplingParams(), None, block_hasher=HASHES)
        layout, size = layout or self.layout, len(LAYERS) * BLOCK * WORDS * 4
        ids = Run(tuple(key_of_block(one) for one in request.block_hashes)).identities(layout)
        got = self.links[0].namespace(layout).get(ids)
        return [None if one is None else np.asarray(one).tobytes()[:size] for one in got]

    def wrong(self, tokens: list[int], new: int = 1) -> list[int]:
        """Blocks of a prompt of which the daemon has other bytes than the right ones."""
        right = blocks(tokens, new)
        return [index for index, (has, should) in enumerate(zip(self.stored(tokens), right, strict=False))
                if has not in (None, should)]

    def close(self) -> None:
        self.worker.shutdown()
        self.scheduler.shutdown()

    def _computed(self, name: str, start: int, said: Any) -> list[int]:
        """Computes a request's next tokens into its pages; the token that follows, if all are computed."""
        request, stop = self.requests[name], start + said.num_scheduled_tokens[name]
        (pages,) = self.scheduler.kv_cache_manager.get_block_ids(name)
        before = b"".join(self._row(pages, position).numpy().tobytes() for position in range(start))
        for position in range(start, stop):
            row = computed(before, request.all_token_ids[position])
            self._row(pages, position)[:] = torch.from_numpy(row)
            before += row.tobytes()
        return [sampled(before)] if stop == request.num_tokens else []

    def _row(self, pages: list[int], position: int) -> torch.Tensor:
        return self.kv[:, pages[position // BLOCK], 0, position % BLOCK]


def started(said: Any) -> Iterator[tuple[int, str]]:
    """How many of a request's tokens were computed before a step, for each request of it."""
    for new in said.scheduled_new_reqs:
        yield new.num_computed_tokens, new.req_id
    cached = said.scheduled_cached_reqs
    yield from zip(cached.num_computed_tokens, cached.req_ids, strict=True)



def settled(what: Callable[[], Any]) -> bool:
    """Whether it becomes true: leases are given back, and links come up, on threads."""
    until = time.monotonic() + WITHIN_S
    while not (true := what()) and time.monotonic() < until:
        PAUSE.wait(0.01)
    return bool(true)
