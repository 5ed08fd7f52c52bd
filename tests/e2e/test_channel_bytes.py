"""What goes over the gRPC channel, counted by a proxy in front of the daemon's socket.

    channel_worker.py x 3 ──▶ CountingProxy ──▶ tierd serve      (the attach socket is reached directly)
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from channel_worker import BLOCK_BYTES
from counting_proxy import CountingProxy
from worker_process import WorkerProcess

from tierd.testing.serve import StartDaemon

BLOCKS = (50 << 20) // BLOCK_BYTES
"""Each of two clients puts so many and gets those of the other: 100 MiB in each direction."""
CHANNEL_BYTES_MAX = 1 << 20


@pytest.fixture
def proxy(daemon: StartDaemon) -> Iterator[CountingProxy]:
    server = daemon(host_bytes="128MiB")
    directory = Path(tempfile.mkdtemp(prefix="tierd-proxy-"))
    with CountingProxy(directory / "grpc.sock", server.state_dir / "tierd.sock") as counting:
        yield counting
    shutil.rmtree(directory)


@pytest.fixture
def clients(proxy: CountingProxy) -> Iterator[list[WorkerProcess]]:
    """Two clients that map memory and one that may not, behind the proxy."""
    modes = ("require", "require", "never")
    started = [WorkerProcess("channel_worker.py", proxy.address, mode) for mode in modes]
    for worker in started:
        worker.wait_for(lambda worker=worker: worker.lines)
    yield started
    for worker in started:
        worker.kill()


def test_payload_of_local_clients_stays_off_the_channel(
    proxy: CountingProxy, clients: list[WorkerProcess]
) -> None:
    """Two clients on one host put and get 100 MiB with less than 1 MiB on the gRPC channel, setup included; a
    third that may not map memory gets the same bytes, by streams."""
    first, second, far = clients
    assert [worker.lines[0]["attached"] for worker in clients] == [True, True, False]
    assert first.ask(f"put 0 {BLOCKS}", 60)["put"] == BLOCKS
    assert second.ask(f"put {BLOCKS} {BLOCKS}", 60)["put"] == BLOCKS
    assert first.ask(f"get {BLOCKS} {BLOCKS}", 60)["get"] == BLOCKS
    assert second.ask(f"get 0 {BLOCKS}", 60)["get"] == BLOCKS
    local = proxy.bytes
    print("bytes on the channel of local clients:", local)
    assert local < CHANNEL_BYTES_MAX
    assert far.ask(f"get 0 {2 * BLOCKS}", 60)["get"] == 2 * BLOCKS
    assert proxy.bytes - local > 2 * BLOCKS * BLOCK_BYTES
    assert proxy.connections == 3


def test_a_client_without_shared_memory_puts_what_others_map(
    proxy: CountingProxy, clients: list[WorkerProcess]
) -> None:
    """What a client puts by streams another one reads from shared memory."""
    first, _, far = clients
    assert far.ask("put 0 160", 60)["put"] == 160
    before = proxy.bytes
    assert first.ask("get 0 160", 60)["get"] == 160
    assert proxy.bytes - before < BLOCK_BYTES < before
    for worker in clients:
        worker.finish()
