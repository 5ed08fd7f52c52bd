"""The sequences of one client: which are open, which closed a short while ago, which a thread is inside of."""

from __future__ import annotations

import threading
from collections import OrderedDict

from tierd_client.errors import FailedPrecondition
from tierd_client.sequence import Sequence

RECENT_MAX = 64
"""Closed sequences that are remembered, so that a report that comes late still finds its blocks."""


class Sequences:
    """Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: dict[str, Sequence] = {}
        self._recent: OrderedDict[str, Sequence] = OrderedDict()
        self._local = threading.local()

    def add(self, sequence: Sequence) -> None:
        """A sequence is being opened. FailedPrecondition when one of its name is."""
        with self._lock:
            if sequence.name in self._open:
                raise FailedPrecondition(f"sequence: {sequence.name!r} is open already")
            self._open[sequence.name] = sequence

    def discard(self, sequence: Sequence) -> bool:
        """A sequence is being closed. False when it was closed already."""
        with self._lock:
            if self._open.get(sequence.name) is not sequence:
                return False
            del self._open[sequence.name]
            self._recent[sequence.name] = sequence
            self._recent.move_to_end(sequence.name)
            while len(self._recent) > RECENT_MAX:
                self._recent.popitem(last=False)
            return True

    def all_open(self) -> list[Sequence]:
        """Those that a new session must open again."""
        with self._lock:
            return list(self._open.values())

    def known(self, name: str) -> Sequence | None:
        """One that is open, or closed a short while ago."""
        return self._open.get(name) or self._recent.get(name)

    def stack(self) -> list[Sequence]:
        """The `with` blocks that this thread is inside of, innermost last."""
        stack: list[Sequence] | None = getattr(self._local, "stack", None)
        if stack is None:
            stack = self._local.stack = []
        return stack
