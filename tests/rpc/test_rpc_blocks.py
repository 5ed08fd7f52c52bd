"""The data plane end to end in one process: each verb, and each outcome that it can have."""

from __future__ import annotations

import asyncio
from pathlib import Path

import grpc
import numpy as np
import pytest
from rpc_daemon import BLOCK, DEADLINE_S, Daemon, block_ids, identity, ids_of, payload, run, until

from tierd.core.messages import Reserve, Tier
from tierd.rpc import convert
from tierd.testing.faulty import Fault, Operation, Scripted
from tierd_client.layout import Layout
from tierd_client.v1 import blocks_pb2 as pb

HBM, HOST, SPILL = 1, 2, 4


def test_written_blocks_are_read_where_they_lie(tmp_path: Path) -> None:
    """What was committed is leased with its bytes, generation, checksum and tier, until its release."""

    async def body(d: Daemon) -> None:
        await d.namespace()
        session = (await d.session()).number
        blocks = block_ids(1, 2, 3, chain=True)
        await d.store_blocks(session, blocks)
        found = await d.blocks.Lookup(pb.LookupRequest(blocks=blocks), timeout=DEADLINE_S)
        assert list(found.presence) == [pb.PRESENCE_READY] * 3
        assert (found.tiers, found.hit_blocks, found.ready_in_ms) == (bytes([HOST] * 3), 3, 0)
        reply = await d.acquire(session, blocks)
        assert list(reply.outcomes) == [pb.ACQUIRE_OUTCOME_LEASED] * 3
        for i, address in enumerate(reply.addresses):
            assert np.array_equal(d.view(address), payload(identity(i + 1)))
        assert reply.tiers == bytes([pb.TIER_HOST] * 3) and all(reply.generations) and all(reply.checksums)
        assert await d.release(session, reply.lease) == 3
        await d.check_balance()

    run(body, tmp_path)


@pytest.mark.parametrize("tier", [Tier.HOST, Tier.SPILL])
def test_an_identity_of_another_namespace_is_a_miss(tmp_path: Path, tier: Tier) -> None:
    """Through another layout's namespace a block is a miss to every verb, cannot be reserved and stays as it is:
    with that layout's size a reader would go on into the next slot, and the books of slots would not add up."""

    async def body(d: Daemon) -> None:
        await d.namespace()
        wide = await d.namespace(Layout.opaque(block_bytes=4 * BLOCK))
        session = (await d.session()).number
        mine, foreign = block_ids(1, 2), block_ids(1, 2, namespace=wide)
        await d.store_blocks(session, mine)
        if tier is Tier.SPILL:
            assert await d.evict(mine) == [pb.EVICT_OUTCOME_MOVED] * 2
        before = await d.tiers_of(mine)
        assert await d.tiers_of(foreign) == [0, 0]
        assert list((await d.acquire(session, foreign)).outcomes) == [pb.ACQUIRE_OUTCOME_MISS] * 2
        assert await d.evict(foreign, None, allow_drop=True) == [pb.EVICT_OUTCOME_MISS] * 2
        assert await d.readmit(foreign) == [pb.READMIT_OUTCOME_MISS] * 2
        opened = pb.OpenSequenceRequest(session=session, sequence="r", blocks=foreign)
        assert (await d.blocks.OpenSequence(opened, timeout=DEADLINE_S)).hit_blocks == 0
        with pytest.raises(grpc.aio.AioRpcError, match="identity 0 is a block of namespace 1") as raised:
            await d.reserve(session, foreign)
        assert raised.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert await d.tiers_of(mine) == before
        await d.check_balance()

    run(body, tmp_path)


def test_nothing_is_visible_before_commit(tmp_path: Path) -> None:
    """A reserved block is no hit, is PENDING to who wants it, and is aborted without a trace."""

    async def body(d: Daemon) -> None:
        await d.namespace()
        session = (await d.session()).number
        blocks = block_ids(1)
        reserved = await d.reserve(session, blocks)
        assert list(reserved.outcomes) == [pb.RESERVE_OUTCOME_GRANTED] and reserved.tier == pb.TIER_HOST
        assert await d.tiers_of(blocks) == [0]
        assert list((await d.acquire(session, blocks)).outcomes) == [pb.ACQUIRE_OUTCOME_PENDING]
        abort = pb.AbortRequest(session=session, ids=blocks.ids, generations=reserved.generations)
        assert list((await d.blocks.Abort(abort)).outcomes) == [pb.ABORT_OUTCOME_ABORTED]
        assert list((await d.blocks.Abort(abort)).outcomes) == [pb.ABORT_OUTCOME_STALE]
        assert list((await d.acquire(session, blocks)).outcomes) == [pb.ACQUIRE_OUTCOME_MISS]
        assert d.service.segments_reserved(session) == frozenset()
        await d.check_balance()

    run(body, tmp_path)


