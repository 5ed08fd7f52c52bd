"""The client across the end of its daemon: what it held harms nobody and is given back in the end."""

from __future__ import annotations

import contextlib
import threading
from typing import Any

import numpy as np
import pytest
from half_put import reserve

from tierd_client import (
    Client,
    EvictOutcome,
    Layout,
    NotFound,
    PutOutcome,
    Tier,
    TimedOut,
    Unavailable,
    chain_ids,
)
from tierd_client.admin import TierOccupancy
from tierd_client.deadline import Deadline
from tierd_client.namespace import Namespace
from tierd_client.routine import Step
from tierd_client.session import Session

SIZE = 64 << 10
LAYOUT = Layout.opaque(block_bytes=SIZE, block_tokens=16)
CONNECT_S = 20.0


def _data(count: int, seed: int = 3) -> Any:
    return np.random.default_rng(seed).integers(0, 256, (count, SIZE), np.uint8)


def _equal(got: list[Any], sent: Any) -> bool:
    return all(one is not None and np.array_equal(one, other) for one, other in zip(got, sent, strict=True))


def _host(client: Client) -> TierOccupancy:
    host = client.admin.occupancy().tiers[Tier.HOST]
    parts = host.free_bytes + host.used_bytes + host.reserved_bytes + host.quarantined_bytes
    assert parts == host.capacity_bytes
    return host


@pytest.mark.parametrize("end", ["kill", "terminate"])
def test_pins_outlive_the_daemon(daemon: Any, end: str) -> None:
    """After kill -9 or SIGTERM and a restart blocks are pinned for the rest of their time, with their priorities; a
    prefetch of before is over."""
    server = daemon()
    with Client(server.address, connect_timeout_s=CONNECT_S) as client:
        ns = client.namespace(LAYOUT)
        ids = chain_ids(ns, range(16 * 4))
        ns.put(ids, _data(4), priority="high")
        ns.pin(ids[:2], ttl_s=600.0)
        ticket = ns.prefetch(ids)
        getattr(server, end)()
        server.start()
        records = client.admin.describe(ids)
        assert [500 < record.pinned_s <= 600 for record in records if record] == [True] * 2 + [False] * 2
        assert {record.priority for record in records if record} == {"high"}
        dropped = ns.evict(ids, to=None, allow_drop=True)
        assert dropped == [EvictOutcome.IN_USE] * 2 + [EvictOutcome.DROPPED] * 2
        with pytest.raises(NotFound, match="session that began the prefetch"):
            ns.prefetch_status(ticket)


@pytest.mark.parametrize("end", ["kill", "terminate"])
def test_leases_and_sequences_outlive_the_daemon(daemon: Any, end: str) -> None:
    """After kill -9 or SIGTERM and a restart every stored block is there; a lease from before keeps its slots
    and its bytes until it is released; a running sequence still pins its blocks."""
    server = daemon()
    with Client(server.address, connect_timeout_s=CONNECT_S) as client:
        ns, data = client.namespace(LAYOUT), _data(20)
        ids = chain_ids(ns, range(16 * 20))
        assert set(ns.put(ids, data)) == {PutOutcome.STORED}
        lease = ns.acquire(ids[:5])
        views = lease.arrays()
        with ns.sequence("running", ids[:8]):
            boot = client.boot_id
            getattr(server, end)()
            server.start()
            assert ns.lookup(ids).prefix == 20
            assert client.boot_id != boot
            assert client.maps_memory
            assert _equal(ns.get(ids), data)
            assert _host(client).leased_blocks == 5
            dropped = ns.evict(ids, to=None, allow_drop=True)
            assert dropped == [EvictOutcome.IN_USE] * 8 + [EvictOutcome.DROPPED] * 12
        dropped = ns.evict(ids, to=None, allow_drop=True)
        assert dropped[:8] == [EvictOutcome.IN_USE] * 5 + [EvictOutcome.DROPPED] * 3
        assert _equal(views, data[:5])
        lease.release()
        assert client.admin.occupancy().sessions == 1
        assert set(ns.evict(ids[:5], to=None, allow_drop=True)) == {EvictOutcome.DROPPED}
        host = _host(client)
        assert (host.used_bytes, host.quarantined_bytes) == (0, 0)


