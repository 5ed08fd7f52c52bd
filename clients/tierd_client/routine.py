"""Routines: what the client does, written once for callers that block and for those that await.

A routine is a coroutine that awaits *steps* and nothing else: `Call` (calls.py) is one RPC, `Work` a function that
may take its time. A routine does no I/O of its own. Who performs it decides what a step does to its caller: `run`
blocks the thread, `perform` suspends the task and leaves the event loop free.

To add a method: write it as a routine, with its docstring, in NamespaceRoutines (namespace.py) or AdminRoutines
(admin.py), and one line in each of the twins there: `name = blocking(...)` and `name = awaiting(...)`. A listing
is `..._pages(...)` instead.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Generator, Iterator
from concurrent.futures import Executor
from types import TracebackType
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

T = TypeVar("T")
V = TypeVar("V")
P = ParamSpec("P")
F = TypeVar("F", bound=Callable[..., Any])

Routine = Coroutine["Step[Any]", Any, T]
Perform = Callable[[Routine[Any]], Any]
"""`run`, or the same for an event loop."""


class Step(Generic[T]):
    """What a routine awaits: something that takes time."""

    def __await__(self) -> Generator[Step[T], T, T]:
        return (yield self)

    def block(self) -> T:
        """Does it on this thread."""
        raise NotImplementedError

    async def wait(self, threads: Executor) -> T:
        """Does it without holding up the event loop."""
        raise NotImplementedError


class Work(Step[T]):
    """A function that copies much or waits, on a thread where the caller is an event loop.

    A task that is cancelled goes on only when the function has returned, because it may be writing to memory
    that is given away next; `stop` is called to make it return sooner.
    """

    def __init__(self, function: Callable[[], T], stop: Callable[[], None] | None = None) -> None:
        self._function = function
        self._stop = stop

    def block(self) -> T:
        return self._function()

    async def wait(self, threads: Executor) -> T:
        job = threads.submit(self._function)
        work = asyncio.wrap_future(job)
        try:
            return await asyncio.shield(work)
        except asyncio.CancelledError:
            if job.cancel():  # no thread had come to it
                raise
            if self._stop is not None:
                self._stop()
            while not work.done():
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.wait([work])
            work.exception()  # nobody is left to hear of it
            raise


def run(routine: Routine[T]) -> T:
    """Performs a routine by blocking this thread."""
    try:
        step = routine.send(None)
        while True:
            try:
                result = step.block()
            except BaseException as error:
                step = routine.throw(error)
            else:
                step = routine.send(result)
    except StopIteration as stop:
        value: T = stop.value
        return value


async def perform(routine: Routine[T], threads: Executor) -> T:
    """Performs a routine on the running event loop; `threads` are for its Work."""
    try:
        step = routine.send(None)
        while True:
            try:
                result = await step.wait(threads)
            except GeneratorExit:  # the task is thrown away: nothing can be awaited any more
                routine.close()
                raise
            except BaseException as error:
                step = routine.throw(error)
            else:
                step = routine.send(result)
    except StopIteration as stop:
        value: T = stop.value
        return value


def blocking(routine: Callable[Concatenate[V, P], Routine[T]]) -> Callable[Concatenate[Any, P], T]:
    """A routine of a twin's `_routines` as a method that blocks."""

    def method(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> T:
        result: T = self._perform(routine(self._routines, *args, **kwargs))
        return result

    functools.update_wrapper(method, routine)
    return method


def awaiting(
    routine: Callable[Concatenate[V, P], Routine[T]],
) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]:
    """A routine of a twin's `_routines` as a method to be awaited."""

    async def method(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> T:
        result: T = await self._perform(routine(self._routines, *args, **kwargs))
        return result

    functools.update_wrapper(method, routine)
    return method


Pages = Callable[[Any], Routine[tuple[list[T], Any]]]
"""A listing by its pages: from what the last page said is next, None for the first, to entries and the next
one's, which is empty after the last."""


def blocking_pages(pages: Callable[Concatenate[V, P], Pages[T]]) -> Callable[Concatenate[Any, P], Iterator[T]]:
    """A listing as a method that gives its entries one by one, and blocks for each page."""

    def method(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> Iterator[T]:
        page, then = pages(self._routines, *args, **kwargs), None
        while True:
            entries, then = self._perform(page(then))
            yield from entries
            if not then:
                return

    functools.update_wrapper(method, pages)
    return method


def awaiting_pages(
    pages: Callable[Concatenate[V, P], Pages[T]],
) -> Callable[Concatenate[Any, P], AsyncIterator[T]]:
    """A listing as a method for `async for`."""

    async def method(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> AsyncIterator[T]:
        page, then = pages(self._routines, *args, **kwargs), None
        while True:
            entries, then = await self._perform(page(then))
            for entry in entries:
                yield entry
            if not then:
                return

    functools.update_wrapper(method, pages)
    return method


def described_by(like: Callable[..., Any]) -> Callable[[F], F]:
    """Gives a method the docstring of the routine behind it."""

    def describe(method: F) -> F:
        method.__doc__ = like.__doc__
        return method

    return describe


M = TypeVar("M", bound="contextlib.AbstractAsyncContextManager[Any]")


class Opening(Generic[M]):
    """What opens something that must be closed: `x = await opening`, or `async with opening as x`."""

    def __init__(self, opened: Awaitable[M]) -> None:
        self._opened = opened
        self._entered: M | None = None

    def __await__(self) -> Generator[Any, Any, M]:
        return self._opened.__await__()

    async def __aenter__(self) -> M:
        self._entered = await self._opened
        await self._entered.__aenter__()
        return self._entered

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None,
    ) -> None:
        if self._entered is not None:
            await self._entered.__aexit__(kind, error, trace)