def test_acquire_waits_for_the_writer(tmp_path: Path) -> None:
    """An Acquire of a block that another session is writing gets it as soon as it is committed."""

    async def body(d: Daemon) -> None:
        await d.namespace()
        writer, reader = (await d.session()).number, (await d.session()).number
        blocks = block_ids(1)
        reserved = await d.reserve(writer, blocks)
        waiting = asyncio.ensure_future(d.acquire(reader, blocks, timeout_ms=10_000))
        await until(lambda: d.service.writer._change is not None)
        d.view(reserved.addresses[0])[:] = payload(identity(1))
        commit = pb.CommitRequest(
            session=writer, ids=blocks.ids, generations=reserved.generations, checksums=[7]
        )
        await d.blocks.Commit(commit)
        assert list((await waiting).outcomes) == [pb.ACQUIRE_OUTCOME_LEASED]

    run(body, tmp_path)


def test_reserve_exists_busy_duplicate(tmp_path: Path) -> None:
    """A READY block EXISTS, one that another session writes is BUSY, a repeated id is DUPLICATE."""

    async def body(d: Daemon) -> None:
        await d.namespace()
        one, other = (await d.session()).number, (await d.session()).number
        await d.store_blocks(one, block_ids(1))
        await d.reserve(one, block_ids(2))
        reply = await d.reserve(other, block_ids(1, 2, 3, 3))
        assert list(reply.outcomes) == [
            pb.RESERVE_OUTCOME_EXISTS, pb.RESERVE_OUTCOME_BUSY, pb.RESERVE_OUTCOME_GRANTED,
            pb.RESERVE_OUTCOME_DUPLICATE,
        ]
        assert [bool(a) for a in reply.addresses] == [False, False, True, False]
        assert [bool(g) for g in reply.generations] == [False, False, True, False]
        assert d.service.segments_reserved(other) == {1}

    run(body, tmp_path)


def test_reserve_full_admits_the_leading_part(tmp_path: Path) -> None:
    """When all that stands there is leased the first ids that fit are granted and the rest is FULL."""

    async def body(d: Daemon) -> None:
        await d.namespace()
        session = (await d.session()).number
        await d.store_blocks(session, block_ids(1, 2))
        await d.acquire(session, block_ids(1, 2))
        reply = await d.reserve(session, block_ids(3, 4, 5, chain=True), timeout_ms=100)
        granted, full = pb.RESERVE_OUTCOME_GRANTED, pb.RESERVE_OUTCOME_FULL
        assert list(reply.outcomes) == [granted, granted, full]
        await d.check_balance()

    run(body, tmp_path, host_blocks=4)


def test_reserve_waits_for_room(tmp_path: Path) -> None:
    """A Reserve with time waits until older blocks have been spilled; without time it is PENDING."""

    async def body(d: Daemon) -> None:
        await d.namespace()
        session = (await d.session()).number
        await d.store_blocks(session, block_ids(1, 2, 3, 4))
        reply = await d.reserve(session, block_ids(5, 6))
        assert list(reply.outcomes) == [pb.RESERVE_OUTCOME_PENDING] * 2
        d.faulty.resume.set()
        reply = await d.reserve(session, block_ids(5, 6), timeout_ms=5000)
        assert list(reply.outcomes) == [pb.RESERVE_OUTCOME_GRANTED] * 2
        assert sorted(await d.tiers_of(block_ids(1, 2, 3, 4))) == [HOST, HOST, SPILL, SPILL]
        assert len(d.store.values) == 2

    run(body, tmp_path, host_blocks=4, hbm_blocks=0, script=Scripted([Fault.DELAY] * 2, [Operation.PUT]))


