"""Tasks that are cancelled in the middle of a call, against a real daemon."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

from tierd.testing.serve import ServeProcess, StartDaemon
from tierd_client import AsyncClient, AsyncLease, Layout, PutOutcome, Tier, chain_ids

SIZE = 64 << 10


@pytest.fixture(scope="module")
def served(module_daemon: StartDaemon) -> ServeProcess:
    return module_daemon(host_bytes="16MiB")


@pytest.mark.parametrize("verb", ["put", "get", "acquire"])
def test_a_cancelled_call_gives_back_what_it_took(served: ServeProcess, verb: str) -> None:
    """However far a put, a get or an acquire has come when its task is cancelled, no slot stays reserved or leased,
    the session is kept, and the same call works afterwards."""
    layout = Layout.opaque(block_bytes=SIZE, block_tokens=16, revision=verb)
    data = np.random.default_rng(5).integers(0, 256, (16, SIZE), np.uint8)

    async def main() -> None:
        async with AsyncClient(served.address, shared_memory="require") as client:
            ns = await client.namespace(layout)
            ids = chain_ids(layout, range(16 * 16))
            if verb != "put":
                await ns.put(ids, data)
            session = client.connection.current().id
            for attempt in range(24):
                call = ns.put(ids, data) if verb == "put" else getattr(ns, verb)(ids)
                task = asyncio.ensure_future(_awaited(call))
                await asyncio.sleep(attempt * 0.0004)
                task.cancel()
                done = await asyncio.gather(task, return_exceptions=True)
                if isinstance(done[0], AsyncLease):
                    await done[0].release()
            found = await client.admin.occupancy()
            host = found.tiers[Tier.HOST]
            assert (found.leases, host.reserved_bytes - host.stocked_bytes) == (0, 0)
            assert client.connection.current().id == session
            assert set(await ns.put(ids, data)) <= {PutOutcome.STORED, PutOutcome.EXISTS}
            assert all(np.array_equal(one, other) for one, other in zip(await ns.get(ids), data, strict=True))

    asyncio.run(main())


async def _awaited(call: Any) -> Any:
    return await call
