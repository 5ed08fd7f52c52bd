"""The life of a running daemon: stages start in order, one signal ends them in the reverse order.

    start: stage 1 .. n -> READY -> until SIGTERM, SIGINT or a stage that fails -> stop: stage n .. 1

Which stages there are is wiring's business; here is only that each starts after those it needs, that every
task belongs to one group, and that the end comes within its deadline whatever a stage does.
"""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

import structlog

log = structlog.get_logger(__name__)

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
EXIT_WITHIN_S = 19.0
"""After a signal the process ends within this time even if something hangs; the promise is 20 s."""

STAGES_WITHIN_S = 15.0
"""Of which all stages together; the rest is for the child, the files and the interpreter."""

LEAST_STOP_S = 0.5
EXIT_HUNG = 70


@dataclass(frozen=True, slots=True)
class Stage:
    """A part of the daemon. `run` works until it is cancelled; its failure ends the daemon.

    `stop(timeout_s)` ends it in an orderly way and returns within about that time.
    """

    name: str
    start: Callable[[], Awaitable[None]] | None = None
    run: Callable[[], Coroutine[Any, Any, None]] | None = None
    stop: Callable[[float], Awaitable[None]] | None = None


class Daemon:
    """Runs stages until it is told to stop. Belongs to one event loop."""

    def __init__(self, stages: Sequence[Stage], *, on_ready: Callable[[], None], stop_timeout_s: float) -> None:
        """`stop_timeout_s`: most that one stage may take to stop."""
        self._stages = stages
        self._on_ready = on_ready
        self._stop_timeout_s = stop_timeout_s
        self._stopping = asyncio.Event()

    async def run(self) -> None:
        """Returns after an orderly stop. A failing stage's error comes out in an ExceptionGroup."""
        loop = asyncio.get_running_loop()
        for number in STOP_SIGNALS:
            loop.add_signal_handler(number, self._signalled, number)
        started: list[Stage] = []
        async with asyncio.TaskGroup() as group:
            tasks: list[asyncio.Task[None]] = []
            try:
                await self._start(group, started, tasks)
                self._on_ready()
                await self._stopping.wait()
            finally:
                await self._stop(started)
                for task in tasks:
                    task.cancel()

    def _signalled(self, number: int) -> None:
        log.info("stopping", signal=signal.Signals(number).name)
        if not self._stopping.is_set():
            exit_in(EXIT_WITHIN_S)
        self._stopping.set()

    async def _start(
        self, group: asyncio.TaskGroup, started: list[Stage], tasks: list[asyncio.Task[None]]
    ) -> None:
        for stage in self._stages:
            if stage.start is not None:
                await stage.start()
            started.append(stage)
            if stage.run is not None:
                tasks.append(group.create_task(stage.run(), name=f"tierd-{stage.name}"))

    async def _stop(self, started: list[Stage]) -> None:
        """Stops all, each in its time; one that fails or hangs does not keep the others from stopping."""
        loop = asyncio.get_running_loop()
        end = loop.time() + STAGES_WITHIN_S
        for stage in reversed(started):
            if stage.stop is None:
                continue
            allowed_s = max(LEAST_STOP_S, min(self._stop_timeout_s, end - loop.time()))
            try:
                async with asyncio.timeout(allowed_s + LEAST_STOP_S):
                    await stage.stop(allowed_s)
            except Exception:  # the next stage must be stopped all the same
                log.exception("stop_failed", stage=stage.name)
            else:
                log.debug("stage_stopped", stage=stage.name)


def exit_in(seconds: float) -> None:
    """Ends the process in that time unless it has ended by itself: a promise that no bug can break."""

    def end() -> None:
        log.error("stop_hung", after_s=seconds)
        os._exit(EXIT_HUNG)

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()
