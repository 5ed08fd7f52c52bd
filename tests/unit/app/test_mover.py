"""The mover over real arenas and the in-memory spill store, with faults injected by script."""

from __future__ import annotations

import asyncio
import functools

import numpy as np
import pytest
from app_moves import (
    DEADLINE_S,
    FINGERPRINT,
    SIZE,
    Results,
    arena,
    block,
    identity,
    make_mover,
    move,
    slot,
)

from tierd.adapters.spill_memory import MemorySpillStore
from tierd.app.carrier import Check, SpillGate, checksum_of
from tierd.app.mover import outlast
from tierd.core.errors import SpillDown, Unavailable
from tierd.core.messages import BlockView, CopyView, Hurry, Record, Tier, Unlink
from tierd.testing.faulty import Fault, FaultyArenaStore, FaultySpillStore, Operation, Scripted


def spill() -> MemorySpillStore:
    return MemorySpillStore(1 << 20)


@pytest.mark.parametrize("source_mappable", [True, False])
@pytest.mark.parametrize("target_mappable", [True, False])
def test_arena_to_arena(source_mappable: bool, target_mappable: bool) -> None:
    """A move between arenas leaves the same bytes in the target and changes nothing in the source."""

    async def body() -> None:
        hbm, host = arena(Tier.HBM, mappable=source_mappable), arena(Tier.HOST, mappable=target_mappable)
        data = block(1)
        hbm.write(slot(3), data)
        results = Results()
        mover = make_mover(results, host=host, hbm=hbm)
        mover.submit([move(1, Tier.HBM, Tier.HOST, data=data, at=3, to=5)])
        assert (await results.of(1))[1].ok
        for where, at in ((hbm, 3), (host, 5)):
            out = np.empty(SIZE, np.uint8)
            where.read(slot(at), out)
            assert np.array_equal(out, data)
        await mover.stop(DEADLINE_S)

    asyncio.run(body())


@pytest.mark.parametrize("mappable", [True, False])
def test_spill_round_trip(mappable: bool) -> None:
    """A block that was demoted to the spill tier comes back with its bytes and its record."""

    async def body() -> None:
        host, store, data, results = arena(Tier.HOST, mappable=mappable), spill(), block(2), Results()
        host.write(slot(0), data)
        mover = make_mover(results, store, host=host)
        mover.submit([move(1, Tier.HOST, Tier.SPILL, data=data, at=0, name=7)])
        assert (await results.of(1))[1].ok
        mover.submit([move(2, Tier.SPILL, Tier.HOST, data=data, to=9, name=7)])
        assert (await results.of(2))[2].ok
        out = np.empty(SIZE, np.uint8)
        host.read(slot(9), out)
        assert np.array_equal(out, data)
        (stored,) = store.look(FINGERPRINT, [identity(7)], 1.0)
        assert stored is not None and stored.record == Record(touches=1)
        await mover.stop(DEADLINE_S)

    asyncio.run(body())


@pytest.mark.parametrize("fault", [Fault.VANISHED, Fault.DAMAGED, Fault.CORRUPT])
def test_lost_source(fault: Fault) -> None:
    """A spilled value that is gone, or whose bytes are not the block's, is reported as lost and not as ok."""

    async def body() -> None:
        host, store, data, results = arena(Tier.HOST), spill(), block(3), Results()
        host.write(slot(0), data)
        mover = make_mover(results, FaultySpillStore(store, Scripted([fault], [Operation.GET])), host=host)
        mover.submit([move(1, Tier.HOST, Tier.SPILL, data=data, name=1)])
        await results.of(1)
        mover.submit([move(2, Tier.SPILL, Tier.HOST, data=data, to=1, name=1)])
        result = (await results.of(2))[2]
        assert not result.ok and result.lost and result.reason
        await mover.stop(DEADLINE_S)

    asyncio.run(body())


