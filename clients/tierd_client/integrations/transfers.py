"""Blocks between an engine's pages and the daemon: jobs with numbers of the engine's, on threads beside its own.

A store that cannot be done is left out: what is not stored is computed again some day. So is one whose pages the
engine wants back while the daemon does not answer. A load does not fail while the lease is held under which its
blocks were found, and waits for no store.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
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
"""How long a store waits for room."""


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


class TakenBack(Exception):
    """The engine has its pages again: they are not to be read."""


@dataclass(slots=True)
class _Job:
    """A job that is not over."""

    is_store: bool
    taken_back: bool = False


class Transfers:
    """The jobs of one worker. Thread-safe. `pages`: of each group, by its number."""

    def __init__(self, link: Link, pages: Sequence[PagedKV]) -> None:
        self._link = link
        self._pages = pages
        self._reader: LeasedReader | None = None
        self._loads = ThreadPoolExecutor(1, thread_name_prefix="tierd-loads")
        self._stores = ThreadPoolExecutor(1, thread_name_prefix="tierd-stores")
        self._running: dict[int, _Job] = {}
        self._finished: list[Finished] = []
        self._changed = threading.Condition()
        self._asking_since: float | None = None
        """Since when the store under way waits for the daemon; None while it copies, and without one."""

    def store(self, job: int, layout: Layout, runs: Sequence[StoredRun], priority: Priority | None) -> None:
        """Stores each run's blocks out of these pages, once all is done that the GPU has been given so far."""
        given, begun = work_given(), _Job(is_store=True)
        self._begin(self._stores, job, begun, lambda: self._store(begun, layout, runs, priority, given))

    def load(self, job: int, parts: Sequence[LoadedPart]) -> None:
        """Copies leased blocks into pages, once all is done that the GPU has been given so far."""
        given = work_given()
        self._begin(self._loads, job, _Job(is_store=False), lambda: self._load(parts, given))

    def finished(self) -> list[Finished]:
        """Jobs that ended since this was last asked."""
        with self._changed:
            ended, self._finished = self._finished, []
        return ended

    def wait(self, jobs: Collection[int]) -> None:
        """Until none of these jobs touches a page any more. A daemon that lets a store wait for `answer_ms` is not
        waited for: that store and those behind it lose their pages, at once until it answers or is given up."""
        with self._changed:
            while touching := self._touching(jobs):
                stores = [job for job in touching if job.is_store]
                left_s = self._patience_s() if stores else None
                if left_s is None or left_s > 0:
                    self._changed.wait(left_s)
                else:
                    for store in stores:
                        store.taken_back = True

    def close(self) -> None:
        """Ends when the jobs under way have ended."""
        for threads in (self._stores, self._loads):
            threads.shutdown(wait=True, cancel_futures=True)

    def _touching(self, jobs: Collection[int]) -> list[_Job]:
        """Those of these jobs that may touch pages."""
        running = [self._running[job] for job in jobs if job in self._running]
        return [job for job in running if not job.taken_back]

    def _patience_s(self) -> float | None:
        """For how long the daemon is still waited for; None while nothing waits for it."""
        if self._asking_since is None:
            return None
        return self._asking_since + self._link.options.answer_s - time.monotonic()

    def _begin(self, threads: ThreadPoolExecutor, number: int, job: _Job, work: Callable[[], int]) -> None:
        with self._changed:
            self._running[number] = job
        threads.submit(lambda: self._do(number, work))

    def _do(self, job: int, work: Callable[[], int]) -> None:
        began_at, moved, error = time.monotonic(), 0, ""
        try:
            moved = work()
        except Exception as problem:  # whatever it is, the engine is to hear of it
            error = f"{type(problem).__name__}: {problem}"
        with self._changed:
            self._finished.append(Finished(job, moved, time.monotonic() - began_at, error))
            self._running.pop(job, None)
            self._changed.notify_all()

    def _store(
        self, job: _Job, layout: Layout, runs: Sequence[StoredRun], priority: Priority | None,
        given: Callable[[], None],
    ) -> int:
        given()
        moved = 0
        self._asks(time.monotonic())
        try:
            for run, pages in runs if self._link.is_up and not job.taken_back else []:
                namespace, paged = self._link.namespace(layout), self._pages[run.group]
                outcomes = namespace.put_pages(
                    run.identities(layout), paged, pages, timeout_s=ROOM_WAIT_S, priority=priority,
                    guard=lambda: self._copying(job))
                moved += outcomes.count(PutOutcome.STORED) * paged.block_bytes
        except TakenBack:
            log.debug("blocks are not stored: the engine needed their pages before the daemon had answered")
        except TierdClientError as error:
            self._link.lost(error)
        except Exception:  # a mistake of ours is no reason to end an engine
            log.exception("blocks are not stored")
        finally:
            self._asks(None)
        return moved

    @contextmanager
    def _copying(self, job: _Job) -> Iterator[None]:
        """A store's pages are read within it."""
        with self._changed:
            if job.taken_back:
                raise TakenBack
            self._asking_since = None
        try:
            yield
        finally:
            self._asks(time.monotonic())

    def _asks(self, since: float | None) -> None:
        with self._changed:
            self._asking_since = since
            self._changed.notify_all()

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
