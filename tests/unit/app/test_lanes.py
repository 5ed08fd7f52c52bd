"""Lanes: what is carried out together, and by whom."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace

import pytest
from app_moves import DEADLINE_S, block, move

from tierd.app.lanes import Lane
from tierd.core.messages import Move, Tier

MIB = 1 << 20


def moves(*sizes: int) -> list[Move]:
    like = move(0, Tier.HOST, Tier.SPILL, data=block(0))
    return [replace(like, op=op, size=size) for op, size in enumerate(sizes)]


class Carried:
    """What a lane carried, in batches; each waits for `go_on`."""

    def __init__(self, count: int) -> None:
        self.batches: list[list[int]] = []
        self.go_on = threading.Semaphore(0)
        self._left = count
        self._began = threading.Condition()
        self.all_done = threading.Event()

    def carry(self, some: Sequence[Move]) -> None:
        with self._began:
            self.batches.append([one.op for one in some])
            self._began.notify_all()
        self.go_on.acquire(timeout=DEADLINE_S)
        with self._began:
            self._left -= len(some)
            if not self._left:
                self.all_done.set()

    def begun(self, batches: int) -> bool:
        with self._began:
            return self._began.wait_for(lambda: len(self.batches) >= batches, DEADLINE_S)

    def end(self, lane: Lane) -> None:
        self.go_on.release(100)
        assert self.all_done.wait(DEADLINE_S)
        lane.shut()


def test_slow_moves_leave_a_thread_for_urgent_ones() -> None:
    """However many moves hang that nobody waits for, an urgent one is begun at once."""
    carried = Carried(9)
    lane = Lane("test", 3, carried.carry)
    lane.push(moves(*[4096] * 8), urgent=False)
    assert carried.begun(2)
    lane.push([replace(moves(4096)[0], op=100)], urgent=True)
    assert carried.begun(3)
    assert carried.batches[2] == [100]
    carried.end(lane)
    assert sorted(op for batch in carried.batches for op in batch) == [*range(8), 100]


@pytest.mark.parametrize(("sizes", "first"), [
    ([MIB // 8] * 6, [0, 1, 2, 3]), ([MIB] * 6, [0, 1]), ([3 * MIB] * 2, [0]), ([4096, 3 * MIB], [0]),
])
def test_small_moves_go_together(sizes: list[int], first: list[int]) -> None:
    """Moves are carried out in their order, as many at once as their number and their bytes allow."""
    carried = Carried(len(sizes))
    lane = Lane("test", 1, carried.carry, batch_moves=4, batch_bytes=2 * MIB)
    lane.push(moves(*sizes), urgent=False)
    assert carried.begun(1)
    assert carried.batches[0] == first
    carried.end(lane)
    assert [op for batch in carried.batches for op in batch] == list(range(len(sizes)))


def test_moves_are_shared_out_between_threads() -> None:
    """A thread takes no move along that another one could carry."""
    carried = Carried(4)
    lane = Lane("test", 4, carried.carry, batch_moves=4, batch_bytes=2 * MIB)
    lane.push(moves(*[4096] * 4), urgent=True)
    assert carried.begun(4)
    carried.end(lane)