@pytest.mark.parametrize(("fault", "full"), [(Fault.DOWN, False), (Fault.DOWN_AFTER, False), (Fault.FULL, True)])
def test_store_that_failed_keeps_the_source(fault: Fault, full: bool) -> None:
    """A store that the server refused, or whose answer never came, is no success and loses nothing."""

    async def body() -> None:
        host, data, results = arena(Tier.HOST), block(4), Results()
        host.write(slot(0), data)
        mover = make_mover(results, FaultySpillStore(spill(), Scripted([fault])), host=host)
        mover.submit([move(1, Tier.HOST, Tier.SPILL, data=data)])
        result = (await results.of(1))[1]
        assert (result.ok, result.lost, result.full) == (False, False, full)
        assert np.array_equal(host.view(slot(0), SIZE), data)
        await mover.stop(DEADLINE_S)

    asyncio.run(body())


def test_arena_that_breaks() -> None:
    """An arena that raises what nobody expects costs that move alone."""

    async def body() -> None:
        hbm = FaultyArenaStore(arena(Tier.HBM), Scripted([Fault.DOWN], [Operation.WRITE]))
        host, data, results = arena(Tier.HOST), block(5), Results()
        host.write(slot(0), data)
        mover = make_mover(results, host=host, hbm=hbm)  # type: ignore[arg-type]
        mover.submit([move(1, Tier.HOST, Tier.HBM, data=data, to=1)])
        first = (await results.of(1))[1]
        assert (first.ok, first.lost) == (False, False) and "OSError" in first.reason
        mover.submit([move(2, Tier.HOST, Tier.HBM, data=data, to=2)])
        assert (await results.of(2))[2].ok
        await mover.stop(DEADLINE_S)

    asyncio.run(body())


def test_shut_gate_fails_at_once() -> None:
    """After the first move that finds the server down, those queued behind it do not ask it again, and
    the watch hears of it before the engine does."""

    async def body() -> None:
        host, results = arena(Tier.HOST), Results()
        store = FaultySpillStore(spill(), Scripted([Fault.DOWN]))
        mover = make_mover(results, store, host=host, threads=1)
        heard: list[tuple[str, int]] = []
        mover.guard_spill(lambda reason: heard.append((reason, len(results.all()))))
        mover.open_spill()
        mover.submit([move(op, Tier.HOST, Tier.SPILL, data=block(0)) for op in range(1, 10)])
        answered = await results.of(9)
        assert not any(result.ok for result in answered.values())
        assert heard == [("injected: down", 0)]
        assert store.injected[Fault.NONE] == 0
        mover.open_spill()
        mover.submit([move(10, Tier.HOST, Tier.SPILL, data=block(0))])
        assert (await results.of(10))[10].ok
        await mover.stop(DEADLINE_S)

    asyncio.run(body())


def test_late_failure_does_not_shut_a_new_opening() -> None:
    """A call that began before the server came back and fails afterwards says nothing about the server."""
    heard: list[str] = []
    gate = SpillGate(heard.append)
    ticket = gate.enter()
    gate.shut()
    gate.open()
    gate.found_down(ticket, "an outage that is over")
    assert gate.is_open and not heard
    gate.found_down(gate.enter(), "now")
    assert not gate.is_open and heard == ["now"]


def test_short_check_does_not_shut_the_gate() -> None:
    """A check that had less time than a call to the server takes proves nothing about the server."""

    async def body() -> None:
        store = FaultySpillStore(spill(), Scripted([Fault.DELAY]))
        mover = make_mover(Results(), store, host=arena(Tier.HOST), op_timeout_s=5.0)
        heard: list[str] = []
        mover.guard_spill(heard.append)
        mover.open_spill()
        view, copy = _view(block(0), Tier.SPILL), _copy(Tier.SPILL, 0)
        assert await mover.check(view, copy, 0.02) is Check.UNREADABLE
        assert await mover.check(view, copy, 5.0) is Check.UNREADABLE
        assert not heard
        await mover.stop(DEADLINE_S)

    asyncio.run(body())


