"""Lanes: what is carried out together, and by whom."""

from __future__ import annotations

import threading
from collections.abc import Iterator

from app_moves import DEADLINE_S, block, move

from tierd.app.lanes import Lane, Turn
from tierd.core.messages import Move, Tier

STREAM_S = 60.0


def moves(*sizes: int) -> list[Move]:
    like = move(0, Tier.HOST, Tier.SPILL, data=block(0))
    return [like._replace(op=op, size=size) for op, size in enumerate(sizes)]


class Carried:
    """What a lane carried, by streams; before a stream draws again, and at its end, it waits for `go_on`."""

    def __init__(self, count: int) -> None:
        self.streams: list[list[int]] = []
        self.go_on = threading.Semaphore(0)
        self._left = count
        self._drawn = threading.Condition()
        self.all_done = threading.Event()

    def carry(self, some: Iterator[Move]) -> None:
        stream: list[int] = []
        for one in some:
            with self._drawn:
                if not stream:
                    self.streams.append(stream)
                stream.append(one.op)
                self._left -= 1
                self._drawn.notify_all()
            self.go_on.acquire(timeout=DEADLINE_S)
        if not self._left:
            self.all_done.set()

    def begun(self, streams: int) -> bool:
        with self._drawn:
            return self._drawn.wait_for(lambda: len(self.streams) >= streams, DEADLINE_S)

    def end(self, lane: Lane) -> None:
        self.go_on.release(100)
        assert self.all_done.wait(DEADLINE_S)
        lane.shut()


def test_slow_moves_leave_a_thread_for_urgent_ones() -> None:
    """However many moves hang that nobody waits for, an urgent one is begun at once."""
    carried = Carried(9)
    lane = Lane("test", 3, carried.carry)
    lane.push(moves(*[4096] * 8), Turn.LATER)
    assert carried.begun(2)
    lane.push([moves(4096)[0]._replace(op=100)], Turn.AWAITED)
    assert carried.begun(3)
    assert carried.streams[2] == [100]
    carried.end(lane)
    assert sorted(op for stream in carried.streams for op in stream) == [*range(8), 100]


def test_a_stream_draws_what_comes_later() -> None:
    """What is pushed while a stream lasts is carried by it, in the order of pushing."""
    carried = Carried(6)
    lane = Lane("test", 1, carried.carry, STREAM_S)
    given = moves(*[4096] * 6)
    lane.push(given[:2], Turn.LATER)
    assert carried.begun(1)
    lane.push(given[2:], Turn.LATER)
    carried.end(lane)
    assert carried.streams == [[0, 1, 2, 3, 4, 5]]


def test_a_stream_ends_with_its_time() -> None:
    """A stream that may last no time carries one move, and the next one begins with the next."""
    carried = Carried(3)
    lane = Lane("test", 1, carried.carry)
    lane.push(moves(*[4096] * 3), Turn.AWAITED)
    carried.end(lane)
    assert carried.streams == [[0], [1], [2]]


def test_a_stream_ends_for_urgent_moves() -> None:
    """On the only thread a move that somebody waits for comes after no more than the one that is under way."""
    carried = Carried(4)
    lane = Lane("test", 1, carried.carry, STREAM_S)
    lane.push(moves(*[4096] * 3), Turn.LATER)
    assert carried.begun(1)
    lane.push([moves(4096)[0]._replace(op=100)], Turn.AWAITED)
    carried.end(lane)
    assert carried.streams == [[0], [100], [1, 2]]


def test_moves_are_shared_out_between_threads() -> None:
    """A stream leaves one move for each thread that is free to carry it."""
    carried = Carried(4)
    lane = Lane("test", 4, carried.carry, STREAM_S)
    carried.go_on.release(100)
    lane.push(moves(*[4096] * 4), Turn.AWAITED)
    assert carried.begun(4)
    carried.end(lane)


def test_turns() -> None:
    """What is awaited goes before loads ahead and these before the rest, and a load that was taken out of its queue
    is carried out by whoever pushes it again."""
    carried = Carried(4)
    lane = Lane("test", 1, carried.carry, STREAM_S)
    first, later, ahead, awaited = moves(4096, 4096, 4096, 4096)
    lane.push([first], Turn.LATER)
    assert carried.begun(1)
    lane.push([later], Turn.LATER)
    lane.push([ahead, awaited], Turn.AHEAD)
    assert lane.take_ahead([awaited.op, later.op]) == [awaited]
    assert lane.waiting == 2
    lane.push([awaited], Turn.AWAITED)
    carried.end(lane)
    assert carried.streams == [[0], [3], [2], [1]]
