"""What users of other systems met when blocks were evicted, ranked and admitted; docs/field-reports.md, section
D."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from block_pattern import pattern, wrong_bytes
from engine_driver import BLOCK, SESSION, Driver, ids_of
from hypothesis import given, settings
from hypothesis import strategies as st
from rpc_daemon import DEADLINE_S, Daemon, block_ids, identity, payload, run

from tierd.core import messages as m
from tierd.core.errors import LimitReached
from tierd.settings import Settings
from tierd.testing.fake_device import FakeDevice
from tierd.testing.faulty import Fault, Operation, Scripted
from tierd.testing.redis_proxy import Mode, RedisProxy
from tierd.testing.serve import StartDaemon
from tierd.testing.valkey import ExternalValkey
from tierd_client import Client, Layout, PutOutcome, Tier, Tiers
from tierd_client.v1 import admin_pb2 as apb
from tierd_client.v1 import blocks_pb2 as pb

POLICIES = ["lru", "lrfu", "lrfu(ranking=composite)", "lrfu(ranking=decayed,half_life_s=10)"]
HBM, HOST, SPILL = 1, 2, 4


def settle_put(driver: Driver, blocks: m.Ids, *, ok: bool = True) -> list[m.Reserved]:
    """A put that waits for room as the daemon does: asks again for what is PENDING after each move has ended."""
    outcomes = np.full(len(blocks), m.Reserved.PENDING, np.int8)
    for attempt in range(20):
        left = np.flatnonzero(outcomes == m.Reserved.PENDING)
        if not len(left) or (attempt and not driver.carry_out(ok=ok)):
            break
        part = blocks.take(left) if attempt else blocks
        outcomes[left] = driver.put_ids(part)
    return [m.Reserved(one) for one in outcomes.tolist()]


def where(driver: Driver, number: int) -> set[m.Tier]:
    return driver.tiers(number)


# --- a batch does not evict its own blocks -----------------------------------------------------------


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("spill", [0, 8])
def test_a_batch_keeps_its_block_that_was_there_already(policy: str, spill: int) -> None:
    """A put of four blocks into a full tier of four, of which one is there and next to go, leaves that one there,
    and the others are stored."""
    driver = Driver(host=4, spill=spill, policy=policy)
    for number in (2, 10, 11, 12):
        driver.put([number])
    assert settle_put(driver, ids_of([2, 3, 4, 5])) == [m.Reserved.EXISTS] + [m.Reserved.GRANTED] * 3
    assert driver.present() == [2, 3, 4, 5]


@settings(deadline=None, max_examples=40)
@given(
    held=st.lists(st.integers(0, 9), min_size=1, max_size=6, unique=True),
    batch=st.lists(st.integers(0, 9), min_size=1, max_size=8, unique=True),
    chain=st.booleans(), ok=st.booleans(), spill=st.sampled_from([0, 3, 12]), policy=st.sampled_from(POLICIES),
)
def test_no_batch_costs_a_block_that_it_names(
    held: list[int], batch: list[int], chain: bool, ok: bool, spill: int, policy: str
) -> None:
    """Whatever a tier holds and whether or not victims can be moved, what a put reports as there is there when
    it is answered, and no block that it names has gone from anywhere."""
    driver = Driver(host=6, spill=spill, policy=policy)
    driver.put(held)
    before = {number for number in batch if where(driver, number)}
    outcomes = settle_put(driver, ids_of(batch, chain=chain), ok=ok)
    for number, outcome in zip(batch, outcomes, strict=True):
        assert (outcome in (m.Reserved.EXISTS, m.Reserved.GRANTED)) == (m.Tier.HOST in where(driver, number))
    assert all(where(driver, number) for number in before)


# --- suffix before prefix ----------------------------------------------------------------------------


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("read_again", [[], [0, 1], [0, 1, 2, 3, 4, 5]])
@pytest.mark.parametrize("tail_first", [False, True])
def test_the_end_of_a_prompt_goes_first(policy: str, read_again: list[int], tail_first: bool) -> None:
    """Of a chain that was stored in two calls, in either order, and read again in part, the last blocks go
    first: what is left is a prefix, all of it a hit."""
    driver = Driver(host=6, spill=8, policy=policy)
    chunks = [ids_of([0, 1, 2], chain=True), ids_of([3, 4, 5], chain=True, first=3, parent=2)]
    for chunk in chunks[::-1] if tail_first else chunks:
        driver.put_ids(chunk)
    if read_again:
        driver.release(driver.acquire_ids(ids_of(read_again, chain=True)))
    driver.reserve(ids_of([20, 21]))
    driver.carry_out()
    driver.put([20, 21])
    assert driver.present() == [0, 1, 2, 3, 20, 21]
    found = driver.step(m.Lookup(ids_of(range(6), chain=True)))
    assert isinstance(found, m.LookedUp) and found.hit_blocks == 6, "what went down is a hit still"


# --- old popularity ages -----------------------------------------------------------------------------


def test_what_was_popular_once_goes_before_what_is_used_now() -> None:
    """A block that was read 100 times 300 s ago goes before one that was read three times just now, and both scores
    are what the formula of LRFU gives for a half-life of 10 s."""
    driver = Driver(host=2, spill=4, policy="lrfu(ranking=decayed,half_life_s=10)")
    driver.put([0])
    for _ in range(99):
        driver.release(driver.acquire([0]))
    driver.now += 300
    driver.put([1])
    for _ in range(2):
        driver.release(driver.acquire([1]))
    driver.now += 1
    explained = driver.step(m.Explain(ids_of([0, 1]).ids, m.Tier.HOST))
    assert isinstance(explained, m.Explained)
    scores = [-one.rank for one in explained.blocks]
    assert scores == pytest.approx([100 * 2 ** (-301 / 10), 3 * 2 ** (-1 / 10)], abs=1e-6)
    driver.reserve(ids_of([2]))
    assert [move.identity for move in driver.moves] == [ids_of([0]).ids.tobytes()]


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("spill", [0, 64])
def test_popularity_of_the_past_does_not_hold_a_place_for_ever(policy: str, spill: int) -> None:
    """A block that was read 100 times and then never again is gone from the tier after a thousand other requests,
    whatever the policy; its record goes with it and does not keep the block in the end."""
    driver = Driver(host=4, spill=spill, policy=policy)
    driver.put([0])
    for _ in range(99):
        driver.release(driver.acquire([0]))
    for request in range(1_000):
        driver.now += 1
        number = 1 + request % 12
        if m.Tier.HOST in where(driver, number):
            driver.release(driver.acquire([number]))
        else:
            settle_put(driver, ids_of([number]))
        if m.Tier.HOST not in where(driver, 0):
            return
    pytest.fail("it is there still")


# --- empty slots first -------------------------------------------------------------------------------


@settings(deadline=None, max_examples=30)
@given(st.lists(st.tuples(st.sampled_from(["put", "up", "down", "drop", "abort"]), st.integers(0, 7)), max_size=25))
def test_nothing_is_evicted_while_a_slot_is_empty(steps: list[tuple[str, int]]) -> None:
    """However blocks came and went, up, down, dropped or aborted, a request for as many slots as are free evicts
    nothing, and one for one more evicts one, if there is one."""
    driver = Driver(host=4, hbm=2, spill=32)
    host = driver.engine.state.tiers[m.Tier.HOST]
    for verb, number in steps:
        if verb == "put":
            settle_put(driver, ids_of([number]))
        elif verb == "abort":
            reply = driver.reserve(ids_of([number]))
            driver.step(m.Abort(SESSION, ids_of([number]).ids, reply.generations))
        elif verb == "up":
            driver.step(m.Readmit(ids_of([number]), m.Tier.HBM))
        else:
            to = m.Tier.SPILL if verb == "down" else None
            driver.step(m.Evict(ids_of([number]), to, allow_drop=verb == "drop"))
        while driver.carry_out():
            pass
    before, free = host.counters.evicted, host.copies.free // BLOCK
    held = driver.present()
    assert len(held) + free == 4
    driver.reserve(ids_of(range(100, 100 + free)))
    assert host.counters.evicted == before and not driver.moves
    driver.reserve(ids_of([200]))
    assert host.counters.evicted + len(driver.moves) == before + min(1, len(held))


# --- a demotion that fails keeps the block -----------------------------------------------------------


def hbm_over_full_host() -> tuple[Driver, m.AcquireReply]:
    """Blocks 0, 1 in hbm, over a host tier whose two blocks are leased."""
    driver = Driver(host=2, hbm=2, spill=8)
    driver.put([10, 11])
    driver.put([0, 1], tier=m.Tier.HBM)
    return driver, driver.acquire([10, 11])


@pytest.mark.parametrize("to", [m.Tier.HOST, m.Tier.SPILL])
def test_a_block_that_cannot_go_down_stays_up(to: m.Tier) -> None:
    """With every host slot leased and the spill tier down, an eviction from hbm is FAILED and the block stays; with
    allow_drop, and not without, it is let go and said to be DROPPED."""
    driver, lease = hbm_over_full_host()
    driver.step(m.SpillState(up=False))
    assert driver.step(m.Evict(ids_of([0, 1]), to)).outcomes.tolist() == [m.Evicted.FAILED] * 2
    assert driver.present(m.Tier.HBM) == [0, 1]
    assert driver.put([5], tier=m.Tier.HBM) == [m.Reserved.FULL]
    assert driver.present(m.Tier.HBM) == [0, 1], "nor does pressure take it"
    assert driver.step(m.Evict(ids_of([0]), to, allow_drop=True)).outcomes.tolist() == [m.Evicted.DROPPED]
    assert (where(driver, 0), where(driver, 1)) == (set(), {m.Tier.HBM})
    driver.release(lease)


@pytest.mark.parametrize("by", ["evict", "pressure"])
def test_a_move_that_breaks_costs_nothing(by: str) -> None:
    """A move down that fails, asked for or made for a newcomer, leaves its block where it was and evictable,
    and its slot below is free again."""
    driver = Driver(host=2, hbm=2, spill=8)
    driver.put([0, 1], tier=m.Tier.HBM)
    for _ in range(3):
        if by == "evict":
            driver.step(m.Evict(ids_of([0, 1]), m.Tier.HOST))
        else:
            driver.reserve(ids_of([5, 6]), m.Tier.HBM)
        assert driver.carry_out(ok=False) == 2
        assert driver.present(m.Tier.HBM) == [0, 1] and driver.present() == []
        assert driver.engine.state.tiers[m.Tier.HOST].copies.free == 2 * BLOCK
    assert settle_put(driver, ids_of([20, 21])) == [m.Reserved.GRANTED] * 2


@pytest.mark.parametrize("fault", [Fault.DOWN, Fault.DOWN_AFTER, Fault.CORRUPT])
def test_a_device_copy_that_fails_is_no_demotion(tmp_path: Path, fault: Fault) -> None:
    """A block that the device did not copy down is FAILED, stays in hbm and goes down the next time; one of
    which other bytes arrived is gone from there, and is had from where it lies as well, or not at all: never
    with those bytes."""

    async def body(d: Daemon) -> None:
        await d.namespace()
        session = (await d.session()).number
        await d.store_blocks(session, block_ids(1, 2))
        await d.evict(block_ids(2))
        assert await d.readmit(block_ids(1, 2), m.Tier.HBM) == [pb.READMIT_OUTCOME_READY] * 2
        host_only = apb.ClearRequest(filter=apb.BlockFilter(tier=pb.TIER_HOST))
        assert (await d.admin.Clear(host_only, timeout=DEADLINE_S)).host_blocks >= 1
        outcomes = await d.evict(block_ids(1, 2), m.Tier.HOST)
        if fault is Fault.CORRUPT:
            assert await d.tiers_of(block_ids(1, 2)) == [0, SPILL]
        else:
            assert outcomes == [pb.EVICT_OUTCOME_FAILED] * 2
            assert await d.tiers_of(block_ids(1, 2)) == [HBM, HBM | SPILL]
            assert await d.evict(block_ids(1, 2), m.Tier.HOST) == [pb.EVICT_OUTCOME_MOVED] * 2
        reply = await d.acquire(session, block_ids(1, 2), timeout_ms=1000)
        leased = [one == pb.ACQUIRE_OUTCOME_LEASED for one in reply.outcomes]
        assert leased == [fault is not Fault.CORRUPT, True]
        for number, address in zip((1, 2), reply.addresses, strict=True):
            assert not address or np.array_equal(d.view(address), payload(identity(number)))
        await d.check_balance()

    run(body, tmp_path, device=FakeDevice(Scripted([fault] * 2, [Operation.READ])))


# --- tiers of one slot -------------------------------------------------------------------------------


def test_one_slot_a_tier_is_enough_to_go_on(tmp_path: Path) -> None:
    """Two sessions that rotate three blocks through an hbm and a host tier of one slot each get bytes, FULL or
    PENDING, never an error and never another block's bytes, and nothing stays held."""

    async def rotate(d: Daemon, session: int, first: int) -> Counter[int]:
        seen: Counter[int] = Counter()
        for turn in range(150):
            number = (first + turn) % 3
            to = m.Tier.HBM if turn % 2 else m.Tier.HOST
            await d.readmit(block_ids(number), to, timeout_ms=100)
            reply = await d.acquire(session, block_ids(number), timeout_ms=100)
            seen.update(reply.outcomes)
            if reply.lease:
                assert np.array_equal(d.view(reply.addresses[0]), payload(identity(number)))
                await d.release(session, reply.lease)
        return seen

    async def body(d: Daemon) -> None:
        await d.namespace()
        sessions = [(await d.session()).number for _ in range(2)]
        for number in range(3):
            await d.store_blocks(sessions[0], block_ids(number))
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(rotate(d, one, first)) for first, one in enumerate(sessions)]
        seen = sum((task.result() for task in tasks), Counter[int]())
        assert set(seen) <= {pb.ACQUIRE_OUTCOME_LEASED, pb.ACQUIRE_OUTCOME_FULL, pb.ACQUIRE_OUTCOME_PENDING}, seen
        assert seen[pb.ACQUIRE_OUTCOME_LEASED] > 150, seen
        found = await d.admin.Occupancy(apb.OccupancyRequest(), timeout=DEADLINE_S)
        assert (found.leases, [tier.evictable_blocks == tier.blocks for tier in found.tiers]) == (0, [True] * 3)
        await d.check_balance()

    run(body, tmp_path, hbm_blocks=1, host_blocks=1)


