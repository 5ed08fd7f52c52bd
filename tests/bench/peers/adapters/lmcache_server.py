"""LMCache's multiprocess server in the mode in which it copies itself (`lmcache_driven`): it maps the caller's
paged KV memory; blocks are pages of one contiguous tensor there, which is its fastest layout on a CPU.

A get is what an engine does for a request: LOOKUP, wait for its result, RETRIEVE, END_SESSION. A put is STORE: its
acknowledgement comes before the block can be found.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Sequence
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
import zmq
from lmcache.v1.multiprocess.custom_types import IPCCacheServerKey
from lmcache.v1.multiprocess.group_view import EngineGroupInfo
from lmcache.v1.multiprocess.transfer_context import LMCacheDrivenTransferContext
from lmcache.v1.multiprocess.transport.factory import RequestClientFactory
from peer_adapter import CAPACITY_BYTES, Adapter, Block, Server, address_of, free_port

TOKENS = 16
ELEMENT_BYTES = 2
RPC_TIMEOUT_S = 30.0
READERS = 1


class LMCacheServer(Adapter):
    version = version("lmcache")
    context_type: type[Any] = LMCacheDrivenTransferContext
    arguments: Sequence[str] = ()
    """Of the server, beside those of every run."""

    def start(self, place: Path) -> None:
        port = free_port()
        self._server = Server([
            Path(sys.prefix) / "bin/lmcache", "server", "--host", "127.0.0.1", "--port", port, "--http-host",
            "127.0.0.1", "--http-port", free_port(), "--chunk-size", TOKENS, "--l1-size-gb", CAPACITY_BYTES / 2**30,
            "--eviction-policy", "LRU", "--supported-transfer-mode", "auto", "--null-block-id", "-1",
            "--shm-name", f"lmcache_peers_{port}", *self.arguments,
        ], place / "lmcache.log")
        self._server.await_port(port)
        self._zmq = zmq.Context()
        self._rpc = RequestClientFactory.create(f"127.0.0.1:{port}", context=self._zmq)
        self._requests, self._instances = itertools.count(), itertools.count(1)
        self._context: Any = None

    def buffers(self, count: int, block_bytes: int) -> list[Block]:
        """Pages of the paged KV memory that is registered with the server."""
        self._unregister()
        self._model, self._block_bytes = f"peers-{block_bytes}", block_bytes
        width = block_bytes // (TOKENS * ELEMENT_BYTES)
        self._kv = {"layer.0": torch.zeros((count, TOKENS, width), dtype=torch.float16)}
        self._instance = next(self._instances)
        self._context = self.context_type(self._instance, self._rpc)
        self._context.register(
            self._kv, self._model, 1, 1, RPC_TIMEOUT_S, layout_hints={"kv_layout": "NHD"},
            engine_group_infos=[EngineGroupInfo(engine_group_id=0, layer_indices=(0,), tokens_per_block=TOKENS)])
        pages = self._kv["layer.0"].view(torch.uint8).reshape(count, block_bytes).numpy()
        self._base = address_of(pages)
        return list(pages)

    def ids(self, numbers: Sequence[int]) -> IPCCacheServerKey:
        """The blocks of one call are one prompt."""
        tokens = tuple(number * TOKENS + at for number in numbers for at in range(TOKENS))
        return IPCCacheServerKey(
            model_name=self._model, world_size=1, worker_id=0, token_ids=tokens, start=0, end=len(tokens),
            request_id="", num_kv_readers=READERS)

    def put(self, ids: IPCCacheServerKey, blocks: Sequence[Block]) -> None:
        key = self._request(ids)
        future = self._context.submit_store(
            key.request_id, key, self._kv, [self._pages(blocks)], self._context.create_recorded_event(), 1)
        if not future.result(timeout=RPC_TIMEOUT_S):
            raise RuntimeError("STORE failed")
        self._rpc.end_session(key.request_id)

    def put_chain(self, numbers: Sequence[int], blocks: Sequence[Block]) -> None:
        self.put(self.ids(numbers), blocks)

    def get_into(self, ids: IPCCacheServerKey, blocks: Sequence[Block]) -> bool:
        key = self._request(ids)
        found = self._found(key) == len(blocks)
        if found:
            found = self._context.submit_retrieve(
                key.request_id, key, self._kv, [self._pages(blocks)], self._context.create_recorded_event(), 1,
            ).result(timeout=RPC_TIMEOUT_S)
        self._rpc.end_session(key.request_id)
        return bool(found)

    def exists(self, ids: IPCCacheServerKey) -> int:
        key = self._request(ids)
        found = self._found(key)
        self._rpc.free_lookup_locks(replace(key, worker_id=None), 1)
        self._rpc.end_session(key.request_id)
        return found

    def clear(self) -> None:
        self._rpc.clear(True).result(timeout=RPC_TIMEOUT_S)

    def stop(self) -> None:
        self._unregister()
        self._rpc.close()
        self._zmq.term()
        self._server.stop()

    def _request(self, ids: IPCCacheServerKey) -> IPCCacheServerKey:
        return replace(ids, request_id=f"request-{next(self._requests)}")

    def _found(self, key: IPCCacheServerKey) -> int:
        self._rpc.lookup(replace(key, worker_id=None), 1).result(timeout=RPC_TIMEOUT_S)
        return int(self._rpc.wait_prefetch_status(key.request_id, RPC_TIMEOUT_S).result(timeout=RPC_TIMEOUT_S) or 0)

    def _pages(self, blocks: Sequence[Block]) -> list[int]:
        return [(address_of(block) - self._base) // self._block_bytes for block in blocks]

    def _unregister(self) -> None:
        if self._context is not None:
            self._context.flush_inflight_stores()
            self._context.unregister().result(timeout=RPC_TIMEOUT_S)
            self._context.close()
            self._context = None


ADAPTER = LMCacheServer
