"""The spill tier going down and coming back under a running daemon: costs hits, never correctness."""

from __future__ import annotations

import asyncio
from pathlib import Path

import grpc
import numpy as np
from grpc_health.v1 import health_pb2, health_pb2_grpc
from rpc_daemon import DEADLINE_S, Daemon, block_ids, identity, payload, run, until

from tierd.core.messages import Tier
from tierd.ports import SpillHealth
from tierd.testing.faulty import Fault, Operation
from tierd_client.v1 import admin_pb2 as apb
from tierd_client.v1 import blocks_pb2 as pb

HOST, SPILL = 2, 4


class Switch:
    """A server that is down while `down` is set."""

    def __init__(self) -> None:
        self.down = False

    def next(self, operation: Operation) -> Fault:
        return Fault.DOWN if self.down else Fault.NONE


async def health(d: Daemon, name: str) -> int:
    stub = health_pb2_grpc.HealthStub(d.channel)
    reply = await stub.Check(health_pb2.HealthCheckRequest(service=name), timeout=DEADLINE_S)
    return int(reply.status)


async def spill_row(d: Daemon) -> apb.TierOccupancy:
    reply = await d.admin.Occupancy(apb.OccupancyRequest(), timeout=DEADLINE_S)
    return next(tier for tier in reply.tiers if tier.tier == pb.TIER_SPILL)


def test_notes_stand_beside_the_state(tmp_path: Path) -> None:
    """What the last probe noted of a server that serves is told with the tier's state."""

    async def body(d: Daemon) -> None:
        notes = ["", "the server has no maxmemory"]
        for note in notes:
            d.faulty.probe = lambda _, note=note: SpillHealth(same=True, detail=note)  # type: ignore[misc]
            await until(lambda note=note: d.watch.detail == note)  # type: ignore[misc]
            row = await spill_row(d)
            assert row.serving and row.state == f"serving: {note}".removesuffix(": ")

    run(body, tmp_path)


def test_down_and_back(tmp_path: Path) -> None:
    """While the server is down host blocks are served, evictions fail and leave the upper copy, spilled blocks
    are PENDING and not misses, and no hit; within two seconds of its return it is used again."""
    switch = Switch()

    async def body(d: Daemon) -> None:
        await d.namespace()
        session = (await d.session()).number
        await d.store_blocks(session, block_ids(1, 2, 3))
        assert await d.evict(block_ids(1)) == [pb.EVICT_OUTCOME_MOVED]
        switch.down = True
        assert await d.evict(block_ids(2)) == [pb.EVICT_OUTCOME_FAILED]
        await until(lambda: not d.watch.is_up)
        row = await spill_row(d)
        assert not row.serving and row.state == "down: injected: down"
        reply = await d.acquire(session, block_ids(1, 2), timeout_ms=200)
        assert list(reply.outcomes) == [pb.ACQUIRE_OUTCOME_PENDING, pb.ACQUIRE_OUTCOME_LEASED]
        assert np.array_equal(d.view(reply.addresses[1]), payload(identity(2)))
        assert await d.tiers_of(block_ids(1, 2, 3)) == [0, HOST, HOST]
        assert (await d.acquire(session, block_ids(3))).outcomes[0] == pb.ACQUIRE_OUTCOME_LEASED
        switch.down = False
        began = asyncio.get_running_loop().time()
        reply = await d.acquire(session, block_ids(1), timeout_ms=5000)
        assert list(reply.outcomes) == [pb.ACQUIRE_OUTCOME_LEASED]
        assert asyncio.get_running_loop().time() - began < 2.0
        assert (await spill_row(d)).serving
        await d.check_balance()

    run(body, tmp_path, script=switch)


def test_health_of_the_tiers(tmp_path: Path) -> None:
    """Each tier and the daemon have a health service; the spill tier's says NOT_SERVING while it is down."""
    serving, not_serving = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING
    switch = Switch()

    async def body(d: Daemon) -> None:
        names = ("", "tierd.v1.Blocks", "tierd.v1.Admin", "tierd.hbm", "tierd.host", "tierd.spill")
        assert [await health(d, name) for name in names] == [serving] * 6
        switch.down = True
        await until(lambda: not d.watch.is_up)
        await d.server.set_health(Tier.SPILL, d.service.tier_state(Tier.SPILL).serving)
        assert (await health(d, "tierd.spill"), await health(d, "")) == (not_serving, serving)

    run(body, tmp_path, script=switch)


