"""A spill store that others write to, under a running daemon: what is looked for, how often, what is believed."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace
from pathlib import Path

import grpc
import numpy as np
import pytest
from rpc_daemon import BLOCK, DEADLINE_S, Daemon, block_ids, identity, payload, run, until

from tierd.adapters.envelope import encode_header
from tierd.adapters.spill_memory import MemorySpillStore
from tierd.app.carrier import checksum_of
from tierd.app.finder import Finder
from tierd.app.restater import Restater
from tierd.core.messages import Record
from tierd.ports import SpillHealth, StoredBlock
from tierd.testing.faulty import Fault, FaultySpillStore, Operation, Scripted
from tierd_client.layout import Layout
from tierd_client.v1 import admin_pb2 as apb
from tierd_client.v1 import blocks_pb2 as pb

FINGERPRINT = Layout.opaque(block_bytes=BLOCK).fingerprint
OTHER = b"o" * 16
MISS, BELOW = pb.PRESENCE_MISS, pb.PRESENCE_BELOW


class Counting:
    """Counts the calls of each operation; those of one may have a fault."""

    def __init__(self) -> None:
        self.fault, self.operation = Fault.NONE, Operation.LOOK
        self.calls = dict.fromkeys(Operation, 0)

    def next(self, operation: Operation) -> Fault:
        self.calls[operation] += 1
        return self.fault if operation is self.operation else Fault.NONE


def stored(seed: int, *, size: int = BLOCK, group: int = 0, fingerprint: bytes = FINGERPRINT) -> StoredBlock:
    checksum = checksum_of(payload(identity(seed)))
    return StoredBlock(fingerprint, identity(seed), group, 0, None, size, checksum, Record(touches=3, wall=1.0))


def left_by_another(store: MemorySpillStore, block: StoredBlock, of: int | None = None) -> None:
    """Another daemon's value in the store; `of`: with the bytes of another block."""
    data = payload(block.identity if of is None else identity(of)).tobytes()[: block.size]
    key = block.fingerprint, block.identity
    store.values[key] = encode_header(block, 1.0, OTHER) + data.ljust(block.size, b"x")


def finder(d: Daemon) -> Finder:
    assert d.service.finder is not None
    return d.service.finder


async def lookup(d: Daemon, *seeds: int) -> list[int]:
    request = pb.LookupRequest(blocks=block_ids(*seeds))
    return list((await d.blocks.Lookup(request, timeout=DEADLINE_S)).presence)


def test_what_others_stored_is_served(tmp_path: Path) -> None:
    """Lookup, Acquire, Readmit, OpenSequence and Prefetch each find what another daemon stored, with its record."""

    async def body(d: Daemon) -> None:
        await d.namespace()
        session = (await d.session()).number
        for seed in range(1, 6):
            left_by_another(d.store, stored(seed))
        assert await lookup(d, 1, 9) == [BELOW, MISS]
        reply = await d.acquire(session, block_ids(1, 2), timeout_ms=5000)
        assert list(reply.outcomes) == [pb.ACQUIRE_OUTCOME_LEASED] * 2
        assert np.array_equal(d.view(reply.addresses[1]), payload(identity(2)))
        assert await d.readmit(block_ids(3)) == [pb.READMIT_OUTCOME_READY]
        opened = pb.OpenSequenceRequest(session=session, sequence="s", blocks=block_ids(4))
        assert (await d.blocks.OpenSequence(opened, timeout=DEADLINE_S)).hit_blocks == 1
        fetch = pb.PrefetchRequest(session=session, blocks=block_ids(5))
        await d.blocks.Prefetch(fetch, timeout=DEADLINE_S)
        assert (await d.tiers_of(block_ids(5)))[0] & 4
        asked = apb.DescribeBlockRequest(ids=identity(2))
        assert (await d.admin.DescribeBlock(asked, timeout=DEADLINE_S)).blocks[0].touches == 4
        await d.check_balance()

    run(body, tmp_path, shared=True)


@pytest.mark.parametrize("block", [stored(1, size=BLOCK - 1), stored(1, group=1), stored(1, fingerprint=bytes(32))])
def test_what_does_not_fit_is_not_believed(tmp_path: Path, block: StoredBlock) -> None:
    """A value of another size, group or namespace is a miss, whatever key it lies under."""

    async def body(d: Daemon) -> None:
        await d.namespace()
        left_by_another(d.store, block)
        d.store.values[FINGERPRINT, block.identity] = d.store.values.pop((block.fingerprint, block.identity))
        assert await lookup(d, 1) == [MISS]

    run(body, tmp_path, shared=True)


