"""A bounded pool of connections to one Redis or Valkey server, each lent to one call at a time.

redis-py makes the connections: it knows addresses, TLS, AUTH and SELECT. From then on the bytes are moved by
tierd.adapters.resp over the connection's socket.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import redis.exceptions as rx

from tierd.adapters.redis_url import RedisAddress
from tierd.adapters.resp import Deadline, Wire
from tierd.core.errors import SpillDown


class RedisPool:
    """Lends wires, at most `size` at a time; whoever finds none waits until the deadline."""

    def __init__(self, address: RedisAddress, size: int, connect_timeout_s: float) -> None:
        self.address = address
        self._size = size
        self._connect_timeout_s = connect_timeout_s
        self._permits = threading.Semaphore(size)
        self._idle: deque[_Link] = deque()
        self._epoch = 0
        self._closed = False

    @contextmanager
    def borrow(self, deadline: Deadline) -> Iterator[Wire]:
        """A connected wire. One that comes back in the middle of a reply is closed, never lent again."""
        if self._closed:
            raise SpillDown(f"{self.address}: closed")
        if not self._permits.acquire(timeout=deadline.left_s()):
            raise SpillDown(f"{self.address}: pool exhausted: all {self._size} connections stayed busy")
        link = self._link(deadline)
        try:
            yield link.wire
        finally:
            self._give_back(link)

    def drop_all(self) -> None:
        """Lends no connection again that exists now, also none that is lent: the server changed its role."""
        self._epoch += 1
        self._drain()

    def close(self) -> None:
        """Idempotent. Calls under way end by their deadlines."""
        self._closed = True
        self.drop_all()

    def _take_idle(self) -> _Link | None:
        while (link := self._pop_idle()) is not None:
            if link.epoch == self._epoch and link.wire.idle_and_open():
                return link
            link.connection.disconnect()
        return None

    def _pop_idle(self) -> _Link | None:
        try:
            return self._idle.pop()
        except IndexError:
            return None

    def _link(self, deadline: Deadline) -> _Link:
        """An idle link or a new one. On failure the permit goes back, from an abandoned attempt when it ends."""
        attempt = None
        try:
            if (idle := self._take_idle()) is not None:
                return idle
            timeout_s = min(self._connect_timeout_s, deadline.left_s())
            epoch = self._epoch
            connection = self.address.connection(timeout_s)
            attempt = _Attempt(connection, self._permits.release)
            attempt.wait(timeout_s)
            return _Link(connection, epoch)
        except BaseException:
            if attempt is None or not attempt.abandoned:
                self._permits.release()
            raise

    def _give_back(self, link: _Link) -> None:
        if link.wire.settled:
            self._idle.append(link)
        else:
            link.connection.disconnect()
        # `close` may have drained the pool just before.
        if self._closed:
            self._drain()
        self._permits.release()

    def _drain(self) -> None:
        while (link := self._pop_idle()) is not None:
            link.connection.disconnect()


class _Link:
    """A connection of redis-py and the wire over its socket."""

    def __init__(self, connection: Any, epoch: int) -> None:
        self.connection = connection
        self.epoch = epoch
        # redis-py has no public way to the socket; a test pins this one.
        self.wire = Wire(connection._get_socket())


class _Attempt:
    """A connection being made on a thread of its own.

    Neither the look-up of a name nor a handshake of several replies takes a deadline, so whoever waits may
    leave the attempt behind. It ends by itself, closes its connection, and only then calls `when_abandoned`:
    so there are never more such threads than permits.
    """

    def __init__(self, connection: Any, when_abandoned: Callable[[], None]) -> None:
        self.abandoned = False
        self._connection = connection
        self._when_abandoned = when_abandoned
        self._error: BaseException | None = None
        self._lock = threading.Lock()
        self._done = threading.Event()
        threading.Thread(target=self._run, name="tierd-redis-connect", daemon=True).start()

    def wait(self, timeout_s: float) -> None:
        """Raises what connecting raised; TimeoutError when it is not done in time."""
        try:
            self._done.wait(timeout_s)
        finally:
            with self._lock:
                self.abandoned = not self._done.is_set()
        if self.abandoned:
            raise TimeoutError(f"no connection within {timeout_s:.3g} s")
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        try:
            self._connection.connect()
            # A server that wants a password, or is loading, says so here and not in the middle of a block.
            self._connection.send_command("PING")
            self._connection.read_response()
        except BaseException as error:
            self._error = _without_secrets(error, self._connection)
        with self._lock:
            self._done.set()
            abandoned = self.abandoned
        if abandoned:
            self._connection.disconnect()
            self._when_abandoned()


def _without_secrets(error: BaseException, connection: Any) -> BaseException:
    """What a login failed with. A server that does not know AUTH repeats its words, so an answer that redis-py has
    no class for is not quoted."""
    if type(error) is not rx.ResponseError or not (connection.password or connection.credential_provider):
        return error
    return rx.ResponseError("login or database; its answer may repeat the password and is not shown")
