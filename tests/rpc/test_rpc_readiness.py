"""Readiness: a canary through every tier, that finds what cannot be done and leaves no trace."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from http_get import Answer, get
from rpc_daemon import DEADLINE_S, Daemon, block_ids, run, until

from tierd.app.readiness import ANSWER_S, FRESH_S, Readiness
from tierd.core.invariants import check
from tierd.core.messages import BlockFilter, ListBlocks, Tier
from tierd.ports import StoredBlock
from tierd.testing.faulty import EveryNth, Fault, FaultyArenaStore, Operation
from tierd.web.routes import application
from tierd_client.format import U8Array
from tierd_client.v1 import admin_pb2 as apb

SLACK_S = 2.0
"""For a busy machine."""


@asynccontextmanager
async def probing(d: Daemon) -> AsyncIterator[Any]:
    """The application, with its readiness running."""
    readiness = Readiness(d.service)
    async with asyncio.TaskGroup() as group:
        running = group.create_task(readiness.run())
        try:
            yield application(d.service, readiness)
        finally:
            running.cancel()


async def ready(web: Any, path: str = "/readyz", *, failed: list[str] | None = None) -> Answer:
    """What is answered, in time; with `failed` once just these tiers are told to fail: on a busy machine one that
    works may be late."""
    async with asyncio.timeout(DEADLINE_S):
        while True:
            began = time.monotonic()
            answer = await get(web, path)
            assert time.monotonic() - began < ANSWER_S + SLACK_S
            if failed is None or answer.json["failed"] == failed:
                return answer


class Puts:
    """A script without faults that counts what is stored."""

    count = 0

    def next(self, operation: Operation) -> Fault:
        self.count += operation is Operation.PUT
        return Fault.NONE


def break_arena(d: Daemon, tier: Tier, fault: Fault, operation: Operation) -> FaultyArenaStore:
    """From now on each such copy of an arena fails."""
    faulty = FaultyArenaStore(d.arenas[tier], EveryNth(1, fault, [operation]), delay_limit_s=DEADLINE_S)
    d.arenas[tier] = faulty  # type: ignore[assignment]
    return faulty


def test_a_working_daemon_is_ready_and_is_not_disturbed(tmp_path: Path) -> None:
    """All tiers work; no statistic, block, byte or stored value differs after it."""

    async def body(d: Daemon) -> None:
        await d.namespace()
        session = (await d.session()).number
        await d.store_blocks(session, block_ids(1, 2))
        await d.evict(block_ids(2))
        before, stored = d.service.occupancy(), dict(d.store.values)
        async with probing(d) as web:
            answer = await ready(web, failed=[])
        assert (answer.status, answer.json["status"]) == (200, "ready")
        assert set(answer.json["tiers"]) == {"hbm", "host", "spill"}
        assert d.service.occupancy() == before and d.store.values == stored
        check(d.engine)

    run(body, tmp_path)


@pytest.mark.parametrize("tier", [Tier.HBM, Tier.HOST])
@pytest.mark.parametrize(("fault", "operation"), [
    (Fault.DOWN, Operation.WRITE), (Fault.DOWN, Operation.READ), (Fault.CORRUPT, Operation.WRITE),
    (Fault.DELAY, Operation.READ),
])
def test_an_arena_that_fails(tmp_path: Path, tier: Tier, fault: Fault, operation: Operation) -> None:
    """An arena that fails, alters bytes or hangs makes the daemon unavailable and is named; the other tiers are
    not; the slot of a canary that hangs is kept aside until it ends."""

    async def body(d: Daemon) -> None:
        faulty = break_arena(d, tier, fault, operation)
        async with probing(d) as web:
            name = tier.name.lower()
            answer = await ready(web, failed=[name])
            assert (answer.status, answer.json["status"]) == (503, "unavailable")
            check(d.engine)
            lent = d.engine.state.tiers[tier].copies.borrowed
            assert len(lent) == (1 if fault is Fault.DELAY else 0)
            assert (await get(web, f"/readyz/{name}")).status == 503
            assert (await ready(web, "/readyz/spill", failed=[])).status == 200
            assert (await get(web, "/healthz")).status == 200
            faulty.resume.set()
            await until(lambda: not lent)

    run(body, tmp_path)


@pytest.mark.parametrize(("fault", "operation"), [
    (Fault.FULL, Operation.PUT), (Fault.VANISHED, Operation.GET), (Fault.CORRUPT, Operation.GET),
    (Fault.DELAY, Operation.PUT), (Fault.DOWN, Operation.GET),
])
def test_a_spill_tier_that_fails(tmp_path: Path, fault: Fault, operation: Operation) -> None:
    """Without its spill tier the daemon is degraded, which is named, and still serves; the tier itself is
    unavailable."""

    async def body(d: Daemon) -> None:
        async with probing(d) as web:
            answer = await ready(web, failed=["spill"])
            assert (answer.status, answer.json["status"]) == (200, "degraded")
            assert answer.json["tiers"]["spill"]["detail"] and answer.json["tiers"]["host"]["ok"]
            assert (await get(web, "/readyz/spill")).status == 503
            d.faulty.resume.set()

    run(body, tmp_path, script=EveryNth(1, fault, [operation]))


def test_a_spill_tier_that_is_down_is_told_at_once(tmp_path: Path) -> None:
    """While the breaker is open nothing is tried, and its reason is told; a tier that is off is 404."""

    async def body(d: Daemon) -> None:
        d.watch.found_down("cable")
        async with probing(d) as web:
            answer = await ready(web, failed=["spill"])
            assert answer.json["status"] == "degraded"
            assert "cable" in answer.json["tiers"]["spill"]["detail"]
            assert (await get(web, "/readyz/hbm")).status == 404
            assert (await get(web, "/readyz/tape")).status == 404

    run(body, tmp_path, hbm_blocks=0, script=EveryNth(1, Fault.DOWN, [Operation.PUT]))


def test_a_full_arena_in_which_room_can_be_made_is_ready(tmp_path: Path) -> None:
    """A full tier whose blocks may be evicted takes newcomers: it is ready, and nothing was evicted to find out."""

    async def body(d: Daemon) -> None:
        await d.namespace()
        session = (await d.session()).number
        await d.store_blocks(session, block_ids(1, 2, 3, 4))
        before = d.service.occupancy()
        async with probing(d) as web:
            assert (await ready(web, failed=[])).json["status"] == "ready"
        assert d.service.occupancy() == before
        check(d.engine)

    run(body, tmp_path, host_blocks=4, hbm_blocks=0)


def test_an_arena_full_of_blocks_in_use_is_not_ready(tmp_path: Path) -> None:
    """A tier in which no block may go takes no put: unavailable, in words; ready again once a lease is released."""

    async def body(d: Daemon) -> None:
        await d.namespace()
        session = (await d.session()).number
        await d.store_blocks(session, block_ids(1, 2, 3, 4))
        lease = (await d.acquire(session, block_ids(1, 2, 3, 4))).lease
        async with probing(d) as web:
            answer = await ready(web, failed=["host"])
            assert answer.status == 503
            assert "full" in answer.json["tiers"]["host"]["detail"]
            await d.release(session, lease)
            await asyncio.sleep(FRESH_S)
            assert (await ready(web, failed=[])).status == 200

    run(body, tmp_path, host_blocks=4, hbm_blocks=0)


def test_a_full_arena_says_that_spill_is_why(tmp_path: Path) -> None:
    """Host is full and spill down within its grace: a put is FULL, and the answer names both."""

    async def body(d: Daemon) -> None:
        await d.namespace()
        session = (await d.session()).number
        await d.store_blocks(session, block_ids(1, 2, 3, 4))
        d.watch.found_down("cable")
        async with probing(d) as web:
            answer = await ready(web, failed=["host", "spill"])
        assert answer.status == 503
        assert "cable" in answer.json["tiers"]["host"]["detail"]

    run(body, tmp_path, host_blocks=4, hbm_blocks=0)


def test_a_canary_that_waits_its_turn_is_no_failure(tmp_path: Path) -> None:
    """Behind a long queue the canary has no answer in time; while blocks get through the tier is said to work,
    and once none does it is not."""

    async def body(d: Daemon) -> None:
        await d.namespace()
        session = (await d.session()).number
        await d.store_blocks(session, block_ids(*range(1, 41)))
        put = d.store.put

        def slow(block: StoredBlock, payload: U8Array, deadline_s: float) -> bool:
            done.wait(pause_s[-1])
            return put(block, payload, deadline_s)

        done, pause_s = threading.Event(), [0.3]
        d.store.put = slow  # type: ignore[method-assign]
        async with probing(d) as web, asyncio.TaskGroup() as group:
            group.create_task(d.evict(block_ids(*range(1, 41)), timeout_ms=20_000))
            await until(lambda: d.service.mover.queued_moves["spill"] > 20)
            assert (await ready(web, "/readyz/spill", failed=[])).status == 200
            pause_s.append(DEADLINE_S)
            assert (await ready(web, "/readyz/spill", failed=["spill"])).status == 503
            done.set()

    run(body, tmp_path)


def test_a_finding_is_told_again_for_a_second(tmp_path: Path) -> None:
    """Many that ask at once cause one canary per tier, and those within a second none."""

    async def body(d: Daemon) -> None:
        async with probing(d) as web:
            await asyncio.gather(*(get(web, "/readyz") for _ in range(20)))
            await ready(web)
            assert 1 <= puts.count <= 2

    puts = Puts()
    run(body, tmp_path, script=puts)


def test_damage_of_a_full_arena_is_found(tmp_path: Path) -> None:
    """Where no slot is free a stored block is read instead: damaged bytes make the tier unavailable."""

    async def body(d: Daemon) -> None:
        await d.namespace()
        session = (await d.session()).number
        await d.store_blocks(session, block_ids(1, 2, 3, 4))
        for view in d.service.list_blocks(ListBlocks(BlockFilter(), 10)).blocks:
            assert view is not None
            d.view(view.copies[0].address)[0] ^= np.uint8(1)
        async with probing(d) as web:
            answer = await ready(web, failed=["host"])
        assert answer.status == 503
        assert "damaged" in answer.json["tiers"]["host"]["detail"]

    run(body, tmp_path, host_blocks=4, hbm_blocks=0)


def test_metrics_are_served(tmp_path: Path) -> None:
    """/metrics answers in Prometheus' format; what is not there is 404."""

    async def body(d: Daemon) -> None:
        await d.admin.Occupancy(apb.OccupancyRequest(), timeout=DEADLINE_S)
        async with probing(d) as web:
            answer = await get(web, "/metrics")
            assert answer.status == 200 and b'tierd_rpcs_total{code="OK",rpc="Occupancy"} 1.0' in answer.body
            assert (await get(web, "/blocks")).status == 404

    run(body, tmp_path)
