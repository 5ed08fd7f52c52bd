"""The sessions of this boot: tokens, processes, and when a session may really end.

    open --attach--> bound to a process --its death, or a detach--> ended
      |--its stream ends, never attached--> ended

The engine owns what a session holds; here is only what the engine need not know. A session ends in the
engine when no stream of this daemon works on its slots any more: a Put that still writes into a slot which
its session gave up would write into another block.
"""

from __future__ import annotations

import asyncio
import hmac
import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import structlog

from tierd.app.calls import Calls
from tierd.app.writer import Writer
from tierd.core.errors import NotFound, Refused, Unavailable
from tierd.core.messages import BindProcess, Done, EndSession, OpenSession, Tier
from tierd_client.format import OFFSET_BITS, U64Array

log = structlog.get_logger(__name__)

SESSION_BITS = 63
TOKEN_BYTES = 16

Orphan = tuple[int, int, int, bytes]
"""A session of an earlier boot that may still live: session, pid, start time, token."""


@dataclass(slots=True, eq=False)
class Session:
    """One client of this boot. `ending`: no call is taken any more; `ended`: over in the engine too;
    `hang_up`: its own stream should close; `asked_back`: it is to be asked for the slots that it holds ahead;
    `news`: one of these has changed."""

    number: int
    token: bytes
    client_name: str
    pid: int
    process: tuple[int, int] | None = None
    streams: int = 0
    ending: bool = False
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    hang_up: asyncio.Event = field(default_factory=asyncio.Event)
    asked_back: bool = False
    news: asyncio.Event = field(default_factory=asyncio.Event)
    released: int = 0
    reserved: dict[tuple[Tier, int], int] = field(default_factory=dict)
    calls: Calls = field(default_factory=Calls)


class Sessions:
    """All sessions of this boot. All methods belong to the event loop's thread."""

    def __init__(self, writer: Writer, orphans: Callable[[], Sequence[Orphan]]) -> None:
        """`orphans`: what the engine recovered and nobody has settled yet."""
        self.on_end: list[Callable[[int], None]] = []
        """Called with each session that is over in the engine."""
        self.on_want: list[Callable[[], None]] = []
        """Called when sessions are asked for the slots that they hold ahead."""
        self._writer = writer
        self._orphans = orphans
        self._sessions: dict[int, Session] = {}
        self._stopping = False

    def open(self, client_name: str, pid: int) -> Session:
        """A new session. LimitReached when the session table is full, Unavailable while stopping."""
        if self._stopping:
            raise Unavailable("the daemon is stopping")
        number = secrets.randbits(SESSION_BITS) or 1
        token = secrets.token_bytes(TOKEN_BYTES)
        self._writer.step(OpenSession(number, token))
        session = Session(number, token, client_name, pid)
        self._sessions[number] = session
        return session

    def require(self, number: int) -> Session:
        """A session that takes calls. NotFound when there is none, Refused when it is ending."""
        session = self._sessions.get(number)
        if session is None:
            raise NotFound(f"session {number} is not known: it has ended, or an earlier daemon opened it")
        if session.ending:
            raise Refused(f"session {number} is ending")
        return session

    def bind(self, number: int, token: bytes, pid: int, start_time: int) -> None:
        """Binds a session to the process that shows its token. NotFound, Refused."""
        session = self.require(number)
        _check_token(session.token, token, number)
        if session.process not in (None, (pid, start_time)):
            raise Refused(f"session {number} is attached to process {session.pid} already")
        self._writer.step(BindProcess(number, pid, start_time))
        session.process = (pid, start_time)
        session.pid = pid

    def stream_closed(self, number: int) -> None:
        """The session's own stream has ended: the end of one that never attached (it can map nothing)."""
        session = self._sessions.get(number)
        if session is not None and session.process is None:
            self._end(session)

    def hang_up(self) -> None:
        """Opens no session any more and asks the streams of all to close. Attached ones stay in the session
        table for the next daemon."""
        self._stopping = True
        for session in self._sessions.values():
            session.hang_up.set()
            session.news.set()

    def process_ended(self, number: int) -> None:
        """The session's process is dead, of this or an earlier boot. Unknown ones are ignored."""
        session = self._sessions.get(number)
        if session is not None:
            self._end(session)
            return
        self._settle(number)
        self._tell_end(number)

    async def detach(self, number: int, token: bytes, deadline: float) -> int:
        """Ends a session whose client vouches that it touches no slot any more; returns blocks released.

        NotFound; Refused for a wrong token, or when streams of the session do not end by the deadline.
        """
        session = self._sessions.get(number)
        if session is None:
            return self._detach_orphan(number, token)
        _check_token(session.token, token, number)
        self._end(session)
        try:
            async with asyncio.timeout_at(deadline):
                await session.ended.wait()
        except TimeoutError as error:
            problem = f"{session.streams} stream(s) of session {number} still run: it ends when they do"
            raise Refused(problem) from error
        return session.released

    @contextmanager
    def streaming(self, number: int) -> Iterator[Session]:
        """While inside, the session stays in the engine. A stream should stop soon after `ending`."""
        session = self.require(number)
        session.streams += 1
        try:
            yield session
        finally:
            session.streams -= 1
            if session.ending:
                self._end(session)

    def granted(self, number: int, tier: Tier, addresses: U64Array, generations: U64Array) -> None:
        """The session may write these slots until `settled`."""
        session = self._sessions.get(number)
        if session is not None:
            segments = (addresses >> OFFSET_BITS).tolist()
            session.reserved.update(zip(((tier, g) for g in generations.tolist()), segments, strict=True))

    def settled(self, number: int, tier: Tier, generations: U64Array) -> None:
        """Reservations that were committed or aborted."""
        session = self._sessions.get(number)
        if session is not None:
            for generation in generations.tolist():
                session.reserved.pop((tier, generation), None)

    def ask_stocks_back(self) -> None:
        """Asks all sessions for the slots that they hold ahead: others want for room."""
        for tell in self.on_want:
            tell()
        for session in self._sessions.values():
            session.asked_back = True
            session.news.set()

    def segments_reserved(self, number: int) -> frozenset[int]:
        """Segments in which the session holds reservations; empty for an unknown one."""
        session = self._sessions.get(number)
        return frozenset(session.reserved.values()) if session is not None else frozenset()

    def _end(self, session: Session) -> None:
        session.ending = True
        if session.streams or session.ended.is_set():
            return
        session.released = self._settle(session.number)
        self._tell_end(session.number)
        session.ended.set()
        session.hang_up.set()
        session.news.set()
        self._sessions.pop(session.number, None)

    def _settle(self, number: int) -> int:
        """Ends a session in the engine; returns the blocks released."""
        try:
            return self._writer.ask(EndSession(number, settled=True), Done).count
        except Exception:  # nobody may be there to hear it, and whoever ends a session has other work to do
            log.exception("end_session_failed", session=number)
            return 0

    def _tell_end(self, number: int) -> None:
        for tell in self.on_end:
            tell(number)

    def _detach_orphan(self, number: int, token: bytes) -> int:
        for orphan, _, _, expected in self._orphans():
            if orphan == number:
                _check_token(expected, token, number)
                released = self._writer.ask(EndSession(number, settled=True), Done).count
                self._tell_end(number)
                return released
        raise NotFound(f"session {number} is not known: it has ended already")


def _check_token(expected: bytes, token: bytes, number: int) -> None:
    if not hmac.compare_digest(expected, token):
        raise Refused(f"the token is not that of session {number}")
