"""Puts out of slots that were taken ahead: real processes, and what becomes of the slots."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from stock_holder import LAYOUT, SIZE
from worker_process import WorkerProcess

from tierd.testing.serve import StartDaemon
from tierd_client import Client, PutOutcome, Tier, magazine
from tierd_client.admin import TierOccupancy
from tierd_client.session import Session

STORED = [int(PutOutcome.STORED)] * 4
WITHIN_S = 20.0


@pytest.fixture
def workers() -> Iterator[list[WorkerProcess]]:
    started: list[WorkerProcess] = []
    yield started
    for worker in started:
        worker.kill()


def holder(address: str, workers: list[WorkerProcess], puts: int = 2) -> WorkerProcess:
    """A worker that has put, and holds slots for its next put."""
    worker = WorkerProcess("stock_holder.py", address)
    workers.append(worker)
    worker.wait_for(lambda: worker.lines)
    for _ in range(puts):
        assert worker.ask("put")["put"] == STORED
    return worker


def host(client: Client) -> TierOccupancy:
    return client.admin.occupancy().tiers[Tier.HOST]


def until(client: Client, true: Callable[[TierOccupancy], bool]) -> None:
    ends_at = time.monotonic() + WITHIN_S
    while not true(now := host(client)):
        assert time.monotonic() < ends_at, now


def nothing_held(tier: TierOccupancy) -> bool:
    return (tier.stocked_bytes, tier.reserved_bytes, tier.quarantined_bytes) == (0, 0, 0)


def test_a_killed_client_gives_its_stock_back(daemon: StartDaemon, workers: list[WorkerProcess]) -> None:
    """After kill -9 of a client with slots ahead every byte that is no block is free."""
    server = daemon(host_bytes="16MiB")
    with Client(server.address) as client:
        worker = holder(server.address, workers)
        assert host(client).stocked_bytes >= 4 * SIZE
        worker.kill()
        until(client, nothing_held)
        assert host(client).blocks == 8


def test_a_restart_under_a_client_with_a_stock(daemon: StartDaemon, workers: list[WorkerProcess]) -> None:
    """Its next put is stored by the new daemon, what was stored is there with its bytes, and the slots of before
    are given back."""
    server = daemon(host_bytes="16MiB")
    worker = holder(server.address, workers)
    server.restart()
    assert worker.ask("put")["put"] == STORED
    with Client(server.address) as client:
        ns = client.namespace(LAYOUT)
        for turn in range(3):
            for block in ns.get([f"{turn}-{place}".encode() for place in range(4)]):
                assert block is not None and (block == turn).all()
        until(client, lambda tier: tier.quarantined_bytes == 0 and tier.reserved_bytes == tier.stocked_bytes)


def test_a_put_of_most_of_a_stock_is_one_call(daemon: StartDaemon, monkeypatch: pytest.MonkeyPatch) -> None:
    """A session that may hold slots for less than two of its puts has them for the next one all the same."""
    call, calls = Session.call, list[str]()

    def noted(session: Session, method: str, *args: Any, **kwargs: Any) -> Any:
        calls.append(method)
        return call(session, method, *args, **kwargs)

    with Client(daemon(host_bytes="16MiB", stock_bytes="1MiB").address) as client:
        ns, data = client.namespace(LAYOUT), np.zeros((12, SIZE), np.uint8)
        puts = [[b"%d-%d" % (turn, place) for place in range(12)] for turn in range(8)]
        assert ns.put(puts[0], data) == STORED * 3
        monkeypatch.setattr(Session, "call", noted)
        for ids in puts[1:]:
            assert ns.put(ids, data) == STORED * 3
        assert calls.count("Store") == len(puts) - 1


def test_a_stock_starves_nobody(daemon: StartDaemon, workers: list[WorkerProcess]) -> None:
    """Where all but the slots that another holds ahead is leased, a put gets them in time."""
    server = daemon(host_bytes="1MiB", stock_share=0.5, segment_bytes="1MiB")
    with Client(server.address) as client:
        ns = client.namespace(LAYOUT)
        holder(server.address, workers, puts=1)
        until(client, lambda tier: tier.stocked_bytes >= 4 * SIZE)
        data = np.zeros((16, SIZE), np.uint8)
        leases = []
        for number in range(16):
            key = [b"mine-%d" % number]
            assert ns.put(key, data[:1], timeout_s=WITHIN_S) == [PutOutcome.STORED]
            leases.append(ns.acquire(key))
        assert all(lease.outcomes[0].name == "LEASED" for lease in leases)
        for lease in leases:
            lease.release()


def test_a_stopped_holder_keeps_nobody_waiting(daemon: StartDaemon, workers: list[WorkerProcess]) -> None:
    """Where all but what a stopped process holds ahead is leased, a put is FULL long before its timeout."""
    server = daemon(host_bytes="1MiB", stock_share=0.5, segment_bytes="1MiB")
    with Client(server.address) as client:
        ns = client.namespace(LAYOUT)
        worker = holder(server.address, workers, puts=1)
        until(client, lambda tier: tier.stocked_bytes >= 4 * SIZE)
        os.kill(worker.process.pid, signal.SIGSTOP)
        data, leases, outcomes = np.zeros((1, SIZE), np.uint8), [], [PutOutcome.STORED]
        while outcomes == [PutOutcome.STORED]:
            key = [b"mine-%d" % len(leases)]
            outcomes = ns.put(key, data, timeout_s=60.0)
            leases.append(ns.acquire(key))
        assert outcomes == [PutOutcome.FULL] and len(leases) < 16
        os.kill(worker.process.pid, signal.SIGCONT)
        for lease in leases:
            lease.release()


def test_idle_slots_go_back(daemon: StartDaemon, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that puts no more holds no slot after a while, though it lives on and has a lease out."""
    monkeypatch.setattr(magazine, "IDLE_S", 0.2)
    server = daemon(host_bytes="16MiB")
    with Client(server.address) as client:
        ns = client.namespace(LAYOUT)
        assert ns.put([b"a", b"b"], np.zeros((2, SIZE), np.uint8)) == [PutOutcome.STORED] * 2
        with ns.acquire([b"a"]):
            assert host(client).stocked_bytes > 0
            until(client, nothing_held)