def test_tier_that_is_off(tmp_path: Path) -> None:
    """A tier that is not configured is NOT_SERVING and listed as off, and asking for it names it."""

    async def body(d: Daemon) -> None:
        assert await health(d, "tierd.hbm") == health_pb2.HealthCheckResponse.NOT_SERVING
        assert await health(d, "tierd.spill") == health_pb2.HealthCheckResponse.NOT_SERVING
        row = await spill_row(d)
        assert (row.state, row.serving, row.requested_bytes, row.capacity_bytes) == ("off", False, 0, 0)
        await d.namespace()
        session = (await d.session()).number
        request = pb.ReserveRequest(session=session, blocks=block_ids(1), tier=pb.TIER_HBM)
        call = d.blocks.Reserve(request, timeout=DEADLINE_S)
        assert await call.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert "hbm tier is off" in str(await call.details())

    run(body, tmp_path, hbm_blocks=0, spill=False)


def test_flushed_server(tmp_path: Path) -> None:
    """When the server was flushed what it held is a miss, found by the probe; what lies above stays."""

    async def body(d: Daemon) -> None:
        await d.namespace()
        session = (await d.session()).number
        await d.store_blocks(session, block_ids(1, 2))
        await d.evict(block_ids(1))
        d.store.flush()
        await until(lambda: all(t.blocks == 0 for t in d.service.occupancy().tiers if t.tier is Tier.SPILL))
        assert await d.tiers_of(block_ids(1, 2)) == [0, HOST]
        assert d.watch.is_up
        assert await d.evict(block_ids(2)) == [pb.EVICT_OUTCOME_MOVED]
        assert await d.readmit(block_ids(2)) == [pb.READMIT_OUTCOME_READY]

    run(body, tmp_path)


def test_reserve_goes_on_while_spill_is_down(tmp_path: Path) -> None:
    """With the server down a full host answers FULL, and never waits past the caller's time."""
    switch = Switch()

    async def body(d: Daemon) -> None:
        await d.namespace()
        session = (await d.session()).number
        await d.store_blocks(session, block_ids(1, 2))
        switch.down = True
        await until(lambda: not d.watch.is_up)
        began = asyncio.get_running_loop().time()
        reply = await d.reserve(session, block_ids(3), timeout_ms=500)
        assert reply.outcomes[0] in (pb.RESERVE_OUTCOME_FULL, pb.RESERVE_OUTCOME_PENDING)
        assert asyncio.get_running_loop().time() - began < 2.0
        assert await d.tiers_of(block_ids(1, 2)) == [HOST, HOST]
        await d.check_balance()

    run(body, tmp_path, host_blocks=2, hbm_blocks=0, script=switch)


def test_hung_server_does_not_hold_the_loop(tmp_path: Path) -> None:
    """While a call hangs in the server other calls are answered, and the hung one fails by its deadline."""

    class Hang:
        on = False

        def next(self, operation: Operation) -> Fault:
            return Fault.DELAY if self.on and operation is Operation.GET else Fault.NONE

    script = Hang()

    async def body(d: Daemon) -> None:
        await d.namespace()
        session = (await d.session()).number
        await d.store_blocks(session, block_ids(1, 2))
        await d.evict(block_ids(1))
        script.on = True
        waiting = asyncio.ensure_future(d.acquire(session, block_ids(1), timeout_ms=1500))
        await until(lambda: bool(d.faulty.injected[Fault.DELAY]))
        reply = await d.acquire(session, block_ids(2))
        assert list(reply.outcomes) == [pb.ACQUIRE_OUTCOME_LEASED]
        assert list((await waiting).outcomes) == [pb.ACQUIRE_OUTCOME_PENDING]
        assert await d.tiers_of(block_ids(1)) == [SPILL]

    run(body, tmp_path, script=script, op_timeout_s=0.3)
