"""The way from a client to its daemon: the session in use, and another one when it is lost.

A call that finds its session lost runs once more on a new one, within its deadline. While no daemon answers,
calls fail at once but for a short attempt now and then, so that a worker is not held up by a dead sidecar.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

from tierd_client.credentials import Credentials
from tierd_client.deadline import Deadline
from tierd_client.errors import (
    ClientClosed,
    ConnectFailed,
    ForkedClientError,
    NotFound,
    SharedMemoryUnavailable,
    TierdClientError,
    TimedOut,
    Unavailable,
)
from tierd_client.magazine import Magazine
from tierd_client.routine import Routine, Work
from tierd_client.session import LOST_GRACE_S, Session
from tierd_client.v1 import blocks_pb2

RETRY_PAUSE_S = 1.0
"""After a failed attempt to connect, how long calls fail at once."""

RETRY_CONNECT_S = 0.25
"""How long a later attempt may take."""

OLD_SESSIONS_MAX = 64
"""Lost sessions that are remembered; of more than that the oldest without holds is left to the daemon."""

T = TypeVar("T")


class Connection:
    """Holds the session in use. Thread-safe; belongs to the process that made it."""

    def __init__(
        self, target: str, *, client_name: str, connect_timeout_s: float, rpc_timeout_s: float,
        shared_memory: str, on_session: Callable[[Session], None], credentials: Credentials,
    ) -> None:
        """Connects with the first call. `on_session` is called with each new session before anyone sees it."""
        self.target = target
        self.rpc_timeout_s = rpc_timeout_s
        self._client_name = client_name
        self._connect_timeout_s = connect_timeout_s
        self._shared_memory = shared_memory
        self._on_session = on_session
        self._credentials = credentials
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._closed = False
        self._lost: list[Session] = []
        self._failed_at: float | None = None
        self._session: Session | None = None

    @property
    def is_inherited(self) -> bool:
        """Whether this process is a fork of the one that the client belongs to."""
        return os.getpid() != self._pid

    def check_usable(self) -> None:
        """Raises in a forked child and after close(). Takes no lock: a thread may have held it at the fork."""
        if self.is_inherited:
            raise ForkedClientError(
                f"this client belongs to process {self._pid}; make another one in process {os.getpid()}")
        if self._closed:
            raise ClientClosed("the client is closed")

    def living(self) -> Session | None:
        """The session in use; None where a new one is to be made. Raises as `check_usable`."""
        if self._closed or os.getpid() != self._pid:
            self.check_usable()
        session = self._session
        return None if session is None or session.is_lost() else session

    def session(self, deadline: Deadline) -> Session:
        """The session in use, a new one if it was lost. Raises ConnectFailed when no daemon answers."""
        session = self.living()
        if session is not None:
            return session
        if not self._lock.acquire(timeout=deadline.left_s() + 0.001):
            raise ConnectFailed(f"{self.target}: another thread is still connecting")
        try:
            return self._reconnect(deadline)
        finally:
            self._lock.release()

    def current(self) -> Session:
        """The session in use; waits at most the connect timeout for a new one."""
        return self.session(Deadline(self._connect_timeout_s))

    async def opened(self, deadline: Deadline) -> Session:
        """As `session`, as a step of a routine: only a new one takes time."""
        session = self.living()
        if session is not None:
            return session
        new: Session = await Work(lambda: self.session(deadline))
        return new

    async def make(self, call: Callable[[Session], Routine[T]], wait_s: float = 0.0) -> T:
        """Makes a call that may be made twice, once more if its session turns out to be lost."""
        deadline = Deadline(wait_s + self.rpc_timeout_s)
        session = await self.opened(deadline)
        try:
            return await call(session)
        except (Unavailable, NotFound, TimedOut) as error:
            self.check_usable()
            if not await self._was_lost(session, error):
                raise
        try:
            return await call(await self.opened(deadline))
        finally:
            # Another thread may have reconnected while this one still held the lost session.
            if self._lost:
                await Work(self.sweep)

    async def make_unasked(self, call: Callable[[Session], Routine[T]]) -> T:
        """Makes a call for which nobody waits, in the session in use; Unavailable where none lives. It never
        connects: an attempt that fails has calls fail at once for a while, and only those may cause that which have
        waited for it."""
        session = self.living()
        if session is None:
            raise Unavailable("no session lives")
        try:
            return await call(session)
        except NotFound as error:
            if await self._was_lost(session, error):
                raise Unavailable("the session was lost") from error
            raise

    async def call(self, method: str, request: Any, wait_s: float = 0.0) -> Any:
        """One RPC that may be made twice, and may wait `wait_s` in the daemon."""
        async def call(session: Session) -> Any:
            return await session.call(method, request, wait_s)

        return await self.make(call, wait_s)

    def sweep(self) -> None:
        """Detaches lost sessions that nothing holds any more. Never raises for a daemon that is away."""
        with self._lock:
            self._sweep()

    def close(self) -> None:
        """Gives the session up; idempotent, and nothing in a forked child."""
        if self._closed or self.is_inherited:
            return
        self._closed = True
        with self._lock:
            self._sweep()
            session, self._session = self._session, None
        if session is not None:
            _end(session)

    async def _was_lost(self, session: Session, error: TierdClientError) -> bool:
        if isinstance(error, TimedOut):
            if session.is_silent():
                session.give_up()
            return False  # its time is over either way
        lost: bool = await Work(lambda: session.is_lost(LOST_GRACE_S))
        return lost

    def _reconnect(self, deadline: Deadline) -> Session:
        self.check_usable()
        session = self._session
        if session is not None:
            if not session.is_lost():
                return session
            self._session = None
            self._lost.append(session)
        self._session = self._connect(deadline)
        self._sweep()
        return self._session

    def _connect(self, deadline: Deadline) -> Session:
        limit_s = self._connect_timeout_s
        if self._failed_at is not None:
            if time.monotonic() - self._failed_at < RETRY_PAUSE_S:
                raise ConnectFailed(f"no daemon at {self.target}; tried less than {RETRY_PAUSE_S} s ago")
            limit_s = min(limit_s, RETRY_CONNECT_S)
        within = Deadline(min(limit_s, deadline.left_s()))
        try:
            session = Session(self.target, self._client_name, self.rpc_timeout_s, within, self._credentials)
        except Unavailable:
            self._failed_at = time.monotonic()
            raise
        self._failed_at = None
        try:
            # Not in what is left of that time: a client that just missed it would stream for the session's life.
            session.attach(self._shared_memory, Deadline(min(self._connect_timeout_s, deadline.left_s())))
            if session.memory is not None and session.info.stock_bytes:
                session.magazine = Magazine(session)
            self._on_session(session)
        except BaseException as error:
            went_away = isinstance(error, SharedMemoryUnavailable) and session.is_lost(LOST_GRACE_S)
            _end(session)
            if went_away:
                raise ConnectFailed(f"the daemon at {self.target} went away: {error}") from error
            raise
        return session

    def _sweep(self) -> None:
        """Detaches through the session in use what was lost before it."""
        current = self._session
        if current is None or current.is_lost():
            return
        kept = []
        for lost in self._lost:
            lost.shut()
            if not lost.settle() or not _detach(current, lost):
                kept.append(lost)
        self._lost = kept[-OLD_SESSIONS_MAX:]


def _end(session: Session) -> None:
    """Gives a session up that may still live. With leases out the process may read on: then only its end frees
    their slots."""
    if not session.is_lost():
        if session.settle():
            _detach(session, session)
        elif session.magazine is not None:
            with contextlib.suppress(TierdClientError):
                session.magazine.give_back_all()
    session.shut()


def _detach(through: Session, ended: Session) -> bool:
    """Tells the daemon that nothing of a session is touched any more. False: to be told again."""
    request = blocks_pb2.DetachRequest(session=ended.id, token=ended.info.token)
    try:
        through.call("Detach", request).block()
    except NotFound:
        return True  # over already: it never attached, or the daemon started with empty tables
    except TierdClientError:
        return False
    return True