def test_hung_spill_does_not_stop_copies() -> None:
    """While every spill thread hangs in the server, moves between arenas go on."""

    async def body() -> None:
        hbm, host, data, results = arena(Tier.HBM), arena(Tier.HOST), block(6), Results()
        host.write(slot(0), data)
        store = FaultySpillStore(spill(), Scripted([Fault.DELAY] * 2))
        mover = make_mover(results, store, host=host, hbm=hbm, threads=2)
        mover.submit([move(op, Tier.HOST, Tier.SPILL, data=data) for op in (1, 2)])
        mover.submit([move(3, Tier.HOST, Tier.HBM, data=data, to=1)])
        assert (await results.of(1))[3].ok
        store.resume.set()
        assert len(await results.of(3)) == 3
        await mover.stop(DEADLINE_S)

    asyncio.run(body())


def test_loads_before_stores() -> None:
    """A load that somebody waits for does not queue behind stores that came before it."""

    async def body() -> None:
        host, store, data, results = arena(Tier.HOST), spill(), block(7), Results()
        host.write(slot(0), data)
        faulty = FaultySpillStore(store, Scripted([Fault.NONE, Fault.DELAY]))
        mover = make_mover(results, faulty, host=host, threads=1)
        mover.submit([move(1, Tier.HOST, Tier.SPILL, data=data)])
        await results.of(1)
        mover.submit([move(op, Tier.HOST, Tier.SPILL, data=data) for op in range(2, 30)])
        mover.submit([move(30, Tier.SPILL, Tier.HOST, data=data, to=1, name=1)])
        faulty.resume.set()
        await results.of(30)
        order = [result.op for result in results.all()]
        assert order.index(30) <= 2
        await mover.stop(DEADLINE_S)

    asyncio.run(body())


def test_each_move_answered_once_at_stop() -> None:
    """At stop each accepted move has exactly one answer: those that run end, those that wait are told so."""

    async def body() -> None:
        host, results = arena(Tier.HOST), Results()
        store = FaultySpillStore(spill(), Scripted([Fault.DELAY] * 40))
        mover = make_mover(results, store, host=host, threads=2)
        mover.submit([move(op, Tier.HOST, Tier.SPILL, data=block(0)) for op in range(1, 41)])
        stopping = asyncio.ensure_future(mover.stop(DEADLINE_S))
        store.resume.set()
        await stopping
        mover.submit([move(41, Tier.HOST, Tier.SPILL, data=block(0))])
        await results.of(41)
        assert sorted(result.op for result in results.all()) == list(range(1, 42))
        assert {r.reason for r in results.all() if not r.ok} == {"stopping"}
        assert (mover.accepted_moves, len(results.all())) == (0, 41)

    asyncio.run(body())


def test_results_come_in_batches() -> None:
    """Moves that end while the loop is busy cost one wake-up, not one each."""

    async def body() -> None:
        hbm, host, results = arena(Tier.HBM), arena(Tier.HOST), Results()
        mover = make_mover(results, host=host, hbm=hbm)
        mover.submit([move(op, Tier.HOST, Tier.HBM, data=block(0), to=1) for op in range(1, 201)])
        while mover._copies.waiting:  # holds the loop until the threads have taken everything
            pass
        await results.of(200)
        assert len(results.batches) < 20
        await mover.stop(DEADLINE_S)

    asyncio.run(body())


def test_too_many_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    """Moves beyond the limit of what may wait are answered as failed, not queued."""
    monkeypatch.setattr("tierd.app.mover.MOVES_ACCEPTED_MAX", 3)

    async def body() -> None:
        hbm, host, results = arena(Tier.HBM), arena(Tier.HOST), Results()
        mover = make_mover(results, host=host, hbm=hbm)
        mover.submit([move(op, Tier.HOST, Tier.HBM, data=block(0), to=1) for op in range(1, 6)])
        answered = await results.of(5)
        assert [answered[op].ok for op in range(1, 6)] == [True, True, True, False, False]
        await mover.stop(DEADLINE_S)

    asyncio.run(body())