def test_reserve_finds_room_while_the_spill_store_hangs(tmp_path: Path) -> None:
    """Where the next victims were stored ahead, a Reserve without time has their room at once."""

    async def body(d: Daemon) -> None:
        await d.namespace()
        session = (await d.session()).number
        await d.store_blocks(session, block_ids(1, 2, 3, 4))
        await until(lambda: d.service.mover.accepted_moves == 0)
        assert sorted(await d.tiers_of(block_ids(1, 2, 3, 4))) == [HOST, HOST, HOST | SPILL, HOST | SPILL]
        reply = await d.reserve(session, block_ids(5, 6))
        assert list(reply.outcomes) == [pb.RESERVE_OUTCOME_GRANTED] * 2
        assert sorted(await d.tiers_of(block_ids(1, 2, 3, 4))) == [HOST, HOST, SPILL, SPILL]
        d.faulty.resume.set()

    script = Scripted([Fault.NONE] * 2 + [Fault.DELAY] * 4, [Operation.PUT])
    run(body, tmp_path, host_blocks=4, hbm_blocks=0, script=script, spill_ahead=2)


def test_commit_stale(tmp_path: Path) -> None:
    """A commit of another generation, another session or after the abort publishes nothing."""

    async def body(d: Daemon) -> None:
        await d.namespace()
        session, other = (await d.session()).number, (await d.session()).number
        blocks = block_ids(1)
        reserved = await d.reserve(session, blocks)
        right = int(reserved.generations[0])
        for number, generation in ((session, right + 1), (other, right)):
            commit = pb.CommitRequest(session=number, ids=blocks.ids, generations=[generation], checksums=[1])
            assert list((await d.blocks.Commit(commit)).outcomes) == [pb.COMMIT_OUTCOME_STALE]
        assert await d.tiers_of(blocks) == [0]
        commit = pb.CommitRequest(session=session, ids=blocks.ids, generations=[right], checksums=[1])
        assert list((await d.blocks.Commit(commit)).outcomes) == [pb.COMMIT_OUTCOME_COMMITTED]

    run(body, tmp_path)


def test_acquire_promotes(tmp_path: Path) -> None:
    """A spilled block is BELOW, comes up while the caller waits, and has its bytes there."""

    async def body(d: Daemon) -> None:
        await d.namespace()
        session = (await d.session()).number
        blocks = block_ids(1, 2, chain=True)
        await d.store_blocks(session, blocks)
        assert await d.evict(blocks) == [pb.EVICT_OUTCOME_MOVED] * 2
        found = await d.blocks.Lookup(pb.LookupRequest(blocks=block_ids(1, 2, 3)))
        below, miss = pb.PRESENCE_BELOW, pb.PRESENCE_MISS
        assert (list(found.presence), found.hit_blocks) == ([below, below, miss], 2)
        assert found.ready_in_ms > 0
        reply = await d.acquire(session, blocks, timeout_ms=5000)
        assert list(reply.outcomes) == [pb.ACQUIRE_OUTCOME_LEASED] * 2
        assert np.array_equal(d.view(reply.addresses[1]), payload(identity(2)))
        assert await d.tiers_of(blocks) == [HOST | SPILL] * 2

    run(body, tmp_path)


def test_acquire_without_time_starts_the_promotion(tmp_path: Path) -> None:
    """Without time a spilled block is PENDING, not a miss; it is counted once, and is there a little later."""

    async def body(d: Daemon) -> None:
        await d.namespace()
        session = (await d.session()).number
        blocks = block_ids(1)
        await d.store_blocks(session, blocks)
        await d.evict(blocks)
        before = d.engine.state.clock.step
        reply = await d.acquire(session, blocks)
        assert list(reply.outcomes) == [pb.ACQUIRE_OUTCOME_PENDING] and reply.lease == 0
        d.faulty.resume.set()
        reply = await d.acquire(session, blocks, timeout_ms=5000)
        assert list(reply.outcomes) == [pb.ACQUIRE_OUTCOME_LEASED]
        assert d.engine.state.clock.step == before + 2

    run(body, tmp_path, script=Scripted([Fault.DELAY], [Operation.GET]))


