"""The Redis protocol over one connected socket: commands out of buffers, replies into buffers, by a deadline.

redis-py copies a 5 MiB value several times on its way; here it goes from the caller's memory to the kernel
and back by sendmsg and recv_into, which release the GIL. Nothing here knows of blocks or of redis-py.
"""

from __future__ import annotations

import math
import select
import socket
import ssl
import struct
import time
from collections.abc import Callable, Sequence
from typing import TypeAlias

CRLF = b"\r\n"
LINE_BYTES_MAX = 4096
"""Longest line of a reply: a status, an error, a length."""
SMALL_REPLY_BYTES_MAX = 1 << 20
"""Longest value that `reply` takes; blocks are read by `value`."""
REPLY_ITEMS_MAX = 1 << 18
"""Most items of one reply, at all depths: a cluster whose every slot is a range of its own lists fewer."""
REPLY_DEPTH_MAX = 8
_READ_BYTES = 4096
_NIL = b"_"

Reply: TypeAlias = "bytes | int | list[Reply] | None"
"""Status or value, number, array, nil."""
UNIX_SEND_BUFFER_BYTES = 1 << 20
"""Of the 200 KiB that there are else a reader leaves a quarter before the writer is woken, and has read that by
the time it runs. TCP chooses for itself. The kernel may grant less (net.core.wmem_max)."""
_LAST_WORDS_S = 0.01
_KERNEL_WAIT_S = 0.004
_SIPPED_BYTES_PER_S = 8 << 20
"""The slowest that one call sends to a Unix socket: buffers of some 36 KiB, each waited for by _KERNEL_WAIT_S."""
_SEND_PIECE_BYTES = 384 << 10
_SEEN_PIECE_BYTES = 256 << 10
"""Most of a value that is looked at at once, while the server fills the socket again: what a Unix socket holds, and
what is still in a cache. What has come is not waited for until it is so much, so the reader seldom sleeps."""


class Deadline:
    """A moment on the monotonic clock after which a call must not wait any more."""

    def __init__(self, seconds_from_now: float) -> None:
        self._seconds = seconds_from_now
        self.renew()

    def renew(self) -> None:
        """Gives the whole time again, counted from now: for what comes next."""
        self._at = time.monotonic() + self._seconds

    def left_s(self) -> float:
        """Seconds left, above 0; TimeoutError when there are none."""
        left = self._at - time.monotonic()
        if left <= 0:
            raise TimeoutError("the deadline passed")
        return left


class ReplyError(Exception):
    """The server answered with an error: its first word is the `code`."""

    def __init__(self, line: bytes) -> None:
        text = line.decode("utf-8", "replace")
        super().__init__(text)
        self.code = text.split(" ", 1)[0]


class ProtocolError(Exception):
    """What came is not a reply of the expected kind."""


class PlainChannel:
    """Bytes over a socket without TLS, blocking in the kernel so that a block takes few system calls.

    The kernel's own timeouts cannot stand for a deadline: to set one costs a call each time, and when sending
    a Unix socket starts it anew at each of its buffers, so a peer that sips could hold a large send for ever. They
    are therefore short, no piece is larger than what even such a peer takes within the deadline and 48 ms, and
    longer waits are made by poll.
    """

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        sock.settimeout(None)
        if sock.family == socket.AF_UNIX:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, UNIX_SEND_BUFFER_BYTES)
        for option in (socket.SO_SNDTIMEO, socket.SO_RCVTIMEO):
            sock.setsockopt(socket.SOL_SOCKET, option, _timeval(_KERNEL_WAIT_S))
        self._writable, self._readable = select.poll(), select.poll()
        self._writable.register(sock, select.POLLOUT)
        self._readable.register(sock, select.POLLIN)

    def send(self, buffers: Sequence[memoryview], deadline: Deadline) -> int:
        """Sends some of the bytes and says how many."""
        piece = _first(buffers, _SEND_PIECE_BYTES + int(deadline.left_s() * _SIPPED_BYTES_PER_S))
        while True:
            try:
                return self._sock.sendmsg(piece)
            except BlockingIOError:
                self._writable.poll(math.ceil(deadline.left_s() * 1e3))

    def receive(self, into: Sequence[memoryview], deadline: Deadline, flags: int) -> int:
        """Receives some bytes, with MSG_WAITALL those that come without a pause, and says how many; 0 at the end of
        the stream."""
        while True:
            left_s = deadline.left_s()
            try:
                return self._sock.recvmsg_into(into, 0, flags)[0]
            except BlockingIOError:
                self._readable.poll(math.ceil(left_s * 1e3))

    def quiet(self) -> bool:
        """Whether the peer has neither hung up nor sent anything."""
        return not self._readable.poll(0)


