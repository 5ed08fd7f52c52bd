"""The Redis protocol over a real socket pair: pieces of any size, deadlines, and no reply for the wrong command."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from tierd.adapters.resp import (
    LINE_BYTES_MAX,
    REPLY_DEPTH_MAX,
    REPLY_ITEMS_MAX,
    SMALL_REPLY_BYTES_MAX,
    Deadline,
    ProtocolError,
    Reply,
    ReplyError,
    Wire,
    command,
)

Ends = tuple[Wire, socket.socket]


@pytest.fixture(params=["unix", "tcp"])
def ends(request: pytest.FixtureRequest) -> Iterator[Ends]:
    """A wire and the server's end of it."""
    near, far = socket.socketpair() if request.param == "unix" else _tcp_pair()
    with near, far:
        far.settimeout(10.0)
        yield Wire(near), far


def _tcp_pair() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        near = socket.create_connection(server.getsockname())
        return near, server.accept()[0]


def in_background(work: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def one_by_one(far: socket.socket, data: bytes) -> None:
    """Sends each byte in a segment of its own, as far as the kernel lets us say so."""
    if far.family != socket.AF_UNIX:
        far.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for byte in data:
        far.sendall(bytes([byte]))


def read_value(wire: Wire, size: int, deadline: Deadline) -> bytes:
    """Its header and its payload, of which each piece was seen on its way."""
    out, seen = memoryview(bytearray(size)), bytearray()
    assert wire.value(out[:4], out[4:], deadline, seen.extend) == size
    assert seen == out[4:]
    return bytes(out)


def length_of_value(wire: Wire, deadline: Deadline) -> int | None:
    """Where a value of 16 bytes was expected."""
    out = memoryview(bytearray(16))
    return wire.value(out[:4], out[4:], deadline, len)


@pytest.mark.parametrize(
    ("line", "reply"),
    [
        (b"+OK\r\n", b"OK"),
        (b"+\r\n", b""),
        (b":0\r\n", 0),
        (b":1234567\r\n", 1234567),
        (b"$0\r\n\r\n", b""),
        (b"$5\r\na\r\nbc\r\n", b"a\r\nbc"),
        (b"$-1\r\n", None),
        (b"_\r\n", None),
        (b"*0\r\n", []),
        (b"*-1\r\n", None),
        (b"*3\r\n:1\r\n*2\r\n$1\r\na\r\n$-1\r\n+b\r\n", [1, [b"a", None], b"b"]),
    ],
)
def test_replies(ends: Ends, line: bytes, reply: Reply) -> None:
    """Each kind of small reply is read as what it is, also when it comes byte by byte, and settles the wire."""
    wire, far = ends
    for send in (socket.socket.sendall, one_by_one):
        wire.send([command(b"X")], Deadline(5.0))
        thread = in_background(lambda send=send: send(far, line))  # type: ignore[misc]
        assert wire.reply(Deadline(5.0)) == reply
        thread.join()
        assert wire.settled
        assert far.recv(100) == b"*1\r\n$1\r\nX\r\n"
        assert wire.idle_and_open()


@pytest.mark.parametrize("read", [Wire.reply, length_of_value])
def test_error_reply(ends: Ends, read: Callable[[Wire, Deadline], object]) -> None:
    """An error reply is raised with its first word as the code, and leaves the wire usable."""
    wire, far = ends
    wire.send([command(b"X")], Deadline(5.0))
    far.sendall(b"-OOM command not allowed when used memory > 'maxmemory'.\r\n")
    with pytest.raises(ReplyError, match="used memory") as caught:
        read(wire, Deadline(5.0))
    assert caught.value.code == "OOM"
    assert wire.settled


NOT_REPLIES = [
    b"hello\r\n", b"\r\n", b"$abc\r\n", b"$-2\r\n", b":x\r\n", b"*x\r\n", b"*2\r\n+OK\r\n-ERR\r\n", b"$2\r\nabcd",
    b"x" * 9000, b"*%d\r\n" % (REPLY_ITEMS_MAX + 1), b"*1\r\n" * (REPLY_DEPTH_MAX + 1) + b":1\r\n",
]


@pytest.mark.parametrize("data", NOT_REPLIES)
def test_not_the_protocol(ends: Ends, data: bytes) -> None:
    """What is not a reply is a ProtocolError, and the wire is not settled: it must not be used again."""
    wire, far = ends
    wire.send([command(b"X")], Deadline(5.0))
    far.sendall(data)
    with pytest.raises(ProtocolError):
        wire.reply(Deadline(5.0))
    assert not wire.settled
    assert not wire.idle_and_open()


def test_limits(ends: Ends) -> None:
    """A small reply is bounded, and so is a line."""
    wire, far = ends
    far.sendall(b"$%d\r\n" % (SMALL_REPLY_BYTES_MAX + 1))
    with pytest.raises(ProtocolError, match="more than"):
        wire.reply(Deadline(5.0))
    far.sendall(b"-" + b"x" * (3 * LINE_BYTES_MAX))
    with pytest.raises(ProtocolError, match="a line of more"):
        wire.reply(Deadline(5.0))


def test_value_where_a_status_comes(ends: Ends) -> None:
    """A status in a value's place is a ProtocolError."""
    wire, far = ends
    far.sendall(b"+OK\r\n")
    with pytest.raises(ProtocolError, match="where a value"):
        length_of_value(wire, Deadline(5.0))


@pytest.mark.parametrize("size", [5, 20, 300, 100_000])
def test_value_byte_by_byte(ends: Ends, size: int) -> None:
    """A value is received whole whatever pieces it comes in, and nothing of the next reply is lost."""
    wire, far = ends
    value = np.random.default_rng(size).integers(0, 256, size, np.uint8).tobytes()
    pieces = b"$%d\r\n%b\r\n+next\r\n" % (size, value)
    wire.send([command(b"X"), command(b"Y")], Deadline(5.0), commands=2)
    thread = in_background(lambda: one_by_one(far, pieces) if size < 1000 else far.sendall(pieces))
    assert read_value(wire, size, Deadline(10.0)) == value
    assert wire.reply(Deadline(5.0)) == b"next"
    assert wire.settled
    thread.join()


def test_nothing_is_lost_behind_another_reply(ends: Ends) -> None:
    """Where nil, an error or a value of another length comes in a value's place, what came with it is read next."""
    wire, far = ends
    wire.send([command(b"X") * 4], Deadline(5.0), commands=4)
    far.sendall(b"$-1\r\n-ERR no\r\n$16\r\n0123456789abcdef\r\n$3\r\nabc\r\n")
    assert length_of_value(wire, Deadline(5.0)) is None
    with pytest.raises(ReplyError, match="no"):
        length_of_value(wire, Deadline(5.0))
    assert read_value(wire, 16, Deadline(5.0)) == b"0123456789abcdef"
    assert length_of_value(wire, Deadline(5.0)) == 3
    assert not wire.settled


def test_several_commands_at_once(ends: Ends) -> None:
    """A wire is settled only when as many replies have come as commands went out, errors among them."""
    wire, far = ends
    wire.send([command(b"X") * 3], Deadline(5.0), commands=3)
    far.sendall(b"+one\r\n-ERR two\r\n")
    assert wire.reply(Deadline(5.0)) == b"one"
    assert not wire.settled
    with pytest.raises(ReplyError, match="two"):
        wire.reply(Deadline(5.0))
    assert not wire.settled and not wire.idle_and_open()
    far.sendall(b"*1\r\n:3\r\n")
    assert wire.reply(Deadline(5.0)) == [3]
    assert wire.settled
    far.recv(1000)
    assert wire.idle_and_open()


def test_half_an_array(ends: Ends) -> None:
    """A wire whose reply ended between two items of an array owes the rest."""
    wire, far = ends
    wire.send([command(b"X")], Deadline(5.0))
    far.sendall(b"*2\r\n$1\r\na\r\n")
    with pytest.raises(TimeoutError):
        wire.reply(Deadline(0.05))
    assert not wire.settled


@pytest.mark.parametrize(
    "sent", [b"", b"$", b"$10", b"$10\r\n", b"$10\r\n1234", b"$10\r\n123456789", b"$10\r\n0123456789\r"]
)
def test_end_in_the_middle(ends: Ends, sent: bytes) -> None:
    """A connection that ends at any point of a reply is an error, and the wire is not settled."""
    wire, far = ends
    wire.send([command(b"X")], Deadline(5.0))
    far.sendall(sent)
    far.shutdown(socket.SHUT_WR)
    with pytest.raises(ConnectionResetError):
        read_value(wire, 10, Deadline(5.0))
    assert not wire.settled


@pytest.mark.parametrize("sent", [b"", b"$10", b"$10\r\n12345", b"$10\r\n0123456789"])
def test_receive_deadline(ends: Ends, sent: bytes) -> None:
    """A reply that stops coming is a TimeoutError at the deadline."""
    wire, far = ends
    wire.send([command(b"X")], Deadline(5.0))
    far.sendall(sent)
    start = time.monotonic()
    with pytest.raises(TimeoutError):
        read_value(wire, 10, Deadline(0.1))
    assert 0.09 < time.monotonic() - start < 4.0
    assert not wire.settled


def test_progress_does_not_stretch_the_deadline(ends: Ends) -> None:
    """A peer that takes a command in small sips does not hold the sender beyond its deadline."""
    wire, far = ends
    done = threading.Event()

    def sip() -> None:
        while not done.wait(0.01):
            far.recv(20_000)

    thread = in_background(sip)
    start = time.monotonic()
    with pytest.raises(TimeoutError):
        wire.send([bytes(64 << 20)], Deadline(0.3))
    assert time.monotonic() - start < 5.0
    done.set()
    thread.join()
    assert not wire.settled


def test_buffers_are_sent_in_order(ends: Ends) -> None:
    """Many buffers, empty ones too, arrive as their concatenation, though the kernel takes them in pieces."""
    wire, far = ends
    random = np.random.default_rng(1)
    buffers = [random.integers(0, 256, size, np.uint8) for size in (3, 0, 1 << 20, 1, 3 << 20, 7, 0, 100_000)]
    expected = b"".join(buffer.tobytes() for buffer in buffers)
    received = bytearray()

    def drain() -> None:
        while len(received) < len(expected):
            received.extend(far.recv(77_777))

    thread = in_background(drain)
    wire.send([buffer.data for buffer in buffers], Deadline(10.0))
    thread.join(10.0)
    assert received == expected


def test_last_words(ends: Ends) -> None:
    """A server that answers and hangs up while a command is still being sent is quoted."""
    wire, far = ends
    far.sendall(b"-ERR Protocol error: invalid bulk length\r\n")
    far.shutdown(socket.SHUT_RDWR)
    with pytest.raises(ReplyError, match="invalid bulk length"):
        wire.send([bytes(64 << 20)], Deadline(5.0))
    assert not wire.settled


def test_idle(ends: Ends) -> None:
    """A wire is idle and open until its peer says something unasked or hangs up."""
    wire, far = ends
    assert wire.idle_and_open()
    far.sendall(b"+unasked\r\n")
    assert _soon(lambda: not wire.idle_and_open())


def test_idle_after_the_end(ends: Ends) -> None:
    """A wire whose peer hung up is not open."""
    wire, far = ends
    far.close()
    assert _soon(lambda: not wire.idle_and_open())


def _soon(condition: Callable[[], bool]) -> bool:
    """Whether it becomes true within 5 s: loopback TCP delivers a little later."""
    deadline = time.monotonic() + 5.0
    while not condition():
        if time.monotonic() > deadline:
            return False
    return True
