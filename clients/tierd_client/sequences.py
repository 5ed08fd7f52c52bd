"""The sequences of one client: which are open, and which closed a short while ago."""

from __future__ import annotations

import threading
from collections import OrderedDict

from tierd_client.errors import FailedPrecondition
from tierd_client.sequence import Running

RECENT_MAX = 64
"""Closed sequences that are remembered, so that a report that comes late still finds its blocks."""


class Sequences:
    """Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: dict[str, Running] = {}
        self._recent: OrderedDict[str, Running] = OrderedDict()

    def add(self, sequence: Running) -> None:
        """A sequence is being opened. FailedPrecondition when one of its name is."""
        with self._lock:
            if sequence.name in self._open:
                raise FailedPrecondition(f"sequence: {sequence.name!r} is open already")
            self._open[sequence.name] = sequence

    def discard(self, sequence: Running) -> bool:
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

    def all_open(self) -> list[Running]:
        """Those that a new session must open again."""
        with self._lock:
            return list(self._open.values())

    def known(self, name: str) -> Running | None:
        """One that is open, or closed a short while ago."""
        return self._open.get(name) or self._recent.get(name)
