"""Calls that their callers turn away from, and blocks that callers found damaged."""

from __future__ import annotations

import asyncio
from pathlib import Path

import grpc
import numpy as np
import pytest
from rpc_daemon import BLOCK, DEADLINE_S, Daemon, block_ids, run, until

from tierd.core import messages as m
from tierd.testing.faulty import Fault, Operation, Scripted
from tierd_client.v1 import admin_pb2 as apb
from tierd_client.v1 import blocks_pb2 as pb


async def give_up(d: Daemon, session: int, call: int) -> int:
    request = pb.GiveUpRequest(session=session, call=call)
    return int((await d.blocks.GiveUp(request, timeout=DEADLINE_S)).released_blocks)


async def leased_and_reserved(d: Daemon) -> tuple[int, int]:
    host = (await d.admin.Occupancy(apb.OccupancyRequest(), timeout=DEADLINE_S)).tiers[1]
    assert host.tier == pb.TIER_HOST
    return host.leased_blocks, host.reserved_bytes // BLOCK


def test_what_an_unheard_call_took_is_given_back(tmp_path: Path) -> None:
    """Giving up a Reserve or an Acquire by its number frees what it took, once, and nothing of another call."""

    async def body(d: Daemon) -> None:
        await d.namespace()
        session = (await d.session()).number
        await d.store_blocks(session, block_ids(1, 2))
        await d.reserve(session, block_ids(3, 4, 5), call=1)
        await d.acquire(session, block_ids(1, 2), call=2)
        await d.reserve(session, block_ids(6), call=3)
        assert await leased_and_reserved(d) == (2, 4)
        assert await give_up(d, session, 1) == 3
        assert await give_up(d, session, 2) == 2
        assert await leased_and_reserved(d) == (0, 1)
        assert [await give_up(d, session, call) for call in (1, 2, 99)] == [0, 0, 0]
        granted = await d.reserve(session, block_ids(3, 4, 5))
        assert set(granted.outcomes) == {pb.RESERVE_OUTCOME_GRANTED}
        await d.check_balance()

    run(body, tmp_path)


def test_a_call_that_was_used_up_gives_nothing_back(tmp_path: Path) -> None:
    """Giving up a Reserve that was committed, or an Acquire that was released, changes nothing."""

    async def body(d: Daemon) -> None:
        await d.namespace()
        session = (await d.session()).number
        reserved = await d.reserve(session, block_ids(1), call=7)
        commit = pb.CommitRequest(
            session=session, ids=block_ids(1).ids, generations=reserved.generations, checksums=[0],
            tier=pb.TIER_HOST)
        await d.blocks.Commit(commit, timeout=DEADLINE_S)
        leased = await d.acquire(session, block_ids(1), call=8)
        await d.release(session, leased.lease)
        assert [await give_up(d, session, call) for call in (7, 8)] == [0, 0]
        assert await d.tiers_of(block_ids(1)) == [2]
        await d.check_balance()

    run(body, tmp_path)


def test_a_call_that_waits_or_comes_late_takes_nothing(tmp_path: Path) -> None:
    """An Acquire given up while it waits for a promotion, and a call that arrives after it was given up, are
    refused and hold nothing."""

    async def body(d: Daemon) -> None:
        await d.namespace()
        session = (await d.session()).number
        await d.store_blocks(session, block_ids(1))
        await d.evict(block_ids(1))
        waiting = asyncio.ensure_future(d.acquire(session, block_ids(1), call=5, timeout_ms=10_000))
        calls = d.service.sessions.require(session).calls
        await until(lambda: 5 in calls._known)
        assert await give_up(d, session, 5) == 0
        await refused(waiting, "call 5 was given up")
        assert await give_up(d, session, 6) == 0
        await refused(d.reserve(session, block_ids(21), call=6), "call 6 was given up")
        await refused(d.acquire(session, block_ids(1), call=6), "call 6 was given up")
        assert await leased_and_reserved(d) == (0, 0)
        await d.check_balance()

    run(body, tmp_path, script=Scripted([Fault.DELAY], [Operation.GET]))


async def refused(call: object, why: str) -> None:
    with pytest.raises(grpc.aio.AioRpcError, match=why) as raised:
        await call  # type: ignore[misc]
    assert raised.value.code() is grpc.StatusCode.FAILED_PRECONDITION


def test_a_number_names_one_call(tmp_path: Path) -> None:
    """A second call under a number is refused, whatever became of the first; 0 is no number."""

    async def body(d: Daemon) -> None:
        await d.namespace()
        session, other = (await d.session()).number, (await d.session()).number
        await d.reserve(session, block_ids(1), call=1)
        await refused(d.reserve(session, block_ids(2), call=1), "call 1 is not new")
        await d.reserve(other, block_ids(2), call=1)
        for seed in (3, 4):
            await d.reserve(session, block_ids(seed))
        with pytest.raises(grpc.aio.AioRpcError, match="call: 0"):
            await give_up(d, session, 0)

    run(body, tmp_path)


def test_a_cancelled_reserve_leaves_nothing_behind(tmp_path: Path) -> None:
    """Whenever a Reserve is cancelled on its way, giving it up afterwards leaves no slot reserved."""

    async def body(d: Daemon) -> None:
        await d.namespace()
        session = (await d.session()).number
        for call in range(1, 41):
            reserving = asyncio.ensure_future(d.reserve(session, block_ids(call), call=call))
            await asyncio.sleep(call % 8 * 0.0003)
            reserving.cancel()
            await asyncio.gather(reserving, return_exceptions=True)
            await give_up(d, session, call)
        await until(lambda: not d.service.sessions.require(session).reserved)
        assert await leased_and_reserved(d) == (0, 0)
        await d.check_balance()

    run(body, tmp_path)


def test_damage_is_looked_at_before_it_is_believed(tmp_path: Path) -> None:
    """Of the blocks that a caller reports, the damaged copies are dropped; intact ones stay, whatever it says."""

    async def body(d: Daemon) -> None:
        await d.namespace()
        session = (await d.session()).number
        await d.store_blocks(session, block_ids(1, 2, 3))
        view = d.service.describe(np.frombuffer(block_ids(2).ids, np.uint8).reshape(-1, 32)).blocks[0]
        assert isinstance(view, m.BlockView)
        d.view(view.copies[0].address)[7] ^= np.uint8(1)
        request = pb.ReportDamageRequest(session=session, blocks=block_ids(1, 2, 9), timeout_ms=5000)
        reply = await d.blocks.ReportDamage(request, timeout=DEADLINE_S)
        assert (reply.damaged_blocks, reply.intact_blocks) == (1, 1)
        assert await d.tiers_of(block_ids(1, 2, 3)) == [2, 0, 2]
        request.session = 12345
        with pytest.raises(grpc.aio.AioRpcError, match="12345"):
            await d.blocks.ReportDamage(request, timeout=DEADLINE_S)
        await d.check_balance()

    run(body, tmp_path)
