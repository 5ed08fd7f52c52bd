"""Pins, priorities, what comes next, touches and prefetches over the wire."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import grpc
import pytest
from rpc_daemon import BLOCK, DEADLINE_S, Daemon, block_ids, ids_of, run, until

from tierd.core.messages import Tier
from tierd.testing.faulty import Fault, Operation
from tierd_client.v1 import admin_pb2 as apb
from tierd_client.v1 import blocks_pb2 as pb

READY, MISS, PENDING, LOST, EXPIRED = 1, 2, 3, 5, 6


class Switch:
    """A spill store that can be switched off."""

    def __init__(self) -> None:
        self.down = False

    def next(self, operation: Operation) -> Fault:
        return Fault.DOWN if self.down else Fault.NONE


async def stored(d: Daemon, *seeds: int) -> int:
    """A session that has stored these blocks in host; its number."""
    await d.namespace()
    session = (await d.session()).number
    await d.store_blocks(session, block_ids(*seeds))
    return session


async def record(d: Daemon, seed: int) -> apb.BlockRecord:
    reply = await d.admin.DescribeBlock(apb.DescribeBlockRequest(ids=ids_of(seed)), timeout=DEADLINE_S)
    return reply.blocks[0]


async def status(d: Daemon, session: int, ticket: int, timeout_ms: int = 10_000) -> pb.PrefetchResponse:
    request = pb.PrefetchStatusRequest(session=session, ticket=ticket, timeout_ms=timeout_ms)
    return await d.blocks.PrefetchStatus(request, timeout=DEADLINE_S)


def test_pin_and_unpin(tmp_path: Path) -> None:
    """A pinned block is not dropped by Evict, is listed with its time, counted, and free again after Unpin."""

    async def body(d: Daemon) -> None:
        await stored(d, 1, 2)
        pinned = await d.blocks.Pin(pb.PinRequest(blocks=block_ids(1, 9), ttl_ms=60_000), timeout=DEADLINE_S)
        assert (list(pinned.outcomes), pinned.ttl_ms) == ([pb.PIN_OUTCOME_PINNED, pb.PIN_OUTCOME_MISS], 60_000)
        dropped = await d.evict(block_ids(1, 2), None, allow_drop=True)
        assert dropped == [pb.EVICT_OUTCOME_IN_USE, pb.EVICT_OUTCOME_DROPPED]
        assert 50 < (await record(d, 1)).pinned_s <= 60
        listed = apb.ListBlocksRequest(filter=apb.BlockFilter(pinned=True))
        assert [one.identity for one in (await d.admin.ListBlocks(listed)).blocks] == [ids_of(1)]
        found = await d.admin.Occupancy(apb.OccupancyRequest())
        assert (found.pinned_blocks, found.pinned_bytes) == (1, BLOCK) and found.pinned_bytes_max == 1 << 19
        reply = await d.blocks.Unpin(pb.UnpinRequest(blocks=block_ids(1, 2)), timeout=DEADLINE_S)
        assert reply.unpinned_blocks == 1
        assert await d.evict(block_ids(1), None, allow_drop=True) == [pb.EVICT_OUTCOME_DROPPED]

    run(body, tmp_path)


def test_pins_over_their_share_are_resource_exhausted(tmp_path: Path) -> None:
    """More bytes than the share of the lowest tier: RESOURCE_EXHAUSTED naming it, and nothing is pinned."""

    async def body(d: Daemon) -> None:
        await stored(d, 1, 2, 3)
        with pytest.raises(grpc.aio.AioRpcError, match="pin_share") as raised:
            await d.blocks.Pin(pb.PinRequest(blocks=block_ids(1, 2, 3)), timeout=DEADLINE_S)
        assert raised.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert (await d.admin.Occupancy(apb.OccupancyRequest())).pinned_blocks == 0

    run(body, tmp_path, host_blocks=4, hbm_blocks=0, spill=False)


def test_priorities_and_next_uses_are_shown(tmp_path: Path) -> None:
    """What was said of blocks stands in their records and in the terms of their explanation."""

    async def body(d: Daemon) -> None:
        session = await stored(d, 1)
        opened = pb.OpenSequenceRequest(
            session=session, sequence="r", blocks=block_ids(1), priority=pb.PRIORITY_HIGH)
        await d.blocks.OpenSequence(opened, timeout=DEADLINE_S)
        assert (await record(d, 1)).priority == pb.PRIORITY_HIGH
        closed = pb.CloseSequenceRequest(
            session=session, sequence="r", next_use=pb.NEXT_USE_TOOL_CALL, expected_ms=40_000)
        await d.blocks.CloseSequence(closed, timeout=DEADLINE_S)
        found = await record(d, 1)
        assert found.next_use == "soon" and 30 < found.expected_s <= 40
        low = await d.reserve(session, block_ids(2), priority=pb.PRIORITY_LOW)
        assert list(low.outcomes) == [pb.RESERVE_OUTCOME_GRANTED]
        request = apb.ExplainRequest(ids=ids_of(1), tier=pb.TIER_HOST)
        terms = (await d.admin.Explain(request, timeout=DEADLINE_S)).blocks[0].terms
        assert {"standing": 4.0, "priority": 3.0}.items() <= {term.name: term.value for term in terms}.items()

    run(body, tmp_path)


@pytest.mark.parametrize(
    ("reason", "next_use"),
    [("tool_calls", "soon"), ("tool_use", "soon"), ("function_call", "soon"), ("stop", "human"),
     ("end_turn", "human"), ("stop_sequence", "human"), ("length", ""), ("something else", "")],
)
def test_stop_reasons(tmp_path: Path, reason: str, next_use: str) -> None:
    """Why generation ended, in the words of inference servers, tells what comes next; other words tell nothing."""

    async def body(d: Daemon) -> None:
        session = await stored(d, 1)
        await d.blocks.OpenSequence(
            pb.OpenSequenceRequest(session=session, sequence="r", blocks=block_ids(1)), timeout=DEADLINE_S)
        await d.blocks.CloseSequence(
            pb.CloseSequenceRequest(session=session, sequence="r", stop_reason=reason), timeout=DEADLINE_S)
        assert (await record(d, 1)).next_use == next_use

    run(body, tmp_path)


def test_touches(tmp_path: Path) -> None:
    """A touch counts for blocks and ghosts, by the counts given, and tells how many of each it reached."""

    async def body(d: Daemon) -> None:
        session = await stored(d, 1, 2)
        await d.evict(block_ids(2), None, allow_drop=True)
        request = pb.TouchRequest(session=session, blocks=block_ids(1, 2, 3), counts=[2, 1, 5])
        reply = await d.blocks.Touch(request, timeout=DEADLINE_S)
        assert (reply.touched_blocks, reply.touched_ghosts) == (1, 1) and reply.step > 0
        assert ((await record(d, 1)).touches, (await record(d, 2)).touches) == (3, 2)
        plain = await d.blocks.Touch(pb.TouchRequest(session=session, blocks=block_ids(1)), timeout=DEADLINE_S)
        assert (await record(d, 1)).touches == 4 and plain.step == reply.step + 1

    run(body, tmp_path)


def test_a_prefetch_is_waited_for(tmp_path: Path) -> None:
    """Prefetch returns at once with a ticket; a status with a timeout returns as soon as all is there."""

    async def body(d: Daemon) -> None:
        session = await stored(d, *range(1, 41))
        blocks = block_ids(*range(1, 41))
        assert set(await d.evict(blocks)) == {pb.EVICT_OUTCOME_MOVED}
        begun = await d.blocks.Prefetch(
            pb.PrefetchRequest(session=session, blocks=blocks, within_ms=20_000), timeout=DEADLINE_S)
        assert not begun.done and begun.ticket and 19_000 < begun.left_ms <= 20_000
        done = await status(d, session, begun.ticket)
        assert (set(done.outcomes), done.done, done.left_ms) == ({READY}, True, 0)
        assert all(tiers & 2 for tiers in await d.tiers_of(blocks))
        assert list((await d.acquire(session, blocks)).outcomes) == [pb.ACQUIRE_OUTCOME_LEASED] * 40

    run(body, tmp_path)


def test_a_prefetch_that_cannot_go_on_ends_at_its_time(tmp_path: Path) -> None:
    """With the spill tier gone a status waits no longer than its own timeout, nor than the prefetch's deadline."""

    switch = Switch()

    async def body(d: Daemon) -> None:
        session = await stored(d, 1)
        assert await d.evict(block_ids(1)) == [pb.EVICT_OUTCOME_MOVED]
        switch.down = True
        await until(lambda: not d.watch.is_up)
        begun = await d.blocks.Prefetch(
            pb.PrefetchRequest(session=session, blocks=block_ids(1), within_ms=2000), timeout=DEADLINE_S)
        start = time.monotonic()
        soon = await status(d, session, begun.ticket, timeout_ms=100)
        assert list(soon.outcomes) == [PENDING]
        late = await status(d, session, begun.ticket)
        assert (list(late.outcomes), late.done) == ([EXPIRED], True)
        assert time.monotonic() - start < DEADLINE_S / 2

    run(body, tmp_path, script=switch)