def test_waiting_is_one_access(tmp_path: Path) -> None:
    """An Acquire that waits for a promotion is one tick of the request clock and one access to the block."""

    async def body(d: Daemon) -> None:
        await d.namespace()
        session = (await d.session()).number
        await d.store_blocks(session, block_ids(1))
        await d.evict(block_ids(1))
        before = d.engine.state.clock.step
        waiting = asyncio.ensure_future(d.acquire(session, block_ids(1), timeout_ms=10_000))
        await until(lambda: bool(d.faulty.injected[Fault.DELAY]))
        assert d.engine.state.clock.step == before + 1
        d.faulty.resume.set()
        assert list((await waiting).outcomes) == [pb.ACQUIRE_OUTCOME_LEASED]
        assert d.engine.state.clock.step == before + 1
        assert d.service.describe(convert.identities(identity(1), "ids", 1)).blocks[0].record.touches == 2

    run(body, tmp_path, script=Scripted([Fault.DELAY], [Operation.GET]))


@pytest.mark.parametrize("fault", [Fault.VANISHED, Fault.DAMAGED, Fault.CORRUPT])
def test_acquire_lost(fault: Fault, tmp_path: Path) -> None:
    """A block whose spilled bytes are gone or damaged is LOST to who waits and a miss from then on."""

    async def body(d: Daemon) -> None:
        await d.namespace()
        session = (await d.session()).number
        await d.store_blocks(session, block_ids(1, 2))
        await d.evict(block_ids(1, 2))
        reply = await d.acquire(session, block_ids(1), timeout_ms=5000)
        assert list(reply.outcomes) == [pb.ACQUIRE_OUTCOME_LOST] and reply.lease == 0
        assert list((await d.acquire(session, block_ids(1))).outcomes) == [pb.ACQUIRE_OUTCOME_MISS]
        assert await d.tiers_of(block_ids(1, 2)) == [0, SPILL]
        await d.check_balance()

    run(body, tmp_path, script=Scripted([fault], [Operation.GET]))


def test_acquire_full(tmp_path: Path) -> None:
    """A spilled block for which all room above is leased is FULL, and stays where it is."""

    async def body(d: Daemon) -> None:
        await d.namespace()
        session = (await d.session()).number
        await d.store_blocks(session, block_ids(1))
        await d.evict(block_ids(1))
        await d.store_blocks(session, block_ids(2, 3))
        await d.acquire(session, block_ids(2, 3))
        reply = await d.acquire(session, block_ids(1), timeout_ms=200)
        assert list(reply.outcomes) == [pb.ACQUIRE_OUTCOME_FULL]
        assert await d.tiers_of(block_ids(1)) == [SPILL]

    run(body, tmp_path, host_blocks=2, hbm_blocks=0)


def test_release_is_all_or_nothing(tmp_path: Path) -> None:
    """An unknown lease is NOT_FOUND and the known ones of the same call stay."""

    async def body(d: Daemon) -> None:
        await d.namespace()
        session = (await d.session()).number
        await d.store_blocks(session, block_ids(1))
        lease = (await d.acquire(session, block_ids(1))).lease
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await d.release(session, lease, 999)
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND and "999" in str(caught.value.details())
        assert await d.release(session, lease) == 1

    run(body, tmp_path)


def test_evict_each_outcome(tmp_path: Path) -> None:
    """MOVED leaves a copy below, DROPPED leaves none, IN_USE changes nothing, MISS is unknown."""

    async def body(d: Daemon) -> None:
        await d.namespace()
        session = (await d.session()).number
        await d.store_blocks(session, block_ids(1, 2, 3))
        lease = (await d.acquire(session, block_ids(3))).lease
        moved, in_use, miss = pb.EVICT_OUTCOME_MOVED, pb.EVICT_OUTCOME_IN_USE, pb.EVICT_OUTCOME_MISS
        assert await d.evict(block_ids(1, 3, 4)) == [moved, in_use, miss]
        assert await d.tiers_of(block_ids(1, 2, 3)) == [SPILL, HOST, HOST]
        dropped = await d.evict(block_ids(1, 2, 3), None, allow_drop=True)
        assert dropped == [pb.EVICT_OUTCOME_DROPPED, pb.EVICT_OUTCOME_DROPPED, in_use]
        assert await d.tiers_of(block_ids(1, 2, 3)) == [0, 0, HOST]
        await d.release(session, lease)
        await until(lambda: not d.store.values)
        await d.check_balance()

    run(body, tmp_path)


