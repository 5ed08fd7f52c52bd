"""The line of calls that wait for room.

What becomes free is for the first of them: before a command that takes room is carried out, those before it try
again whose moves have ended. Else it would go to whoever comes just then, and a call that waits could see hundreds
of later ones served until its deadline.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager

REST = 10
"""So many times as long as a call took to try again it rests from being asked to: large ones cost others little."""


class Turn:
    """One call that waits. Belongs to the event loop's thread."""

    def __init__(self, waiting: Iterable[int]) -> None:
        """`waiting`: the moves that it waits for; none: any change."""
        self.waiting = frozenset(waiting)
        self.is_due = False
        """Whether one of them has ended since it last tried."""
        self.rests_until_s = 0.0
        self._tried: bool | Exception | None = None

    def try_again(self) -> bool:
        """Repeats the command; whether that brought something. Renews `waiting`."""
        raise NotImplementedError

    def go(self) -> bool:
        """Tries again, and keeps what came of it for `result`."""
        began, self.is_due = time.monotonic(), False
        try:
            self._tried = self.try_again() or self._tried is True
        except Exception as error:  # for its own caller, not for whoever let it go first
            self._tried = error
        ended = time.monotonic()
        self.rests_until_s = ended + REST * (ended - began)
        return self._tried is True

    def result(self) -> bool | None:
        """Whether what it tried since the last time brought something; None when it did not try. Raises what that
        raised."""
        tried, self._tried = self._tried, None
        if isinstance(tried, Exception):
            raise tried
        return tried


class Line:
    """Those calls, in the order in which they came."""

    def __init__(self) -> None:
        self._standing: dict[Turn, None] = {}
        self._current: Turn | None = None

    @contextmanager
    def stand(self, turn: Turn) -> Iterator[None]:
        self._standing[turn] = None
        try:
            yield
        finally:
            del self._standing[turn]

    def ended(self, ops: Collection[int]) -> None:
        """These moves have ended; with none, something else has changed."""
        for turn in self._standing:
            turn.is_due = turn.is_due or not turn.waiting or not turn.waiting.isdisjoint(ops)

    def go(self, turn: Turn) -> bool:
        """Lets a call try again, and those before it first; whether that brought it something."""
        tried = turn.result()
        if tried is not None:
            return tried
        self._go(turn)
        return bool(turn.result())

    def go_first(self) -> None:
        """Somebody is about to take room: those before, or all that stand here, try again if they are due, up to
        the first that gets nothing."""
        for turn in list(self._standing):
            if turn is self._current:
                return
            if turn.is_due and time.monotonic() >= turn.rests_until_s and not self._go(turn):
                return

    def _go(self, turn: Turn) -> bool:
        before, self._current = self._current, turn
        try:
            return turn.go()
        finally:
            self._current = before
