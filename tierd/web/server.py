"""The HTTP server of one daemon: its address, and uvicorn on the daemon's own event loop."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
from collections.abc import Iterator
from pathlib import Path

import h11
import uvicorn
from starlette.applications import Starlette
from uvicorn.protocols.http.h11_impl import H11Protocol

UNIX_PREFIX = "unix://"
CONNECTIONS_MAX = 64
"""More are answered with 503."""

BACKLOG = 32
IDLE_S = 2
LIFE_S = 60
"""Connections without a request for IDLE_S are closed, and all after LIFE_S; who takes no answer is cut IDLE_S
later: nobody keeps others out by theirs."""

HEADERS_BYTES_MAX = 16 * 1024


class CannotServeHttp(OSError):
    """The HTTP address cannot be listened on; the message names the setting and says why."""


def bind(address: str, *, else_any_port: bool = False) -> socket.socket:
    """A listening socket at `unix:///path` (mode 0600) or `host:port`. Raises CannotServeHttp.

    `else_any_port`: where the port is taken, another one that is free.
    """
    if address.startswith(UNIX_PREFIX):
        return _bind_unix(Path(address.removeprefix(UNIX_PREFIX)))
    host, _, port = address.rpartition(":")
    try:
        return _bind_tcp(host.strip("[]"), int(port))
    except OSError as error:
        if else_any_port:
            return _bind_tcp(host.strip("[]"), 0)
        raise CannotServeHttp(f"http_address: {address}: {error.strerror or error}") from error


def address_of(listener: socket.socket) -> str:
    """As it can be written into a browser or `curl`."""
    if listener.family == socket.AF_UNIX:
        return f"{UNIX_PREFIX}{listener.getsockname()}"
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class _Protocol(H11Protocol):
    """uvicorn limits the time between requests; here also that before the first, and that of the connection."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        ends = ((IDLE_S, self._idle), (LIFE_S, self.shutdown), (LIFE_S + IDLE_S, transport.abort))
        self._ends = [self.loop.call_later(after_s, end) for after_s, end in ends]

    def connection_lost(self, exc: Exception | None) -> None:
        for timer in self._ends:
            timer.cancel()
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        """Nothing here reads a body: one that is still to come is not waited for."""
        unread = self.conn.their_state is h11.SEND_BODY
        super().on_response_complete()
        if unread:
            self.shutdown()

    def _idle(self) -> None:
        if self.cycle is None:
            self.shutdown()


class HttpServer:
    """Serves an application on a listening socket. Belongs to the event loop."""

    def __init__(self, application: Starlette, listener: socket.socket) -> None:
        config = uvicorn.Config(
            application, log_config=None, access_log=False, lifespan="off", ws="none", http=_Protocol, loop="none",
            limit_concurrency=CONNECTIONS_MAX, timeout_keep_alive=IDLE_S, timeout_graceful_shutdown=1,
            h11_max_incomplete_event_size=HEADERS_BYTES_MAX, server_header=False, date_header=False,
        )
        self._server = _Server(config)
        self._listener = listener
        self._ended = asyncio.Event()

    async def run(self) -> None:
        """Serves until `stop`."""
        try:
            await self._server.serve([self._listener])
        finally:
            self._ended.set()

    async def stop(self, timeout_s: float) -> None:
        """Takes no more requests and lets those under way end."""
        self._server.should_exit = True
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._ended.wait(), timeout_s)


class _Server(uvicorn.Server):
    """Signals are the daemon's."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _bind_tcp(host: str, port: int) -> socket.socket:
    family, kind, protocol, _, where = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(where)
        listener.listen(BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener


def _bind_unix(path: Path) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if path.is_socket() and not _answers(path):
            path.unlink()  # of a daemon that was killed
        listener.bind(str(path))
        path.chmod(0o600)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise CannotServeHttp(f"http_address: {UNIX_PREFIX}{path}: {error.strerror or error}") from error
    return listener


def _answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        return probe.connect_ex(str(path)) != errno.ECONNREFUSED
