"""Calls by their callers' numbers, so that one whose reply was lost can be given up.

    unknown --begin--> running --took--> done --give_up--> over: what it took is given back
    unknown or running --give_up--> over: it takes nothing

One per session; the last CALLS_MAX numbers are remembered. A call without a number (0) cannot be given up.
"""

from __future__ import annotations

from collections import OrderedDict

from tierd.core.errors import Refused
from tierd.core.messages import Abort, Release

CALLS_MAX = 128
"""Each keeps the identities of what it took, 32 bytes a block."""

Undo = Abort | Release
_RUNNING, _OVER = object(), object()


class Calls:
    """The numbered calls of one session."""

    def __init__(self) -> None:
        self._known: OrderedDict[int, object] = OrderedDict()

    def begin(self, call: int) -> None:
        """A call has arrived. Refused when its number was used, or it was given up before it came."""
        if call in self._known:
            problem = "was given up" if self._known[call] is _OVER else "is not new: each call needs its own"
            raise Refused(f"call {call} {problem}")
        self._set(call, _RUNNING)

    def took(self, call: int, undo: Undo | None) -> bool:
        """A call is done; `undo` gives back what it took. False when it was given up: the caller undoes it."""
        if self._known.get(call) is _OVER:
            return False
        self._set(call, undo or _OVER)
        return True

    def give_up(self, call: int) -> Undo | None:
        """A call is over; what gives back what it took, None when that is nothing (yet)."""
        undo = self._known.get(call)
        self._set(call, _OVER)
        return undo if isinstance(undo, Undo) else None

    def _set(self, call: int, state: object) -> None:
        if not call:
            return
        self._known[call] = state
        self._known.move_to_end(call)
        while len(self._known) > CALLS_MAX:
            self._known.popitem(last=False)
