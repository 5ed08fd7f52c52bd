"""One session of the daemon: its channel, its stream of signs of life, its shared memory.

A session is lost when its stream ends (the daemon died, restarted, or the network broke) and is never used
again; tierd_client/connection.py opens another. What was mapped under it stays readable until the last lease
and the last half-written slot of it are gone, and only then is it detached: the daemon keeps those slots
aside until it hears so.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Any

import grpc

from tierd_client.calls import Call, Stream, translated
from tierd_client.catalog import CatalogReader
from tierd_client.credentials import Credentials
from tierd_client.deadline import Deadline
from tierd_client.errors import (
    BrokenPeer,
    ConnectFailed,
    SharedMemoryUnavailable,
    TierdClientError,
    TimedOut,
    Unavailable,
)
from tierd_client.lane import Begin, Lane, LaneCall
from tierd_client.shared_memory import SharedMemory
from tierd_client.v1 import admin_pb2_grpc, blocks_pb2, blocks_pb2_grpc, lending_pb2_grpc

if TYPE_CHECKING:
    from tierd_client.magazine import Magazine

log = logging.getLogger(__name__)

PROTOCOL_VERSION = 1
START_RETRY_S = 0.05
"""Pause before a daemon that says it is starting is asked again."""

CLOSE_TIMEOUT_S = 2.0
"""How long the end of a channel is waited for."""

LOST_GRACE_S = 0.25
"""After a failed call: how long the end of the stream may lag behind it. Both share one connection."""

SILENT_HEARTBEATS = 3

_BLOCKS = blocks_pb2.DESCRIPTOR.services_by_name["Blocks"].full_name

_CHANNEL_OPTIONS = (
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 500),
    # One connection per session: its end is the sign that the session is lost.
    ("grpc.use_local_subchannel_pool", 1),
    # http_proxy in the environment is not meant for a sidecar.
    ("grpc.enable_http_proxy", 0),
)


@dataclass(frozen=True, slots=True)
class Registered:
    """A namespace as this session knows it: its number, and bytes of a block per group."""

    number: int
    block_bytes: tuple[int, ...]


class PayloadStub:
    """Put and Get, whose messages with payload are bytes (framing.py) in place of messages."""

    def __init__(self, channel: Any) -> None:
        self.Put = channel.stream_unary(
            f"/{_BLOCKS}/Put", response_deserializer=blocks_pb2.PutResponse.FromString)
        self.Get = channel.unary_stream(
            f"/{_BLOCKS}/Get", request_serializer=blocks_pb2.GetRequest.SerializeToString)


class Session:
    """An open session. Thread-safe; `call` is the only way to the wire."""

    def __init__(
        self, target: str, client_name: str, rpc_timeout_s: float, deadline: Deadline, credentials: Credentials,
    ) -> None:
        """Connects and waits for the daemon's first word. Raises ConnectFailed when none comes in time."""
        self.rpc_timeout_s = rpc_timeout_s
        self.ended = threading.Event()
        self.memory: SharedMemory | None = None
        self.magazine: Magazine | None = None
        self.catalog: CatalogReader | None = None
        self.lane: Lane | None = None
        self.namespaces: dict[bytes, Registered] = {}
        self.sequences: set[str] = set()
        self.numbers = count(1)
        self._holds = 0
        self._settled = False
        self._lock = threading.Lock()
        self._heard = threading.Event()
        self._heard_at = time.monotonic()
        self._failure: TierdClientError | None = None
        self._channel = credentials.open_channel(target, _CHANNEL_OPTIONS)
        self._payload: Any = PayloadStub(self._channel)
        self._blocks: Any = blocks_pb2_grpc.BlocksStub(self._channel)
        self._lending: Any = lending_pb2_grpc.LendingStub(self._channel)
        self._admin: Any = admin_pb2_grpc.AdminStub(self._channel)
        self.info: Any = None
        try:
            self._open(target, client_name, deadline)
        except BaseException:
            self._close_channel()
            raise

    @property
    def id(self) -> int:
        return int(self.info.session)

    @property
    def batch_ids(self) -> int:
        """Most identities of one call that leases or reserves."""
        most: int = min(self.info.max_ids, self.info.max_held)
        return max(1, most)

    def attach(self, mode: str, deadline: Deadline) -> None:
        """Maps the daemon's memory as `mode` wants it: `auto`, `never` or `require`."""
        if mode == "never":
            return
        try:
            if not self.info.attach_path:
                raise SharedMemoryUnavailable("the daemon offers no attach socket")
            self.memory = SharedMemory(self.info.attach_path, self.id, self.info.token, deadline)
            with contextlib.suppress(Unavailable):  # a daemon of before: calls go by gRPC
                self.lane = Lane(self.info.attach_path, self.id, self.info.token, deadline)
        except SharedMemoryUnavailable as error:
            if mode == "require":
                raise
            log.info("bytes go through gRPC streams: %s", error)

    def call(
        self, method: str, request: Any, wait_s: float = 0.0, *, within_s: float | None = None,
        unheard: Callable[[], None] | None = None, late: Callable[[Any], None] | None = None,
    ) -> Call:
        """One unary RPC that may wait `wait_s` in the daemon, or must be over `within_s`: a step of a routine.
        `unheard`, `late` as in Call."""
        within_s = wait_s + self.rpc_timeout_s if within_s is None else within_s
        stub = self._stub(method)
        if self.lane is None:
            return Call(stub, request, within_s, unheard, late)
        return LaneCall(self.lane, method, stub, request, within_s, unheard=unheard, late=late)

    def begin(self, method: str, request: Any) -> Begin:
        """Sends a unary RPC whose answer is read later, where that can be done: a step of a routine."""
        return Begin(self.lane, method, request, self.rpc_timeout_s)

    def stream(self, method: str, request: Any, wait_s: float) -> Stream:
        """Starts an RPC that answers with a stream; whoever stops reading early cancels it."""
        return Stream(self._stub(method), request, wait_s + self.rpc_timeout_s)

    def _stub(self, method: str) -> Any:
        services = (self._payload, self._blocks, self._lending, self._admin)
        return next(found for service in services if (found := getattr(service, method, None)))

    def is_lost(self, wait_s: float = 0.0) -> bool:
        """Whether the stream has ended, waiting a moment for the news when a call has just failed; or whether
        nothing more can be mapped."""
        if self.memory is not None and not self._settled and self.memory.is_broken():
            self.give_up()
        return self.ended.wait(wait_s) if wait_s else self.ended.is_set()

    def is_silent(self) -> bool:
        """Whether signs of life are overdue: the connection may be gone without a word."""
        allowed_s: float = SILENT_HEARTBEATS * self.info.heartbeat_ms / 1000
        return bool(allowed_s) and time.monotonic() - self._heard_at > allowed_s

    def give_up(self) -> None:
        """Counts the session as lost."""
        self._stream.cancel()
        self.ended.set()

    @contextlib.contextmanager
    def hold(self) -> Iterator[None]:
        """Keeps the session from being detached while slots of it are touched."""
        self.take_hold()
        try:
            yield
        finally:
            self.drop_hold()

    def take_hold(self) -> None:
        with self._lock:
            if self._settled or self.ended.is_set():
                raise Unavailable("the session was lost")
            self._holds += 1

    def drop_hold(self) -> None:
        with self._lock:
            self._holds -= 1

    def settle(self) -> bool:
        """Unmaps a session that nothing holds any more, once and for all. False while something does."""
        with self._lock:
            if self._holds:
                return False
            self._settled = True
        if self.memory is not None:
            self.memory.close()
        return True

    def shut(self) -> None:
        """Closes stream and channel; what is mapped stays so. Idempotent."""
        self._stream.cancel()
        if self.lane is not None:
            self.lane.close()
        self._close_channel()

    def _close_channel(self) -> None:
        """gRPC waits for ever for a call that an interrupt met while it began: a thread does so then, not the
        caller."""
        closer = threading.Thread(target=self._channel.close, name="tierd-close", daemon=True)
        try:
            closer.start()
        except RuntimeError:  # the interpreter is ending
            self._channel.close()
        else:
            closer.join(CLOSE_TIMEOUT_S)

    def _open(self, target: str, client_name: str, deadline: Deadline) -> None:
        """Asks for a session until the daemon has started or the time is over."""
        request = blocks_pb2.SessionRequest(
            client_name=client_name, protocol_version=PROTOCOL_VERSION, pid=os.getpid())
        while True:
            self._failure = None
            self._heard.clear()
            self._stream = self._blocks.Session(request, wait_for_ready=True)
            threading.Thread(
                target=self._listen, args=(self._stream,), name="tierd-session", daemon=True).start()
            self._heard.wait(deadline.left_s())
            if self.info is not None:
                return
            if self._failure is not None and not isinstance(self._failure, Unavailable | TimedOut):
                raise self._failure
            if deadline.passed():
                self._stream.cancel()
                why = _seen_there(target)
                raise ConnectFailed(f"no daemon answered at {target} in time{why}") from self._failure
            threading.Event().wait(min(START_RETRY_S, deadline.left_s()))

    def _listen(self, stream: Any) -> None:
        """Reads signs of life to the end of the stream; the thread of the session."""
        try:
            for info in stream:
                self._heard_at = time.monotonic()
                if self.info is None:
                    if not info.session or len(info.token) != 16:
                        raise BrokenPeer("the first message of a session lacks its number or token")
                    self.info = info
                    self._heard.set()
                if info.return_stock and self.magazine is not None:
                    self.magazine.ask_back()
        except grpc.RpcError as error:
            self._failure = translated(error)
        except BrokenPeer as error:
            self._failure = error
            stream.cancel()
        finally:
            if self.info is not None:
                self.ended.set()
            self._heard.set()


def _seen_there(target: str) -> str:
    """What a try at a Unix socket says, for people; gRPC, which waits for one, does not."""
    if not target.startswith("unix:"):
        return ""
    try:
        with socket.socket(socket.AF_UNIX) as probe:
            probe.settimeout(0.1)
            probe.connect(target.removeprefix("unix:").removeprefix("//"))
    except OSError as error:
        return f": {error.strerror or error}"
    return ": something else listens there, or a daemon that is busy"
