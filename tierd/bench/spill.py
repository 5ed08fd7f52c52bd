"""Blocks between host tier and spill store, against a raw exchange of the same values with the same server."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tierd.adapters.resp import UNIX_SEND_BUFFER_BYTES
from tierd.bench.blocks import POISON, SEED, fresh_ids, random_blocks, shared_twin
from tierd.bench.measuring import MIB, Measured, Scale, WrongBytes, alternate, ratio
from tierd.bench.stage import serving
from tierd_client.format import U8Array
from tierd_client.identity import Identities
from tierd_client.layout import Layout
from tierd_client.namespace import Namespace
from tierd_client.outcomes import EvictOutcome, PutOutcome, ReadmitOutcome

CYCLE_BYTES = 120 * MIB
"""Of one repetition: stored, brought back and compared. Some 40 ms of a raw exchange, beside which what the
two calls themselves take counts little."""

TIMEOUT_S = 60.0
VALKEY_SOCKET = "valkey.sock"
LINE_BYTES = 64


@dataclass(frozen=True, slots=True)
class Cycle:
    """Seconds that storing all blocks, and loading them again, took."""

    write_s: float
    read_s: float


def exchange(write: str, read: str, block_bytes: int, connections: int, scale: Scale) -> Measured:
    """Raw RESP / evict to the spill tier, and raw RESP / readmit from there, over so many connections."""
    data = random_blocks(CYCLE_BYTES // block_bytes, block_bytes)
    with (
        serving(
            host_bytes=data.nbytes, spill="embedded", spill_bytes_max=4 * data.nbytes,
            spill_connections=connections,
            spill_ahead_blocks=0,  # nothing is stored before the clock runs, or while it runs for something else
        ) as daemon,
        daemon.client() as client,
        shared_twin(data, daemon.shm_dir) as twin, _lines(daemon.child.state_dir, connections) as lines,
    ):
        tiers = Tiers(data, client.namespace(Layout.opaque(block_bytes=block_bytes)))
        raw = Raw(data, twin, lines)
        cycles = alternate({"limit": raw.cycle, "ours": tiers.cycle}, scale.repetitions)
    pairs = list(zip(cycles["limit"], cycles["ours"], strict=True))
    return {
        write: ratio((limit.write_s for limit, _ in pairs), (ours.write_s for _, ours in pairs)),
        read: ratio((limit.read_s for limit, _ in pairs), (ours.read_s for _, ours in pairs)),
    }


class Tiers:
    """A host tier that these blocks fill, and the spill tier below it."""

    def __init__(self, data: U8Array, namespace: Namespace) -> None:
        self._data = data
        self._namespace = namespace
        self._rng = np.random.default_rng(SEED)

    def cycle(self) -> Cycle:
        """Stores blocks and brings them back into slots that held something else meanwhile."""
        ids = self._put(self._data)
        began = time.perf_counter()
        moved = self._namespace.evict(ids, to="spill", timeout_s=TIMEOUT_S)
        write_s = time.perf_counter() - began
        self._drop(self._put(np.full_like(self._data, POISON)))
        began = time.perf_counter()
        brought = self._namespace.readmit(ids, to="host", timeout_s=TIMEOUT_S)
        read_s = time.perf_counter() - began
        if {*moved} != {EvictOutcome.MOVED} or {*brought} != {ReadmitOutcome.READY}:
            raise WrongBytes(f"blocks were not moved: {({*moved}, {*brought})}")
        out = np.empty_like(self._data)
        self._namespace.get_into(ids, out)
        if not np.array_equal(out, self._data):
            raise WrongBytes("blocks did not come back from the spill tier as they were stored")
        self._drop(ids)
        return Cycle(write_s, read_s)

    def _put(self, blocks: U8Array) -> Identities:
        ids = fresh_ids(self._rng, len(blocks))
        stored = {*self._namespace.put(ids, blocks, timeout_s=TIMEOUT_S)}
        if stored != {PutOutcome.STORED}:
            raise WrongBytes(f"blocks were not stored though there is room: {stored}")
        return ids

    def _drop(self, ids: Identities) -> None:
        self._namespace.evict(ids, to=None, allow_drop=True, timeout_s=TIMEOUT_S)


class Raw:
    """SET and GET by hand, over several sockets by a thread each, out of and into shared memory."""

    def __init__(self, data: U8Array, twin: U8Array, lines: Sequence[socket.socket]) -> None:
        self._data = data
        self._twin = twin
        self._lines = lines
        self._threads = ThreadPoolExecutor(len(lines))

    def cycle(self) -> Cycle:
        np.copyto(self._twin, self._data)
        write_s = self._timed(_set)
        self._twin.fill(POISON)
        read_s = self._timed(_get)
        if not np.array_equal(self._twin, self._data):
            raise WrongBytes("values did not come back as they were set")
        for number in range(len(self._twin)):
            self._lines[0].sendall(b"*2\r\n$6\r\nUNLINK\r\n$8\r\n%08d\r\n" % number)
            _line(self._lines[0])
        return Cycle(write_s, read_s)

    def _timed(self, exchange: Callable[[socket.socket, int, memoryview], None]) -> float:
        def share(first: int) -> None:
            for number in range(first, len(self._twin), len(self._lines)):
                exchange(self._lines[first], number, memoryview(self._twin[number]))

        began = time.perf_counter()
        list(self._threads.map(share, range(len(self._lines))))
        return time.perf_counter() - began


def _set(line: socket.socket, number: int, value: memoryview) -> None:
    head = b"*3\r\n$3\r\nSET\r\n$8\r\n%08d\r\n$%d\r\n" % (number, len(value))
    sent = line.sendmsg([head, value, b"\r\n"])  # on a blocking socket it returns when all is sent
    if sent != len(head) + len(value) + 2 or _line(line) != b"+OK\r\n":
        raise WrongBytes("the server did not take a value")


def _get(line: socket.socket, number: int, out: memoryview) -> None:
    line.sendall(b"*2\r\n$3\r\nGET\r\n$8\r\n%08d\r\n" % number)
    head = line.recv(LINE_BYTES)
    start = head.index(b"\r\n") + 2
    early = len(head) - start
    out[:early] = head[start:]
    while early < len(out):
        early += line.recv_into(out[early:])
    line.recv(2, socket.MSG_WAITALL)


def _line(line: socket.socket) -> bytes:
    return line.recv(LINE_BYTES)


@contextmanager
def _lines(directory: Path, count: int) -> Iterator[list[socket.socket]]:
    """Connections to the embedded server of a daemon."""
    lines = [socket.socket(socket.AF_UNIX) for _ in range(count)]
    try:
        for line in lines:
            line.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, UNIX_SEND_BUFFER_BYTES)
            line.connect(str(directory / VALKEY_SOCKET))
        yield lines
    finally:
        for line in lines:
            line.close()
