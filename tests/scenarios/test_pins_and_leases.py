"""What users of other systems met with pins, leases and reservations; docs/field-reports.md, section C."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from block_pattern import pattern, wrong_bytes
from engine_driver import BLOCK, SESSION, Driver, ids_of
from rpc_daemon import DEADLINE_S, Daemon, block_ids, identity, payload, run, until

from tierd.app.carrier import checksum_of
from tierd.core import messages as m
from tierd.core.errors import NotFound
from tierd.testing.serve import StartDaemon
from tierd_client import Client, EvictOutcome, Layout, PutOutcome
from tierd_client.v1 import admin_pb2 as apb
from tierd_client.v1 import blocks_pb2 as pb

SIZE = 64 << 10
OTHER = 8
"""A second session of an engine."""


async def occupancy(d: Daemon) -> apb.OccupancyResponse:
    await d.check_balance()
    return await d.admin.Occupancy(apb.OccupancyRequest(), timeout=DEADLINE_S)


async def fill_host(d: Daemon, session: int, numbers: range) -> None:
    """Stores blocks one by one, so that each may have to make room."""
    for number in numbers:
        await d.store_blocks(session, block_ids(number))


# --- nobody forgets to unpin -------------------------------------------------------------------------


def test_a_thousand_lookups_hold_nothing(tmp_path: Path) -> None:
    """Lookups of blocks that are never read pin nothing: afterwards all of host can be filled with other blocks."""

    async def body(d: Daemon) -> None:
        await d.namespace()
        session = (await d.session()).number
        await d.store_blocks(session, block_ids(1, 2, 3, 4))
        await d.evict(block_ids(1, 2))
        for _ in range(500):
            assert len(await d.tiers_of(block_ids(1, 2, 3, 4))) == 4
            chains = pb.LookupChainsRequest(chains=[block_ids(1, 2, 3, 4, chain=True)])
            assert (await d.blocks.LookupChains(chains, timeout=DEADLINE_S)).hit_tokens == 4
        found = await occupancy(d)
        assert (found.leases, found.moves_in_flight, found.tiers[1].evictable_blocks) == (0, 0, 2)
        await fill_host(d, session, range(10, 14))
        assert await d.tiers_of(block_ids(*range(10, 14))) == [2] * 4

    run(body, tmp_path, host_blocks=4, hbm_blocks=4)


@pytest.mark.parametrize("end", ["stream", "detach"])
def test_what_a_client_never_released_ends_with_it(tmp_path: Path, end: str) -> None:
    """Leases, reservations and open sequences that a client left behind are free when it is gone, also those of
    blocks that were still on their way up; another client's lease on the same block stays."""

    async def body(d: Daemon) -> None:
        await d.namespace()
        careless, other = await d.session("careless"), (await d.session()).number
        await d.store_blocks(other, block_ids(1, 2, 3))
        await d.evict(block_ids(3))
        await d.acquire(careless.number, block_ids(1, 2, 3))
        kept = await d.acquire(other, block_ids(1))
        await d.reserve(careless.number, block_ids(4, 5))
        opening = pb.OpenSequenceRequest(session=careless.number, sequence="s", blocks=block_ids(2))
        await d.blocks.OpenSequence(opening, timeout=DEADLINE_S)
        if end == "stream":
            careless.call.cancel()
        else:
            request = pb.DetachRequest(session=careless.number, token=careless.info.token)
            await d.blocks.Detach(request, timeout=DEADLINE_S)
        await until(lambda: d.service.occupancy().sessions == 1)
        await until(lambda: d.service.occupancy().moves_in_flight == 0)
        found = await occupancy(d)
        assert (found.leases, found.sequences) == (1, 0)
        assert sum(tier.reserved_bytes + tier.quarantined_bytes for tier in found.tiers) == 0
        outcomes = await d.evict(block_ids(1, 2, 3), None, allow_drop=True)
        assert outcomes == [pb.EVICT_OUTCOME_IN_USE] + [pb.EVICT_OUTCOME_DROPPED] * 2
        assert await d.release(other, kept.lease) == 1

    run(body, tmp_path, heartbeat_ms=100)


# --- a lease is one lease ----------------------------------------------------------------------------


