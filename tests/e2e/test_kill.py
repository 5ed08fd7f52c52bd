"""kill -9 of the daemon under load, against a Valkey that lives on: what was acknowledged is served afterwards.

    test ── starts and kills ──▶ tierd serve ◀── puts, gets, leases ── two workers (load_worker.py)
                                      ▲
                                      └── half-written slots, a lease ── a holder (kill_holder.py)
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from block_pattern import pattern, wrong_bytes
from half_put import reserve
from kill_holder import SLOTS
from load_worker import BLOCK_BYTES, CHAIN_BLOCKS, LAYOUT, ids_of_chain, numbers_of_chain
from worker_process import WorkerProcess

from tierd.testing.serve import ServeProcess, StartDaemon
from tierd.testing.valkey import ExternalValkey
from tierd_client import Client, Identities, PutOutcome, Tier, Unavailable
from tierd_client.admin import Occupancy
from tierd_client.routine import Work, run
from tierd_client.session import Session

SETTINGS: dict[str, Any] = {
    "host_bytes": "4MiB", "spill_bytes_max": "256MiB", "catalog_rows": 8192,
    "log_level": "info",
}
HELD_CHAIN = 10_000
"""Stored before the workers start, by the test; the holder leases it."""


@pytest.fixture
def workers() -> Iterator[list[WorkerProcess]]:
    """Worker processes of a test, killed at its end whatever happened."""
    started: list[WorkerProcess] = []
    yield started
    for worker in started:
        worker.kill()


def acknowledged(workers: list[WorkerProcess]) -> Counter[int]:
    """Accesses that the daemon acknowledged, per number of a block."""
    touches: Counter[int] = Counter()
    for worker in workers:
        for line in worker.lines:
            touches.update(line.get("stored", []))
            touches.update(line.get("read", []))
    return touches


def stored(workers: list[WorkerProcess]) -> set[int]:
    return {number for worker in workers for line in worker.lines for number in line.get("stored", [])}


def progress(worker: WorkerProcess, rounds: int) -> None:
    """Waits until the worker was acknowledged so many more things."""

    def count() -> int:
        return sum("failed" not in line for line in worker.lines)

    before = count()
    worker.wait_for(lambda: count() >= before + rounds)


def assert_no_fault(server: ServeProcess) -> None:
    """The daemon logged no error of its own since its start."""
    faults = [line for line in server.lines if '"level": "error"' in line or "Traceback" in line]
    assert not faults, "".join(faults)


def assert_conserved(occupancy: Occupancy) -> None:
    for tier in occupancy.tiers.values():
        parts = (tier.free_bytes, tier.used_bytes, tier.reserved_bytes, tier.quarantined_bytes)
        assert min(parts) >= 0 and sum(parts) == tier.capacity_bytes, tier


def assert_served(client: Client, expected: Counter[int], numbers: set[int]) -> None:
    """Each of these blocks is served with its bytes, and with a record of all acknowledged accesses."""
    ns, ordered = client.namespace(LAYOUT), sorted(numbers)
    chains = {chain: ids_of_chain(ns, chain).array for chain in {number // CHAIN_BLOCKS for number in numbers}}
    packed = np.stack([chains[number // CHAIN_BLOCKS][number % CHAIN_BLOCKS] for number in ordered])
    records = client.admin.describe(Identities(packed))
    blocks = ns.get(packed, timeout_s=30.0)
    lost, wrong, forgetful = [], [], []
    for number, record, block in zip(ordered, records, blocks, strict=True):
        if block is None or record is None:
            lost.append((number, record))
        elif wrong_bytes(block, number):
            wrong.append(number)
        elif record.touches < expected[number] or not record.crf > 0 or not 0 < record.ema <= 1:
            forgetful.append((number, expected[number], record))
    assert (lost, wrong, forgetful) == ([], [], [])


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("kills", "hbm_bytes"), [(20, "0"), (4, "1MiB")], ids=["twenty", "with hbm"])
def test_kills_under_load(
    daemon: StartDaemon, valkey: ExternalValkey, workers: list[WorkerProcess], kills: int, hbm_bytes: str
) -> None:
    """Through so many kills every acknowledged block is served with its bytes and its record, no view of a lease
    changes, late writes into a half-written slot reach no block, and in the end every slot is free again.

    Some starts are killed as well, and some workers, with what they held, while there is no daemon.
    """
    server = daemon(spill=valkey.unix_url, **SETTINGS | {"hbm_bytes": hbm_bytes})
    with Client(server.address) as client:
        put_chain(client, HELD_CHAIN)
    holder = WorkerProcess("kill_holder.py", server.address, HELD_CHAIN)
    workers.append(holder)
    holder.wait_for(lambda: any("holding" in line for line in holder.lines))
    loaders = [WorkerProcess("load_worker.py", server.address, number) for number in range(2)]
    workers += loaders
    chance = random.Random(20)
    for kill in range(kills):
        for worker in (loaders[0], loaders[-1]):
            progress(worker, chance.randrange(3, 25))
        server.kill()
        assert_no_fault(server)
        if kill in (7, 13):
            replace_last(server, loaders, mode="never" if kill == 7 else "require")
            workers.append(loaders[-1])
        if kill % 4 == 2:
            kill_a_start(server, chance.choice(["warm_restart", "listening", "READY"]))
        server.start()
        holder.tell("scribble")
        if kill % 5 == 4:
            with Client(server.address, connect_timeout_s=30.0) as client:
                assert_conserved(client.admin.occupancy())
                assert_served(client, acknowledged(loaders), stored(loaders))
    assert_unharmed(server, holder, loaders)
    assert_nothing_is_left(server, holder)


def replace_last(server: ServeProcess, loaders: list[WorkerProcess], mode: str) -> None:
    """Kills a worker while there is no daemon, and starts another one."""
    loaders[-1].kill()
    loaders.append(WorkerProcess("load_worker.py", server.address, 1, mode))


def kill_a_start(server: ServeProcess, event: str) -> None:
    """Starts the daemon and kills it as soon as it says that it came so far."""
    server.start(wait=False)
    server.event(event)
    server.kill()
    assert_no_fault(server)


def put_chain(client: Client, chain: int) -> None:
    ns = client.namespace(LAYOUT)
    blocks = [pattern(number, BLOCK_BYTES) for number in numbers_of_chain(chain)]
    assert set(ns.put(ids_of_chain(ns, chain), blocks)) == {PutOutcome.STORED}


def assert_unharmed(server: ServeProcess, holder: WorkerProcess, loaders: list[WorkerProcess]) -> None:
    """What the workers saw and what is served now is right, while a holder scribbles and tries to commit."""
    for worker in (loaders[0], loaders[-1]):
        progress(worker, 10)
        worker.finish()
    assert holder.ask("check") == {"check": CHAIN_BLOCKS, "wrong": 0}
    assert holder.ask("commit")["commit"] in ("NotFound", "FailedPrecondition")
    holder.ask("scribble")
    assert sum(line.get("wrong", 0) for worker in loaders for line in worker.lines) == 0
    with Client(server.address) as client:
        occupancy = client.admin.occupancy()
        assert_conserved(occupancy)
        assert occupancy.tiers[Tier.HOST].quarantined_bytes == SLOTS * BLOCK_BYTES
        assert_served(client, acknowledged(loaders), stored(loaders))
        seen = Counter(key for worker in loaders for line in worker.lines for key in line)
        moved = occupancy.tiers[Tier.SPILL].blocks
        print("seen", seen, "spilled", moved, "stored", len(stored(loaders)))


def assert_nothing_is_left(server: ServeProcess, holder: WorkerProcess) -> None:
    """With all clients gone and everything cleared, free is capacity in every tier."""
    holder.finish()
    with Client(server.address) as client:
        client.admin.clear(ghosts=True)
        occupancy = client.admin.occupancy()
        assert (occupancy.sessions, occupancy.leases, occupancy.identities) == (1, 0, 0)
        for tier in occupancy.tiers.values():
            assert tier.free_bytes == tier.capacity_bytes, tier


@pytest.mark.parametrize("files", [1, 3, 4])
def test_a_first_start_that_was_killed_is_made_good(daemon: StartDaemon, files: int) -> None:
    """A daemon that is killed while it makes its files for the first time leaves nothing that the next one
    stumbles over."""
    server = daemon(start=False, **SETTINGS)
    server.start(wait=False)
    ends_at = time.monotonic() + 30.0
    while len(list(server.shm_dir.iterdir())) < files:
        assert time.monotonic() < ends_at
    server.kill()
    server.start()
    with Client(server.address) as client:
        put_chain(client, HELD_CHAIN)
        assert_served(client, Counter(numbers_of_chain(HELD_CHAIN)), set(numbers_of_chain(HELD_CHAIN)))
        assert_conserved(client.admin.occupancy())


def test_what_a_killed_worker_held_is_free_again(
    daemon: StartDaemon, valkey: ExternalValkey, workers: list[WorkerProcess]
) -> None:
    """When a worker dies its half-written slots and its leases are given back at once, without a restart."""
    server = daemon(spill=valkey.unix_url, **SETTINGS)
    with Client(server.address) as client:
        put_chain(client, HELD_CHAIN)
        holder = WorkerProcess("kill_holder.py", server.address, HELD_CHAIN)
        workers.append(holder)
        holder.wait_for(lambda: holder.lines)
        held = client.admin.occupancy()
        host = held.tiers[Tier.HOST]
        assert host.reserved_bytes - host.stocked_bytes == SLOTS * BLOCK_BYTES
        assert held.leases == CHAIN_BLOCKS
        holder.kill()
        ends_at = time.monotonic() + 10.0
        while (now := client.admin.occupancy()).sessions > 1:
            assert time.monotonic() < ends_at
        host = now.tiers[Tier.HOST]
        assert (now.leases, host.reserved_bytes - host.stocked_bytes, host.quarantined_bytes) == (0, 0, 0)


def test_a_thread_that_comes_late_lets_its_lost_session_go(daemon: StartDaemon) -> None:
    """Of two threads on a client whose daemon was restarted, the one that still writes into a slot of the lost
    session when the other reconnects lets that slot go afterwards, not only when the client closes."""
    server = daemon(**SETTINGS)
    with Client(server.address, connect_timeout_s=30.0) as client:
        ns = client.namespace(LAYOUT)
        writing, reconnected = threading.Event(), threading.Event()
        boots: list[bytes] = []

        async def put(session: Session) -> None:
            boots.append(session.info.boot_id)
            if len(boots) == 2:
                return
            assert session.memory is not None
            with session.hold():
                await Work(lambda: reserve(ns, session, [b"late"]))
                writing.set()
                assert reconnected.wait(30)
                raise Unavailable("the daemon went away")

        late = threading.Thread(target=lambda: run(client.connection.make(put, 30.0)))
        late.start()
        assert writing.wait(30)
        server.restart()
        assert client.admin.occupancy().tiers[Tier.HOST].quarantined_bytes == BLOCK_BYTES
        reconnected.set()
        late.join(30)
        assert len(set(boots)) == 2
        assert client.admin.occupancy().tiers[Tier.HOST].quarantined_bytes == 0