def test_a_cancelled_prefetch_is_not_found(tmp_path: Path) -> None:
    """CancelPrefetch says how far it was, and its ticket is unknown from then on, also to who waits for it."""

    async def body(d: Daemon) -> None:
        session = await stored(d, 1)
        begun = await d.blocks.Prefetch(
            pb.PrefetchRequest(session=session, blocks=block_ids(1, 7)), timeout=DEADLINE_S)
        assert list(begun.outcomes) == [READY, MISS] and begun.done
        request = pb.CancelPrefetchRequest(session=session, ticket=begun.ticket)
        assert (await d.blocks.CancelPrefetch(request, timeout=DEADLINE_S)).done
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await status(d, session, begun.ticket)
        assert raised.value.code() is grpc.StatusCode.NOT_FOUND

    run(body, tmp_path)


def test_a_vanished_block_is_lost(tmp_path: Path) -> None:
    """A block that the spill server lost meanwhile is LOST, and the others come up."""

    async def body(d: Daemon) -> None:
        session = await stored(d, 1, 2)
        assert await d.evict(block_ids(1, 2)) == [pb.EVICT_OUTCOME_MOVED] * 2
        del d.store.values[next(key for key in d.store.values if ids_of(1) in key)]
        begun = await d.blocks.Prefetch(
            pb.PrefetchRequest(session=session, blocks=block_ids(1, 2)), timeout=DEADLINE_S)
        assert list((await status(d, session, begun.ticket)).outcomes) == [LOST, READY]

    run(body, tmp_path)


