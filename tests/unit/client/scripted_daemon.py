"""A peer that speaks the wire and does what a test scripts: for faults that a real daemon does not show.

It keeps blocks in a dictionary and counts calls. What it proves is the client's half only: who reconnects,
who retries, what is refused. Whether client and daemon fit together is tested end to end.
"""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import xxhash

from tierd_client.layout import decode_canonical
from tierd_client.v1 import blocks_pb2 as pb
from tierd_client.v1 import blocks_pb2_grpc

Hook = Callable[[Any, Any], None]
"""Called with request and context before a call is answered; may abort it or wait."""


class ScriptedDaemon(blocks_pb2_grpc.BlocksServicer):  # type: ignore[misc]
    """Serves on a Unix socket; start and stop as often as wanted, each start is another boot."""

    def __init__(self, path: Path, *, max_ids: int = 8, heartbeat_ms: int = 1000) -> None:
        self.target = f"unix://{path}"
        self.blocks: dict[bytes, bytes] = {}
        self.calls: Counter[str] = Counter()
        self.hooks: dict[str, Hook] = {}
        self.requests: list[Any] = []
        self.detached: list[int] = []
        self.sessions = 0
        self.chunk_sizes: list[int] = []
        self.corrupt_reads = False
        self.cut_reads = 0
        self.block_bytes = 0
        self.attach_path = ""
        self._max_ids = max_ids
        self._heartbeat_ms = heartbeat_ms
        self._server: Any = None
        self._stopping = threading.Event()

    def start(self) -> None:
        self._stopping = threading.Event()
        self.boot = os.urandom(16)
        self._server = grpc.server(ThreadPoolExecutor(8))
        blocks_pb2_grpc.add_BlocksServicer_to_server(self, self._server)
        self._server.add_insecure_port(self.target)
        self._server.start()

    def stop(self) -> None:
        self._stopping.set()
        self._server.stop(None).wait()

    def _called(self, name: str, request: Any, context: Any) -> None:
        self.calls[name] += 1
        self.requests.append(request)
        if name in self.hooks:
            self.hooks[name](request, context)

    def Session(self, request: Any, context: Any) -> Iterator[Any]:  # noqa: N802
        self._called("Session", request, context)
        self.sessions += 1
        stopping, number = self._stopping, self.sessions
        yield pb.SessionInfo(
            session=number, token=bytes(16), boot_id=self.boot, instance_id=bytes(16),
            attach_path=self.attach_path, heartbeat_ms=self._heartbeat_ms, max_ids=self._max_ids, max_held=64)
        while context.is_active() and not stopping.wait(0.02):
            pass

    def RegisterNamespace(self, request: Any, context: Any) -> Any:  # noqa: N802
        self._called("RegisterNamespace", request, context)
        groups = decode_canonical(request.canonical).groups
        self.block_bytes = groups[0].block_bytes
        return pb.RegisterNamespaceResponse(
            namespace=self.sessions, block_bytes=[group.block_bytes for group in groups], boot_id=self.boot)

    def Detach(self, request: Any, context: Any) -> Any:  # noqa: N802
        self._called("Detach", request, context)
        self.detached.append(request.session)
        return pb.DetachResponse()

    def OpenSequence(self, request: Any, context: Any) -> Any:  # noqa: N802
        self._called("OpenSequence", request, context)
        return pb.OpenSequenceResponse(step=1)

    def CloseSequence(self, request: Any, context: Any) -> Any:  # noqa: N802
        self._called("CloseSequence", request, context)
        return pb.CloseSequenceResponse()

    def Observe(self, request: Any, context: Any) -> Any:  # noqa: N802
        self._called("Observe", request, context)
        return pb.ObserveResponse(step=self.calls["Observe"])

    def Lookup(self, request: Any, context: Any) -> Any:  # noqa: N802
        self._called("Lookup", request, context)
        there = [identity in self.blocks for identity in _split(request.blocks.ids)]
        hit = there.index(False) if False in there else len(there)
        presence = [pb.PRESENCE_READY if known else pb.PRESENCE_MISS for known in there]
        return pb.LookupResponse(
            presence=presence, tiers=bytes(2 * known for known in there), hit_blocks=hit)

    def Put(self, requests: Iterator[Any], context: Any) -> Any:  # noqa: N802
        header = next(requests).header
        self._called("Put", header, context)
        data = b"".join(self._chunks(requests))
        ids = _split(header.blocks.ids)
        size = len(data) // len(ids)
        for index, identity in enumerate(ids):
            self.blocks[identity] = data[index * size : (index + 1) * size]
            assert xxhash.xxh3_64_intdigest(self.blocks[identity]) == header.checksums[index]
        return pb.PutResponse(outcomes=[pb.PUT_OUTCOME_STORED] * len(ids))

    def _chunks(self, requests: Iterator[Any]) -> Iterator[bytes]:
        for request in requests:
            self.chunk_sizes.append(len(request.data))
            yield request.data

    def Get(self, request: Any, context: Any) -> Iterator[Any]:  # noqa: N802
        self._called("Get", request, context)
        found = [self.blocks.get(identity) for identity in _split(request.blocks.ids)]
        yield pb.GetResponse(header=pb.GetHeader(
            outcomes=[pb.ACQUIRE_OUTCOME_MISS if one is None else pb.ACQUIRE_OUTCOME_LEASED for one in found],
            checksums=[0 if one is None else xxhash.xxh3_64_intdigest(one) for one in found],
            block_bytes=self.block_bytes, tiers=bytes(len(found))))
        data = bytearray(b"".join(one for one in found if one is not None))
        if self.corrupt_reads and data:
            data[0] ^= 1
        for start in range(0, len(data) - self.cut_reads, 100_000):
            yield pb.GetResponse(data=bytes(data[start : min(start + 100_000, len(data) - self.cut_reads)]))


def _split(packed: bytes) -> list[bytes]:
    return [packed[i : i + 32] for i in range(0, len(packed), 32)]
