"""Calls by a Unix stream of one's own beside the attach socket: the messages of gRPC, in a tenth of the time.

Wire in docs/format.md, section 7. One caller at a time; whoever finds the lane taken, closed or without the method
calls by gRPC. After a failure it is closed for good: what would come next on it answers something else.
"""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from typing import Any

import grpc

from tierd_client.calls import Call
from tierd_client.deadline import Deadline
from tierd_client.errors import BrokenPeer, TierdClientError, TimedOut, Unavailable, error_of_status
from tierd_client.framing import LANE_ANSWER, LANE_BYTES_MAX, LANE_CALL, LANE_METHODS
from tierd_client.shared_memory import FRAME_BYTES_MAX, LENGTH, connect, parsed
from tierd_client.v1 import blocks_pb2

_CODES = {code.value[0]: code.name for code in grpc.StatusCode}
_REPLIES = {name: getattr(blocks_pb2, f"{name}Response") for name in LANE_METHODS}
_ROOM_BYTES = 64 << 10
_TIMEOUT_MS_MAX = (1 << 32) - 1


class Lane:
    """Thread-safe."""

    def __init__(self, path: str, session: int, token: bytes, deadline: Deadline) -> None:
        """For a session that has attached. Raises Unavailable where the daemon offers no lane."""
        self._lock = threading.Lock()
        self._room = memoryview(bytearray(_ROOM_BYTES))
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        try:
            connect(self._socket, path, deadline)
            text = json.dumps({"op": "calls", "session": session, "token": token.hex()}).encode()
            self._socket.sendall(LENGTH.pack(len(text)) + text)
            (size,) = LENGTH.unpack(self._receive(LENGTH.size, deadline))
            parsed(bytes(self._receive(min(size, FRAME_BYTES_MAX), deadline)))
        except (OSError, TierdClientError) as error:
            self._socket.close()
            raise Unavailable(f"{path}: {error}") from error

    def ask(self, method: str, request: Any, timeout_s: float) -> Any:
        """The reply; None where this call is to be made by gRPC. Raises what a call by gRPC does."""
        number = LANE_METHODS.get(method)
        if number is None or not self._lock.acquire(blocking=False):
            return None
        try:
            message = request.SerializeToString()
            if self._socket.fileno() < 0 or len(message) > LANE_BYTES_MAX:
                return None
            code, answer = self._exchange(number, message, timeout_s)
            if code:
                raise error_of_status(_CODES.get(code, "UNKNOWN"), str(answer, "utf-8", "replace"))
            return _REPLIES[method].FromString(answer)
        finally:
            self._lock.release()

    def close(self) -> None:
        """Ends a call under way, which is Unavailable; idempotent."""
        with contextlib.suppress(OSError):  # closed, or the daemon has gone
            self._socket.shutdown(socket.SHUT_RDWR)
        with self._lock:
            self._socket.close()

    def _exchange(self, number: int, message: bytes, timeout_s: float) -> tuple[int, memoryview]:
        """Status and answer; the answer is there until the next call."""
        deadline, timeout_ms = Deadline(timeout_s), min(int(timeout_s * 1000), _TIMEOUT_MS_MAX)
        try:
            self._socket.settimeout(deadline.socket_s())
            self._socket.sendall(LANE_CALL.pack(len(message), timeout_ms, number) + message)
            size, code = LANE_ANSWER.unpack(self._receive(LANE_ANSWER.size, deadline))
            if size > LANE_BYTES_MAX:
                raise BrokenPeer(f"an answer of {size} bytes; at most {LANE_BYTES_MAX}")
            return code, self._receive(size, deadline)
        except BaseException as error:
            self._socket.close()
            if isinstance(error, TimeoutError):
                raise TimedOut(f"no answer within {timeout_s:.3f} s") from error
            if isinstance(error, OSError | BrokenPeer):
                raise Unavailable(f"lane: {error}") from error
            raise

    def _receive(self, size: int, deadline: Deadline) -> memoryview:
        if size > len(self._room):
            self._room = memoryview(bytearray(size))
        data, filled = self._room[:size], 0
        while filled < size:
            self._socket.settimeout(deadline.socket_s())
            received = self._socket.recv_into(data[filled:])
            if not received:
                raise BrokenPeer("the daemon hung up")
            filled += received
        return data


class LaneCall(Call):
    """A call that goes by the lane where its caller waits for it, and the lane takes it."""

    def __init__(self, lane: Lane, method: str, stub: Any, request: Any, timeout_s: float, **ends: Any) -> None:
        super().__init__(stub, request, timeout_s, **ends)
        self._lane = lane
        self._method = method

    def block(self) -> Any:
        reply = self._lane.ask(self._method, self._request, self._timeout_s)
        return super().block() if reply is None else reply