def test_damage_is_deleted_and_not_found_again(tmp_path: Path) -> None:
    """A found value whose bytes do not have its checksum is LOST, deleted from the store, and a miss after that."""

    async def body(d: Daemon) -> None:
        await d.namespace()
        session = (await d.session()).number
        left_by_another(d.store, stored(1), of=2)
        reply = await d.acquire(session, block_ids(1), timeout_ms=5000)
        assert list(reply.outcomes) == [pb.ACQUIRE_OUTCOME_LOST]
        await until(lambda: not d.store.values)
        assert await lookup(d, 1) == [MISS]

    run(body, tmp_path, shared=True, ttl_s=0.0)


def test_what_others_deleted_or_replaced_is_no_damage(tmp_path: Path) -> None:
    """Verifying skips found blocks that their owner deleted or replaced, and deletes none; damage it names."""

    async def body(d: Daemon) -> None:
        await d.namespace()
        for seed in range(1, 5):
            left_by_another(d.store, stored(seed))
        assert await lookup(d, 1, 2, 3, 4) == [BELOW] * 4
        del d.store.values[FINGERPRINT, identity(2)]
        odd = payload(identity(9))
        left_by_another(d.store, replace(stored(3), checksum=checksum_of(odd)), of=9)
        left_by_another(d.store, stored(4), of=9)
        found = await d.admin.Verify(apb.VerifyRequest(repair=True), timeout=DEADLINE_S)
        assert (found.verified_blocks, found.skipped_blocks, found.damaged) == (1, 2, [identity(4)])
        await until(lambda: d.store.values.keys() == {(FINGERPRINT, identity(seed)) for seed in (1, 3)})

    run(body, tmp_path, shared=True)


def test_another_content_is_a_miss_and_stays(tmp_path: Path) -> None:
    """A block that was overwritten with other bytes is lost here, and stays in the store, where it is another's."""

    async def body(d: Daemon) -> None:
        await d.namespace()
        session = (await d.session()).number
        await d.store_blocks(session, block_ids(1))
        await d.evict(block_ids(1))
        odd = payload(identity(2))
        block = StoredBlock(FINGERPRINT, identity(1), 0, 0, None, BLOCK, checksum_of(odd), Record())
        left_by_another(d.store, block, of=2)
        reply = await d.acquire(session, block_ids(1), timeout_ms=5000)
        assert list(reply.outcomes) == [pb.ACQUIRE_OUTCOME_LOST]
        assert len(d.store.values) == 1
        reply = await d.acquire(session, block_ids(1), timeout_ms=5000)
        assert list(reply.outcomes) == [pb.ACQUIRE_OUTCOME_LEASED]
        assert np.array_equal(d.view(reply.addresses[0]), odd)

    run(body, tmp_path, shared=True)


def test_one_call_for_many_askers(tmp_path: Path) -> None:
    """Who asks for what is being looked for waits for the same answer; what was not there is not asked again."""
    script = Counting()

    async def body(d: Daemon) -> None:
        await d.namespace()
        left_by_another(d.store, stored(1))
        script.fault = Fault.DELAY
        async with asyncio.TaskGroup() as group:
            asking = [group.create_task(lookup(d, 1, 2)) for _ in range(5)]
            await until(lambda: script.calls[Operation.LOOK] > 0)
            d.faulty.resume.set()
        assert [task.result() for task in asking] == [[BELOW, MISS]] * 5
        assert script.calls[Operation.LOOK] == 1
        script.fault = Fault.NONE
        assert await lookup(d, 2) == [MISS]
        assert script.calls[Operation.LOOK] == 1
        assert await lookup(d, 2, 3) == [MISS, MISS]
        assert script.calls[Operation.LOOK] == 2
        assert (finder(d).looked, finder(d).found, finder(d).skipped) == (3, 1, 0)

    run(body, tmp_path, shared=True, script=script)


def test_the_chains_of_a_prompt_are_looked_for_together(tmp_path: Path) -> None:
    """A slow store holds a call up once, not once for each of its chains."""
    script = Counting()

    async def body(d: Daemon) -> None:
        await d.namespace()
        left_by_another(d.store, stored(1))
        left_by_another(d.store, stored(2))
        script.fault = Fault.DELAY
        request = pb.LookupChainsRequest(chains=[block_ids(n, chain=True) for n in (1, 2)])
        asking = d.blocks.LookupChains(request, timeout=DEADLINE_S)
        await until(lambda: script.calls[Operation.LOOK] == 2)
        d.faulty.resume.set()
        assert (await asking).hit_tokens > 0

    run(body, tmp_path, shared=True, script=script)


