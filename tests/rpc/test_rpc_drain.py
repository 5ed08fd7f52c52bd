"""Drain: what lies in memory alone is stored in the spill tier, with progress, a rate, a deadline and an end."""

from __future__ import annotations

import time
from pathlib import Path

import grpc
import pytest
from rpc_daemon import BLOCK, DEADLINE_S, Daemon, block_ids, identity, run, until

from tierd.core.invariants import check
from tierd.core.messages import Tier
from tierd.ports import StoredBlock
from tierd.testing.faulty import EveryNth, Fault, Operation
from tierd_client.format import U8Array
from tierd_client.v1 import admin_pb2 as apb
from tierd_client.v1 import blocks_pb2 as pb

RUNNING = apb.DRAIN_STATE_RUNNING


async def drained(d: Daemon, **fields: object) -> list[apb.DrainProgress]:
    """All that a drain says, to its end."""
    return [part async for part in d.admin.Drain(apb.DrainRequest(**fields), timeout=DEADLINE_S)]


def figures(part: apb.DrainProgress) -> tuple[int, ...]:
    return (part.stored_blocks, part.stored_bytes, part.total_blocks, part.held_blocks, part.failed_blocks)


def test_drain_stores_everything_and_takes_nothing_away(tmp_path: Path) -> None:
    """After a drain each block of host and hbm lies in the spill tier too, and nowhere less; its bytes are served
    when memory has lost it; progress only grows and its last message says DONE."""

    async def body(d: Daemon) -> None:
        await d.namespace()
        session = (await d.session()).number
        await d.store_blocks(session, block_ids(*range(1, 33)))
        await d.store_blocks(session, block_ids(40, 41), Tier.HBM)
        await d.evict(block_ids(1, 2))
        parts = await drained(d)
        assert [part.state for part in parts] == [RUNNING] * (len(parts) - 1) + [apb.DRAIN_STATE_DONE]
        assert figures(parts[-1]) == (32, 32 * BLOCK, 32, 2, 0)
        stored = [part.stored_blocks for part in parts]
        assert stored == sorted(stored) and stored[0] == 0
        assert await d.tiers_of(block_ids(1, *range(3, 33))) == [4, *[6] * 30]
        assert await d.tiers_of(block_ids(40, 41)) == [5, 5]
        where = apb.BlockFilter(tier=pb.TIER_HOST)
        await d.admin.Clear(apb.ClearRequest(filter=where), timeout=DEADLINE_S)
        found = await d.acquire(session, block_ids(*range(3, 33)), timeout_ms=5000)
        assert set(found.outcomes) == {pb.ACQUIRE_OUTCOME_LEASED}
        check(d.engine)

    run(body, tmp_path)


def test_drain_is_no_access_and_moves_nobody(tmp_path: Path) -> None:
    """Records are as before; leased blocks are stored too, and stay leased; a second drain finds nothing to do."""

    async def body(d: Daemon) -> None:
        await d.namespace()
        session = (await d.session()).number
        await d.store_blocks(session, block_ids(1, 2, 3))
        await d.acquire(session, block_ids(1))
        request = apb.DescribeBlockRequest(ids=block_ids(1, 2, 3).ids)
        before = (await d.admin.DescribeBlock(request, timeout=DEADLINE_S)).blocks
        await drained(d)
        after = (await d.admin.DescribeBlock(request, timeout=DEADLINE_S)).blocks
        assert [(b.touches, b.ema, b.last_step) for b in after] == [(b.touches, b.ema, b.last_step) for b in before]
        assert await d.tiers_of(block_ids(1, 2, 3)) == [6, 6, 6]
        assert figures((await drained(d))[-1]) == (0, 0, 0, 3, 0)
        await d.check_balance()

    run(body, tmp_path)


def test_drain_by_filter(tmp_path: Path) -> None:
    """Only what the filter takes is stored."""

    async def body(d: Daemon) -> None:
        await d.namespace()
        session = (await d.session()).number
        await d.store_blocks(session, block_ids(1, 2))
        await d.store_blocks(session, block_ids(3), Tier.HBM)
        assert (await drained(d, filter=apb.BlockFilter(tier=pb.TIER_HBM)))[-1].total_blocks == 1
        assert await d.tiers_of(block_ids(1, 2, 3)) == [2, 2, 5]
        await drained(d, filter=apb.BlockFilter(identity_prefix=identity(2)))
        assert await d.tiers_of(block_ids(1, 2, 3)) == [2, 6, 5]

    run(body, tmp_path)


def test_a_full_spill_tier_keeps_the_best(tmp_path: Path) -> None:
    """Into a spill tier of ten blocks a drain of twenty stores the ten used last, in place of older ones, and ends
    FULL: it throws out nothing that it stored."""

    async def body(d: Daemon) -> None:
        await d.namespace()
        session = (await d.session()).number
        for seed in range(50, 60):
            await d.store_blocks(session, block_ids(seed))
            await d.evict(block_ids(seed))
        for seed in range(1, 21):
            await d.store_blocks(session, block_ids(seed))
        writes = d.faulty.injected[Fault.NONE]
        last = (await drained(d))[-1]
        assert (last.state, last.stored_blocks, last.failed_blocks) == (apb.DRAIN_STATE_FULL, 10, 0)
        assert await d.tiers_of(block_ids(*range(1, 21))) == [2] * 10 + [6] * 10
        assert await d.tiers_of(block_ids(*range(50, 60))) == [0] * 10
        assert d.faulty.injected[Fault.NONE] - writes < 60
        check(d.engine)

    run(body, tmp_path, spill_bytes=10 * BLOCK)