def test_a_closed_client_with_a_lease_out_gives_its_stock_back(daemon: StartDaemon) -> None:
    """What it may still read stays; what it could have written is free at once."""
    server = daemon(host_bytes="16MiB")
    closing = Client(server.address)
    ns = closing.namespace(LAYOUT)
    ns.put([b"a", b"b"], np.zeros((2, SIZE), np.uint8))
    lease = ns.acquire([b"a"])
    closing.close()
    with Client(server.address) as client:
        until(client, lambda tier: nothing_held(tier) and tier.leased_blocks == 1)
    assert lease.views()[0] is not None


def test_one_call_a_put(daemon: StartDaemon, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the second put on new blocks take one Store; those that are there are EXISTS, and keep their bytes."""
    server = daemon(host_bytes="16MiB")
    with Client(server.address) as client:
        ns = client.namespace(LAYOUT)
        data = np.random.default_rng(1).integers(0, 256, (4, SIZE), np.uint8)
        ids = [[b"%d-%d" % (turn, place) for place in range(4)] for turn in range(2)]
        ns.put(ids[0], data)
        made: list[str] = []
        call = Session.call

        def counted(session: Session, name: str, *rest: object, **options: object) -> object:
            made.append(name)
            return call(session, name, *rest, **options)  # type: ignore[arg-type]

        monkeypatch.setattr(Session, "call", counted)
        assert ns.put(ids[1], data) == [PutOutcome.STORED] * 4
        assert ns.put(ids[0] + [b"new"], np.concatenate([data[::-1], data[:1]])) == (
            [PutOutcome.EXISTS] * 4 + [PutOutcome.STORED])
        monkeypatch.undo()
        assert made == ["Store", "Store"]
        assert all(np.array_equal(one, other) for one, other in zip(ns.get(ids[0]), data, strict=True))


def test_an_identity_twice_in_one_call(daemon: StartDaemon) -> None:
    """The first one is stored, the second is a DUPLICATE, and its bytes are nowhere."""
    server = daemon(host_bytes="16MiB")
    with Client(server.address) as client:
        ns = client.namespace(LAYOUT)
        data = np.arange(3, dtype=np.uint8)[:, None] * np.ones(SIZE, np.uint8)
        ns.put([b"a", b"b"], data[:2])
        outcomes = ns.put([b"c", b"c", b"d"], data)
        assert outcomes == [PutOutcome.STORED, PutOutcome.DUPLICATE, PutOutcome.STORED]
        assert [int(block[0]) for block in ns.get([b"a", b"b", b"c", b"d"])] == [0, 1, 0, 2]


def test_more_than_is_held_ahead(daemon: StartDaemon) -> None:
    """A put of more blocks than may be held ahead, and more than fit, stores what fits, and all of that stays."""
    server = daemon(host_bytes="2MiB", stock_bytes=4 * SIZE, stock_share=0.5, segment_bytes="2MiB")
    with Client(server.address) as client:
        ns = client.namespace(LAYOUT)
        data = np.random.default_rng(2).integers(0, 256, (40, SIZE), np.uint8)
        ids = [b"%d" % number for number in range(40)]
        ns.put(ids[:4], data[:4])
        outcomes = ns.put(ids, data)
        assert outcomes == [PutOutcome.EXISTS] * 4 + [PutOutcome.STORED] * 28 + [PutOutcome.FULL] * 8
        for block, sent in zip(ns.get(ids[:32]), data[:32], strict=True):
            assert np.array_equal(block, sent)


def test_a_queued_put_is_committed_soon_and_told_of_by_flush(daemon: StartDaemon) -> None:
    """What is QUEUED is there after flush, with the bytes of the time of the put; without slots it is STORED."""
    server = daemon(host_bytes="16MiB")
    with Client(server.address) as client:
        ns = client.namespace(LAYOUT)
        data = np.random.default_rng(1).integers(0, 256, (4, SIZE), np.uint8)
        sent = data.copy()
        assert ns.put([b"a", b"b", b"c", b"d"], data, wait=False) == [PutOutcome.STORED] * 4
        assert ns.put([b"e", b"f"], data[:2], wait=False) == [PutOutcome.QUEUED] * 2
        data[:] = 0
        report = client.flush()
        assert (report.outcomes, report.failed, report.errors) == ({PutOutcome.STORED: 2}, [], [])
        assert all(np.array_equal(one, other) for one, other in zip(ns.get([b"e", b"f"]), sent, strict=False))
        assert client.flush().outcomes == {}


def test_a_queued_put_whose_daemon_is_gone_is_told_of(daemon: StartDaemon) -> None:
    """Blocks that were queued and never committed are PENDING in the report, by identity, with the reason."""
    server = daemon(host_bytes="16MiB")
    with Client(server.address) as client:
        ns = client.namespace(LAYOUT)
        data = np.zeros((2, SIZE), np.uint8)
        ns.put([b"a", b"b"], data)
        os.kill(server.pid, signal.SIGSTOP)
        assert ns.put([b"c", b"d"], data, wait=False) == [PutOutcome.QUEUED] * 2
        server.kill()
        report = client.flush(timeout_s=WITHIN_S)
        assert [outcome for _, outcome in report.failed] == [PutOutcome.PENDING] * 2
        assert [identity for identity, _ in report.failed] == list(ns.identities([b"c", b"d"]))
        assert len(report.errors) == 1
