"""What threads leave for the event loop, which takes it in batches."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")

APART_S = 0.01
"""Between two batches, while more is expected: 5 MiB take about 2 ms from a server on the same host."""


class Outbox(Generic[T]):
    """A batch is taken at once when it is the first for a while, or has the last thing of its kind that is
    expected. Otherwise it waits until APART_S after the one before: a batch costs the loop, and the threads their
    turn in the interpreter, about as much for one thing as for many.

    `put` and `wake` are for any thread, the rest is the loop's.
    """

    def __init__(self, take: Callable[[list[T]], None]) -> None:
        """`take` is called on the loop with what was put, in its order; with nothing after a `wake` alone."""
        self._take = take
        self._items: list[T] = []
        self._expected: Counter[bool] = Counter()
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._pause: asyncio.TimerHandle | None = None
        self._due = False
        self.open = 0
        """How many are expected that were not taken yet."""

    def expect(self, urgent: bool, count: int = 1) -> None:
        """So many more of a kind will be put."""
        self._loop = asyncio.get_running_loop()
        self.open += count
        with self._lock:
            self._expected[urgent] += count

    def hurry(self, count: int) -> None:
        """So many that are expected, and not put yet, are urgent by now."""
        with self._lock:
            self._expected[False] -= count
            self._expected[True] += count

    def put(self, item: T, urgent: bool) -> None:
        """`urgent`: as it was expected."""
        with self._lock:
            self._items.append(item)
            self._expected[urgent] -= 1
            at_once = not self._due or not self._expected[urgent]
        if at_once:
            self.wake()

    def wake(self) -> None:
        """Has everything taken at once."""
        self._due = True
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._deliver)

    def _deliver(self) -> None:
        if self._pause is not None:
            self._pause.cancel()
            self._pause = None
        with self._lock:
            self._due = False
            items, self._items = self._items, []
        self.open -= len(items)
        self._take(items)
        if items and self.open and self._loop is not None:
            self._due = True
            self._pause = self._loop.call_later(APART_S, self._deliver)
