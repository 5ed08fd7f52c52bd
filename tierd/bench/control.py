"""What is asked of the daemon without moving bytes: lookups by RPC and by the shared catalog."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import numpy as np

from tierd.bench.blocks import SEED, fresh_ids
from tierd.bench.measuring import Measured, Scale, Timed, alternate, ratio
from tierd.bench.stage import Daemon, serving
from tierd.children import READY_TIMEOUT_S, start_leashed, stop
from tierd_client import Client
from tierd_client.format import PAGE_BYTES
from tierd_client.identity import Identities
from tierd_client.layout import Layout
from tierd_client.routine import run
from tierd_client.v1 import blocks_pb2

LOOKUP = "/tierd.v1.Blocks/Lookup"
EMPTY = "/grpc.health.v1.Health/Check"
CALLS = 64
"""Of one repetition of an RPC, whose median counts."""

FILL_BATCH = 8_192
CALL_IDS = 8_192
RPC_IDENTITIES = 1 << 16
LAYOUT = Layout.opaque(block_bytes=PAGE_BYTES)


def rpc(scale: Scale) -> Measured:
    """Lookup of 1,024 identities / an echo of as many bytes each way by a server of the same settings; p50 of
    Lookup of one identity / p50 of an RPC without a message in the same server."""
    identities = min(RPC_IDENTITIES, scale.identities)
    with serving(host_bytes=identities * PAGE_BYTES) as daemon, _echo_server(daemon.directory) as echo:
        ids, number = fill(daemon, identities)
        many, one = _request(number, ids[:1024]), _request(number, ids[:1])
        with grpc.insecure_channel(daemon.child.address) as channel, grpc.insecure_channel(echo) as other:
            reply = channel.unary_unary(LOOKUP)(many)
            things = {
                "lookup 1024": _calls(channel, LOOKUP, many),
                "echo": _calls(other, f"/bench.Echo/{len(reply)}", many),
                "lookup 1": _calls(channel, LOOKUP, one),
                "empty": _calls(channel, EMPTY, b""),
            }
            seconds = alternate(things, scale.repetitions)
    return {
        "rpc_lookup_1024": ratio(seconds["lookup 1024"], seconds["echo"]),
        "rpc_unary": ratio(seconds["lookup 1"], seconds["empty"]),
    }


def roomy(identities: int) -> dict[str, Any]:
    """Settings of a daemon that can hold so many blocks of a page."""
    return {"host_bytes": identities * PAGE_BYTES, "catalog_rows": identities}


def fill(daemon: Daemon, count: int) -> tuple[Identities, int]:
    """Stores so many blocks of a page, whose bytes nobody writes; their identities and their namespace's number."""
    ids = fresh_ids(np.random.default_rng(SEED), count)
    with Client(daemon.child.address) as client:
        client.namespace(LAYOUT)
        number = client.connection.current().namespaces[LAYOUT.fingerprint].number
        for start in range(0, count, FILL_BATCH):
            _store(client, blocks_pb2.BlockIds(namespace=number, ids=ids[start : start + FILL_BATCH].packed()))
    return ids, number


def _store(client: Client, blocks: Any) -> None:
    connection, session = client.connection, client.connection.current().id
    reserved = run(connection.call("Reserve", blocks_pb2.ReserveRequest(session=session, blocks=blocks)))
    checksums = [0] * len(reserved.generations)
    run(connection.call("Commit", blocks_pb2.CommitRequest(
        session=session, ids=blocks.ids, generations=reserved.generations, checksums=checksums,
        tier=reserved.tier)))


def _request(namespace: int, ids: Identities) -> bytes:
    message = blocks_pb2.LookupRequest(blocks=blocks_pb2.BlockIds(namespace=namespace, ids=ids.packed()))
    return bytes(message.SerializeToString())


def _calls(channel: Any, method: str, request: bytes) -> Timed:
    """Median of one call's time, of messages that are bytes already: what is compared is what servers do."""
    call: Callable[[bytes], bytes] = channel.unary_unary(method)

    def repeat() -> float:
        seconds = []
        for _ in range(CALLS):
            began = time.perf_counter()
            call(request)
            seconds.append(time.perf_counter() - began)
        return statistics.median(seconds)

    return repeat


@contextmanager
def _echo_server(directory: Path) -> Iterator[str]:
    """A server process of the daemon's settings that does nothing (echo.py); its address."""
    address = f"unix://{directory}/echo.sock"
    child = start_leashed([sys.executable, "-m", "tierd.bench.echo", address], directory / "echo.log")
    try:
        with grpc.insecure_channel(address) as channel:
            grpc.channel_ready_future(channel).result(READY_TIMEOUT_S)
        yield address
    finally:
        stop(child)