def test_absent_for_a_while(tmp_path: Path) -> None:
    """What was not there is asked for again once its time is over, and found if it came meanwhile."""

    async def body(d: Daemon) -> None:
        await d.namespace()
        assert await lookup(d, 1) == [MISS]
        left_by_another(d.store, stored(1))
        async with asyncio.timeout(DEADLINE_S):
            while await lookup(d, 1) == [MISS]:
                await asyncio.sleep(0.01)

    run(body, tmp_path, shared=True, ttl_s=0.2)


def test_late_answers_are_used(tmp_path: Path) -> None:
    """A call whose time is over does not wait for the store; the answer that comes later serves the next call."""
    script = Counting()

    async def body(d: Daemon) -> None:
        await d.namespace()
        session = (await d.session()).number
        left_by_another(d.store, stored(1))
        script.fault = Fault.DELAY
        began = asyncio.get_running_loop().time()
        reply = await d.acquire(session, block_ids(1), timeout_ms=50)
        assert list(reply.outcomes) == [pb.ACQUIRE_OUTCOME_MISS]
        assert asyncio.get_running_loop().time() - began < 2.0
        d.faulty.resume.set()
        assert await lookup(d, 1) == [BELOW]
        assert script.calls[Operation.LOOK] == 1

    run(body, tmp_path, shared=True, script=script)


def test_a_store_that_hangs_or_is_down(tmp_path: Path) -> None:
    """A store that does not answer costs a lookup its own short time, and one that is known to be down nothing."""
    script = Counting()

    async def body(d: Daemon) -> None:
        await d.namespace()
        script.fault = Fault.DELAY
        began = asyncio.get_running_loop().time()
        assert await lookup(d, 1) == [MISS]
        assert asyncio.get_running_loop().time() - began < 2.0
        script.operation, script.fault = Operation.PROBE, Fault.DOWN
        await until(lambda: not d.watch.is_up)
        calls = script.calls[Operation.LOOK]
        assert await lookup(d, 1) == [MISS]
        assert script.calls[Operation.LOOK] == calls

    run(body, tmp_path, shared=True, script=script, look_s=0.1)