def test_older_blocks_do_not_take_the_place_of_newer_ones(tmp_path: Path) -> None:
    """What is worth less than all that a full spill tier holds is left where it is, and nothing is thrown out."""

    async def body(d: Daemon) -> None:
        await d.namespace()
        session = (await d.session()).number
        for seed in range(1, 6):
            await d.store_blocks(session, block_ids(seed))
        for seed in range(50, 60):
            await d.store_blocks(session, block_ids(seed))
            await d.evict(block_ids(seed))
        last = (await drained(d))[-1]
        assert (last.state, last.stored_blocks, last.total_blocks) == (apb.DRAIN_STATE_FULL, 0, 5)
        assert await d.tiers_of(block_ids(*range(50, 60))) == [4] * 10

    run(body, tmp_path, spill_bytes=10 * BLOCK)


def test_rate(tmp_path: Path) -> None:
    """A rate bounds the bytes that are stored in a second."""

    async def body(d: Daemon) -> None:
        await d.namespace()
        session = (await d.session()).number
        await d.store_blocks(session, block_ids(*range(1, 33)))
        began = time.monotonic()
        parts = await drained(d, bytes_per_s=32 * BLOCK)
        assert figures(parts[-1])[0] == 32 and len(parts) >= 3
        assert time.monotonic() - began >= 0.4

    run(body, tmp_path)


def test_deadline(tmp_path: Path) -> None:
    """At its deadline a drain ends in order, with what is stored by then."""

    async def body(d: Daemon) -> None:
        await d.namespace()
        session = (await d.session()).number
        await d.store_blocks(session, block_ids(*range(1, 33)))
        began = time.monotonic()
        last = (await drained(d, bytes_per_s=4 * BLOCK, timeout_s=1))[-1]
        assert last.state == apb.DRAIN_STATE_DEADLINE and 0 < last.stored_blocks < 32
        assert 0.9 < time.monotonic() - began < DEADLINE_S / 2
        assert (await drained(d))[-1].state == apb.DRAIN_STATE_DONE

    run(body, tmp_path)


def test_cancel_and_one_at_a_time(tmp_path: Path) -> None:
    """While a drain is under way another is refused; once its reader has gone away it has ended, and another may
    begin."""

    async def body(d: Daemon) -> None:
        await d.namespace()
        session = (await d.session()).number
        await d.store_blocks(session, block_ids(*range(1, 33)))
        slow = d.admin.Drain(apb.DrainRequest(bytes_per_s=BLOCK), timeout=DEADLINE_S)
        assert (await slow.read()).state == RUNNING
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await drained(d)
        assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION
        assert "under way" in (refused.value.details() or "")
        slow.cancel()
        await until(lambda: not d.service._is_draining)
        last = (await drained(d))[-1]
        assert last.state == apb.DRAIN_STATE_DONE and last.stored_blocks + last.held_blocks == 32

    run(body, tmp_path)


def test_stores_that_fail_are_counted(tmp_path: Path) -> None:
    """A block whose store fails is counted as failed and not tried again; the others are stored."""

    async def body(d: Daemon) -> None:
        await d.namespace()
        session = (await d.session()).number
        await d.store_blocks(session, block_ids(*range(1, 9)))
        put = d.store.put

        def failing(block: StoredBlock, payload: U8Array, deadline_s: float) -> bool:
            if block.identity in (identity(3), identity(4)):
                raise RuntimeError("injected")
            return put(block, payload, deadline_s)

        d.store.put = failing  # type: ignore[method-assign]
        last = (await drained(d))[-1]
        d.store.put = put  # type: ignore[method-assign]
        assert (last.state, last.stored_blocks, last.failed_blocks) == (apb.DRAIN_STATE_DONE, 6, 2)
        assert sorted(await d.tiers_of(block_ids(*range(1, 9)))) == [2, 2, 6, 6, 6, 6, 6, 6]
        assert (await drained(d))[-1].stored_blocks == 2

    run(body, tmp_path)


def test_spill_tier_that_goes_down(tmp_path: Path) -> None:
    """A spill tier that goes down ends the drain, in words of the protocol; while it is down none begins."""

    async def body(d: Daemon) -> None:
        await d.namespace()
        session = (await d.session()).number
        await d.store_blocks(session, block_ids(*range(1, 9)))
        assert (await drained(d))[-1].state == apb.DRAIN_STATE_DOWN
        with pytest.raises(grpc.aio.AioRpcError, match="spill tier is down: injected") as refused:
            await drained(d)
        assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION
        assert set(await d.tiers_of(block_ids(*range(1, 9)))) == {2}

    run(body, tmp_path, script=EveryNth(1, Fault.DOWN, [Operation.PUT]))


def test_without_a_spill_tier(tmp_path: Path) -> None:
    """Where the spill tier is off there is nothing to drain to: INVALID_ARGUMENT; so is a timeout of too long."""

    async def body(d: Daemon) -> None:
        for fields, said in (({}, "off"), ({"timeout_s": 90_000}, "timeout_s: 90000")):
            with pytest.raises(grpc.aio.AioRpcError, match=said) as refused:
                await drained(d, **fields)
            assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT

    run(body, tmp_path, spill=False)