# --- defaults, sizes, limits -------------------------------------------------------------------------


def test_by_default_the_first_block_too_many_is_spilled(daemon: StartDaemon) -> None:
    """With the defaults for policy and spill tier one block more than host holds is in the spill tier afterwards,
    without a second access and without a setting, and is a hit there."""
    assert Settings().spill.get_secret_value() == "embedded"
    server = daemon(host_bytes="512KiB", spill="embedded")
    server.event("spill_up")
    with Client(server.address) as client:
        ns = client.namespace(Layout.opaque(block_bytes=64 << 10))
        ids = [b"%d" % number for number in range(9)]
        blocks = [pattern(number, 64 << 10) for number in range(9)]
        for one, block in zip(ids, blocks, strict=True):
            assert ns.put([one], [block], timeout_s=10) == [PutOutcome.STORED]
        found = client.admin.occupancy().tiers
        there = ns.lookup(ids)
        assert found[Tier.HOST].blocks == 8 and there.prefix == 9
        assert [where for where in there.tiers if Tiers.HOST not in where] == [Tiers.SPILL]
        assert [wrong_bytes(one, n) for n, one in enumerate(ns.get(ids, timeout_s=10))] == [0] * 9


@pytest.mark.parametrize("mode", [Mode.READ_ONLY, Mode.FAIL_SET])
def test_a_server_that_takes_nothing_stops_puts_for_the_grace_only(
    daemon: StartDaemon, valkey: ExternalValkey, mode: Mode
) -> None:
    """While a server answers probes and refuses each store, a full host tier refuses newcomers for `spill_grace_s`
    and takes them afterwards; when the server takes blocks again, victims go there soon."""
    with RedisProxy(valkey.unix_url) as proxy:
        server = daemon(host_bytes="512KiB", spill=proxy.url, spill_grace_s=1)
        server.event("spill_up")
        with Client(server.address) as client:
            ns, block = client.namespace(Layout.opaque(block_bytes=64 << 10)), pattern(1, 64 << 10)
            proxy.switch(mode)
            seen, ends = [], time.monotonic() + 10
            while seen[-2:] != [PutOutcome.FULL, PutOutcome.STORED] and time.monotonic() < ends:
                (outcome,) = ns.put([b"%d" % len(seen)], [block], timeout_s=0.3)
                seen += [outcome] if outcome is not PutOutcome.PENDING else []
            assert seen[:8] == [PutOutcome.STORED] * 8 and seen[-1] is PutOutcome.STORED, seen
            proxy.switch(Mode.PASS)
            names, ends = [b"after"], time.monotonic() + 10
            while not client.admin.occupancy().tiers[Tier.SPILL].blocks and time.monotonic() < ends:
                assert ns.put(names[-1:], [block], timeout_s=5.0) == [PutOutcome.STORED]
                names.append(b"after-%d" % len(names))
            assert client.admin.occupancy().tiers[Tier.SPILL].blocks > 0


