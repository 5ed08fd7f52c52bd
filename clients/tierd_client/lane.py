"""Calls by a Unix stream of one's own beside the attach socket: the messages of gRPC, in a tenth of the time.

Wire in docs/format.md, section 7. One caller at a time; whoever finds the lane taken, closed or without the method
calls by gRPC. After a failure it is closed for good: what would come next on it answers something else.
"""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import Executor
from typing import Any

import grpc

from tierd_client.calls import Call
from tierd_client.deadline import Deadline
from tierd_client.errors import BrokenPeer, TierdClientError, TimedOut, Unavailable, error_of_status
from tierd_client.framing import LANE_ANSWER, LANE_BYTES_MAX, LANE_CALL, LANE_METHODS
from tierd_client.routine import Step
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
        begun = self.begin(method, request, timeout_s)
        return None if begun is None else begun.answer()

    def begin(self, method: str, request: Any, timeout_s: float) -> Begun | None:
        """Sends a call. Until its answer is read the lane takes no other one. None as of `ask`."""
        number = LANE_METHODS.get(method)
        if number is None or not self._lock.acquire(blocking=False):
            return None
        begun = None
        try:
            message = request.SerializeToString()
            if self._socket.fileno() >= 0 and len(message) <= LANE_BYTES_MAX:
                deadline = Deadline(timeout_s)
                self._send(number, message, deadline)
                begun = Begun(self, method, deadline)
            return begun
        finally:
            if begun is None:
                self._lock.release()

    def end(self, method: str, deadline: Deadline) -> Any:
        """The reply to the call that was begun, as of `ask`."""
        try:
            code, answer = self._receive_answer(deadline)
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

    def _send(self, number: int, message: bytes, deadline: Deadline) -> None:
        with self._closing_on_failure():
            self._socket.settimeout(deadline.socket_s())
            timeout_ms = min(deadline.left_ms(), _TIMEOUT_MS_MAX)
            self._socket.sendall(LANE_CALL.pack(len(message), timeout_ms, number) + message)

    def _receive_answer(self, deadline: Deadline) -> tuple[int, memoryview]:
        """Status and answer; the answer is there until the next call."""
        with self._closing_on_failure():
            size, code = LANE_ANSWER.unpack(self._receive(LANE_ANSWER.size, deadline))
            if size > LANE_BYTES_MAX:
                raise BrokenPeer(f"an answer of {size} bytes; at most {LANE_BYTES_MAX}")
            return code, self._receive(size, deadline)

    @contextlib.contextmanager
    def _closing_on_failure(self) -> Iterator[None]:
        try:
            yield
        except BaseException as error:
            self._socket.close()
            if isinstance(error, TimeoutError):
                raise TimedOut("no answer in time") from error
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


class Begun:
    """A call that was sent by a lane, and whose answer must be read."""

    def __init__(self, lane: Lane, method: str, deadline: Deadline) -> None:
        self._lane = lane
        self._method = method
        self._deadline = deadline

    def answer(self) -> Any:
        """As of `Lane.ask`; once."""
        return self._lane.end(self._method, self._deadline)


class Begin(Step[Begun | None]):
    """Sends a call whose answer is read later; None where that cannot be: without a lane that is free, and on an
    event loop."""

    def __init__(self, lane: Lane | None, method: str, request: Any, timeout_s: float) -> None:
        self._lane = lane
        self._method = method
        self._request = request
        self._timeout_s = timeout_s

    def block(self) -> Begun | None:
        return None if self._lane is None else self._lane.begin(self._method, self._request, self._timeout_s)

    async def wait(self, threads: Executor) -> Begun | None:  # noqa: ARG002 - nothing is done
        return None


class LaneCall(Call):
    """A call that goes by the lane where its caller waits for it, and the lane takes it."""

    def __init__(self, lane: Lane, method: str, stub: Any, request: Any, timeout_s: float, **ends: Any) -> None:
        super().__init__(stub, request, timeout_s, **ends)
        self._lane = lane
        self._method = method

    def block(self) -> Any:
        reply = self._lane.ask(self._method, self._request, self._timeout_s)
        return super().block() if reply is None else reply