def test_unlink_removes_and_survives_an_outage() -> None:
    """A delete that meets a dead server is made when the server is back."""

    async def body() -> None:
        host, store, data, results = arena(Tier.HOST), spill(), block(8), Results()
        faulty = FaultySpillStore(store, Scripted([Fault.DOWN], [Operation.UNLINK]))
        mover = make_mover(results, faulty, host=host, threads=1)
        down = asyncio.Event()
        mover.guard_spill(lambda reason: down.set())
        mover.open_spill()
        mover.submit([move(op, Tier.HOST, Tier.SPILL, data=data) for op in (1, 2)])
        await results.of(2)
        mover.submit([Unlink(1, (identity(1),))])
        await asyncio.wait_for(down.wait(), DEADLINE_S)
        assert len(store.values) == 2
        mover.open_spill()
        mover.submit([move(3, Tier.SPILL, Tier.HOST, data=data, to=1, name=2)])
        await results.of(3)
        await mover.until_unlinked(asyncio.get_running_loop().time() + DEADLINE_S)
        await mover.stop(DEADLINE_S)
        assert list(store.values) == [(FINGERPRINT, identity(2))]

    asyncio.run(body())


def test_store_after_delete_stays() -> None:
    """A block that is stored again while its delete is under way is there afterwards."""

    async def body() -> None:
        host, store, data, results = arena(Tier.HOST), spill(), block(9), Results()
        faulty = FaultySpillStore(store, Scripted([Fault.DELAY], [Operation.UNLINK]))
        mover = make_mover(results, faulty, host=host, threads=2)
        mover.submit([move(1, Tier.HOST, Tier.SPILL, data=data, name=1)])
        await results.of(1)
        mover.submit([Unlink(1, (identity(1),))])
        mover.submit([move(2, Tier.HOST, Tier.SPILL, data=data, name=1)])
        mover.submit([move(3, Tier.HOST, Tier.SPILL, data=data, name=3)])
        assert 2 not in await results.of(2)  # the store behind it went first
        faulty.resume.set()
        assert (await results.of(3))[2].ok
        await mover.stop(DEADLINE_S)
        assert set(store.values) == {(FINGERPRINT, identity(1)), (FINGERPRINT, identity(3))}

    asyncio.run(body())


def test_a_copy_is_outlasted() -> None:
    """Whoever waits for a copy to end is held, however often it is cancelled, until no thread writes any more."""

    async def body() -> None:
        data = block(11)
        host = FaultyArenaStore(arena(Tier.HBM, mappable=False), Scripted([Fault.DELAY], [Operation.WRITE]))
        mover = make_mover(Results(), hbm=host)  # type: ignore[arg-type]
        copy = functools.partial(host.write, slot(0), data)
        waiting = asyncio.ensure_future(outlast(mover.begin_copy(Tier.HBM, SIZE, copy)))
        await asyncio.sleep(0)  # a task that has not begun is cancelled at once
        async with asyncio.timeout(DEADLINE_S):
            while not host.injected[Fault.DELAY]:
                await asyncio.sleep(0)
        for _ in range(3):
            waiting.cancel()
            await asyncio.sleep(0)
        assert not waiting.done()
        host.resume.set()
        await waiting
        assert np.array_equal(await mover.read(Tier.HBM, slot(0), SIZE), data)
        await mover.stop(DEADLINE_S)
        with pytest.raises(Unavailable):
            mover.begin_copy(Tier.HBM, SIZE, copy)

    asyncio.run(body())


