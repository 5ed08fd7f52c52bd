"""The single owner of the engine: every command passes here, on the event loop's thread, one at a time.

A command is a synchronous call, so two handlers can never see each other half done and nothing needs a
lock. What a command leads to (moves of bytes) goes to the mover at once; what it must wait for is a set of
moves in flight, which `wait` awaits.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import TypeVar

import structlog

from tierd.app.line import Line
from tierd.core import messages as m
from tierd.core.engine import Engine
from tierd.core.errors import TierdError

log = structlog.get_logger(__name__)

T = TypeVar("T")
R = TypeVar("R", bound=m.Reply)

_WAKES_WAITERS = (
    m.Abort, m.Clear, m.Commit, m.DropDamaged, m.EndSession, m.Finish, m.SpillState, m.Store, m.Unstock,
)
"""Commands after which an identity that was PENDING without a move may have another outcome."""

_TAKES_ROOM = (m.Acquire, m.Prefetch, m.Readmit, m.Reserve, m.Stock)
"""Commands before which calls that wait for room try again."""

TOGETHER_S = 0.002
"""After one awaited move has ended, so long is waited for others: one repeated command for many of them."""


class _Waiting:
    """A call that waits for moves: for the first of them, or for all. Made on the event loop."""

    def __init__(self, moves: int) -> None:
        loop = asyncio.get_running_loop()
        self._left = moves
        self.first, self.all = loop.create_future(), loop.create_future()

    def one_ended(self) -> None:
        self._left -= 1
        for ended, future in ((True, self.first), (not self._left, self.all)):
            if ended and not future.done():
                future.set_result(None)


class Writer:
    """Runs commands against the engine. Belongs to the thread that made it; any other is refused."""

    def __init__(self, engine: Engine, clock: Callable[[], float]) -> None:
        """`clock`: seconds since 1970."""
        self._engine = engine
        self._clock = clock
        self._thread = threading.get_ident()
        self._carry_out: Callable[[Sequence[m.Effect]], None] | None = None
        self._note: Callable[[m.Command], None] | None = None
        self._flights: dict[int, list[_Waiting]] = {}
        """Who waits for each move."""
        self._change: asyncio.Future[None] | None = None
        self._begun: m.Command | None = None
        """Answered, and not completed."""
        self.line = Line()
        self.calls_waiting = 0
        """Calls that wait for moves or for room."""

    def carry_out_with(self, submit: Callable[[Sequence[m.Effect]], None]) -> None:
        """Effects go to `submit` from now on; it answers each move by `finish`, not from inside the call."""
        self._carry_out = submit

    def tell(self, note: Callable[[m.Command], None]) -> None:
        """Each command that the engine has carried out is shown to `note` from now on, which must not raise."""
        self._note = note

    @property
    def moves_in_flight(self) -> int:
        return len(self._flights)

    def now_s(self) -> float:
        """The time that commands are told, seconds since 1970."""
        return self._clock()

    def step(self, command: m.Command) -> m.Reply:
        """Runs one command. Raises what the engine raises; what is no TierdError was logged as a fault."""
        done = self._run(command, self._engine.step)
        self._conclude(command, done.effects)
        return done.reply

    def ask(self, command: m.Command, kind: type[R]) -> R:
        """`step`, with the type of reply that the command has."""
        return _of_kind(self.step(command), command, kind)

    def ask_first(self, command: m.Command, kind: type[R]) -> R:
        """`ask`, on a running loop: what the reply does not depend on is done when the caller has had its turn, or
        before the next command."""
        reply = self._run(command, self._engine.begin)
        self._begun = command
        asyncio.get_running_loop().call_soon(self._catch_up)
        return _of_kind(reply, command, kind)

    def _run(self, command: m.Command, work: Callable[[m.Command, float], T]) -> T:
        if threading.get_ident() != self._thread:
            raise RuntimeError(f"{type(command).__name__} from another thread than the writer's")
        self._catch_up()
        if isinstance(command, _TAKES_ROOM):
            self.line.go_first()
        try:
            return work(command, self._clock())
        except TierdError:
            raise
        except Exception:
            log.exception("engine_fault", command=type(command).__name__)
            raise

    def _conclude(self, command: m.Command, effects: Sequence[m.Effect]) -> None:
        self._hand_out(effects)
        if self._note is not None:
            self._note(command)
        if isinstance(command, _WAKES_WAITERS):
            self._wake()

    def _catch_up(self) -> None:
        """Completes the command that was answered first, if that has not been done. Its faults are not the next
        caller's."""
        command, self._begun = self._begun, None
        if command is not None:
            try:
                self._conclude(command, self._engine.finish())
            except Exception:
                log.exception("engine_fault", command=type(command).__name__)

    def finish(self, results: Sequence[m.MoveResult]) -> None:
        """Tells the engine how moves ended and wakes who waits for them. Never raises."""
        try:
            self.step(m.Finish(tuple(results)))
        except Exception:  # whatever it is, the waiters below must be woken
            log.exception("finish_failed", moves=len(results))
        self.line.ended([result.op for result in results])
        for result in results:
            for call in self._flights.pop(result.op, ()):
                call.one_ended()

    async def wait(self, ops: Collection[int], deadline: float, together_s: float = TOGETHER_S) -> None:
        """Waits until one of the moves has ended, or, for no ops, until something changed that may help.

        `deadline` in the loop's time. When others end within `together_s` after the first, they are waited for
        too. Ops that are not in flight ended long ago: then it returns at once.
        """
        if asyncio.get_running_loop().time() >= deadline:
            return
        self.calls_waiting += 1
        try:
            await self._wait(ops, deadline, together_s)
        finally:
            self.calls_waiting -= 1

    async def _wait(self, ops: Collection[int], deadline: float, together_s: float) -> None:
        loop = asyncio.get_running_loop()
        if not ops:
            await asyncio.wait([self._next_change()], timeout=deadline - loop.time())
            return
        if not all(op in self._flights for op in ops):
            return
        call = _Waiting(len(ops))
        for op in ops:
            self._flights[op].append(call)
        try:
            await asyncio.wait([call.first], timeout=deadline - loop.time())
            if call.first.done():
                await asyncio.wait([call.all], timeout=max(0.0, min(together_s, deadline - loop.time())))
        finally:
            for op in ops:
                if op in self._flights:
                    self._flights[op].remove(call)

    def _hand_out(self, effects: Sequence[m.Effect]) -> None:
        if not effects:
            return
        if self._carry_out is None:
            raise RuntimeError("the engine wants bytes moved before the writer has a mover")
        for move in _moves(effects):
            self._flights[move.op] = []
        self._carry_out(effects)

    def _next_change(self) -> asyncio.Future[None]:
        if self._change is None:
            self._change = asyncio.get_running_loop().create_future()
        return self._change

    def _wake(self) -> None:
        self.line.ended(())
        if self._change is not None:
            self._change.set_result(None)
            self._change = None


def _of_kind(reply: m.Reply, command: m.Command, kind: type[R]) -> R:
    if not isinstance(reply, kind):
        raise TypeError(f"{type(command).__name__} was answered by {type(reply).__name__}")
    return reply


def _moves(effects: Iterable[m.Effect]) -> Iterable[m.Move]:
    return (effect for effect in effects if isinstance(effect, m.Move))
