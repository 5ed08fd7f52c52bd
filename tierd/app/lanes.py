"""A lane: threads for one kind of move, and the moves that wait for them, those that somebody waits for first."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

from tierd.core.messages import Move


class Lane:
    """Moves are pushed by the loop and carried out on the pool, each time one or a stream of one direction.

    Of several threads one is kept for urgent moves: others, however slow, never have them all. A stream draws its
    next move when it can begin it, and leaves one for each thread that is free. It ends when nothing is left,
    when it has lasted for its time, so that other calls of the pool have their turn, and for moves that are not
    urgent as soon as one that is waits.
    """

    def __init__(
        self, name: str, threads: int, carry: Callable[[Iterator[Move]], None], stream_s: float = 0.0
    ) -> None:
        """`carry` draws at least one move and carries out what it draws, which may go on for `stream_s`."""
        self.pool = ThreadPoolExecutor(threads, thread_name_prefix=f"tierd-{name}")
        self._threads = threads
        self._carry = carry
        self._stream_s = stream_s
        self._urgent: deque[Move] = deque()
        self._later: deque[Move] = deque()
        self._free = threads
        self._later_room = max(1, threads - 1)
        self._lock = threading.Lock()

    @property
    def waiting(self) -> int:
        return len(self._urgent) + len(self._later)

    def push(self, moves: Sequence[Move], urgent: bool) -> None:
        with self._lock:
            (self._urgent if urgent else self._later).extend(moves)
        for _ in range(min(len(moves), self._threads)):
            self.pool.submit(self._work)

    def take_all(self) -> list[Move]:
        with self._lock:
            taken = [*self._urgent, *self._later]
            self._urgent.clear()
            self._later.clear()
        return taken

    def shut(self) -> None:
        self.pool.shutdown(wait=False, cancel_futures=True)

    def _work(self) -> None:
        with self._lock:
            urgent = bool(self._urgent)
            if not urgent and not (self._later and self._later_room):
                return  # whoever has the room for later moves goes on with them
            first = (self._urgent if urgent else self._later).popleft()
            self._free -= 1
            self._later_room -= not urgent
        try:
            self._carry(self._stream(first, urgent))
        finally:
            with self._lock:
                self._free += 1
                self._later_room += not urgent
                left = self.waiting
            if left:
                self.pool.submit(self._work)

    def _stream(self, first: Move, urgent: bool) -> Iterator[Move]:
        ends = time.monotonic() + self._stream_s
        move: Move | None = first
        while move is not None:
            yield move
            move = self._next(urgent) if time.monotonic() < ends else None

    def _next(self, urgent: bool) -> Move | None:
        with self._lock:
            queue, free = (self._urgent, self._free) if urgent else (self._later, self._later_room)
            may = len(queue) > free and (urgent or not self._urgent)
            return queue.popleft() if may else None
