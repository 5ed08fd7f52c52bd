"""Ctrl-C and SIGTERM of a command that starts processes: it unwinds, so that they and their directories go.

Python drops what is raised in a destructor or a callback that a signal happens to meet. So the signal is
remembered, and whatever repeats or waits asks for it.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_told: list[int] = []
"""Signals that came; a process has one set of handlers, and so one of these."""


@contextmanager
def terminated_as_interrupt() -> Iterator[None]:
    """Both signals raise KeyboardInterrupt here, at the latest at the end."""
    _told.clear()
    before = {number: signal.signal(number, _interrupt) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
        check_interrupt()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        _told.clear()


def check_interrupt() -> None:
    """Raises KeyboardInterrupt for a signal that came, also when it was dropped."""
    if _told:
        raise KeyboardInterrupt


def _interrupt(number: int, _: Any) -> None:
    _told.append(number)
    raise KeyboardInterrupt
