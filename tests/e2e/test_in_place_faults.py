"""Clients that look at blocks in place and are stopped, lost, confused or many: nobody else is harmed by it, and
what they look at stays as it is."""

from __future__ import annotations

import os
import platform
import signal
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest
from block_pattern import pattern
from load_worker import BLOCK_BYTES, CHAIN_BLOCKS, LAYOUT, ids_of_chain, numbers_of_chain
from worker_process import WorkerProcess

from tierd.adapters.hazards import PAGE_PREFIX
from tierd.testing.serve import ServeProcess, StartDaemon
from tierd_client import Client, Layout, Tier, direct, plain_ids
from tierd_client.admin import TierOccupancy
from tierd_client.format import HAZARD_PAGE_BYTES
from tierd_client.namespace import Namespace

pytestmark = pytest.mark.skipif(
    platform.machine() not in direct.ORDERED_MACHINES, reason="elsewhere blocks are leased by calls")

HOST_BYTES = 2 << 20
CHAIN = 3
WAIT_S = 20.0


@pytest.fixture
def server(daemon: StartDaemon) -> ServeProcess:
    return daemon(host_bytes=str(HOST_BYTES), policy="lru")


def _put(ns: Namespace, chain: int) -> Any:
    data = np.stack([pattern(number, BLOCK_BYTES) for number in numbers_of_chain(chain)])
    ns.put(ids_of_chain(ns, chain), data)
    return data


