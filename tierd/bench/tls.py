"""What TLS costs the daemon: CPU time of the thread that moves blocks to or from a spill store.

The peer is a thread at the other end of a loopback connection; its own time is not counted.
"""

from __future__ import annotations

import ssl
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from socket import create_connection, create_server, socket

from tierd.adapters.resp import Deadline, Wire, command
from tierd.bench.measuring import MIB, Measured, Scale, alternate, ratio

BLOCK_BYTES = 5 * MIB
BLOCKS = 4
"""Of one repetition."""

DEADLINE_S = 120.0


def cost(scale: Scale) -> Measured:
    """CPU time with TLS / without it, of storing and of loading."""
    plain, tls = Line(False), Line(True)
    with plain, tls:
        seconds = alternate({
            "store": plain.store, "store tls": tls.store, "load": plain.load, "load tls": tls.load,
        }, max(4, scale.repetitions // 4))
    return {
        "spill_tls_write": ratio(seconds["store tls"], seconds["store"]),
        "spill_tls_read": ratio(seconds["load tls"], seconds["load"]),
    }


class Line:
    """A connection of the daemon's kind to a peer that takes and gives blocks. Use as a context manager."""

    def __init__(self, tls: bool) -> None:
        self._near, self._far = _encrypted(*_connected()) if tls else _connected()
        self._wire, self._block = Wire(self._near), memoryview(bytearray(BLOCK_BYTES))

    def store(self) -> float:
        """Sends a repetition's blocks; seconds of CPU of this thread."""
        return self._timed(self._send, lambda: _take(self._far))

    def load(self) -> float:
        """Receives as many."""
        return self._timed(self._receive, lambda: _give(self._far))

    def __enter__(self) -> Line:
        return self

    def __exit__(self, *_: object) -> None:
        self._near.close()
        self._far.close()

    def _timed(self, work: Callable[[Deadline], None], peer: Callable[[], None]) -> float:
        other = threading.Thread(target=peer, daemon=True)
        other.start()
        began = time.thread_time()
        work(Deadline(DEADLINE_S))
        seconds = time.thread_time() - began
        other.join(DEADLINE_S)
        return seconds

    def _send(self, deadline: Deadline) -> None:
        for _ in range(BLOCKS):
            self._wire.send([self._block], deadline)
            self._wire.reply(deadline)

    def _receive(self, deadline: Deadline) -> None:
        for _ in range(BLOCKS):
            self._wire.send([command(b"GET", b"x")], deadline)
            self._wire.value(self._block[:0], self._block, deadline, len)


def _take(far: socket) -> None:
    room = memoryview(bytearray(BLOCK_BYTES))
    for _ in range(BLOCKS):
        taken = 0
        while taken < BLOCK_BYTES:
            taken += far.recv_into(room[taken:])
        far.sendall(b"+OK\r\n")


def _give(far: socket) -> None:
    block = bytes(BLOCK_BYTES)
    for _ in range(BLOCKS):
        far.recv(100)
        far.sendall(b"$%d\r\n" % BLOCK_BYTES)
        far.sendall(block)
        far.sendall(b"\r\n")


def _connected() -> tuple[socket, socket]:
    """Both ends, the daemon's first."""
    with create_server(("127.0.0.1", 0)) as server:
        near = create_connection(server.getsockname())
        return near, server.accept()[0]


def _encrypted(near: socket, far: socket) -> tuple[socket, socket]:
    import trustme  # for development only

    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    with tempfile.TemporaryDirectory() as directory:
        ca = Path(directory) / "ca.pem"
        authority.cert_pem.write_to_path(str(ca))
        client = ssl.create_default_context(cafile=str(ca))
    shaken: list[socket] = []
    thread = threading.Thread(target=lambda: shaken.append(context.wrap_socket(far, server_side=True)))
    thread.start()
    wrapped = client.wrap_socket(near, server_hostname="127.0.0.1")
    thread.join(DEADLINE_S)
    return wrapped, shaken[0]