def test_evict_failed(tmp_path: Path) -> None:
    """A move that the server refuses is FAILED and leaves the upper copy."""

    async def body(d: Daemon) -> None:
        await d.namespace()
        session = (await d.session()).number
        await d.store_blocks(session, block_ids(1))
        assert await d.evict(block_ids(1)) == [pb.EVICT_OUTCOME_FAILED]
        assert await d.tiers_of(block_ids(1)) == [HOST]
        await d.check_balance()

    run(body, tmp_path, script=Scripted([Fault.FULL], [Operation.PUT]))


def test_a_block_let_go_by_a_failed_move_is_reported_as_dropped(tmp_path: Path) -> None:
    """With allow_drop, what the server had no room for is DROPPED, also to who waited: not a MISS."""

    async def body(d: Daemon) -> None:
        await d.namespace()
        session = (await d.session()).number
        await d.store_blocks(session, block_ids(1, 2))
        assert await d.evict(block_ids(1, 9), allow_drop=True) == [pb.EVICT_OUTCOME_DROPPED, pb.EVICT_OUTCOME_MISS]
        assert await d.tiers_of(block_ids(1, 2)) == [0, HOST]
        await d.check_balance()

    run(body, tmp_path, script=Scripted([Fault.FULL], [Operation.PUT]))


