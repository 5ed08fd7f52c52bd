"""A line of JSON each way, over a socket pair, between the demo and one of its workers."""

from __future__ import annotations

import json
import socket
import time
from typing import Any

LINE_BYTES_MAX = 16 * 2**20
_CHUNK_BYTES = 64 * 1024


class ChannelClosed(ConnectionError):
    """The other side has ended."""


class Channel:
    """Owns the socket. One message at a time; not thread-safe."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._pending = bytearray()

    def send(self, message: dict[str, Any], timeout_s: float) -> None:
        """Raises TimeoutError, ChannelClosed."""
        self._connection.settimeout(timeout_s)
        try:
            self._connection.sendall(json.dumps(message).encode() + b"\n")
        except (BrokenPipeError, ConnectionResetError) as error:
            raise ChannelClosed(str(error)) from error

    def receive(self, timeout_s: float | None) -> dict[str, Any]:
        """The next message. None waits for ever: for a worker, whose demo's end closes the channel.

        Raises TimeoutError, ChannelClosed.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while (end := self._pending.find(b"\n")) < 0:
            if len(self._pending) > LINE_BYTES_MAX:
                raise ChannelClosed(f"a message of more than {LINE_BYTES_MAX} bytes")
            self._pending += self._chunk(deadline)
        line = bytes(self._pending[:end])
        del self._pending[: end + 1]
        message: dict[str, Any] = json.loads(line)
        return message

    def _chunk(self, deadline: float | None) -> bytes:
        left = None if deadline is None else deadline - time.monotonic()
        if left is not None and left <= 0:
            raise TimeoutError("no answer in time")
        self._connection.settimeout(left)
        try:
            data = self._connection.recv(_CHUNK_BYTES)
        except ConnectionResetError as error:
            raise ChannelClosed(str(error)) from error
        if not data:
            raise ChannelClosed("end of stream")
        return data

    def close(self) -> None:
        self._connection.close()
