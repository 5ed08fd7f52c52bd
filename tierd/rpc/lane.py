"""Calls of the data plane over a Unix stream: the handlers of gRPC, without what gRPC costs beside them.

Wire in docs/format.md, section 7. The attach socket hands a connection over once its peer has said which session it
is of. Calls of one connection are carried out and answered one after the other.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NoReturn

import grpc
import structlog
from google.protobuf.message import DecodeError

from tierd.rpc.measured import Measured
from tierd_client.framing import LANE_ANSWER, LANE_BYTES_MAX, LANE_CALL, LANE_METHODS
from tierd_client.v1 import blocks_pb2 as pb

log = structlog.get_logger(__name__)

RECEIVE_BYTES = 256 << 10


class Aborted(Exception):
    """A handler has ended its call with a status other than OK."""


class LaneContext:
    """What handlers and their wrappers ask of grpc's context."""

    def __init__(self, within_s: float) -> None:
        self._ends_at = asyncio.get_running_loop().time() + within_s
        self._code: grpc.StatusCode | None = None

    def time_remaining(self) -> float:
        return self._ends_at - asyncio.get_running_loop().time()

    def code(self) -> grpc.StatusCode | None:
        return self._code

    async def abort(self, code: grpc.StatusCode, details: str) -> NoReturn:
        self._code = code
        raise Aborted(details)


@dataclass(frozen=True, slots=True)
class _Method:
    handler: Callable[[Any, LaneContext], Awaitable[Any]]
    parse: Callable[[bytes], Any]


class Lane:
    """Serves connections of peers that may call."""

    def __init__(self, servicer: Any, measured: Measured) -> None:
        self._methods = {number: _method(servicer, measured, name) for name, number in LANE_METHODS.items()}

    async def serve(self, sock: socket.socket) -> None:
        """Until the peer hangs up or is cut off, which cancels its call. The socket, which does not block, stays
        the caller's."""
        loop = asyncio.get_running_loop()
        async with asyncio.TaskGroup() as group:
            conversation = _Conversation(self._methods, sock, group)
            loop.add_reader(sock.fileno(), conversation.read)
            try:
                await conversation.ended.wait()
            finally:
                loop.remove_reader(sock.fileno())
                conversation.cancel()


def _method(servicer: Any, measured: Measured, name: str) -> _Method:
    plain = grpc.unary_unary_rpc_method_handler(getattr(servicer, name))
    parse = getattr(pb, f"{name}Request").FromString
    return _Method(measured.wrap(plain, f"/{pb.DESCRIPTOR.package}.Blocks/{name}").unary_unary, parse)


class _Conversation:
    """One connection: what has come of the next calls, and the call that is carried out."""

    def __init__(self, methods: Mapping[int, _Method], sock: socket.socket, group: asyncio.TaskGroup) -> None:
        self.ended = asyncio.Event()
        self._methods = methods
        self._sock = sock
        self._group = group
        self._received = bytearray()
        self._call: asyncio.Task[None] | None = None

    def read(self) -> None:
        """Takes what has come. The loop calls it, also while a call is carried out: to hear of a hang-up."""
        try:
            data = self._sock.recv(RECEIVE_BYTES)
        except BlockingIOError:
            return
        except OSError as error:
            log.info("lane_closed", reason=str(error))
            data = b""
        if not data:
            self.ended.set()
            return
        self._received += data
        if self._call is None:
            self._begin()
        elif len(self._received) > LANE_CALL.size + LANE_BYTES_MAX:
            self._cut_off("more than one message ahead of an answer")

    def cancel(self) -> None:
        """Nobody waits for the call under way any more."""
        if self._call is not None:
            self._call.cancel()

    def _begin(self) -> None:
        """Begins the next call, if all of it is there."""
        received = self._received
        if len(received) < LANE_CALL.size:
            return
        size, timeout_ms, number = LANE_CALL.unpack_from(received)
        end = LANE_CALL.size + size
        if size > LANE_BYTES_MAX:
            self._cut_off(f"a message of {size} bytes, more than {LANE_BYTES_MAX}")
        elif len(received) >= end:
            message, group = bytes(memoryview(received)[LANE_CALL.size : end]), self._group
            del received[:end]
            self._call = group.create_task(self._answer(number, message, timeout_ms / 1000))

    def _cut_off(self, why: str) -> None:
        log.warning("lane_cut_off", reason=why)
        self.ended.set()

    async def _answer(self, number: int, message: bytes, within_s: float) -> None:
        try:
            code, answer = await self._outcome(number, message, within_s)
            await self._send(LANE_ANSWER.pack(len(answer), code.value[0]) + answer)
        except OSError as error:
            log.info("lane_closed", reason=str(error))
            self.ended.set()
        except Exception:  # a fault met on behalf of one peer must not end the daemon for the others
            log.exception("lane_fault")
            self.ended.set()
        self._call = None
        if not self.ended.is_set():
            self._begin()

    async def _send(self, frame: bytes) -> None:
        """At once, if there is room: uvloop would do first all else that waits, such as making slots ready."""
        sent = 0
        with suppress(BlockingIOError):
            sent = self._sock.send(frame)
        if sent < len(frame):
            await asyncio.get_running_loop().sock_sendall(self._sock, memoryview(frame)[sent:])

    async def _outcome(self, number: int, message: bytes, within_s: float) -> tuple[grpc.StatusCode, bytes]:
        """Status, and the reply or what is wrong."""
        method = self._methods.get(number)
        if method is None:
            return grpc.StatusCode.UNIMPLEMENTED, b"there is no such call here"
        context = LaneContext(within_s)
        try:
            reply = await method.handler(method.parse(message), context)
        except DecodeError:
            return grpc.StatusCode.INTERNAL, b"the message is not that of the call"
        except Aborted as error:
            return context.code() or grpc.StatusCode.UNKNOWN, str(error).encode()
        return grpc.StatusCode.OK, reply.SerializeToString()
