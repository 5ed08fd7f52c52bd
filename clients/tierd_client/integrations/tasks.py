"""Tasks that an engine polls for, and what it has locked until it says otherwise."""

from __future__ import annotations

import os
import threading
from collections import defaultdict
from collections.abc import Sequence
from typing import Any, Protocol


class Releasable(Protocol):
    """A lease."""

    def release(self) -> None: ...


class Finished:
    """Results of tasks of one kind, and the event descriptor that tells of them."""

    def __init__(self) -> None:
        self.event_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._results: dict[int, Any] = {}
        self._lock = threading.Lock()

    def add(self, number: int, result: Any) -> None:
        with self._lock:
            self._results[number] = result
        os.eventfd_write(self.event_fd, 1)

    def one(self, number: int) -> Any:
        """A result, once; None before it is there."""
        with self._lock:
            return self._results.pop(number, None)

    def all(self) -> dict[int, Any]:
        """Those that are there, once."""
        with self._lock:
            results, self._results = self._results, {}
        return results

    def close(self) -> None:
        if self.event_fd >= 0:
            os.close(self.event_fd)
            self.event_fd = -1


class Locks:
    """Releasables until all of their keys are unlocked; a key may be locked several times."""

    def __init__(self) -> None:
        self._leases: dict[Any, list[Releasable]] = defaultdict(list)
        self._left: dict[Releasable, int] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._leases)

    def add(self, lease: Releasable, keys: Sequence[Any]) -> None:
        if not keys:
            lease.release()
            return
        with self._lock:
            self._left[lease] = len(keys)
            for key in keys:
                self._leases[key].append(lease)

    def unlocked(self, keys: Sequence[Any]) -> list[Releasable]:
        """Releasables of which nothing is locked any more; the oldest lock of a key goes first."""
        over = []
        with self._lock:
            for key in keys:
                held = self._leases.get(key)
                if not held:
                    continue
                lease = held.pop(0)
                if not held:
                    del self._leases[key]
                self._left[lease] -= 1
                if not self._left[lease]:
                    del self._left[lease]
                    over.append(lease)
        return over

    def all(self) -> list[Releasable]:
        """All that are left; none after it."""
        with self._lock:
            leases = list(self._left)
            self._left.clear()
            self._leases.clear()
        return leases
