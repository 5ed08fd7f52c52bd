"""Moves from lent pages: they wait for their fence, at no thread's cost, and can be abandoned until they begin."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable

import numpy as np
from app_moves import SIZE, Results, arena, block, identity, make_mover, move, slot

from tierd.adapters.spill_memory import MemorySpillStore
from tierd.app.carrier import checksum_of
from tierd.app.mover import Mover
from tierd.core.errors import Unavailable
from tierd.core.loans import page_address
from tierd.core.messages import Abandon, Move, Tier, Unlink
from tierd.testing.faulty import Fault, FaultyArenaStore, FaultySpillStore, Operation, Scripted
from tierd_client.format import U8Array

POOL = 0x8000


def on_a_loop(test: Callable[[], Awaitable[None]]) -> Callable[[], None]:
    """Runs a test on an event loop of its own, within a deadline."""

    @functools.wraps(test)
    def run() -> None:
        async def within() -> None:
            async with asyncio.timeout(30):
                await test()

        asyncio.run(within())

    return run


class Pages:
    """A LentStore of pages in private memory, whose fence a test sets."""

    def __init__(self, pages: int = 8) -> None:
        self.bytes = np.zeros((pages, SIZE), np.uint8)
        self.fence = 0
        self.closed = False
        self.reads = 0

    def reached(self, address: int, fence: int) -> bool:
        if self.closed:
            raise Unavailable(f"pool of {address:#x} is closed")
        return self.fence >= fence

    def read(self, address: int, out: U8Array) -> None:
        self.reads += 1
        out[:] = self.bytes[address & 0xFFFF]


def from_page(op: int, page: int, fence: int = 0, target: Tier = Tier.HOST) -> Move:
    """A move of a page to slot `op`; its checksum is not known."""
    found = move(op, Tier.HBM, target, data=np.zeros(SIZE, np.uint8), to=op)
    return found._replace(source_address=page_address(POOL, page), lender=7, fence=fence, checksum=0)


def lending(results: Results, pages: Pages, timeout_s: float = 5.0, **tiers: object) -> Mover:
    return make_mover(results, lent=pages, fence_timeout_s=timeout_s, threads=1, **tiers)  # type: ignore[arg-type]


@on_a_loop
async def test_a_page_that_is_ready_is_copied_with_its_checksum() -> None:
    """A page goes to its slot, and the answer tells the checksum that nobody knew before."""
    results, pages, host = Results(), Pages(), arena(Tier.HOST)
    pages.bytes[3] = block(1)
    mover = lending(results, pages, host=host)
    mover.submit([from_page(1, page=3)])
    result = (await results.of(1))[1]
    assert result.ok
    assert result.checksum == checksum_of(block(1))
    assert np.array_equal(host.view(slot(1), SIZE), block(1))
    await mover.stop(5)


@on_a_loop
async def test_a_page_goes_straight_to_spill() -> None:
    """A page can be stored without a stop in host, under the checksum of its bytes."""
    results, pages, store = Results(), Pages(), MemorySpillStore(1 << 20)
    pages.bytes[3] = block(2)
    mover = lending(results, pages, spill=store, host=arena(Tier.HOST))
    sent = from_page(1, page=3, target=Tier.SPILL)
    mover.submit([sent])
    assert (await results.of(1))[1].ok
    out = np.empty(SIZE, np.uint8)
    assert store.get(bytes(range(32)), sent.identity, out, 1.0) == checksum_of(block(2))
    assert np.array_equal(out, block(2))
    await mover.stop(5)


@on_a_loop
async def test_a_page_is_read_after_its_fence_only() -> None:
    """What is copied is what lies in the page once its fence was reached; others are not held up meanwhile."""
    results, pages, host = Results(), Pages(), arena(Tier.HOST)
    pages.bytes[4] = block(4)
    mover = lending(results, pages, host=host)
    mover.submit([from_page(1, page=3, fence=9), from_page(2, page=4)])
    assert (await results.of(1))[2].ok, "the only thread is not kept by the one that waits"
    assert pages.reads == 1
    pages.bytes[3] = block(3)
    pages.fence = 9
    assert (await results.of(2))[1].ok
    assert np.array_equal(host.view(slot(1), SIZE), block(3))
    await mover.stop(5)


@on_a_loop
async def test_a_fence_that_is_not_reached_fails_the_move() -> None:
    """After its time the move has failed, in words, and nothing was read."""
    results, pages = Results(), Pages()
    mover = lending(results, pages, timeout_s=0.05, host=arena(Tier.HOST))
    mover.submit([from_page(1, page=3, fence=9)])
    result = (await results.of(1))[1]
    assert not result.ok
    assert not result.lost
    assert "did not reach 9 within 0.05 s" in result.reason
    assert pages.reads == 0
    await mover.stop(5)


@on_a_loop
async def test_abandoned_moves_are_answered_and_not_begun() -> None:
    """A move that waits for its fence or for a thread is answered when it is abandoned; its page is not read."""
    results, pages, host = Results(), Pages(), arena(Tier.HOST)
    stuck = FaultyArenaStore(arena(Tier.HBM), Scripted([Fault.DELAY], [Operation.WRITE]))
    mover = lending(results, pages, host=host, hbm=stuck)
    mover.submit([move(1, Tier.HOST, Tier.HBM, data=block(1), to=1)])
    while not stuck.injected[Fault.DELAY]:
        await asyncio.sleep(0.001)
    mover.submit([from_page(2, page=2), from_page(3, page=3, fence=9)])
    mover.submit([Abandon((2, 3))])
    assert not (await results.of(1))[3].ok
    stuck.resume.set()
    answers = await results.of(3)
    assert answers[1].ok
    assert not answers[2].ok
    assert pages.reads == 0
    await mover.stop(5)


@on_a_loop
async def test_what_is_abandoned_while_a_delete_holds_it_waits_for_no_fence() -> None:
    """A store that waited for a delete of its block and was abandoned is answered at once when that has ended."""
    results, pages = Results(), Pages()
    faulty = FaultySpillStore(MemorySpillStore(1 << 20), Scripted([Fault.DELAY], [Operation.UNLINK]))
    mover = lending(results, pages, timeout_s=60, spill=faulty)
    mover.submit([Unlink(1, (identity(5),))])
    mover.submit([from_page(5, page=3, fence=9, target=Tier.SPILL)])
    mover.submit([Abandon((5,))])
    faulty.resume.set()
    assert (await results.of(1))[5].reason == "withdrawn"
    await mover.stop(5)


@on_a_loop
async def test_a_pool_that_is_closed_fails_what_waits_for_it() -> None:
    """When a pool closes the moves that wait for its fence are answered."""
    results, pages = Results(), Pages()
    mover = lending(results, pages, host=arena(Tier.HOST))
    mover.submit([from_page(1, page=3, fence=9)])
    pages.closed = True
    assert "closed" in (await results.of(1))[1].reason
    await mover.stop(5)


@on_a_loop
async def test_a_stop_answers_what_waits_for_fences() -> None:
    """A stopping daemon waits for no fence."""
    results, pages = Results(), Pages()
    mover = lending(results, pages, host=arena(Tier.HOST))
    mover.submit([from_page(1, page=3, fence=9)])
    await mover.stop(5)
    assert (await results.of(1))[1].reason == "stopping"


@on_a_loop
async def test_a_hung_device_stops_no_copy_in_host_memory() -> None:
    """While every thread of the device waits for it, a block goes from host to spill, and host is read."""
    results, host, store = Results(), arena(Tier.HOST), MemorySpillStore(1 << 20)
    stuck = FaultyArenaStore(arena(Tier.HBM), Scripted([Fault.DELAY] * 2, [Operation.WRITE]))
    mover = make_mover(results, store, host=host, hbm=stuck, threads=1)  # type: ignore[arg-type]
    data = block(5)
    host.write(slot(3), data)
    moves = [move(op, Tier.HOST, Tier.HBM, data=data, at=3, to=op) for op in (1, 2)]
    mover.submit([*moves, move(3, Tier.HOST, Tier.SPILL, data=data, at=3)])
    assert (await results.of(1))[3].ok
    assert np.array_equal(await mover.read(Tier.HOST, slot(3), SIZE), data)
    stuck.resume.set()
    assert all(result.ok for result in (await results.of(3)).values())
    await mover.stop(5)
