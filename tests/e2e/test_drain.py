"""Draining a real daemon: by either twin of the client, and what is served when memory is gone."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import numpy as np
from block_pattern import pattern

from tierd.testing.serve import StartDaemon
from tierd.testing.valkey import ExternalValkey
from tierd_client import AsyncClient, Client, FailedPrecondition, Layout, PutOutcome, plain_ids
from tierd_client.admin import DrainState

BLOCK_BYTES = 64 << 10
BLOCKS = 24
LAYOUT = Layout.opaque(block_bytes=BLOCK_BYTES)
NAMES = [b"block-%d" % number for number in range(BLOCKS)]


def values() -> list[np.ndarray]:
    return [pattern(number, BLOCK_BYTES) for number in range(BLOCKS)]


def test_either_twin_drains(daemon: StartDaemon, valkey: ExternalValkey) -> None:
    """Progress comes as it is made, to its end; who stops listening ends the drain, and the other twin goes on."""
    one = daemon(spill=valkey.unix_url)
    one.event("spill_up")
    with Client(one.address) as client:
        assert set(client.namespace(LAYOUT).put(NAMES, values())) == {PutOutcome.STORED}
        slow = client.admin.drain(bytes_per_s=8 * BLOCK_BYTES)
        assert [next(slow).stored_blocks for _ in range(2)] == [0, 4]
        slow.close()

        async def body() -> list[DrainState]:
            async with AsyncClient(one.address) as twin:
                parts = []
                while not parts:
                    with suppress(FailedPrecondition):  # the daemon has not heard yet that nobody listens
                        parts = [part async for part in twin.admin.drain()]
                assert parts[-1].held_blocks + parts[-1].stored_blocks == BLOCKS
                return [part.state for part in parts]

        states = asyncio.run(body())
        assert states[-1] is DrainState.DONE and set(states[:-1]) <= {DrainState.RUNNING}
        assert client.admin.clear(tier="host").host_blocks == BLOCKS
        found = client.namespace(LAYOUT).get(NAMES, timeout_s=10)
        assert all((np.asarray(block) == value).all() for block, value in zip(found, values(), strict=True))


def test_a_drained_daemon_serves_without_its_memory(daemon: StartDaemon, valkey: ExternalValkey) -> None:
    """After a drain the machine's memory may go: a daemon that starts empty on the same server serves every
    block, with its record."""
    one = daemon(spill=valkey.unix_url)
    one.event("spill_up")
    with Client(one.address) as client:
        ns = client.namespace(LAYOUT)
        ns.put(NAMES, values())
        before = [record.touches for record in client.admin.describe(plain_ids(ns, NAMES)) if record is not None]
        assert list(client.admin.drain())[-1].stored_blocks == BLOCKS
    one.kill()
    for path in one.shm_dir.iterdir():
        path.unlink()
    one.start()
    one.event("spill_up")
    with Client(one.address) as client:
        ns = client.namespace(LAYOUT)
        found = ns.get(NAMES, timeout_s=10)
        assert all(block is not None for block in found)
        assert all((np.asarray(block) == value).all() for block, value in zip(found, values(), strict=True))
        after = [record.touches for record in client.admin.describe(plain_ids(ns, NAMES)) if record is not None]
        assert after == [touches + 1 for touches in before]