def test_each_acquire_of_one_request_is_a_lease_of_its_own(tmp_path: Path) -> None:
    """Five concurrent Acquires under one sequence name have five leases; releasing one leaves four, and the
    block may go only after the last one and the sequence."""

    async def body(d: Daemon) -> None:
        await d.namespace()
        session = (await d.session()).number
        await d.store_blocks(session, block_ids(1))
        opening = pb.OpenSequenceRequest(session=session, sequence="r", blocks=block_ids(1))
        await d.blocks.OpenSequence(opening, timeout=DEADLINE_S)
        replies = await asyncio.gather(*(d.acquire(session, block_ids(1), sequence="r") for _ in range(5)))
        leases = {reply.lease for reply in replies}
        assert len(leases) == 5
        for left in range(4, -1, -1):
            assert await d.release(session, leases.pop()) == 1
            assert (await occupancy(d)).leases == left
            assert await d.evict(block_ids(1)) == [pb.EVICT_OUTCOME_IN_USE]
        closing = pb.CloseSequenceRequest(session=session, sequence="r")
        await d.blocks.CloseSequence(closing, timeout=DEADLINE_S)
        assert await d.evict(block_ids(1)) == [pb.EVICT_OUTCOME_MOVED]

    run(body, tmp_path)


async def refused(call: Any) -> grpc.StatusCode:
    """The status of a call that must fail."""
    with pytest.raises(grpc.aio.AioRpcError) as failed:
        await call
    return failed.value.code()


def test_nobody_releases_what_another_holds(tmp_path: Path) -> None:
    """A lease of another session, one that was released, and one that never was are NOT_FOUND, also beside
    one's own, and nothing is released by such a call; under pressure the block stays until its holder lets it
    go."""

    async def body(d: Daemon) -> None:
        await d.namespace()
        holder, other = [(await d.session()).number for _ in range(2)]
        await d.store_blocks(holder, block_ids(1, 2))
        held = (await d.acquire(holder, block_ids(1))).lease
        own = (await d.acquire(other, block_ids(2))).lease
        for lease in (held, held + 1_000, 2**63):
            assert await refused(d.release(other, lease)) is grpc.StatusCode.NOT_FOUND
            assert await refused(d.release(other, own, lease)) is grpc.StatusCode.NOT_FOUND
        assert await d.release(other, own) == 1
        assert await refused(d.release(other, own)) is grpc.StatusCode.NOT_FOUND
        assert (await occupancy(d)).leases == 1
        await fill_host(d, other, range(10, 20))
        assert await d.tiers_of(block_ids(1)) == [2]
        assert await d.evict(block_ids(1), None, allow_drop=True) == [pb.EVICT_OUTCOME_IN_USE]
        assert await d.release(holder, held, held) == 1
        await fill_host(d, other, range(20, 24))
        assert await d.tiers_of(block_ids(1)) == [4]

    run(body, tmp_path, host_blocks=4, hbm_blocks=0)


def test_nobody_finishes_what_another_writes(tmp_path: Path) -> None:
    """Commit and Abort of another session's reservation, of one's own that is over, or under another identity are
    STALE and publish nothing; the owner's own commit counts, once."""

    async def body(d: Daemon) -> None:
        await d.namespace()
        owner, other = [(await d.session()).number for _ in range(2)]
        ids, data = identity(1), payload(identity(1))
        granted = await d.reserve(owner, block_ids(1))
        d.view(granted.addresses[0])[:] = data
        (generation,) = granted.generations

        async def commit(session: int, name: bytes, number: int) -> int:
            request = pb.CommitRequest(
                session=session, ids=name, generations=[number], checksums=[checksum_of(data)], tier=pb.TIER_HOST)
            return int((await d.blocks.Commit(request, timeout=DEADLINE_S)).outcomes[0])

        async def abort(session: int) -> int:
            request = pb.AbortRequest(session=session, ids=ids, generations=[generation], tier=pb.TIER_HOST)
            return int((await d.blocks.Abort(request, timeout=DEADLINE_S)).outcomes[0])

        stale = pb.COMMIT_OUTCOME_STALE
        assert await commit(other, ids, generation) == stale
        assert await abort(other) == pb.ABORT_OUTCOME_STALE
        assert await commit(owner, identity(2), generation) == stale
        assert await commit(owner, ids, generation + 1) == stale
        assert await d.tiers_of(block_ids(1, 2)) == [0, 0]
        assert await commit(owner, ids, generation) == pb.COMMIT_OUTCOME_COMMITTED
        assert [await commit(owner, ids, generation), await abort(owner)] == [stale, pb.ABORT_OUTCOME_STALE]
        assert await d.tiers_of(block_ids(1)) == [2]
        assert (await occupancy(d)).tiers[1].reserved_bytes == 0

    run(body, tmp_path)


# --- slow readers, late writers ----------------------------------------------------------------------


