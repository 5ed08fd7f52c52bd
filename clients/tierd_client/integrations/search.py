"""Which blocks of a request the daemon has, found and leased on threads of the link while the engine goes on.

A search ends with a lease on what it found, in host memory, for every rank: what the engine is told to be there can
be loaded, whatever becomes of the daemon. An engine asks again and again whether a search has ended; one that takes
too long counts as a miss, and turns the daemon away if it is the daemon that does not answer.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from tierd_client.errors import TierdClientError, TimedOut
from tierd_client.format import BoolArray
from tierd_client.handover import Places
from tierd_client.identity import Identities
from tierd_client.integrations.keys import Run
from tierd_client.integrations.link import Link
from tierd_client.integrations.rates import Rates, Way
from tierd_client.layout import Layout
from tierd_client.lease import Lease
from tierd_client.namespace import Namespace
from tierd_client.outcomes import AcquireOutcome, Tiers

log = logging.getLogger("tierd")

STEP_WAIT_S = 0.005
"""For which the engine's thread waits in one step. A daemon answers within a millisecond; a step takes longer."""


class Search:
    """A search for the blocks of one run. `ended` is asked by the engine's thread; the rest is true once it is."""

    def __init__(
        self, link: Link, layouts: Sequence[Layout], run: Run, rates: Rates, *, leading: bool,
    ) -> None:
        """`layouts`: of all ranks. `leading`: blocks count only as far as all before them are there."""
        self.run = run
        self.cut_blocks = 0
        """Blocks that are there and are not loaded, because computing them is faster."""

        self._rates = rates
        self.leased: BoolArray = np.zeros(len(run), bool)
        self._link = link
        self._layouts = layouts
        self._leading = leading
        self._leases: list[Lease] = []
        self._abandoned = False
        self._over = threading.Event()
        self._lock = threading.Lock()
        self._queued = False
        """Whether it waits for others' blocks to come up; the daemon has not been asked for its own."""
        self._answers_by = time.monotonic() + link.options.answer_s
        link.submit(self._search)

    def ended(self) -> bool:
        """Whether it is known what is there. One that is overdue is over, with nothing found, and so is every one
        while the daemon is away."""
        if not self._over.is_set():
            overdue = time.monotonic() > self._answers_by
            if overdue and not self._queued:
                self._link.lost(TimedOut(f"no answer within {self._link.options.answer_ms} ms"))
            if overdue or not self._link.is_up:
                self.release()
        return self._over.is_set()

    def wait(self, timeout_s: float) -> None:
        """Until it is over, or so long."""
        self._over.wait(timeout_s)

    def places(self, indices: Sequence[int]) -> list[Places]:
        """Where these blocks of the run lie, for each rank."""
        return [lease.places(indices) for lease in self._leases]

    def release(self) -> None:
        """Gives the lease back, on a thread of the link; that of a search under way as soon as it has one."""
        with self._lock:
            self._abandoned = True
            self._over.set()
            leases, self._leases = self._leases, []
            self.leased = np.zeros(len(self.run), bool)
        if leases:
            self._link.submit(lambda: _release(leases))

    def _search(self) -> None:
        with self._ended_by_errors():
            wanted, below = self._look()
            if below.any():
                self._answers_by = time.monotonic() + self._link.options.promote_s + self._link.options.answer_s
                self._queued = True
                self._link.promote(lambda: self._promote(wanted, below))
            else:
                self._lease(wanted, 0.0)

    def _promote(self, wanted: BoolArray, below: BoolArray) -> None:
        """What has come up in time is leased; the time counts from before a thread was free for it."""
        with self._ended_by_errors():
            began_at, self._queued = time.monotonic(), False
            if not self._abandoned:
                self._lease(wanted, max(0.0, self._answers_by - self._link.options.answer_s - began_at))
                self._rates.note(Way.SPILL, int((below & wanted).sum()), time.monotonic() - began_at)

    def _look(self) -> tuple[BoolArray, BoolArray]:
        """Which blocks are worth loading of those that all ranks have, and which of these have to come up first."""
        present: BoolArray = np.ones(len(self.run), bool)
        below: BoolArray = np.zeros(len(self.run), bool)
        for namespace, ids in self._chains():
            bits = namespace.lookup(ids).tier_bits  # no call for what the catalog has in host
            present &= bits != 0
            below |= bits & Tiers.HOST.value == 0
        wanted = self._countable(present & self._worthwhile(below))
        self.cut_blocks = int(self._countable(present).sum() - wanted.sum())
        return wanted, below & wanted

    def _lease(self, wanted: BoolArray, wait_s: float) -> None:
        """Leases what all ranks have, which `wanted` says afterwards."""
        leases: list[Lease] = []
        try:
            for namespace, ids in self._chains() if wanted.any() else []:
                lease = namespace.acquire(ids[: int(np.flatnonzero(wanted)[-1]) + 1], timeout_s=wait_s)
                leases.append(lease)
                got = [outcome is AcquireOutcome.LEASED for outcome in lease.outcomes]
                wanted[: len(got)] &= got
        except BaseException:
            _release(leases)
            raise
        self._finish(leases, self._countable(wanted))

    def _chains(self) -> list[tuple[Namespace, Identities]]:
        """The run in the namespace of each rank."""
        return [(self._link.namespace(layout), self.run.identities(layout)) for layout in self._layouts]

    @contextmanager
    def _ended_by_errors(self) -> Iterator[None]:
        """Nothing is found where it fails."""
        try:
            yield
            return
        except TierdClientError as error:
            self._link.lost(error)
        except Exception:  # a mistake of ours is no reason to lose a request
            log.exception("a prompt is computed whose blocks could not be searched")
        self._finish([], np.zeros(len(self.run), bool))

    def _worthwhile(self, below: BoolArray) -> BoolArray:
        """Blocks that come faster than they are computed, given which have to come up first."""
        worth: BoolArray = np.full(len(below), self._rates.is_worth(Way.HOST))
        if worth.any() and below.any() and not self._rates.is_worth(Way.SPILL):
            worth &= ~below
        return worth

    def _countable(self, present: BoolArray) -> BoolArray:
        counted: BoolArray = np.logical_and.accumulate(present) if self._leading else present
        return counted

    def _finish(self, leases: list[Lease], present: BoolArray) -> None:
        with self._lock:
            if not self._abandoned:
                self.leased, self._leases = present, leases
                self._over.set()
                return
        _release(leases)


class Patience:
    """For how long an engine's thread waits for the searches that it begins in one step, all together. Waiting it
    lets them run: their threads share an interpreter with it."""

    def __init__(self, step_s: float = STEP_WAIT_S) -> None:
        self._step_s = self._left_s = step_s

    def next_step(self) -> None:
        self._left_s = self._step_s

    def wait_for(self, search: Search) -> None:
        """Until it is over, or nothing of this step's time is left."""
        began_at = time.monotonic()
        search.wait(self._left_s)
        self._left_s = max(0.0, self._left_s - (time.monotonic() - began_at))


def _release(leases: Sequence[Lease]) -> None:
    for lease in leases:
        lease.release()
