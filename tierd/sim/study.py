"""Many replays of one trace, in processes side by side."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.sharedctypes import Synchronized
from typing import Any

from tierd.core.errors import TierdError
from tierd.leash import die_with
from tierd.plugins import offer_policies
from tierd.sim.keyed import Memory
from tierd.sim.played import Advance, Played
from tierd.sim.replay import play
from tierd.sim.tiers import ONE_TIER, Tiers
from tierd.sim.traces import Trace

TOLD_EVERY = 4_096
"""Accesses after which a process tells how far it is."""
_ASKED_EVERY_S = 0.1


class ReplayFailed(TierdError):
    """A process of the study is gone, or has refused what it was to replay."""


class _Stopped(Exception):
    """The study is over: what this process would find is not wanted."""


@dataclass(frozen=True, slots=True)
class Task:
    """One replay: a policy at a capacity, as `play` takes them."""

    policy: str
    capacity: int
    pinned: bool = True
    memory: Memory | None = None
    tiers: Tiers = ONE_TIER


def most_jobs() -> int:
    return len(os.sched_getaffinity(0))


def play_all(
    trace: Trace, tasks: Sequence[Task], jobs: int, advance: Advance = lambda _: None
) -> list[Played]:
    """What each task counts, in order. `jobs`: processes at once, 1 for none beside this one. ReplayFailed when one
    of them dies, for want of memory say."""
    if min(jobs, len(tasks)) <= 1:
        return [_play(trace, task, advance) for task in tasks]
    context = multiprocessing.get_context("spawn")
    done, stop = context.Value("q", 0), context.Value("b", 0)
    with ProcessPoolExecutor(
        min(jobs, len(tasks)), context, _begin, (trace, os.getpid(), done, stop)
    ) as pool:
        try:
            with _interrupted_later():
                futures = [pool.submit(_play_here, task) for task in tasks]
            _follow(futures, done, advance)
            return [future.result() for future in futures]
        except BrokenProcessPool as error:
            raise ReplayFailed("a replay ended before it was done; fewer --jobs take less memory") from error
        finally:
            stop.value = 1
            pool.shutdown(cancel_futures=True)


@contextmanager
def _interrupted_later() -> Iterator[None]:
    """Ctrl-C waits until this is over, and never reaches processes that are started meanwhile: half started they
    would die of it aloud, and later this one says when to stop. On the main thread."""
    told: list[int] = []
    handler = signal.signal(signal.SIGINT, lambda number, _: told.append(number))  # any thread may be told of it
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        signal.signal(signal.SIGINT, handler)
    if told and callable(handler):
        handler(signal.SIGINT, None)


def _play(trace: Trace, task: Task, advance: Advance) -> Played:
    return play(
        trace, task.policy, task.capacity, advance, pinned=task.pinned, memory=task.memory, tiers=task.tiers
    )


def _follow(futures: Sequence[Future[Played]], done: Synchronized[int], advance: Callable[[int], None]) -> None:
    """Tells of progress until all are done, or one has failed."""
    told, left = 0, set(futures)
    while left:
        ended, left = wait(left, _ASKED_EVERY_S)
        advance(done.value - told)
        told = done.value
        if any(future.exception() for future in ended):
            return


_here: list[Any] = []
"""Trace and counters of this process, which has one study to work for."""


def _begin(trace: Trace, parent: int, done: Synchronized[int], stop: Synchronized[int]) -> None:
    if not die_with(parent):
        os.kill(os.getpid(), signal.SIGTERM)
    offer_policies()
    _here[:] = [trace, done, stop]


def _play_here(task: Task) -> Played:
    trace, done, stop = _here
    untold = 0

    def advance(accesses: int) -> None:
        nonlocal untold
        untold += accesses
        if untold >= TOLD_EVERY:
            if stop.value:
                raise _Stopped
            with done.get_lock():
                done.value += untold
            untold = 0

    try:
        return _play(trace, task, advance)
    except TierdError as error:  # most errors have more than a text, and would not come through
        raise ReplayFailed(str(error)) from None