def test_a_reader_may_take_its_time(daemon: StartDaemon) -> None:
    """Blocks that a client reads slowly in place keep their bytes while others fill the tier over and over,
    drop and clear all they can, and while the daemon is killed and started again; afterwards they may go."""
    server = daemon(host_bytes=8 * SIZE)
    with Client(server.address) as reader, Client(server.address) as other:
        layout = Layout.opaque(block_bytes=SIZE)
        ns, theirs = reader.namespace(layout), other.namespace(layout)
        ids = [b"read-%d" % number for number in range(3)]
        assert ns.put(ids, [pattern(n, SIZE) for n in range(3)]) == [PutOutcome.STORED] * 3
        lease = ns.acquire(ids)
        for restart in (False, True, False):
            if restart:
                server.restart()
            for number in range(100, 112):
                theirs.put([b"other-%d" % number], [pattern(number, SIZE)])
            assert set(theirs.evict(ids, to=None, allow_drop=True)) == {EvictOutcome.IN_USE}
            other.admin.clear()
            assert ns.lookup(ids).prefix == 3
            assert [wrong_bytes(view, n) for n, view in enumerate(lease.arrays())] == [0] * 3
        lease.release()
        assert set(theirs.evict(ids, to=None, allow_drop=True)) == {EvictOutcome.DROPPED}


def test_a_writer_that_comes_late_hits_nobody(tmp_path: Path) -> None:
    """The slots of a client whose connection is gone and whose process lives are given to nobody, so that what
    it still writes is in no block, and is no block itself; when the process is dead they are used again."""

    async def body(d: Daemon) -> None:
        await d.namespace()
        late, other = await d.session("late"), (await d.session()).number
        d.service.bind_process(late.number, late.info.token, 4242, 77)
        granted = await d.reserve(late.number, block_ids(1, 2))
        late.call.cancel()
        await d.session()
        await fill_host(d, other, range(10, 16))
        for address in granted.addresses:
            d.view(address)[:] = 0xEE
        reply = await d.acquire(other, block_ids(1, 2, *range(10, 16)), timeout_ms=500)
        assert not any(reply.addresses[:2])
        assert await d.tiers_of(block_ids(1, 2)) == [0, 0]
        for number, address in zip(range(10, 16), reply.addresses[2:], strict=True):
            assert not address or np.array_equal(d.view(address), payload(identity(number)))
        await d.release(other, reply.lease)
        d.service.process_ended(late.number)
        assert (await occupancy(d)).tiers[0].quarantined_bytes == 0
        await d.store_blocks(other, block_ids(1, 2, 3, 4))

    run(body, tmp_path, host_blocks=4, hbm_blocks=0)


# --- time ends pins, not data; and ends no lease -----------------------------------------------------


@pytest.mark.parametrize("spill", [0, 8])
def test_a_lease_waits_in_a_queue_as_long_as_it_must(spill: int) -> None:
    """However late a request reads what it leased, it is there with its bytes' checksum, counted as no miss,
    and can be leased again; nothing that happened meanwhile took it."""
    driver = Driver(host=2, spill=spill)
    driver.put([0, 1], checksum=77)
    lease = driver.acquire([0])
    for day in range(30):
        driver.now += 86_400.0
        driver.reserve(ids_of([10 + day]))
        driver.carry_out()
        driver.put([10 + day])
    again = driver.acquire([0])
    assert again.outcomes.tolist() == [m.Acquired.LEASED]
    assert (again.addresses[0], again.generations[0]) == (lease.addresses[0], lease.generations[0])
    assert again.checksums[0] == 77 and driver.engine.state.misses == 0
    driver.release(lease)
    driver.release(again)
    driver.reserve(ids_of([90, 91]))
    driver.carry_out()
    driver.put([90, 91])
    assert m.Tier.HOST not in driver.tiers(0)


def test_reading_does_not_prolong_a_pin() -> None:
    """A pin of one second has ended after one second, however often its block is read before and after; then the
    block competes by rank again. Pinning it anew counts."""
    driver = Driver(host=2)
    driver.put([0])
    driver.put([1])
    driver.step(m.Pin(ids_of([0]), 1.0))
    driver.now += 0.5
    driver.release(driver.acquire([0]))
    driver.release(driver.acquire([1]))
    assert _pinned_s(driver, 0) == pytest.approx(0.5)
    assert driver.put([2]) == [m.Reserved.GRANTED]
    assert driver.present() == [0, 2], "pinned, it stays although it was used longer ago"
    driver.now += 0.6
    driver.release(driver.acquire([0]))
    driver.release(driver.acquire([2]))
    assert _pinned_s(driver, 0) == 0
    assert driver.put([3]) == [m.Reserved.GRANTED]
    assert driver.present() == [2, 3]
    driver.step(m.Pin(ids_of([2]), 1.0))
    driver.release(driver.acquire([3]))
    assert driver.put([4]) == [m.Reserved.GRANTED]
    assert driver.present() == [2, 4]