def test_too_many_looks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What would need more calls at once than may be is not looked for, and counted."""
    monkeypatch.setattr("tierd.app.finder.CALLS_MAX", 1)
    script = Counting()

    async def body(d: Daemon) -> None:
        await d.namespace()
        left_by_another(d.store, stored(600))
        presence = await lookup(d, *range(300, 900))
        assert set(presence) == {MISS}
        assert finder(d).skipped == 600 - 256
        assert await lookup(d, 600) == [BELOW]

    run(body, tmp_path, shared=True, script=script)


def test_statistics_reach_the_store(tmp_path: Path) -> None:
    """Accesses of spilled blocks reach the record beside them, and what could not be written is not fatal."""
    script = Counting()

    async def body(d: Daemon) -> None:
        await d.namespace()
        session = (await d.session()).number
        restater = Restater(d.service.writer, d.service.mover, every_s=60.0)
        for seed in (1, 2):
            await d.store_blocks(session, block_ids(seed))
            await d.evict(block_ids(seed))
            await d.release(session, (await d.acquire(session, block_ids(seed), timeout_ms=5000)).lease)
            script.operation, script.fault = Operation.RESTATE, Fault.DOWN if seed == 1 else Fault.NONE
            await restater.round(10)
        seen = d.store.look(FINGERPRINT, [identity(1), identity(2)], 1.0)
        assert [one.record.touches if one else None for one in seen] == [1, 2]
        await restater.stop(1.0)

    run(body, tmp_path, shared=True, script=script)


# --- another store ----------------------------------------------------------------------------------------


async def attach(d: Daemon, url: str, replace: bool = True) -> int:
    request = apb.AttachSpillRequest(url=url, replace=replace)
    return int((await d.admin.AttachSpill(request, timeout=DEADLINE_S)).forgotten_blocks)


def test_switched_while_moves_run(tmp_path: Path) -> None:
    """A load that runs while the store is switched ends with its bytes, a store that runs has failed, and both
    blocks are above afterwards; deletes that waited for the old store do not reach the new one."""
    script = Counting()

    async def body(d: Daemon) -> None:
        await d.namespace()
        session = (await d.session()).number
        await d.store_blocks(session, block_ids(1, 2, 3))
        await d.evict(block_ids(1, 3))
        d.others["new"] = new = MemorySpillStore(1 << 20)
        d.store.close = lambda: None  # type: ignore[method-assign] - a server goes on with calls under way
        left_by_another(new, stored(3))
        script.operation, script.fault = Operation.GET, Fault.DELAY
        async with asyncio.TaskGroup() as group:
            loading = group.create_task(d.acquire(session, block_ids(1), timeout_ms=5000))
            await until(lambda: script.calls[Operation.GET] > 0)
            script.operation = Operation.PUT
            storing = group.create_task(d.evict(block_ids(2)))
            await until(lambda: script.calls[Operation.PUT] > 2)
            assert await attach(d, "new") == 1  # 3: 1 is being read
            d.faulty.resume.set()
        assert list(loading.result().outcomes) == [pb.ACQUIRE_OUTCOME_LEASED]
        assert np.array_equal(d.view(loading.result().addresses[0]), payload(identity(1)))
        assert storing.result() == [pb.EVICT_OUTCOME_FAILED]
        await until(lambda: d.watch.is_up)
        assert await d.tiers_of(block_ids(1, 2, 3)) == [2, 2, 0]
        assert await d.evict(block_ids(2)) == [pb.EVICT_OUTCOME_MOVED]
        assert (FINGERPRINT, identity(2)) in new.values and (FINGERPRINT, identity(3)) in new.values
        await d.check_balance()

    run(body, tmp_path, script=script)


def test_a_store_that_cannot_be_reached_changes_nothing(tmp_path: Path) -> None:
    """A switch to a store that does not answer is UNAVAILABLE; the old one is used as before."""

    async def body(d: Daemon) -> None:
        await d.namespace()
        session = (await d.session()).number
        await d.store_blocks(session, block_ids(1))
        await d.evict(block_ids(1))
        d.others["dead"] = FaultySpillStore(MemorySpillStore(1 << 20), Scripted([Fault.DOWN] * 9))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await attach(d, "dead")
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        assert (await d.acquire(session, block_ids(1), timeout_ms=5000)).outcomes[0] == pb.ACQUIRE_OUTCOME_LEASED

    run(body, tmp_path)


def test_changes_come_one_by_one(tmp_path: Path) -> None:
    """Of two changes at once the second sees what the first has made; each store is closed when it is given up."""

    async def body(d: Daemon) -> None:
        d.others.update({name: MemorySpillStore(1 << 20) for name in "ab"})
        await asyncio.gather(attach(d, "a"), attach(d, "b"))
        await d.admin.DetachSpill(apb.DetachSpillRequest(), timeout=DEADLINE_S)
        row = next(one for one in (await d.admin.Occupancy(apb.OccupancyRequest(), timeout=DEADLINE_S)).tiers
                   if one.tier == pb.TIER_SPILL)
        assert (row.state, row.capacity_bytes, row.requested_bytes) == ("off", 0, 0)
        for store in d.others.values():
            with pytest.raises(Exception, match="closed"):
                store.probe(1.0)

    run(body, tmp_path)


class Pondering(MemorySpillStore):
    """Answers its first probe when it is told to."""

    def __init__(self) -> None:
        super().__init__(1 << 20)
        self.asked, self.go = threading.Event(), threading.Event()

    def probe(self, deadline_s: float) -> SpillHealth:
        self.asked.set()
        self.go.wait(deadline_s)
        return super().probe(deadline_s)


def test_a_change_waits_for_another_no_longer_than_its_deadline(tmp_path: Path) -> None:
    """While a store is being tried other changes end at their deadlines, UNAVAILABLE, and the first one holds."""

    async def body(d: Daemon) -> None:
        store = Pondering()
        d.others.update({"slow": store, "other": MemorySpillStore(1 << 20)})
        first = asyncio.create_task(attach(d, "slow"))
        await asyncio.to_thread(store.asked.wait, DEADLINE_S)
        other = apb.AttachSpillRequest(url="other", replace=True, timeout_ms=50)
        for change in (d.admin.AttachSpill(other, timeout=DEADLINE_S),
                       d.admin.DetachSpill(apb.DetachSpillRequest(), timeout=1.5)):
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await change
            assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
            assert "another change" in str(refused.value.details())
        store.go.set()
        await first
        assert await attach(d, "other") == 0, "the turn was given on"

    run(body, tmp_path)


def test_no_thread_is_left(tmp_path: Path) -> None:
    """The threads that look end with the daemon."""

    async def body(d: Daemon) -> None:
        await d.namespace()
        await lookup(d, 1)
        assert any("tierd-look" in thread.name for thread in threading.enumerate())

    others = set(threading.enumerate())  # of daemons that other tests have open
    run(body, tmp_path, shared=True)
    for thread in set(threading.enumerate()) - others:
        if "tierd-look" in thread.name:
            thread.join(5.0)
            assert not thread.is_alive()