class TlsChannel:
    """Bytes over a TLS socket, which knows neither scattered buffers nor flags."""

    def __init__(self, sock: ssl.SSLSocket) -> None:
        self._sock = sock

    def send(self, buffers: Sequence[memoryview], deadline: Deadline) -> int:
        self._sock.settimeout(deadline.left_s())
        return self._sock.send(buffers[0])

    def receive(self, into: Sequence[memoryview], deadline: Deadline, _flags: int) -> int:
        self._sock.settimeout(deadline.left_s())
        return self._sock.recv_into(into[0])

    def quiet(self) -> bool:
        self._sock.settimeout(0.0)
        try:
            self._sock.recv(1)
        except ssl.SSLWantReadError:
            return True
        except OSError:
            return False
        return False


class Wire:
    """One connection: commands go out, alone or several at once, and as many replies come back in their order.

    `settled` is False from the first byte of a command to the last byte of the last reply. A wire that is not
    settled must be closed: its next reply would belong to somebody else's command.
    """

    def __init__(self, sock: socket.socket) -> None:
        self._channel = TlsChannel(sock) if isinstance(sock, ssl.SSLSocket) else PlainChannel(sock)
        self._pending = bytearray()
        self._owed = 0
        self._items_left = 0

    @property
    def settled(self) -> bool:
        return not self._owed

    def idle_and_open(self) -> bool:
        """Whether the peer has neither closed the connection nor sent anything unasked."""
        return self.settled and not self._pending and self._channel.quiet()

    def send(self, buffers: Sequence[bytes | memoryview], deadline: Deadline, commands: int = 1) -> None:
        """Sends one command, or so many, without joining the buffers."""
        self._owed += commands
        rest = [memoryview(buffer).cast("B") for buffer in buffers if len(buffer)]
        try:
            while rest:
                rest = _after(rest, self._channel.send(rest, deadline))
        except (BrokenPipeError, ConnectionResetError) as error:
            self._raise_last_words(error)
            raise

    def reply(self, deadline: Deadline) -> Reply:
        """The next reply as a whole, with at most SMALL_REPLY_BYTES_MAX a value. ReplyError for an error."""
        self._items_left = REPLY_ITEMS_MAX
        kind, rest = self._head(deadline)
        reply = self._rest(kind, rest, deadline, REPLY_DEPTH_MAX)
        self._owed -= 1
        return reply

    def value(
        self, header: memoryview, payload: memoryview, deadline: Deadline, seen: Callable[[memoryview], object]
    ) -> int | None:
        """The next reply: the length of the value that it is, None for nil. ReplyError for an error.

        Where that is the length of header and payload, both are filled, in place; `seen` gets the payload piece by
        piece while the server goes on sending. A value of another length is not read: the wire is not settled then.
        """
        length = header.nbytes + payload.nbytes
        line = b"$%d\r\n" % length
        start, end = memoryview(bytearray(len(line))), memoryview(bytearray(len(CRLF)))
        views = [start, header, *_piece(payload, end, 0)]
        payload_at, got = len(line) + header.nbytes, 0
        while got < payload_at:
            got += self._some(_after(views, got), deadline)
            if start[:got] != line[:got]:
                self._pending[:0] = b"".join(_first(views, got))
                return self._other_length(length, deadline)
        got -= payload_at
        seen(payload[:got])
        while got < payload.nbytes:
            views = _piece(payload, end, got)
            some = self._some(views, deadline)
            seen(views[0][:some])
            got += some
        self._receive_end(end, got - payload.nbytes, deadline)
        self._owed -= 1
        return length

    def _receive_end(self, end: memoryview, got: int, deadline: Deadline) -> None:
        """Receives what is missing of the end of a value."""
        self._receive_all(end[got:], deadline)
        if end != CRLF:
            raise ProtocolError(f"{bytes(end)!r} where a value should end")

    def _other_length(self, expected: int, deadline: Deadline) -> int | None:
        """Of the value that comes next."""
        kind, rest = self._head(deadline)
        if kind == _NIL:
            self._owed -= 1
            return None
        length = _number(rest) if kind == b"$" else expected
        if length == expected:
            raise ProtocolError(f"{kind + rest[:64]!r} where a value was expected")
        return length

    def _receive_all(self, out: memoryview, deadline: Deadline) -> None:
        while out:
            out = out[self._some([out], deadline, socket.MSG_WAITALL) :]

    def _some(self, views: list[memoryview], deadline: Deadline, flags: int = 0) -> int:
        if self._pending:
            return sum(self._from_pending(view) for view in views)
        got = self._channel.receive(views, deadline, flags)
        if not got:
            raise ConnectionResetError("the server closed the connection in the middle of a value")
        return got

    def _from_pending(self, out: memoryview) -> int:
        count = min(len(self._pending), out.nbytes)
        out[:count] = self._pending[:count]
        del self._pending[:count]
        return count

    def _head(self, deadline: Deadline) -> tuple[bytes, bytes]:
        """Kind and rest of a reply's first line. An error is a whole reply, and raised."""
        line = self._line(deadline)
        if line.startswith(b"-"):
            self._owed -= 1
            raise ReplyError(line[1:])
        return _kind(line)

    def _rest(self, kind: bytes, rest: bytes, deadline: Deadline, depth: int) -> Reply:
        """What follows the first line of a reply, or of an item of an array."""
        if kind == b"$":
            return self._small_value(_number(rest), deadline)
        if kind == b"*":
            return self._array(_number(rest), deadline, depth - 1)
        return _number(rest) if kind == b":" else rest if kind == b"+" else None

    def _array(self, count: int, deadline: Deadline, depth: int) -> list[Reply]:
        self._items_left -= count
        if self._items_left < 0 or depth < 0:
            raise ProtocolError(f"a reply of over {REPLY_ITEMS_MAX} items, or over {REPLY_DEPTH_MAX} deep")
        lines = (_kind(self._line(deadline)) for _ in range(count))
        return [self._rest(kind, rest, deadline, depth) for kind, rest in lines]

    def _line(self, deadline: Deadline) -> bytes:
        while (end := self._pending.find(CRLF)) < 0:
            if len(self._pending) > LINE_BYTES_MAX:
                raise ProtocolError(f"a line of more than {LINE_BYTES_MAX} bytes")
            some = bytearray(_READ_BYTES)
            got = self._channel.receive([memoryview(some)], deadline, 0)
            if not got:
                raise ConnectionResetError("the server closed the connection")
            self._pending += some[:got]
        line = bytes(self._pending[:end])
        del self._pending[: end + 2]
        return line

    def _small_value(self, length: int, deadline: Deadline) -> bytes:
        if length > SMALL_REPLY_BYTES_MAX:
            raise ProtocolError(f"a value of {length} bytes, more than {SMALL_REPLY_BYTES_MAX}")
        value = bytearray(length)
        self._receive_all(memoryview(value), deadline)
        self._receive_end(memoryview(bytearray(len(CRLF))), 0, deadline)
        return bytes(value)

    def _raise_last_words(self, error: OSError) -> None:
        """A server that refuses a command before its end says why and hangs up: ReplyError, if it did."""
        try:
            said = self._line(Deadline(_LAST_WORDS_S))
        except (OSError, ProtocolError):
            return
        if said.startswith(b"-"):
            raise ReplyError(said[1:]) from error


