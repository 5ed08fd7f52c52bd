"""Blocks of a client that cannot map the daemon's memory, against a raw copy over TCP between two processes."""

from __future__ import annotations

import socket
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tierd.bench.blocks import SEED, Destinations, Rotation
from tierd.bench.local import ROOM, Written, holding, per_repetition, working_set
from tierd.bench.measuring import MIB, Measured, Scale, Timed, alternate, ratio
from tierd.bench.peer import ACK, GET, PUT, fill, request
from tierd.bench.stage import serving
from tierd.children import READY_TIMEOUT_S, start_leashed, stop
from tierd_client import Client
from tierd_client.format import U8Array
from tierd_client.layout import Layout

BLOCK_BYTES = 5 * MIB
PER_CALL = 8
"""Blocks of one call: a prefix is fetched as a whole."""


def get(name: str, scale: Scale) -> Measured:
    """Raw TCP / get, 8 blocks a call; the same of one block a call beside it."""
    data, address = working_set(scale, BLOCK_BYTES, PER_CALL), f"127.0.0.1:{_free_port()}"
    with holding(data, tcp=address) as (daemon, hits), _line(daemon.directory, len(data)) as line:
        with hits.reader(_client(address), PER_CALL) as ours, hits.reader(_client(address), 1) as single:
            seconds = alternate({
                "limit": _fetch(line, hits.destinations, PER_CALL), "ours": ours,
                "limit of one": _fetch(line, hits.destinations, 1), "one": single,
            }, scale.repetitions)
        hits.destinations.check()
    return _ratios(name, seconds)


def put(name: str, scale: Scale) -> Measured:
    """Raw TCP / put, 8 blocks a call; the same of one block a call beside it."""
    data, address = working_set(scale, BLOCK_BYTES, PER_CALL), f"127.0.0.1:{_free_port()}"
    with (
        serving(host_bytes=int(2 * data.nbytes * ROOM), tcp=address) as daemon,
        _line(daemon.directory, len(data)) as line, _client(address) as client,
    ):
        namespace = client.namespace(Layout.opaque(block_bytes=BLOCK_BYTES))
        many, one = Written(data, namespace, PER_CALL), Written(data, namespace, 1, SEED + 1)
        seconds = alternate({
            "limit": _send(line, data, PER_CALL), "ours": many.writer(),
            "limit of one": _send(line, data, 1), "one": one.writer(),
        }, scale.repetitions)
        many.check()
        one.check()
    return _ratios(name, seconds)


def _ratios(name: str, seconds: Mapping[str, list[float]]) -> Measured:
    return {
        name: ratio(seconds["limit"], seconds["ours"]),
        f"{name}_1": ratio(seconds["limit of one"], seconds["one"]),
    }


def _client(address: str) -> Client:
    return Client(address, name="bench", shared_memory="never")


def _fetch(line: socket.socket, destinations: Destinations, per_call: int) -> Timed:
    rotation, count = Rotation(destinations.blocks, SEED), per_repetition(BLOCK_BYTES, per_call)

    def repeat() -> float:
        blocks = rotation.next(count)
        out = destinations.take(blocks)
        began = time.perf_counter()
        for start in range(0, count, per_call):
            line.sendall(request(GET, blocks[start : start + per_call].tolist()))
            for place in range(start, start + per_call):
                fill(line, memoryview(out[place]))
        return time.perf_counter() - began

    return repeat


def _send(line: socket.socket, data: U8Array, per_call: int) -> Timed:
    rotation, count, ack = Rotation(len(data), SEED), per_repetition(BLOCK_BYTES, per_call), bytearray(len(ACK))

    def repeat() -> float:
        blocks = rotation.next(count).tolist()
        began = time.perf_counter()
        for start in range(0, count, per_call):
            line.sendall(request(PUT, blocks[start : start + per_call]))
            for block in blocks[start : start + per_call]:
                line.sendall(memoryview(data[block]))
            fill(line, memoryview(ack))
        return time.perf_counter() - began

    return repeat


@contextmanager
def _line(directory: Path, blocks: int) -> Iterator[socket.socket]:
    """A connection to a process that gives and takes blocks (peer.py)."""
    port = _free_port()
    command = [sys.executable, "-m", "tierd.bench.peer", str(port), str(blocks), str(BLOCK_BYTES)]
    child = start_leashed(command, directory / "peer.log")
    try:
        with _connected(port) as line:
            line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            yield line
    finally:
        stop(child)


def _connected(port: int) -> socket.socket:
    deadline = time.monotonic() + READY_TIMEOUT_S
    while True:
        try:
            return socket.create_connection(("127.0.0.1", port))
        except ConnectionRefusedError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port