def test_evict_reports_a_move_that_broke(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A move that failed is told to who waits for it, and is not begun anew behind his back."""

    async def body(d: Daemon) -> None:
        await d.namespace()
        session = (await d.session()).number
        await d.store_blocks(session, block_ids(1), Tier.HBM)
        with monkeypatch.context() as patch:
            patch.setattr(d.arenas[Tier.HOST], "write", _broken)
            assert await d.evict(block_ids(1), Tier.HOST) == [pb.EVICT_OUTCOME_FAILED]
        assert await d.tiers_of(block_ids(1)) == [HBM]
        assert await d.evict(block_ids(1), Tier.HOST) == [pb.EVICT_OUTCOME_MOVED]

    run(body, tmp_path)


def test_no_progress_is_no_hot_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Reserve whose demotions all fail is repeated with growing pauses until its time is over."""

    async def body(d: Daemon) -> None:
        await d.namespace()
        session = (await d.session()).number
        await d.store_blocks(session, block_ids(1, 2), Tier.HBM)
        monkeypatch.setattr(d.arenas[Tier.HOST], "write", _broken)
        asked = []
        step = d.engine.step
        monkeypatch.setattr(d.engine, "step", lambda command, now: (asked.append(command), step(command, now))[1])
        reply = await d.reserve(session, block_ids(3), Tier.HBM, timeout_ms=600)
        assert list(reply.outcomes) == [pb.RESERVE_OUTCOME_PENDING]
        assert 2 <= sum(isinstance(command, Reserve) for command in asked) <= 22
        assert await d.tiers_of(block_ids(1, 2)) == [HBM, HBM]

    run(body, tmp_path, hbm_blocks=2)


def _broken(address: int, data: object) -> None:
    raise OSError("the arena is broken")


def test_evict_pending(tmp_path: Path) -> None:
    """A move that is under way when the time is over is PENDING; asked again it is MOVED."""

    async def body(d: Daemon) -> None:
        await d.namespace()
        session = (await d.session()).number
        await d.store_blocks(session, block_ids(1))
        assert await d.evict(block_ids(1), timeout_ms=0) == [pb.EVICT_OUTCOME_PENDING]
        d.faulty.resume.set()
        assert await d.evict(block_ids(1)) == [pb.EVICT_OUTCOME_MOVED]
        await d.check_balance()

    run(body, tmp_path, script=Scripted([Fault.DELAY], [Operation.PUT]))


def test_evict_may_drop_what_cannot_move(tmp_path: Path) -> None:
    """With allow_drop a block whose move down fails is gone afterwards, and not reported as moved."""

    async def body(d: Daemon) -> None:
        await d.namespace()
        session = (await d.session()).number
        await d.store_blocks(session, block_ids(1))
        outcome = await d.evict(block_ids(1), allow_drop=True)
        assert outcome in ([pb.EVICT_OUTCOME_DROPPED], [pb.EVICT_OUTCOME_MISS])
        assert await d.tiers_of(block_ids(1)) == [0]

    run(body, tmp_path, script=Scripted([Fault.FULL], [Operation.PUT]))


def test_hbm_to_host(tmp_path: Path) -> None:
    """A block written into hbm is leased there, evicts to host with its bytes, and is re-admitted to hbm."""

    async def body(d: Daemon) -> None:
        await d.namespace()
        session = (await d.session()).number
        blocks = block_ids(1)
        await d.store_blocks(session, blocks, Tier.HBM)
        assert await d.evict(blocks, Tier.HOST) == [pb.EVICT_OUTCOME_MOVED]
        assert await d.tiers_of(blocks) == [HOST]
        assert await d.readmit(blocks, Tier.HBM) == [pb.READMIT_OUTCOME_READY]
        assert await d.tiers_of(blocks) == [HBM | HOST]
        reply = await d.acquire(session, blocks)
        assert reply.tiers == bytes([pb.TIER_HBM])
        assert np.array_equal(d.view(reply.addresses[0]), payload(identity(1)))

    run(body, tmp_path)


def test_readmit_each_outcome(tmp_path: Path) -> None:
    """READY, MISS, PENDING without time, LOST when the bytes are gone, FULL when all above is leased."""

    async def body(d: Daemon) -> None:
        await d.namespace()
        session = (await d.session()).number
        await d.store_blocks(session, block_ids(1, 2, 3))
        await d.evict(block_ids(1, 2, 3))
        accesses = d.engine.state.clock.step
        assert await d.readmit(block_ids(1), timeout_ms=0) == [pb.READMIT_OUTCOME_PENDING]
        d.faulty.resume.set()
        ready, miss, lost = pb.READMIT_OUTCOME_READY, pb.READMIT_OUTCOME_MISS, pb.READMIT_OUTCOME_LOST
        assert await d.readmit(block_ids(1, 9)) == [ready, miss]
        assert await d.readmit(block_ids(2)) == [lost]
        assert d.engine.state.clock.step == accesses
        await d.acquire(session, block_ids(1))
        await d.store_blocks(session, block_ids(4, 5))
        await d.acquire(session, block_ids(4, 5))
        assert await d.readmit(block_ids(3), timeout_ms=200) == [pb.READMIT_OUTCOME_FULL]

    script = Scripted([Fault.DELAY, Fault.VANISHED], [Operation.GET])
    run(body, tmp_path, host_blocks=3, hbm_blocks=0, script=script)


def test_sequences_pin_and_observe(tmp_path: Path) -> None:
    """Blocks of an open sequence cannot be evicted; attention reaches their records; closing unpins."""

    async def body(d: Daemon) -> None:
        await d.namespace()
        session = (await d.session()).number
        blocks = block_ids(1, 2, chain=True)
        await d.store_blocks(session, blocks)
        open_ = pb.OpenSequenceRequest(session=session, sequence="r", blocks=blocks)
        opened = await d.blocks.OpenSequence(open_)
        assert (opened.hit_blocks, opened.tiers, opened.step > 0) == (2, bytes([HOST, HOST]), True)
        assert await d.evict(blocks) == [pb.EVICT_OUTCOME_IN_USE] * 2
        mass = np.array([0.5, 0.25], "<f4").tobytes()
        observe = pb.ObserveRequest(session=session, sequence="r", attention=mass, steps=3)
        assert (await d.blocks.Observe(observe)).updated_blocks == 2
        null = pb.ObserveRequest(session=session, sequence="r", steps=1)
        assert (await d.blocks.Observe(null)).updated_blocks == 0
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await d.blocks.OpenSequence(open_)
        assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION
        await d.blocks.CloseSequence(pb.CloseSequenceRequest(session=session, sequence="r"))
        assert await d.evict(blocks) == [pb.EVICT_OUTCOME_MOVED] * 2

    run(body, tmp_path)


def test_stale_policy_epoch(tmp_path: Path) -> None:
    """A report made under another policy is refused, and the session was told the epoch in force."""

    async def body(d: Daemon) -> None:
        await d.namespace()
        session = await d.session()
        blocks = block_ids(1)
        await d.store_blocks(session.number, blocks)
        await d.blocks.OpenSequence(
            pb.OpenSequenceRequest(session=session.number, sequence="r", blocks=blocks)
        )
        epoch = d.service.set_policy("lru").epoch
        assert epoch == session.info.policy_epoch + 1 == (await d.session()).info.policy_epoch
        mass = np.array([0.5], "<f4").tobytes()
        stale = pb.ObserveRequest(
            session=session.number, sequence="r", attention=mass, steps=1, policy_epoch=epoch + 1
        )
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await d.blocks.Observe(stale)
        assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION

    run(body, tmp_path)


def test_waiting_ends_at_the_deadline_of_the_rpc(tmp_path: Path) -> None:
    """A call with a long timeout of its own answers PENDING before the deadline of its RPC passes."""

    async def body(d: Daemon) -> None:
        await d.namespace()
        session = (await d.session()).number
        await d.store_blocks(session, block_ids(1))
        await d.evict(block_ids(1))
        request = pb.AcquireRequest(session=session, blocks=block_ids(1), timeout_ms=60_000)
        reply = await d.blocks.Acquire(request, timeout=1.5)
        assert list(reply.outcomes) == [pb.ACQUIRE_OUTCOME_PENDING]
        d.faulty.resume.set()

    run(body, tmp_path, script=Scripted([Fault.DELAY], [Operation.GET]))


def test_a_client_that_goes_away_keeps_nothing(tmp_path: Path) -> None:
    """What was granted or leased for a call that was cancelled while it waited is given back."""

    async def body(d: Daemon) -> None:
        await d.namespace()
        session = (await d.session()).number
        await d.store_blocks(session, block_ids(1, 2))
        await d.evict(block_ids(2))
        acquire = d.blocks.Acquire(
            pb.AcquireRequest(session=session, blocks=block_ids(1, 2), timeout_ms=10_000)
        )
        await until(lambda: d.service.occupancy().leases == 1)
        acquire.cancel()
        await until(lambda: d.service.occupancy().leases == 0)
        d.faulty.resume.set()
        await d.check_balance()

    run(body, tmp_path, script=Scripted([Fault.DELAY], [Operation.GET]))


def test_a_reserve_that_goes_away_keeps_nothing(tmp_path: Path) -> None:
    """Slots granted to a Reserve that was cancelled while it waited for the rest are free again."""

    async def body(d: Daemon) -> None:
        await d.namespace()
        session = (await d.session()).number
        await d.store_blocks(session, block_ids(1, 2, 3))
        call = d.blocks.Reserve(
            pb.ReserveRequest(session=session, blocks=block_ids(4, 5, chain=True), timeout_ms=10_000)
        )
        await until(lambda: bool(d.faulty.injected[Fault.DELAY]))
        assert await d.tiers_of(block_ids(1, 2, 3)) == [HOST] * 3
        call.cancel()
        held = d.engine.state.sessions.by_number[session]
        await until(lambda: held.held == 0)
        d.faulty.resume.set()
        await d.check_balance()

    run(body, tmp_path, host_blocks=4, hbm_blocks=0, script=Scripted([Fault.DELAY], [Operation.PUT]))


def test_many_ids_in_one_call(tmp_path: Path) -> None:
    """A call with as many ids as the daemon takes promotes all of them within its time."""

    async def body(d: Daemon) -> None:
        await d.namespace()
        session = (await d.session()).number
        blocks = block_ids(*range(1, 201), chain=True)
        await d.store_blocks(session, blocks)
        assert set(await d.evict(blocks)) == {pb.EVICT_OUTCOME_MOVED}
        reply = await d.acquire(session, blocks, timeout_ms=10_000)
        assert set(reply.outcomes) == {pb.ACQUIRE_OUTCOME_LEASED}
        assert len(set(reply.addresses)) == 200
        assert await d.release(session, reply.lease) == 200
        await d.check_balance()

    run(body, tmp_path, host_blocks=200, hbm_blocks=0, spill_bytes=4 << 20)


def test_packed_ids_are_in_order(tmp_path: Path) -> None:
    """Arrays of a reply are parallel to the ids as they were sent."""

    async def body(d: Daemon) -> None:
        await d.namespace()
        session = (await d.session()).number
        await d.store_blocks(session, block_ids(5, 6))
        reply = await d.acquire(session, block_ids(6, 9, 5))
        leased, miss = pb.ACQUIRE_OUTCOME_LEASED, pb.ACQUIRE_OUTCOME_MISS
        assert list(reply.outcomes) == [leased, miss, leased]
        assert np.array_equal(d.view(reply.addresses[0]), payload(identity(6)))
        assert reply.addresses[1] == reply.generations[1] == reply.checksums[1] == 0
        assert len(ids_of(6, 9, 5)) == 96

    run(body, tmp_path)