@pytest.mark.parametrize("blocks", [1, 3])
def test_what_can_never_fit_is_refused_at_once(tmp_path: Path, blocks: int) -> None:
    """A request of a block larger than the tier, or for slots that are all leased, ends at once as FULL and not
    after its ten seconds, evicts nothing, and other calls are answered meanwhile."""

    async def body(d: Daemon) -> None:
        small = await d.namespace()
        large = await d.namespace(Layout.opaque(block_bytes=5 * BLOCK))
        session = (await d.session()).number
        await d.store_blocks(session, block_ids(1, 2, 3, 4, namespace=small))
        began = asyncio.get_running_loop().time()
        ids = block_ids(*range(10, 10 + blocks), namespace=large)
        reply = await d.reserve(session, ids, timeout_ms=10_000)
        assert set(reply.outcomes) == {pb.RESERVE_OUTCOME_FULL}
        lease = await d.acquire(session, block_ids(1, 2, 3, 4, namespace=small))
        reply = await d.reserve(session, block_ids(*range(20, 20 + blocks), namespace=small), timeout_ms=10_000)
        assert set(reply.outcomes) == {pb.RESERVE_OUTCOME_FULL}
        assert asyncio.get_running_loop().time() - began < 1.0
        assert await d.tiers_of(block_ids(1, 2, 3, 4, namespace=small)) == [HOST] * 4
        await d.release(session, lease.lease)

    run(body, tmp_path, host_blocks=4, hbm_blocks=0)


def test_a_share_that_is_used_up_is_said_and_costs_nobody(tmp_path: Path) -> None:
    """Pins beyond their share are refused by the name of the setting, all of the call, and take nothing from those
    that are pinned; when one of them ends, the next is granted."""
    del tmp_path
    driver = Driver(host=4, spill=4)
    driver.put(range(4))
    driver.step(m.Pin(ids_of([0, 1]), 60.0))
    for wanted in ([2], [2, 3], [0, 2]):
        with pytest.raises(LimitReached, match="pin_share"):
            driver.step(m.Pin(ids_of(wanted), 60.0))
    assert [number for number in range(4) if _pinned(driver, number)] == [0, 1]
    driver.step(m.Unpin(ids_of([0])))
    driver.step(m.Pin(ids_of([2]), 60.0))
    assert [number for number in range(4) if _pinned(driver, number)] == [1, 2]


def _pinned(driver: Driver, number: int) -> bool:
    page = driver.step(m.ListBlocks(m.BlockFilter(pinned=True), 10))
    assert isinstance(page, m.BlockPage)
    return ids_of([number]).ids.tobytes() in [block.identity for block in page.blocks if block]