def _timeval(seconds: float) -> bytes:
    """A struct timeval; never zero, which would mean for ever."""
    whole, rest = divmod(seconds, 1.0)
    return struct.pack("ll", int(whole), max(1, int(rest * 1e6)))


def _first(views: Sequence[memoryview], limit: int) -> list[memoryview]:
    """The first `limit` bytes of the views."""
    taken = []
    for view in views:
        taken.append(view[:limit])
        limit -= taken[-1].nbytes
        if not limit:
            break
    return taken


def _after(views: list[memoryview], done: int) -> list[memoryview]:
    """What is left of the views after `done` bytes."""
    for index, view in enumerate(views):
        if done < view.nbytes:
            return [view[done:], *views[index + 1 :]]
        done -= view.nbytes
    return []


def _piece(payload: memoryview, end: memoryview, at: int) -> list[memoryview]:
    """What is received of a payload at once from `at` on, with the end of the value behind the last of it."""
    piece = payload[at : at + _SEEN_PIECE_BYTES]
    return [piece, end] if at + piece.nbytes == payload.nbytes else [piece]


def _kind(line: bytes) -> tuple[bytes, bytes]:
    """Kind and rest of the first line of a reply that is no error."""
    kind, rest = line[:1], line[1:]
    if line in (b"$-1", b"*-1"):
        return _NIL, b""
    if kind not in (b"+", b":", b"$", b"*", _NIL):
        raise ProtocolError(f"{line[:64]!r} is not a reply")
    return kind, rest


def _number(text: bytes) -> int:
    try:
        number = int(text)
    except ValueError:
        raise ProtocolError(f"{text[:64]!r} is not a number") from None
    if number < 0:
        raise ProtocolError(f"{number} where a count was expected")
    return number


def command(*words: bytes) -> bytes:
    """A command of short words, packed."""
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in words)
