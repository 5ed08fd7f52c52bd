"""A fork of a process that has a client: the child is refused at once, holds nothing, and harms nobody."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest

COMMON = """
import asyncio, os, sys, threading, time
from tierd_client import AsyncClient, Client, ForkedClientError, Layout, chain_ids
LAYOUT = Layout.opaque(block_bytes=65536, block_tokens=16)
IDS = chain_ids(LAYOUT, range(32))
BLOCKS = [bytes([7]) * 65536] * 2

def refused(call):
    start = time.monotonic()
    try:
        call()
    except ForkedClientError as error:
        assert str(os.getpid()) in str(error) or "mapped" in str(error), error
        assert time.monotonic() - start < 10
        return
    raise AssertionError("not refused")

def child_ends_with(code, child):
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == code
"""

SYNC = """
with Client(sys.argv[1]) as client:
    ns = client.namespace(LAYOUT)
    ns.put(IDS, BLOCKS)
    lease = ns.acquire(IDS)
    with ns.sequence("request", IDS) as sequence:
        for lock in (client.sequences._lock, client.connection._lock):
            lock.acquire()  # as if another thread were inside
        child = os.fork()
        if child == 0:
            for call in (
                lambda: ns.lookup(IDS), lambda: ns.acquire(IDS), lambda: ns.put(IDS, BLOCKS), lambda: ns.get(IDS),
                lambda: ns.evict(IDS), lambda: ns.sequence("other", IDS), lambda: sequence.observe(), lease.arrays,
                lease.views, client.admin.occupancy, lambda: list(client.admin.list_blocks()),
                lambda: client.namespace(LAYOUT), lambda: client.maps_memory, lambda: client.boot_id,
            ):
                refused(call)
            lease.release()
            client.close()
            with open("/proc/self/maps") as maps:
                assert not any("tierd-" in line for line in maps)
            sys.exit(42)  # out of both `with` blocks
        for lock in (client.sequences._lock, client.connection._lock):
            lock.release()
        child_ends_with(42, child)
        found = client.admin.occupancy()
        assert (found.leases, found.sequences, found.sessions) == (2, 1, 1), found
        assert lease.arrays()[0].tobytes() == BLOCKS[0]
    lease.release()
    assert client.admin.occupancy().leases == 0
"""

ASYNC = """
async def main():
    async with AsyncClient(sys.argv[1]) as client:
        ns = await client.namespace(LAYOUT)
        await ns.put(IDS, BLOCKS)
        lease = await ns.acquire(IDS)
        child = os.fork()
        if child == 0:
            for call in (ns.lookup, ns.get, ns.acquire, ns.evict):
                try:
                    await call(IDS)
                except ForkedClientError:
                    continue
                os._exit(1)
            await lease.release()
            await client.close()
            os._exit(42)
        child_ends_with(42, child)
        assert (await client.admin.occupancy()).leases == 2
        assert lease.arrays()[0].tobytes() == BLOCKS[0]
        await lease.release()

asyncio.run(main())
"""

OWN = """
with Client(sys.argv[1]) as client:
    ns = client.namespace(LAYOUT)
    ns.put(IDS[:1], BLOCKS[:1])
    child = os.fork()
    if child == 0:
        with Client(sys.argv[1]) as own:
            mine = own.namespace(LAYOUT)
            mine.put(IDS, BLOCKS)
            assert mine.get(IDS)[1].tobytes() == BLOCKS[1]
        os._exit(42)
    child_ends_with(42, child)
    assert ns.lookup(IDS).prefix == 2
    assert client.admin.occupancy().sessions == 1
"""


@pytest.mark.parametrize("script", [SYNC, ASYNC, OWN], ids=["sync", "async", "own"])
def test_a_forked_child_is_refused_and_harms_nobody(daemon: Any, script: str) -> None:
    """In a child every call of an inherited client, of its namespaces and leases raises ForkedClientError at once,
    whatever locks were held at the fork; ends and exits do nothing; nothing is mapped; the parent's session, leases
    and sequences stay. A client of the child's own works."""
    server = daemon()
    run = subprocess.run(
        [sys.executable, "-c", COMMON + script, server.address], capture_output=True, text=True, timeout=60,
        env={**os.environ, "GRPC_VERBOSITY": "NONE"}, check=False)
    assert run.returncode == 0, run.stderr
