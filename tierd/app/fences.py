"""Moves from lent pages that are not ready yet: they wait here, at no thread's cost, for their fence.

A page is ready when its engine has written the value of its fence to shared memory, which is looked at while
somebody waits. A fence that is not reached in time costs the move, and nothing has been read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from dataclasses import dataclass

from tierd.app.measures import Cause
from tierd.core.errors import TierdError
from tierd.core.messages import Move, MoveResult
from tierd.ports import LentStore

LOOK_EVERY_S = 0.001
"""How often fences are looked at while moves wait: short against the kernel that writes a block."""


@dataclass(frozen=True, slots=True)
class _Waiting:
    move: Move
    deadline: float


class Fences:
    """Belongs to the event loop's thread."""

    def __init__(
        self, lent: LentStore, timeout_s: float, on_ready: Callable[[Move], None],
        on_failed: Callable[[MoveResult, Move, Cause], None],
    ) -> None:
        """`timeout_s`: how long a fence may take to be reached after a move was accepted."""
        self._lent = lent
        self._timeout_s = timeout_s
        self._on_ready = on_ready
        self._on_failed = on_failed
        self._waiting: list[_Waiting] = []
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, move: Move) -> None:
        """Accepts a move: its turn comes when its page is ready, at once if it is."""
        loop = asyncio.get_running_loop()
        one = _Waiting(move, loop.time() + self._timeout_s)
        if not self._settle(one, loop.time()):
            self._waiting.append(one)
            self._look_later(loop)

    def abandon(self, ops: Collection[int], cause: Cause) -> None:
        """Answers those of these moves that still wait."""
        given_up = [one for one in self._waiting if one.move.op in ops]
        self._waiting = [one for one in self._waiting if one.move.op not in ops]
        for one in given_up:
            self._on_failed(MoveResult(one.move.op, ok=False, reason=cause.value), one.move, cause)

    def stop(self) -> None:
        """Answers all that wait."""
        self.abandon({one.move.op for one in self._waiting}, Cause.STOPPING)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = None
        now = loop.time()
        self._waiting = [one for one in self._waiting if not self._settle(one, now)]
        if self._waiting:
            self._look_later(loop)

    def _look_later(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._timer is None:
            self._timer = loop.call_later(LOOK_EVERY_S, self._look)

    def _settle(self, one: _Waiting, now: float) -> bool:
        """Whether a move need not wait any more: it is passed on, or answered."""
        move = one.move
        try:
            ready = self._lent.reached(move.source_address, move.fence)
        except TierdError as error:
            self._on_failed(MoveResult(move.op, ok=False, reason=str(error)), move, Cause.WITHDRAWN)
            return True
        if ready:
            self._on_ready(move)
        elif now >= one.deadline:
            reason = f"the fence of its page did not reach {move.fence} within {self._timeout_s} s"
            self._on_failed(MoveResult(move.op, ok=False, reason=reason), move, Cause.FENCE)
        return ready or now >= one.deadline
