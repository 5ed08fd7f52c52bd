"""A limit on repeated log lines: a store that is broken fails thousands of times in a second.

Of one event (of a library: of one logger) and level BURST_LINES pass in WINDOW_S; the others are counted and told
in one line when the window ends: `repeated what=move_failed times=1234 in_s=10.0`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, MutableMapping
from dataclasses import dataclass
from typing import Any

import structlog

BURST_LINES = 5
WINDOW_S = 10.0
WINDOWS_MAX = 512
"""Events that are followed at once; of more the oldest are told early."""

SUMMARY = "repeated"

Key = tuple[str, str]
"""Event or logger, and level."""


@dataclass(slots=True)
class _Window:
    began_s: float
    lines: int = 0

    @property
    def kept_back(self) -> int:
        return max(0, self.lines - BURST_LINES)


def _later(seconds: float, call: Callable[[], None]) -> None:
    timer = threading.Timer(seconds, call)
    timer.daemon = True
    timer.start()


class RepeatLimit:
    """A processor of structlog, the first of them. Thread-safe."""

    def __init__(
        self, clock: Callable[[], float] = time.monotonic,
        later: Callable[[float, Callable[[], None]], None] = _later,
    ) -> None:
        """`later` calls something after so many seconds, on any thread."""
        self._clock = clock
        self._later = later
        self._windows: dict[Key, _Window] = {}
        self._lock = threading.Lock()

    def __call__(self, _: Any, level: str, line: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        """Passes a line on, or raises DropEvent."""
        if line.get("event") == SUMMARY:
            return line
        key = str(line.get("logger") or line.get("event")), level
        with self._lock:
            window, ended = self._count(key)
        self._tell(ended)
        if not window.kept_back:
            return line
        if window.kept_back == 1:  # the summary must come, also when nothing is logged any more
            self._later(WINDOW_S, self.flush)
        raise structlog.DropEvent

    def flush(self, *, all_: bool = False) -> None:
        """Tells what was kept back in windows that have ended; in all of them when the process ends."""
        with self._lock:
            now = self._clock()
            over = [key for key, one in self._windows.items() if all_ or now - one.began_s >= WINDOW_S]
            ended = {key: self._windows.pop(key) for key in over}
        self._tell(ended)

    def _count(self, key: Key) -> tuple[_Window, dict[Key, _Window]]:
        """The window that a line falls into, and those that have ended by it."""
        now, ended = self._clock(), {}
        window = self._windows.get(key)
        if window is not None and now - window.began_s >= WINDOW_S:
            ended[key] = self._windows.pop(key)
            window = None
        if window is None:
            if len(self._windows) >= WINDOWS_MAX:
                oldest = next(iter(self._windows))
                ended[oldest] = self._windows.pop(oldest)
            window = self._windows[key] = _Window(now)
        window.lines += 1
        return window, ended

    def _tell(self, ended: dict[Key, _Window]) -> None:
        log = structlog.get_logger(__name__)
        for (what, level), window in ended.items():
            if window.kept_back:
                in_s = round(self._clock() - window.began_s, 1)
                getattr(log, level)(SUMMARY, what=what, times=window.kept_back, in_s=in_s)
