"""Blocks that were put without waiting: they are written, and a thread tells the daemon.

Nobody finds such a block before it is committed. What the caller gave may change as soon as the put has returned:
its bytes are in the daemon's memory by then, with their checksum.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Protocol

from tierd_client.errors import TierdClientError, TimedOut
from tierd_client.outcomes import PutOutcome
from tierd_client.routine import Routine, run

FAILED_MAX = 65_536
"""Identities that a report names; of more it has the number."""

_NO_FAILURE = (PutOutcome.STORED, PutOutcome.EXISTS, PutOutcome.DUPLICATE)
"""A duplicate is named by the outcome of the first of its call."""


@dataclass(slots=True)
class Flushed:
    """What became of queued blocks since the last flush. `outcomes` counts all. `failed`: identity and outcome of
    those that were neither stored nor there before, once for each call that named them: PENDING where the daemon
    was lost before it was told. `errors`: why, in words."""

    outcomes: Counter[PutOutcome] = field(default_factory=Counter)
    failed: list[tuple[bytes, PutOutcome]] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)


class Queued(Protocol):
    """A put whose blocks are written."""

    def identities(self) -> Sequence[bytes]: ...

    def commit(self) -> Routine[list[PutOutcome]]:
        """Tells the daemon; an outcome per identity."""


class Committer:
    """A thread of one client, started with the first queued put. Thread-safe."""

    def __init__(self) -> None:
        self._waiting: deque[Queued] = deque()
        self._report = Flushed()
        self._busy = False
        self._changed = threading.Condition()

    def add(self, put: Queued) -> None:
        with self._changed:
            self._waiting.append(put)
            if not self._busy:
                self._busy = True
                threading.Thread(target=self._commit_all, name="tierd-committer", daemon=True).start()

    def flush(self, timeout_s: float) -> Flushed:
        """Waits until nothing is queued. TimedOut, and the report stays for the next flush."""
        ends_at = time.monotonic() + timeout_s
        with self._changed:
            if not self._changed.wait_for(lambda: not self._busy, max(0.0, ends_at - time.monotonic())):
                raise TimedOut(f"flush: {len(self._waiting) + 1} puts are queued still after {timeout_s} s")
            report, self._report = self._report, Flushed()
            return report

    def close(self, timeout_s: float) -> None:
        """Waits for what is queued, not longer than that."""
        with suppress(TierdClientError):
            self.flush(timeout_s)

    def _commit_all(self) -> None:
        while True:
            with self._changed:
                if not self._waiting:
                    self._busy = False
                    self._changed.notify_all()
                    return
                put = self._waiting.popleft()
            error = ""
            try:
                outcomes = run(put.commit())
            except Exception as problem:  # whatever it is, the caller of flush is to hear of it
                error = f"{type(problem).__name__}: {problem}"
                outcomes = [PutOutcome.PENDING] * len(put.identities())
            self._note(put, outcomes, error)

    def _note(self, put: Queued, outcomes: list[PutOutcome], error: str) -> None:
        with self._changed:
            report = self._report
            report.outcomes.update(outcomes)
            failed = [pair for pair in zip(put.identities(), outcomes, strict=True) if pair[1] not in _NO_FAILURE]
            report.failed += failed[: FAILED_MAX - len(report.failed)]
            if error and len(report.errors) < FAILED_MAX:
                report.errors.append(error)
