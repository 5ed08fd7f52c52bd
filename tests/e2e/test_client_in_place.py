"""Blocks that are looked at in place without a call: nobody else's bytes come there, whoever dies."""

from __future__ import annotations

import platform
import threading
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from block_pattern import pattern
from load_worker import BLOCK_BYTES, CHAIN_BLOCKS, LAYOUT, ids_of_chain, numbers_of_chain
from twins import TWINS, client_of
from worker_process import WorkerProcess

from tierd.adapters.hazards import PAGE_PREFIX
from tierd_client import AcquireOutcome, Client, EvictOutcome, Tier, chain_ids, direct
from tierd_client.format import HAZARDS_MAX

pytestmark = pytest.mark.skipif(
    platform.machine() not in direct.ORDERED_MACHINES, reason="elsewhere blocks are leased by calls")

CHAIN = 3
WAIT_S = 20.0
LEASED = AcquireOutcome.LEASED


@pytest.fixture(scope="module")
def server(module_daemon: Any) -> Any:
    return module_daemon(host_bytes="4MiB", spill="none", policy="lru")


@pytest.fixture(params=TWINS)
def client(server: Any, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setattr(direct, "REPORT_EVERY_S", 3600.0)  # only when a test wants it
    with client_of(request.param, server.address, shared_memory="require") as client:
        yield client


def _put(ns: Any, chain: int) -> Any:
    data = np.stack([pattern(number, BLOCK_BYTES) for number in numbers_of_chain(chain)])
    ns.put(ids_of_chain(ns, chain), data)
    return data


def _overwrite(ns: Any, first: int = 1000) -> None:
    """Puts twice what fits."""
    for chain in range(first, first + 2 * (4 << 20) // (CHAIN_BLOCKS * BLOCK_BYTES)):
        _put(ns, chain)


def _same(views: Any, data: Any) -> bool:
    return all(view is not None and np.array_equal(view, block) for view, block in zip(views, data, strict=True))


def _until(true: Any) -> None:
    deadline = time.monotonic() + WAIT_S
    while not true():
        assert time.monotonic() < deadline
        threading.Event().wait(0.02)


def test_blocks_are_taken_and_given_back_without_a_call(client: Any, calls: Counter[str]) -> None:
    """An acquire of blocks in memory, and its release, make no call after the first; the blocks are in use
    meanwhile and not afterwards; each access is reported once."""
    ns = client.namespace(LAYOUT)
    data, ids = _put(ns, CHAIN), ids_of_chain(ns, CHAIN)
    ns.acquire(ids).release()
    client.flush_accesses()
    before = [record.touches for record in client.admin.describe(ids)]
    calls.clear()
    lease = ns.acquire(ids)
    assert lease.outcomes == [LEASED] * CHAIN_BLOCKS
    assert _same(lease.views(), data)
    assert not calls
    assert client.admin.occupancy().tiers[Tier.HOST].leased_blocks == CHAIN_BLOCKS
    assert set(ns.evict(ids, to=None, allow_drop=True)) == {EvictOutcome.IN_USE}
    calls.clear()
    lease.release()
    assert not calls
    client.flush_accesses()
    assert [record.touches for record in client.admin.describe(ids)] == [one + 1 for one in before]
    assert set(ns.evict(ids, to=None, allow_drop=True)) == {EvictOutcome.DROPPED}


def test_what_the_page_cannot_hold_is_leased_by_a_call(client: Any, calls: Counter[str]) -> None:
    """When a session looks at as many blocks as its page names, further ones are leased by the daemon, with the
    same bytes; a block that is absent is asked for."""
    ns = client.namespace(LAYOUT)
    data, ids = _put(ns, CHAIN), ids_of_chain(ns, CHAIN)
    leases = [ns.acquire(ids) for _ in range(HAZARDS_MAX // CHAIN_BLOCKS)]
    calls.clear()
    leases.append(ns.acquire(ids))
    assert calls["Acquire"] == 1
    assert all(_same(lease.views(), data) for lease in leases)
    for lease in leases:
        lease.release()
    calls.clear()
    mixed = chain_ids(ns, [CHAIN * 1_000 + place for place in range(16 * (CHAIN_BLOCKS + 1))])
    with ns.acquire(mixed, timeout_s=0.0) as lease:
        assert lease.outcomes == [LEASED] * CHAIN_BLOCKS + [AcquireOutcome.MISS]
        assert _same(lease.views()[:CHAIN_BLOCKS], data)


def test_a_killed_reader_gives_back_what_it_looked_at(server: Any) -> None:
    """While a process looks at blocks they stay; after kill -9 they can go, and its page is removed."""
    with Client(server.address) as client:
        ns = client.namespace(LAYOUT)
        _put(ns, CHAIN)
        reader = WorkerProcess("view_holder.py", server.address, CHAIN)
        assert reader.wait_for(lambda: reader.lines)[0] == {"holding": CHAIN_BLOCKS}
        _overwrite(ns)
        assert ns.lookup(ids_of_chain(ns, CHAIN)).prefix == CHAIN_BLOCKS
        assert reader.ask("check")["wrong"] == 0
        reader.kill()
        _until(lambda: client.admin.occupancy().tiers[Tier.HOST].leased_blocks == 0)
        assert not list(server.shm_dir.glob(f"*{PAGE_PREFIX}*"))
        _overwrite(ns)
        assert ns.lookup(ids_of_chain(ns, CHAIN)).prefix == 0


@pytest.mark.parametrize("end", ["kill", "terminate"])
def test_what_is_looked_at_outlives_daemons(daemon: Any, end: str) -> None:
    """After kill -9 or SIGTERM the next daemon hands out no slot that a process still looks at, while others write
    more than fits; when the process has ended, all room is there again."""
    server = daemon(host_bytes="4MiB", policy="lru")
    with Client(server.address, connect_timeout_s=WAIT_S) as client:
        ns = client.namespace(LAYOUT)
        _put(ns, CHAIN)
        reader = WorkerProcess("view_holder.py", server.address, CHAIN)
        reader.wait_for(lambda: reader.lines)
        for first in (1000, 2000):
            getattr(server, end)()
            server.start()
            _overwrite(ns, first)
            assert reader.ask("check")["wrong"] == 0
        assert ns.lookup(ids_of_chain(ns, CHAIN)).prefix == CHAIN_BLOCKS
        reader.kill()
        _until(lambda: client.admin.occupancy().tiers[Tier.HOST].leased_blocks == 0)
        host = client.admin.occupancy().tiers[Tier.HOST]
        assert host.quarantined_bytes == 0