def _pinned_s(driver: Driver, number: int) -> float:
    """For how long it is still pinned, seconds."""
    row = driver.engine.state.catalog.find(ids_of([number]).ids)[0]
    return max(0.0, float(driver.engine.state.kept.until[row]) - driver.now)


# --- counts of holders come back to zero -------------------------------------------------------------


@pytest.mark.parametrize(("seed", "spill_write"), [(1, "on_evict"), (2, "on_reuse"), (3, "through")])
def test_no_round_leaves_a_hold_behind(seed: int, spill_write: str) -> None:
    """After hundreds of random rounds of put, read, demote, promote and give up, with moves that fail, find
    nothing or find the server full, and a second session that ends in the middle, nothing is leased or reserved
    and every block of every tier may be evicted."""
    draw = random.Random(seed)
    driver = Driver(host=4, hbm=2, spill=12, spill_write=spill_write)
    for turn in range(300):
        number = draw.randrange(16)
        driver.now += 1
        _one_of_many(driver, draw, number)
        if turn % 50 == 0:
            driver.step(m.OpenSession(OTHER, bytes(16)))
            driver.step(m.Acquire(OTHER, ids_of(range(16))))
            driver.step(m.Reserve(OTHER, ids_of([90]), BLOCK))
            driver.step(m.EndSession(OTHER, settled=True))
        if draw.random() < 0.7:
            moves, driver.moves = driver.moves, []
            driver.step(m.Finish(tuple(_ended(draw, move) for move in moves)))
    while driver.carry_out():
        pass
    found = driver.step(m.Occupancy())
    assert isinstance(found, m.OccupancyReply) and found.leases == found.moves_in_flight == 0
    assert sum(tier.blocks for tier in found.tiers) > 3
    for tier in found.tiers:
        assert tier.evictable_blocks == tier.blocks, tier
        assert tier.reserved_bytes == tier.quarantined_bytes == tier.leased_blocks == 0, tier


def _ended(draw: random.Random, move: m.Move) -> m.MoveResult:
    """How a move ends: well, or in one of the ways in which it can fail."""
    ok = draw.random() < 0.8
    lost = not ok and move.source is m.Tier.SPILL and draw.random() < 0.5
    full = not ok and move.target is m.Tier.SPILL and draw.random() < 0.5
    return m.MoveResult(move.op, ok, lost, full, checksum=move.checksum)


def _one_of_many(driver: Driver, draw: random.Random, number: int) -> None:
    verb = draw.choice(["put", "abort", "acquire", "up", "down", "drop"])
    tier = draw.choice([m.Tier.HBM, m.Tier.HOST])
    if verb == "put":
        driver.put([number], tier=tier)
    elif verb == "abort":
        reply = driver.reserve(ids_of([number]), tier)
        driver.step(m.Abort(SESSION, ids_of([number]).ids, reply.generations, tier))
    elif verb == "acquire":
        held = driver.acquire([number, (number + 1) % 16])
        if held.lease:
            driver.release(held)
            with pytest.raises(NotFound):
                driver.release(held)
    elif verb == "up":
        driver.step(m.Readmit(ids_of([number]), tier))
    else:
        to = m.Tier.SPILL if verb == "down" else None
        driver.step(m.Evict(ids_of([number]), to, allow_drop=verb == "drop"))


def test_a_session_holds_no_more_than_it_may(tmp_path: Path) -> None:
    """A call that would hold more blocks than `max_held` is RESOURCE_EXHAUSTED by that name and takes nothing;
    what the session holds is untouched, and after a release the call works."""

    async def body(d: Daemon) -> None:
        await d.namespace()
        session = (await d.session()).number
        await d.store_blocks(session, block_ids(1, 2, 3, 4))
        await d.store_blocks(session, block_ids(5, 6))
        lease = (await d.acquire(session, block_ids(1, 2, 3))).lease
        before = await occupancy(d)
        for call in (d.acquire(session, block_ids(4, 5)), d.reserve(session, block_ids(7, 8))):
            assert await refused(call) is grpc.StatusCode.RESOURCE_EXHAUSTED
        after = await occupancy(d)
        assert (after.leases, after.tiers) == (before.leases, before.tiers)
        await d.release(session, lease)
        assert (await d.acquire(session, block_ids(4, 5))).lease

    run(body, tmp_path, max_held=4)
