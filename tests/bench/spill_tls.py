"""What TLS costs the daemon: CPU time of the thread that sends or receives a block, with and without it.

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
from typing import Any

import trustme

from tierd.adapters.resp import Deadline, Wire, command

BLOCK_BYTES = 5 << 20
BLOCKS = 20
DEADLINE_S = 120.0


def run() -> list[dict[str, Any]]:
    return [measure(tls) for tls in (False, True)]


def measure(tls: bool, blocks: int = BLOCKS, size: int = BLOCK_BYTES) -> dict[str, Any]:
    """CPU seconds of the moving thread per GB, each way."""
    near, far = connection(tls)
    with near, far:
        wire, deadline = Wire(near), Deadline(DEADLINE_S)
        peer = threading.Thread(target=serve, args=(far, blocks, size), daemon=True)
        peer.start()
        put_s = timed(lambda: put(wire, blocks, size, deadline))
        get_s = timed(lambda: get(wire, blocks, size, deadline))
        peer.join(DEADLINE_S)
    gigabytes = blocks * size / 1e9
    return {
        "tls": tls, "put_cpu_s_per_gb": round(put_s / gigabytes, 2),
        "get_cpu_s_per_gb": round(get_s / gigabytes, 2),
    }


def put(wire: Wire, blocks: int, size: int, deadline: Deadline) -> None:
    block = bytes(size)
    for _ in range(blocks):
        wire.send([block], deadline)
        wire.reply(deadline)


def get(wire: Wire, blocks: int, size: int, deadline: Deadline) -> None:
    room = memoryview(bytearray(size))
    for _ in range(blocks):
        wire.send([command(b"GET", b"x")], deadline)
        wire.value_length(deadline, 272)
        wire.fill_last(room, deadline)


def serve(far: socket, blocks: int, size: int) -> None:
    """Takes so many blocks, then gives as many."""
    room = memoryview(bytearray(size))
    for _ in range(blocks):
        taken = 0
        while taken < size:
            taken += far.recv_into(room[taken:])
        far.sendall(b"+OK\r\n")
    for _ in range(blocks):
        far.recv(100)
        far.sendall(b"$%d\r\n" % size)
        far.sendall(room)
        far.sendall(b"\r\n")


def timed(work: Callable[[], None]) -> float:
    began = time.thread_time()
    work()
    return time.thread_time() - began


def connection(tls: bool) -> tuple[socket, socket]:
    """Both ends, the daemon's first."""
    with create_server(("127.0.0.1", 0)) as server:
        near = create_connection(server.getsockname())
        far = server.accept()[0]
    if not tls:
        return near, far
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