def test_waiting_statuses_do_not_hold_up_the_daemon(tmp_path: Path) -> None:
    """While many statuses wait for a tier that is down, other calls are answered."""

    switch = Switch()

    async def body(d: Daemon) -> None:
        session = await stored(d, 1)
        assert await d.evict(block_ids(1)) == [pb.EVICT_OUTCOME_MOVED]
        switch.down = True
        await until(lambda: not d.watch.is_up)
        tickets = [
            (await d.blocks.Prefetch(pb.PrefetchRequest(session=session, blocks=block_ids(1)))).ticket
            for _ in range(20)
        ]
        waits = asyncio.gather(*(status(d, session, one, timeout_ms=700) for one in tickets))
        for _ in range(5):
            assert await d.acquire(session, block_ids(9)) is not None
        assert not waits.done()
        assert {tuple(reply.outcomes) for reply in await waits} == {(PENDING,)}

    run(body, tmp_path, script=switch)


def test_hbm_that_is_off_means_host(tmp_path: Path) -> None:
    """A prefetch to hbm without an hbm tier brings blocks to host."""

    async def body(d: Daemon) -> None:
        session = await stored(d, 1)
        await d.evict(block_ids(1))
        begun = await d.blocks.Prefetch(
            pb.PrefetchRequest(session=session, blocks=block_ids(1), to=pb.TIER_HBM), timeout=DEADLINE_S)
        assert list((await status(d, session, begun.ticket)).outcomes) == [READY]
        assert (await d.tiers_of(block_ids(1)))[0] & 1 << (Tier.HOST - 1)

    run(body, tmp_path, hbm_blocks=0)
