"""Leases handed over: one process holds the blocks, another one reads them, whatever becomes of the daemon."""

from __future__ import annotations

import pickle
import shutil
from collections.abc import Iterator

import numpy as np
import pytest
from leased_reader import LAYOUT
from worker_process import WorkerProcess

from tierd.testing.serve import ServeProcess, StartDaemon
from tierd_client import Client, FailedPrecondition, Lease, LeasedReader, PagedKV, Tiers, Unavailable
from tierd_client.session import Session

BLOCKS = 5
IDS = [b"%d" % number for number in range(BLOCKS)]
BYTES = [np.random.default_rng(number).bytes(LAYOUT.block_bytes) for number in range(BLOCKS)]


@pytest.fixture
def server(daemon: StartDaemon) -> ServeProcess:
    return daemon(host_bytes="1MiB")


@pytest.fixture
def reader(server: ServeProcess) -> Iterator[WorkerProcess]:
    worker = WorkerProcess("leased_reader.py", server.address)
    worker.wait_for(lambda: worker.lines)
    yield worker
    worker.kill()


def leased(client: Client) -> Lease:
    ns = client.namespace(LAYOUT)
    ns.put(IDS, BYTES)
    return ns.acquire([*IDS, b"missing"])


def read(worker: WorkerProcess, lease: Lease) -> list[bytes] | str:
    answer = worker.ask(f"read {pickle.dumps(lease.places(range(BLOCKS))).hex()}")["read"]
    return answer if isinstance(answer, str) else [bytes.fromhex(one) for one in answer]


def test_another_process_reads_while_no_daemon_runs(server: ServeProcess, reader: WorkerProcess) -> None:
    """What one process has leased another one copies into its pages, also after a kill -9 of the daemon, and after
    a restart although others have filled the memory meanwhile."""
    with Client(server.address) as client, leased(client) as lease:
        assert read(reader, lease) == BYTES
        server.kill()
        assert read(reader, lease) == BYTES
        server.start()
        ns = client.namespace(LAYOUT.replace(revision="other"))
        for number in range(0, 1024, 32):
            ids = [b"%d" % one for one in range(number, number + 32)]
            ns.put(ids, np.zeros((32, LAYOUT.block_bytes), np.uint8))
        assert read(reader, lease) == BYTES


def test_memory_of_another_daemon_is_not_taken_for_it(server: ServeProcess, reader: WorkerProcess) -> None:
    """A reader that never mapped the lease's segments does not read those of a daemon with new memory."""
    with Client(server.address) as client, leased(client) as lease:
        places = lease.places(range(BLOCKS))
        server.kill()
        shutil.rmtree(server.shm_dir)
        server.shm_dir.mkdir()
        server.start()
        with Client(server.address) as other:
            pages = np.zeros((2, 2, BLOCKS, 4, 1, 256), np.uint8)
            with pytest.raises(LookupError, match="segment"):
                LeasedReader(other).scatter(places, PagedKV(LAYOUT, pages), range(BLOCKS))
        assert not pages.any()


def test_only_leased_blocks_in_shared_memory_can_be_handed_over(server: ServeProcess) -> None:
    """A missing block, a released lease and a client that maps nothing are refused by name."""
    with Client(server.address, shared_memory="never") as remote:
        with leased(remote) as lease, pytest.raises(FailedPrecondition, match="stream"):
            lease.places([0])
        with pytest.raises(Unavailable, match="mapped"):
            LeasedReader(remote).map_all()
    with Client(server.address) as client:
        lease = leased(client)
        with pytest.raises(FailedPrecondition, match="block 5 is MISS"):
            lease.places([0, BLOCKS])
        lease.release()
        with pytest.raises(FailedPrecondition, match="released"):
            lease.places([0])


def test_peek_asks_nobody(server: ServeProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where blocks are is known without a call; nothing is known, and nothing raised, while no daemon runs."""
    with Client(server.address) as client:
        ns = client.namespace(LAYOUT)
        ns.put(IDS, BYTES)
        monkeypatch.setattr(Session, "call", None)
        assert ns.peek([*IDS, b"missing"]).tolist() == [Tiers.HOST] * BLOCKS + [Tiers.NONE]
        session = client.connection.current()
        server.kill()
        assert session.ended.wait(10.0)
        assert not ns.peek(IDS).any()
