"""Store: blocks in slots that were taken ahead, in one call."""

from __future__ import annotations

import asyncio
from pathlib import Path

from rpc_daemon import BLOCK, DEADLINE_S, Daemon, block_ids, identity, payload, run

from tierd.core.messages import Tier
from tierd_client.checks import checksum_of
from tierd_client.v1 import admin_pb2 as apb
from tierd_client.v1 import blocks_pb2 as pb

STORED, EXISTS, FULL, ABSENT = 1, 2, 4, 5


async def store(d: Daemon, session: int, seeds: list[int], slots: list[int], **fields: object) -> pb.StoreResponse:
    """`slots`: generations; the checksums are those of the blocks."""
    request = pb.StoreRequest(
        session=session, blocks=block_ids(*seeds), generations=slots,
        checksums=[checksum_of(payload(identity(seed))) for seed in seeds], **{"slots_max": 100, **fields},
    )
    return await d.blocks.Store(request, timeout=DEADLINE_S)


def write(d: Daemon, reply: pb.StoreResponse, seeds: list[int]) -> list[int]:
    """Writes blocks into the slots of a reply; their generations."""
    for seed, address in zip(seeds, reply.addresses, strict=False):
        d.view(address)[:] = payload(identity(seed))
    return list(reply.generations)[: len(seeds)]


async def stocked(d: Daemon) -> int:
    reply = await d.admin.Occupancy(apb.OccupancyRequest(), timeout=DEADLINE_S)
    await d.check_balance()
    return next(tier.stocked_bytes for tier in reply.tiers if tier.tier == Tier.HOST) // BLOCK


def test_a_second_put_takes_one_call(tmp_path: Path) -> None:
    """The reply that stores blocks brings slots for as many to come, and these are stored without another call."""

    async def body(d: Daemon) -> None:
        await d.namespace()
        session = (await d.session()).number
        asked = await store(d, session, [1, 2], [0, 0])
        assert list(asked.outcomes) == [ABSENT, ABSENT]
        first = await store(d, session, [1, 2], write(d, asked, [1, 2]), further=True, spare_slots=2)
        assert list(first.outcomes) == [STORED, STORED]
        second = await store(d, session, [3, 4], write(d, first, [3, 4]))
        assert list(second.outcomes) == [STORED, STORED]
        lease = await d.acquire(session, block_ids(1, 2, 3, 4))
        for seed, address in zip((1, 2, 3, 4), lease.addresses, strict=True):
            assert (d.view(address) == payload(identity(seed))).all()

    run(body, tmp_path)


def test_what_is_there_is_said_without_a_slot(tmp_path: Path) -> None:
    """A block without a slot that exists is EXISTS; of several only those at `places` are looked at."""

    async def body(d: Daemon) -> None:
        await d.namespace()
        session = (await d.session()).number
        await d.store_blocks(session, block_ids(1))
        assert list((await store(d, session, [1, 2], [0, 0])).outcomes) == [EXISTS, ABSENT]
        request = pb.StoreRequest(
            session=session, blocks=block_ids(2, 1), places=[1], generations=[0], checksums=[0])
        assert list((await d.blocks.Store(request, timeout=DEADLINE_S)).outcomes) == [EXISTS]

    run(body, tmp_path)


def test_slots_of_others_are_asked_back_when_there_is_no_room(tmp_path: Path) -> None:
    """A Reserve that finds all else leased waits, the holder of slots is told in its stream, and what it returns is
    the room."""

    async def body(d: Daemon) -> None:
        await d.namespace()
        holder, other = await d.session(), (await d.session()).number
        asked = await store(d, holder.number, [1, 2], [0, 0])
        await d.store_blocks(other, block_ids(*range(10, 40)))
        lease = await d.acquire(other, block_ids(*range(10, 40)))
        waiting = asyncio.ensure_future(d.reserve(other, block_ids(50), timeout_ms=5000))
        while not (await holder.call.read()).return_stock:
            pass
        await d.blocks.Store(
            pb.StoreRequest(session=holder.number, returned=asked.generations), timeout=DEADLINE_S)
        assert list((await waiting).outcomes) == [pb.RESERVE_OUTCOME_GRANTED]
        assert await d.release(other, lease.lease) == 30
        assert await stocked(d) == 0

    run(body, tmp_path, host_blocks=32)


def test_without_room_a_store_is_full_at_once(tmp_path: Path) -> None:
    """Where everything is leased and nothing can come, an ABSENT block is FULL, without a wait."""

    async def body(d: Daemon) -> None:
        await d.namespace()
        session = (await d.session()).number
        await d.store_blocks(session, block_ids(1, 2, 3, 4))
        await d.acquire(session, block_ids(1, 2, 3, 4))
        assert list((await store(d, session, [5], [0], timeout_ms=60_000)).outcomes) == [FULL]

    run(body, tmp_path, host_blocks=4)


def test_slots_that_were_made_ready_go_back_with_the_session(tmp_path: Path) -> None:
    """What was prepared for a next call that never came is free when the session ends, as all that it held."""

    async def body(d: Daemon) -> None:
        await d.namespace()
        opened = await d.session()
        asked = await store(d, opened.number, [1], [0])
        await store(d, opened.number, [1], write(d, asked, [1]), spare_slots=1)
        while await stocked(d) < 2:
            await asyncio.sleep(0.001)
        opened.call.cancel()
        while await stocked(d):
            await asyncio.sleep(0.001)

    run(body, tmp_path)