def _overwrite(ns: Namespace, first: int = 1000) -> None:
    """Puts twice what fits, and reads the last of it back."""
    chains = range(first, first + 2 * HOST_BYTES // (CHAIN_BLOCKS * BLOCK_BYTES))
    for chain in chains:
        data = _put(ns, chain)
    assert _same(ns.get(ids_of_chain(ns, chain)), data)


def _same(views: Any, data: Any) -> bool:
    return all(view is not None and np.array_equal(view, one) for view, one in zip(views, data, strict=True))


def _host(client: Client) -> TierOccupancy:
    return client.admin.occupancy().tiers[Tier.HOST]


def _until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not true():
        assert time.monotonic() < deadline
        threading.Event().wait(0.02)


def test_a_process_that_stands_still_keeps_what_it_looks_at(server: ServeProcess) -> None:
    """While a process is stopped, others write more than fits, and the daemon is killed and started: when it goes
    on its blocks are what they were. Then it lets them go, and they can be dropped."""
    with Client(server.address, connect_timeout_s=WAIT_S) as client:
        ns = client.namespace(LAYOUT)
        _put(ns, CHAIN)
        reader = WorkerProcess("view_holder.py", server.address, CHAIN)
        reader.wait_for(lambda: reader.lines)
        os.kill(reader.process.pid, signal.SIGSTOP)
        _overwrite(ns)
        server.kill()
        server.start()
        _overwrite(ns, 2000)
        assert _host(client).leased_blocks == CHAIN_BLOCKS
        os.kill(reader.process.pid, signal.SIGCONT)
        assert reader.ask("check")["wrong"] == 0
        reader.finish()
        _until(lambda: _host(client).leased_blocks == 0)
        _overwrite(ns)
        assert ns.lookup(ids_of_chain(ns, CHAIN)).prefix == 0


def test_what_is_looked_at_outlives_its_session(server: ServeProcess) -> None:
    """A client that has lost its session, and goes on in another one, reads what it took in the first, while others
    write more than fits; when it lets go, the daemon hears of the end of the first."""
    with Client(server.address) as client:
        ns = client.namespace(LAYOUT)
        data = _put(ns, CHAIN)
        lease = ns.acquire(ids_of_chain(ns, CHAIN))
        client.connection.current().give_up()
        _overwrite(ns)
        ns.acquire(ids_of_chain(ns, CHAIN)).release()
        assert _same(lease.views(), data)
        assert client.admin.occupancy().sessions == 2
        lease.release()
        assert client.admin.occupancy().sessions == 1
        assert _host(client).leased_blocks == 0


def test_what_is_looked_at_outlives_its_namespace(server: ServeProcess) -> None:
    """Where blocks are cleared, and others of another geometry come under the same ids, the held ones stay."""
    with Client(server.address) as client:
        ns = client.namespace(LAYOUT, "name")
        data = _put(ns, CHAIN)
        lease = ns.acquire(ids_of_chain(ns, CHAIN))
        assert client.admin.clear().in_use_blocks == CHAIN_BLOCKS
        wide = client.namespace(Layout.opaque(block_bytes=3 * BLOCK_BYTES, block_tokens=16), "other")
        for first in range(0, 96, 8):
            ids = plain_ids(wide.layout, [b"%d" % number for number in range(first, first + 8)])
            wide.put(ids, np.full((8, 3 * BLOCK_BYTES), first, np.uint8))
        assert _same(lease.views(), data)
        lease.release()
        assert client.admin.clear().in_use_blocks == 0


def test_nonsense_in_a_page_harms_nobody_else(server: ServeProcess) -> None:
    """While a client writes anything into its page, and says that it has any number of entries, others put and get
    what they put; so they do after a restart that finds it; with its end all room is there again."""
    random = np.random.default_rng(1)
    with Client(server.address, connect_timeout_s=WAIT_S) as client:
        ns = client.namespace(LAYOUT)
        reader = Client(server.address)
        _put(ns, CHAIN)
        reader.namespace(LAYOUT).acquire(ids_of_chain(ns, CHAIN)).release()
        memory = reader.connection.current().memory
        assert memory is not None and memory.page is not None
        words = memory.page._entries
        for round_ in range(10):
            words[:] = random.integers(0, 1 << 63, words.shape, np.uint64)
            words[0, 0] = (1, len(words), 1 << 40, (1 << 64) - 1)[round_ % 4]
            words[1::2, 0] = np.uint64(1 << 48) + random.integers(0, HOST_BYTES, len(words) // 2, np.uint64)
            _put(ns, round_)
            assert ns.get(ids_of_chain(ns, round_))[0] is not None
        server.restart()
        assert ns.get(ids_of_chain(ns, 9))[0] is not None
        reader.close()
        _until(lambda: client.admin.occupancy().sessions == 1)
        _overwrite(ns)
        assert (_host(client).quarantined_bytes, _host(client).leased_blocks) == (0, 0)


@pytest.mark.parametrize("size", [0, HAZARD_PAGE_BYTES + 1])
def test_a_page_of_another_size_is_no_page(server: ServeProcess, size: int) -> None:
    """A daemon that finds the page of a living process too short or too long keeps its blocks and serves them; of
    what the page said nothing stays out of use."""
    with Client(server.address, connect_timeout_s=WAIT_S) as client:
        ns = client.namespace(LAYOUT)
        data = _put(ns, CHAIN)
        reader = WorkerProcess("view_holder.py", server.address, CHAIN)
        reader.wait_for(lambda: reader.lines)
        server.terminate()
        (page,) = server.shm_dir.glob(f"*{PAGE_PREFIX}*")
        os.truncate(page, size)
        server.start()
        assert _same(ns.get(ids_of_chain(ns, CHAIN)), data)
        _overwrite(ns)
        assert (_host(client).quarantined_bytes, _host(client).leased_blocks) == (0, 0)
        reader.kill()


def test_many_sessions_look_at_blocks(server: ServeProcess) -> None:
    """Each of twenty sessions keeps the blocks that it took, over a kill -9 of the daemon, while others write; when
    all have let go all can be dropped."""
    with ExitStack() as clients, Client(server.address, connect_timeout_s=WAIT_S) as writer:
        ns = writer.namespace(LAYOUT)
        data = {chain: _put(ns, chain) for chain in range(5)}
        leases = []
        for number in range(20):
            client = clients.enter_context(Client(server.address, connect_timeout_s=WAIT_S))
            leases.append((number % 5, client.namespace(LAYOUT).acquire(ids_of_chain(ns, number % 5))))
        for first in (1000, 2000):
            _overwrite(ns, first)
            for chain, lease in leases:
                assert _same(lease.views(), data[chain])
            if first == 1000:
                server.kill()
                server.start()
        for _, lease in leases:
            lease.release()
        assert _host(writer).leased_blocks == 0