def test_a_half_written_slot_is_kept_aside_until_it_is_let_go(daemon: Any) -> None:
    """A reservation that was being written when the daemon died is quarantined by the next one: the late
    write reaches no other block. When the writer has let go the slot is free again."""
    server = daemon(host_bytes="1MiB")
    with Client(server.address, connect_timeout_s=CONNECT_S) as client:
        ns = client.namespace(LAYOUT)
        data = _data(16)
        session = client.connection.current()
        assert session.memory is not None
        with session.hold():
            reply = reserve(ns, session, chain_ids(ns, range(16)))
            slot = session.memory.writable(reply.addresses[:1], SIZE, Deadline(2))[0]
            slot[: SIZE // 2] = 1
            server.restart()
            assert ns.lookup(chain_ids(ns, range(16))).prefix == 0
            assert _host(client).quarantined_bytes == SIZE
            others = chain_ids(ns, range(1000, 1000 + 16 * 16))
            outcomes = ns.put(others, data, timeout_s=0.2)
            assert outcomes == [PutOutcome.STORED] * 15 + [PutOutcome.FULL]
            slot[:] = 2
            assert _equal(ns.get(others[:15]), data[:15])
        client.connection.sweep()
        assert _host(client).quarantined_bytes == 0
        assert ns.put(others[15:], data[15:]) == [PutOutcome.STORED]
        assert _equal(ns.get(others), data)


def test_acknowledged_blocks_survive_kills_under_load(daemon: Any) -> None:
    """While threads put and get through three kills of the daemon, no read gives other bytes, no call raises
    anything but Unavailable, and every block whose put was acknowledged is there in the end."""
    server = daemon()
    data = _data(64)
    with Client(server.address, connect_timeout_s=CONNECT_S, rpc_timeout_s=CONNECT_S) as client:
        ns = client.namespace(LAYOUT)
        workers = [_Worker(ns, data, number) for number in range(2)]
        for worker in workers:
            worker.start()
        for _ in range(3):
            for worker in workers:
                assert worker.progress(8)
            server.kill()
            server.start()
        for worker in workers:
            assert worker.progress(8)
            worker.stop()
        for worker in workers:
            assert worker.wrong == 0
            for index in sorted(worker.acknowledged):
                assert _equal(ns.get([worker.id(index)]), data[index : index + 1])
        assert _host(client).quarantined_bytes == 0
        assert client.admin.occupancy().leases == 0


class _Worker(threading.Thread):
    """Puts and gets blocks one after the other, again and again, and remembers what was acknowledged."""

    def __init__(self, namespace: Namespace, data: Any, number: int) -> None:
        super().__init__(daemon=True)
        self.acknowledged: set[int] = set()
        self.wrong = 0
        self._namespace = namespace
        self._data = data
        self._number = number
        self._done = 0
        self._news = threading.Condition()
        self._stopping = threading.Event()

    def id(self, index: int) -> bytes:
        return b"%d-%d" % (self._number, index)

    def run(self) -> None:
        index = 0
        while not self._stopping.is_set():
            try:
                self._round(index)
            except Unavailable:
                continue
            index = (index + 1) % len(self._data)
            with self._news:
                self._done += 1
                self._news.notify_all()

    def progress(self, rounds: int) -> bool:
        """Waits until it has done so many more rounds."""
        with self._news:
            target = self._done + rounds
            return self._news.wait_for(lambda: self._done >= target, 2 * CONNECT_S)

    def stop(self) -> None:
        self._stopping.set()
        self.join(2 * CONNECT_S)
        assert not self.is_alive()

    def _round(self, index: int) -> None:
        block = self._data[index : index + 1]
        if self._namespace.put([self.id(index)], block)[0] in (PutOutcome.STORED, PutOutcome.EXISTS):
            self.acknowledged.add(index)
        (got,) = self._namespace.get([self.id(index)])
        if got is not None and not np.array_equal(got, block[0]):
            self.wrong += 1


def test_a_client_waits_for_a_daemon_that_is_starting(daemon: Any) -> None:
    """A client made while the daemon starts connects within its connect timeout."""
    server = daemon(start=False)
    server.start(wait=False)
    with Client(server.address, connect_timeout_s=30) as client:
        assert client.admin.occupancy().sessions == 1


def test_a_closed_client_leaves_nothing_behind(daemon: Any) -> None:
    """Closing gives the session up; a lease that is still out then keeps its slots while the process lives."""
    server = daemon()
    with Client(server.address) as watcher:
        client = Client(server.address)
        ns = client.namespace(LAYOUT)
        ns.put([b"a"], [bytes(SIZE)])
        client.close()
        assert watcher.admin.occupancy().sessions == 1
        holder = Client(server.address)
        lease = holder.namespace(LAYOUT).acquire([b"a"])
        view = lease.arrays()[0]
        holder.close()
        assert watcher.namespace(LAYOUT).evict([b"a"], to=None, allow_drop=True) == [EvictOutcome.IN_USE]
        assert view.tobytes() == bytes(SIZE)
        lease.release()


class Late(Step[Any]):
    """A call that is carried out, and whose answer nobody hears."""

    def __init__(self, call: Step[Any], name: str) -> None:
        self._call = call
        self._name = name

    def block(self) -> Any:
        self._call.block()
        raise TimedOut(f"the answer to {self._name} came too late")


@pytest.mark.parametrize("method", ["Store", "Reserve", "Acquire", "Release", "Commit"])
def test_an_answer_that_never_came_costs_no_slot(daemon: Any, monkeypatch: pytest.MonkeyPatch, method: str) -> None:
    """A call that the daemon carried out and whose answer came too late leaves nothing reserved or leased once the
    client goes on, though its process lives; the blocks can be written and read."""
    reserves = method in ("Reserve", "Commit")
    server = daemon(stock_bytes=0 if reserves else "64MiB")
    with Client(server.address, connect_timeout_s=CONNECT_S) as client:
        ns, data = client.namespace(LAYOUT), _data(4)
        ids = chain_ids(ns, range(16 * 4))
        assert set(ns.put(ids[:2], data[:2])) == {PutOutcome.STORED}
        call = Session.call

        def late(session: Session, name: str, *rest: Any, **options: Any) -> Any:
            made = call(session, name, *rest, **options)
            return Late(made, name) if name == method or (method == "Commit" and name == "Abort") else made

        monkeypatch.setattr(Session, "call", late)
        with contextlib.suppress(TimedOut):
            ns.put(ids[2:], data[2:]) if reserves or method == "Store" else ns.get(ids[:2])
        monkeypatch.undo()
        assert set(ns.put(ids, data)) <= {PutOutcome.STORED, PutOutcome.EXISTS}
        assert _equal(ns.get(ids), data)
        host = _host(client)
        reserved = host.reserved_bytes - host.stocked_bytes
        assert (reserved, host.leased_blocks, host.used_bytes) == (0, 0, 4 * SIZE)