def test_check_tells_damage_from_absence() -> None:
    """Verifying a copy tells intact, damaged and unreadable apart, in an arena and in the spill tier."""

    async def body() -> None:
        host, store, data, results = arena(Tier.HOST), spill(), block(12), Results()
        host.write(slot(0), data)
        mover = make_mover(results, store, host=host)
        mover.submit([move(1, Tier.HOST, Tier.SPILL, data=data)])
        await results.of(1)
        for tier, address in ((Tier.HOST, slot(0)), (Tier.SPILL, 0)):
            assert await mover.check(_view(data, tier), _copy(tier, address), 1.0) is Check.INTACT
        host.view(slot(0), SIZE)[0] ^= 1
        ((key, value),) = store.values.items()
        store.values[key] = value[:-1] + bytes([value[-1] ^ 1])
        for tier, address in ((Tier.HOST, slot(0)), (Tier.SPILL, 0)):
            assert await mover.check(_view(data, tier), _copy(tier, address), 1.0) is Check.DAMAGED
        store.values.clear()
        assert await mover.check(_view(data, Tier.SPILL), _copy(Tier.SPILL, 0), 1.0) is Check.UNREADABLE
        mover.shut_spill()
        assert await mover.check(_view(data, Tier.SPILL), _copy(Tier.SPILL, 0), 1.0) is Check.UNREADABLE
        await mover.stop(DEADLINE_S)

    asyncio.run(body())


def test_no_spill_tier() -> None:
    """Without a spill tier a move to it fails and says so."""

    async def body() -> None:
        results = Results()
        mover = make_mover(results, host=arena(Tier.HOST))
        mover.submit([move(1, Tier.HOST, Tier.SPILL, data=block(0))])
        result = (await results.of(1))[1]
        assert not result.ok and "off" in result.reason
        await mover.stop(DEADLINE_S)

    asyncio.run(body())


def test_load_estimate_follows_what_is_measured() -> None:
    """The estimate of a load's time falls once loads were seen to be faster than was assumed."""

    async def body() -> None:
        host, store, data, results = arena(Tier.HOST), spill(), block(13), Results()
        host.write(slot(0), data)
        mover = make_mover(results, store, host=host)
        before = mover.load_ms(1 << 30)
        mover.submit([move(1, Tier.HOST, Tier.SPILL, data=data, name=1)])
        await results.of(1)
        mover.submit([move(op, Tier.SPILL, Tier.HOST, data=data, to=1, name=1) for op in range(2, 60)])
        await results.of(59)
        assert mover.load_ms(1 << 30) != before and mover.load_ms(1) >= 1
        await mover.stop(DEADLINE_S)

    asyncio.run(body())


def _view(data: np.ndarray, tier: Tier) -> BlockView:
    return BlockView(identity(1), 1, 0, 0, None, SIZE, checksum_of(data), Record())


def _copy(tier: Tier, address: int) -> CopyView:
    return CopyView(tier, True, address, 1, 0, 0.0)


def test_spill_down_is_not_hidden() -> None:
    """A gate that is shut raises SpillDown, which callers take for "not done"."""
    gate = SpillGate(lambda reason: None)
    gate.shut()
    with pytest.raises(SpillDown):
        gate.enter()


def test_a_load_ahead_that_is_hurried() -> None:
    """Loads ahead are carried out behind awaited ones, and one that is hurried is an awaited one from then on;
    numbers of no load that waits change nothing."""

    async def body() -> None:
        host, data, results = arena(Tier.HOST), block(7), Results()
        host.write(slot(0), data)
        faulty = FaultySpillStore(spill(), Scripted([Fault.NONE, Fault.DELAY]))
        mover = make_mover(results, faulty, host=host, threads=1)
        mover.submit([move(1, Tier.HOST, Tier.SPILL, data=data)])
        await results.of(1)
        loads = [move(op, Tier.SPILL, Tier.HOST, data=data, to=op, name=1) for op in range(2, 10)]
        mover.submit([loads[0], *(load._replace(ahead=True) for load in loads[1:-1])])
        mover.submit([Hurry((8, 99)), loads[-1]])
        faulty.resume.set()
        assert all(result.ok for result in (await results.of(9)).values())
        assert [result.op for result in results.all()] == [1, 2, 8, 9, 3, 4, 5, 6, 7]
        await mover.stop(DEADLINE_S)

    asyncio.run(body())
