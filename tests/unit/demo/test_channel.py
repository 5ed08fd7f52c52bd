"""The line of JSON between the demo and a worker."""

from __future__ import annotations

import socket
import threading

import pytest

from tierd.demo import channel
from tierd.demo.channel import Channel, ChannelClosed


@pytest.fixture
def pair() -> tuple[Channel, Channel]:
    one, other = socket.socketpair()
    return Channel(one), Channel(other)


def test_messages_arrive_whole_and_in_order(pair: tuple[Channel, Channel]) -> None:
    """Two messages sent at once, one larger than a socket's buffer, come out as two."""
    large = {"tokens": list(range(100_000))}
    sender = threading.Thread(target=lambda: (pair[0].send(large, 10), pair[0].send({"n": 2}, 10)))
    sender.start()
    assert pair[1].receive(10) == large
    assert pair[1].receive(10) == {"n": 2}
    sender.join()


def test_the_end_of_the_other_side_is_told(pair: tuple[Channel, Channel]) -> None:
    """A closed peer is ChannelClosed for the reader and for the writer, even within a message."""
    pair[0]._connection.sendall(b'{"half":')
    pair[0].close()
    with pytest.raises(ChannelClosed):
        pair[1].receive(10)
    with pytest.raises(ChannelClosed):
        pair[1].send({"n": 1}, 10)


def test_waiting_has_an_end(pair: tuple[Channel, Channel]) -> None:
    """A silent peer is a TimeoutError."""
    with pytest.raises(TimeoutError):
        pair[1].receive(0.05)


def test_a_message_has_a_limit(pair: tuple[Channel, Channel], monkeypatch: pytest.MonkeyPatch) -> None:
    """A peer that never ends its line is cut off."""
    monkeypatch.setattr(channel, "LINE_BYTES_MAX", 1000)
    pair[0]._connection.sendall(b"x" * 2000)
    with pytest.raises(ChannelClosed, match="1000"):
        pair[1].receive(10)
