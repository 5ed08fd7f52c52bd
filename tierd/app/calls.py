"""Calls by their callers' numbers, so that one whose reply was lost can be given up.

    unknown --begin--> running --took--> done --give_up--> over: what it took is given back
    unknown or running --give_up--> over: it takes nothing

One per session. The last numbers are remembered, as many as CALLS_MAX and BLOCKS_MAX allow; who gives up an older
one is told that it is too late for that. A call without a number (0) cannot be given up.
"""

from __future__ import annotations

from collections import OrderedDict

from tierd.core.errors import Refused
from tierd.core.messages import Abort, Release

CALLS_MAX = 4096
"""An event loop may have hundreds of calls under way, and cancel all of them at once."""
BLOCKS_MAX = 65_536
"""Reserved blocks of the calls remembered: their identities and generations, 40 bytes each."""

Undo = Abort | Release
_RUNNING, _OVER = object(), object()


class Calls:
    """The numbered calls of one session."""

    def __init__(self) -> None:
        self._known: OrderedDict[int, object] = OrderedDict()
        self._blocks = 0
        self._forgotten = 0
        """The largest number that is not remembered any more."""

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
        """A call is over; what gives back what it took, None when that is nothing (yet). Refused when that is not
        known any more."""
        if call not in self._known and 0 < call <= self._forgotten:
            raise Refused(f"call {call} was too many calls ago: detach the session")
        undo = self._known.get(call)
        self._set(call, _OVER)
        return undo if isinstance(undo, Undo) else None

    def _set(self, call: int, state: object) -> None:
        if not call:
            return
        self._blocks += _blocks(state) - _blocks(self._known.get(call))
        self._known[call] = state
        self._known.move_to_end(call)
        while len(self._known) > CALLS_MAX or (self._blocks > BLOCKS_MAX and len(self._known) > 1):
            oldest, forgotten = self._known.popitem(last=False)
            self._blocks -= _blocks(forgotten)
            self._forgotten = max(self._forgotten, oldest)


def _blocks(state: object) -> int:
    return len(state.ids) if isinstance(state, Abort) else 0
