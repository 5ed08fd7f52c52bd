"""A lane: threads for one kind of move, and the moves that wait for them, those that somebody waits for first."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from enum import IntEnum

from tierd.core.messages import Move


class Turn(IntEnum):
    """Which moves are begun first: those that somebody waits for, loads that somebody may soon want, the others."""

    AWAITED = 0
    AHEAD = 1
    LATER = 2


class Lane:
    """Moves are pushed by the loop and carried out on the pool, each time one or a stream of one direction.

    Of several threads one is kept for awaited moves: others, however slow, never have them all. A stream draws its
    next move when it can begin it, and leaves one for each thread that is free. It ends when nothing is left,
    when it has lasted for its time, so that other calls of the pool have their turn, and as soon as moves wait
    whose turn is before its own.
    """

    def __init__(
        self, name: str, threads: int, carry: Callable[[Iterator[Move]], None], stream_s: float = 0.0
    ) -> None:
        """`carry` draws at least one move and carries out what it draws, which may go on for `stream_s`."""
        self.pool = ThreadPoolExecutor(threads, thread_name_prefix=f"tierd-{name}")
        self._threads = threads
        self._carry = carry
        self._stream_s = stream_s
        self._queues: list[deque[Move]] = [deque() for _ in Turn]
        """By turn."""
        self._free = threads
        self._later_room = max(1, threads - 1)
        self._lock = threading.Lock()

    @property
    def waiting(self) -> int:
        return sum(map(len, self._queues))

    def push(self, moves: Sequence[Move], turn: Turn) -> None:
        with self._lock:
            self._queues[turn].extend(moves)
        for _ in range(min(len(moves), self._threads)):
            self.pool.submit(self._work)

    def take_all(self) -> list[Move]:
        with self._lock:
            taken = [move for queue in self._queues for move in queue]
            for queue in self._queues:
                queue.clear()
        return taken

    def take_ahead(self, ops: Collection[int]) -> list[Move]:
        """Takes out those of these loads ahead that no thread has begun."""
        with self._lock:
            ahead = list(self._queues[Turn.AHEAD])
            self._queues[Turn.AHEAD] = deque(move for move in ahead if move.op not in ops)
        return [move for move in ahead if move.op in ops]

    def shut(self) -> None:
        self.pool.shutdown(wait=False, cancel_futures=True)

    def _work(self) -> None:
        with self._lock:
            turn = next((turn for turn in Turn if self._queues[turn]), None)
            if turn is None or not (turn is Turn.AWAITED or self._later_room):
                return  # whoever has the room for moves that can wait goes on with them
            first = self._queues[turn].popleft()
            self._free -= 1
            self._later_room -= turn is not Turn.AWAITED
        try:
            self._carry(self._stream(first, turn))
        finally:
            with self._lock:
                self._free += 1
                self._later_room += turn is not Turn.AWAITED
                left = self.waiting
            if left:
                self.pool.submit(self._work)

    def _stream(self, first: Move, turn: Turn) -> Iterator[Move]:
        ends = time.monotonic() + self._stream_s
        move: Move | None = first
        while move is not None:
            yield move
            move = self._next(turn) if time.monotonic() < ends else None

    def _next(self, turn: Turn) -> Move | None:
        with self._lock:
            queue, free = self._queues[turn], self._free if turn is Turn.AWAITED else self._later_room
            may = len(queue) > free and not any(self._queues[:turn])
            return queue.popleft() if may else None
