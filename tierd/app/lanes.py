"""A lane: threads for one kind of move, and the moves that wait for them, those that somebody waits for first."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from tierd.core.messages import Move


class Lane:
    """Moves are pushed by the loop and carried out on the pool, alone or several of one direction at once.

    Of several threads one is kept for urgent moves: others, however slow, never have them all. Whatever waits is
    shared out evenly, so that no thread takes at once what others could carry. Each job of the pool carries out
    one batch and goes to the end of the pool's queue while there is more, so that other calls have their turn.
    """

    def __init__(
        self, name: str, threads: int, carry: Callable[[Sequence[Move]], None], batch_moves: int = 1,
        batch_bytes: int = 0,
    ) -> None:
        """`carry` gets at most `batch_moves` moves, several only within `batch_bytes`."""
        self.pool = ThreadPoolExecutor(threads, thread_name_prefix=f"tierd-{name}")
        self._threads = threads
        self._carry = carry
        self._batch_moves, self._batch_bytes = batch_moves, batch_bytes
        self._urgent: deque[Move] = deque()
        self._later: deque[Move] = deque()
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
            moves = self._batch(self._urgent) if urgent else self._batch(self._later) if self._later_room else []
            self._later_room -= bool(moves) and not urgent
        if not moves:
            return  # whoever has the room for later moves goes on with them
        try:
            self._carry(moves)
        finally:
            with self._lock:
                self._later_room += not urgent
                left = self.waiting
            if left:
                self.pool.submit(self._work)

    def _batch(self, queue: deque[Move]) -> list[Move]:
        if not queue:
            return []
        count = min(self._batch_moves, -(-len(queue) // self._threads))
        moves = [queue.popleft()]
        left = self._batch_bytes - moves[0].size
        while queue and len(moves) < count and queue[0].size <= left:
            left -= queue[0].size
            moves.append(queue.popleft())
        return moves
