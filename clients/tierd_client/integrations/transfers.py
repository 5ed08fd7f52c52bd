"""Blocks between an engine's pages and the daemon: jobs with numbers of the engine's, on a thread beside its own.

A store that cannot be done is left out: what is not stored is computed again some day. A load does not fail while
the lease is held under which its blocks were found.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tierd_client.errors import TierdClientError
from tierd_client.handover import LeasedReader, Places
from tierd_client.integrations.keys import Run
from tierd_client.integrations.link import Link
from tierd_client.layout import Layout
from tierd_client.outcomes import Priority, PutOutcome
from tierd_client.paged import PagedKV

log = logging.getLogger("tierd")

LOAD_WITHIN_S = 30.0
"""How long a load may wait for memory of the daemon that this process has not mapped yet."""

AGAIN_S = 0.1

ROOM_WAIT_S = 0.25
"""How long a store waits for room: an engine that needs the pages again waits for the store."""


StoredRun = tuple[Run, NDArray[np.int64]]
"""Blocks of one group and the pages that they lie in."""

LoadedPart = tuple[int, Places, NDArray[np.int64]]
"""A group, where blocks of it lie, and the pages that they are for."""


@dataclass(frozen=True, slots=True)
class Finished:
    """A job that is over. `bytes`: of blocks that were moved; `seconds`: it took; `error`: why a load failed."""

    job: int
    bytes: int
    seconds: float
    error: str = ""


class Transfers:
    """The jobs of one worker. Thread-safe. `pages`: of each group, by its number."""

    def __init__(self, link: Link, pages: Sequence[PagedKV]) -> None:
        self._link = link
        self._pages = pages
        self._reader: LeasedReader | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="tierd-transfers")
        self._running: set[int] = set()
        self._finished: list[Finished] = []
        self._changed = threading.Condition()

    def store(self, job: int, layout: Layout, runs: Sequence[StoredRun], priority: Priority | None) -> None:
        """Stores each run's blocks out of these pages, once all is done that the GPU has been given so far."""
        given = work_given()
        self._begin(job, lambda: self._store(layout, runs, priority, given))

    def load(self, job: int, parts: Sequence[LoadedPart]) -> None:
        """Copies leased blocks into pages, once all is done that the GPU has been given so far."""
        given = work_given()
        self._begin(job, lambda: self._load(parts, given))

    def finished(self) -> list[Finished]:
        """Jobs that ended since this was last asked."""
        with self._changed:
            ended, self._finished = self._finished, []
        return ended

    def wait(self, jobs: Collection[int]) -> None:
        """Until none of these jobs touches a page any more."""
        with self._changed:
            self._changed.wait_for(lambda: self._running.isdisjoint(jobs))

    def close(self) -> None:
        """Ends when the job under way has ended."""
        self._thread.shutdown(wait=True, cancel_futures=True)

    def _begin(self, job: int, work: Callable[[], int]) -> None:
        with self._changed:
            self._running.add(job)
        self._thread.submit(lambda: self._do(job, work))

    def _do(self, job: int, work: Callable[[], int]) -> None:
        began_at, moved, error = time.monotonic(), 0, ""
        try:
            moved = work()
        except Exception as problem:  # whatever it is, the engine is to hear of it
            error = f"{type(problem).__name__}: {problem}"
        with self._changed:
            self._finished.append(Finished(job, moved, time.monotonic() - began_at, error))
            self._running.discard(job)
            self._changed.notify_all()

    def _store(
        self, layout: Layout, runs: Sequence[StoredRun], priority: Priority | None, given: Callable[[], None],
    ) -> int:
        given()
        moved = 0
        try:
            for run, pages in runs if self._link.is_up else []:
                namespace, paged = self._link.namespace(layout), self._pages[run.group]
                ids = run.identities(layout)
                outcomes = namespace.put_pages(ids, paged, pages, timeout_s=ROOM_WAIT_S, priority=priority)
                moved += outcomes.count(PutOutcome.STORED) * paged.block_bytes
        except TierdClientError as error:
            self._link.lost(error)
        except Exception:  # a mistake of ours is no reason to end an engine
            log.exception("blocks are not stored")
        return moved

    def _load(self, parts: Sequence[LoadedPart], given: Callable[[], None]) -> int:
        given()
        for group, places, pages in parts:
            self._scatter(places, self._pages[group], pages)
        return sum(len(places) * places.block_bytes for _, places, _ in parts)

    def _scatter(self, places: Places, paged: PagedKV, pages: Any) -> None:
        """Once the memory is mapped: at once, unless it came since and the daemon has just died."""
        gives_up_at = time.monotonic() + LOAD_WITHIN_S
        while True:
            try:
                if self._reader is None:
                    self._reader = LeasedReader(self._link.client())
                return self._reader.scatter(places, paged, pages)
            except TierdClientError:
                if time.monotonic() > gives_up_at:
                    raise
                time.sleep(AGAIN_S)


def work_given() -> Callable[[], None]:
    """What waits for all that this thread has given the GPU so far: the pages are written and read until then."""
    import torch  # an engine that has pages has it

    if not torch.cuda.is_available():
        return lambda: None
    event: Any = torch.cuda.Event()  # type: ignore[no-untyped-call, unused-ignore]
    event.record()
    wait: Callable[[], None] = event.synchronize
    return wait
