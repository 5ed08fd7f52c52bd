"""The attach socket: hands descriptors of shared memory to processes that the kernel vouches for.

Protocol in docs/format.md, section 7. gRPC can neither pass descriptors nor name its peer's process; this
socket does both, and its peers are what sessions are bound to.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import structlog

from tierd.adapters.processes import Process, ProcessWatch, identify, is_alive
from tierd.core.errors import TierdError
from tierd.core.messages import Tier
from tierd_client.format import U64Array

log = structlog.get_logger(__name__)

FRAME_BYTES_MAX = 4096
FRAME_DEADLINE_S = 2.0
CONNECTIONS_MAX = 2048
"""Two of each session, by the default of these."""
ACCEPT_RETRY_S = 0.1
_LENGTH = struct.Struct("<I")
_PEER = struct.Struct("3i")
DESCRIPTORS_MAX = 4
"""That come with one frame."""
_RIGHTS_BYTES = socket.CMSG_SPACE(4 * DESCRIPTORS_MAX)
"""The kernel closes what does not fit."""

OPS = ("attach", "writable", "device", "lend", "hazards", "calls")
FOREIGN_START_TIME = 1
"""Start time recorded with pid 0: a process of another pid namespace, which the kernel shows as pid 0."""


class AttachedSessions(Protocol):
    """What the socket needs of the service. All calls are made on the event loop and return at once."""

    def bind_process(self, session: int, token: bytes, pid: int, start_time: int) -> None:
        """Binds a session to its process. Raises NotFound or Refused."""

    def require_session(self, session: int) -> None:
        """Raises NotFound or Refused for a session that has ended."""

    def open_page(self, session: int, page: U64Array) -> None:
        """What the session looks at will be said in this page. NotFound, Refused."""

    def process_ended(self, session: int) -> None:
        """The session's process is dead; unknown sessions are ignored."""

    def segments_reserved(self, session: int) -> frozenset[int]:
        """Segments in which the session holds reservations now."""


class Pages(Protocol):
    """Makes hazard pages."""

    def page(self, session: int) -> tuple[Mapped, U64Array]:
        """The page of a session, and its words. Raises TierdError, OSError."""


class Regions(Protocol):
    """Takes memory that engines lend."""

    def pass_region(self, session: int, descriptor: int) -> int:
        """Maps it; its number in the session. The descriptor stays the caller's. Raises Refused."""


class Calls(Protocol):
    """Takes calls over a connection."""

    async def serve(self, sock: socket.socket) -> None:
        """Until the peer hangs up. The socket stays the caller's."""


class Mapped(Protocol):
    """A file whose descriptors are handed out."""

    @property
    def size(self) -> int: ...

    def descriptor(self, *, writable: bool) -> int: ...


@dataclass(frozen=True, slots=True)
class DeviceSegment:
    """A segment in a device's memory: the device's UUID, and the handle that opens it there."""

    tier: Tier
    size: int
    device: str
    handle: bytes


@dataclass(frozen=True, slots=True)
class Offer:
    """What may be mapped: the catalog, and (number, tier, file) of each segment; `devices`: segments by number that
    are opened by a handle instead."""

    boot: bytes
    catalog: Mapped
    segments: Sequence[tuple[int, Tier, Mapped]]
    domain: str = "default"
    devices: Mapping[int, DeviceSegment] = field(default_factory=dict)


class BadFrame(Exception):
    """The peer does not speak the protocol; its connection is closed."""


class NotAllowed(Exception):
    """A request that is answered with its text; the connection stays."""


@dataclass(slots=True)
class _Peer:
    """One connection. `process`: None for a peer of another pid namespace."""

    sock: socket.socket
    process: Process | None = None
    sessions: set[int] = field(default_factory=set)
    calls: bool = False


class AttachServer:
    """Listens on a Unix socket; one task per connection, all within `serve`."""

    def __init__(
        self, path: Path, offer: Offer, sessions: AttachedSessions, watch: ProcessWatch,
        regions: Regions | None = None, calls: Calls | None = None, pages: Pages | None = None,
    ) -> None:
        """`regions`: None where lending is off; `calls`: None where calls come by gRPC alone; `pages`: None where
        nothing is looked at without asking."""
        self._pages = pages
        self._regions = regions
        self._calls_server = calls
        self.path = path
        self._offer = offer
        self._sessions = sessions
        self._watch = watch
        self.connections = 0
        self._listener: socket.socket | None = None

    def listen(self) -> None:
        """Binds, mode 0600. The caller owns the directory, so a socket found there is a dead daemon's."""
        self.path.unlink(missing_ok=True)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        listener.setblocking(False)
        listener.bind(str(self.path))
        self.path.chmod(0o600)
        listener.listen(128)
        self._listener = listener

    async def serve(self) -> None:
        """Answers until cancelled; then closes every connection and removes the socket."""
        listener = self._listener
        assert listener is not None, "listen() first"
        try:
            async with asyncio.TaskGroup() as group:
                while True:
                    sock = await _accept(listener)
                    group.create_task(self._connection(sock))
        finally:
            self.close()

    def close(self) -> None:
        """Takes no more connections and removes the socket; idempotent."""
        if self._listener is not None:
            self._listener.close()
            self._listener = None
            self.path.unlink(missing_ok=True)

    async def _connection(self, sock: socket.socket) -> None:
        """One peer from its first byte to its end, or the daemon's."""
        peer = _Peer(sock)
        self.connections += 1
        try:
            await self._serve(peer)
            if peer.sessions:
                if peer.process is None:
                    await _hung_up(sock)  # where the daemon is the one to end the conversation, not the peer
                self._hung_up(peer)
        finally:
            self.connections -= 1
            sock.close()

    async def _serve(self, peer: _Peer) -> None:
        """All that a peer asks for; whatever it does harms only itself."""
        sock = peer.sock
        try:
            self._admit(peer)
            await self._converse(peer)
            if peer.calls and self._calls_server is not None:
                await self._calls_server.serve(sock)
        except BadFrame as error:
            log.warning("attach_closed", reason=str(error))
            with contextlib.suppress(OSError, TimeoutError):
                await _send(sock, {"ok": False, "error": str(error)}, [])
        except TimeoutError:
            log.warning("attach_closed", reason=f"a frame took more than {FRAME_DEADLINE_S} s")
        except OSError as error:
            log.info("attach_closed", reason=str(error))
        except Exception:  # a fault met on behalf of one peer must not end the daemon for the others
            log.exception("attach_fault")

    def _admit(self, peer: _Peer) -> None:
        if self.connections > CONNECTIONS_MAX:
            raise BadFrame(f"more than {CONNECTIONS_MAX} connections")
        pid, uid, _ = _PEER.unpack(peer.sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))
        if uid not in (0, os.geteuid()):
            raise BadFrame(f"uid {uid} is neither the daemon's ({os.geteuid()}) nor root")
        try:
            peer.process = identify(pid) if pid > 0 else None
        except ProcessLookupError as error:
            raise BadFrame(str(error)) from error

    async def _converse(self, peer: _Peer) -> None:
        more = True
        while more:
            received, descriptors = list[int](), list[int]()
            try:
                frame = await _receive(peer.sock, received)
                more = frame is not None
                if frame is not None:
                    reply = self._answer(peer, _parsed(frame), received, descriptors)
                    await _send(peer.sock, reply, descriptors)
                    more = not peer.calls
            finally:
                for descriptor in received + descriptors:
                    os.close(descriptor)

    def _answer(
        self, peer: _Peer, request: dict[str, Any], received: list[int], descriptors: list[int]
    ) -> dict[str, Any]:
        """The reply to one request that came with descriptors; those to send with it are added to the list."""
        try:
            match request.get("op"):
                case "attach":
                    return self._attach(peer, request, descriptors)
                case "writable":
                    return self._writable(peer, request, descriptors)
                case "device":
                    return self._device(peer, request)
                case "lend":
                    return self._lend(peer, request, received)
                case "hazards":
                    return self._hazards(peer, request, descriptors)
                case "calls":
                    return self._take_calls(peer, request)
                case other:
                    raise NotAllowed(f"op {other!r} is unknown; there are {', '.join(OPS)}")
        except (NotAllowed, TierdError) as error:
            return {"ok": False, "error": str(error)}

    def _attach(self, peer: _Peer, request: dict[str, Any], descriptors: list[int]) -> dict[str, Any]:
        session = self._bound(peer, request)
        peer.sessions.add(session)
        log.info("attached", session=session, pid=peer.process.pid if peer.process else 0)
        offer = self._offer
        descriptors.append(offer.catalog.descriptor(writable=False))
        for _, _, file in offer.segments:
            descriptors.append(file.descriptor(writable=False))
        listed = [{"id": number, "tier": int(tier), "bytes": file.size} for number, tier, file in offer.segments]
        return {"ok": True, "boot": offer.boot.hex(), "domain": offer.domain, "segments": listed}

    def _take_calls(self, peer: _Peer, request: dict[str, Any]) -> dict[str, Any]:
        """The end of this connection says nothing of the process: it is closed when a call takes too long."""
        if self._calls_server is None or peer.sessions:
            raise NotAllowed("no calls over this connection")
        self._bound(peer, request)
        peer.calls = True
        return {"ok": True}

    def _bound(self, peer: _Peer, request: dict[str, Any]) -> int:
        """Binds the session of a request to the peer's process; its number."""
        session: int = _field(request, "session", int)
        try:
            token = bytes.fromhex(_field(request, "token", str))
        except ValueError:
            raise NotAllowed("token is not hexadecimal") from None
        process = peer.process
        if process is None:
            self._sessions.bind_process(session, token, 0, FOREIGN_START_TIME)
        else:
            self._sessions.bind_process(session, token, process.pid, process.start_time)
            if not self._watch.watch(process, session):
                self._sessions.process_ended(session)
                raise NotAllowed(f"pid {process.pid} has ended")
        return session

    def _writable(self, peer: _Peer, request: dict[str, Any], descriptors: list[int]) -> dict[str, Any]:
        wanted = _field(request, "segment", int)
        held = {segment for session in peer.sessions for segment in self._sessions.segments_reserved(session)}
        if wanted not in held:
            raise NotAllowed(f"no session of this connection holds a reservation in segment {wanted}")
        for number, _, file in self._offer.segments:
            if number == wanted:
                descriptors.append(file.descriptor(writable=True))
                return {"ok": True}
        raise NotAllowed(f"segment {wanted} cannot be mapped")

    def _device(self, peer: _Peer, request: dict[str, Any]) -> dict[str, Any]:
        if not peer.sessions:
            raise NotAllowed("no session is attached by this connection")
        number = _field(request, "segment", int)
        segment = self._offer.devices.get(number)
        if segment is None:
            raise NotAllowed(f"segment {number} is in no device's memory")
        where = {"device": segment.device, "handle": segment.handle.hex()}
        return {"ok": True, "tier": int(segment.tier), "bytes": segment.size, **where}

    def _hazards(self, peer: _Peer, request: dict[str, Any], descriptors: list[int]) -> dict[str, Any]:
        session = _own_session(peer, request)
        if self._pages is None:
            raise NotAllowed("there are no hazard pages")
        self._sessions.require_session(session)
        try:
            file, words = self._pages.page(session)
        except OSError as error:
            raise NotAllowed(f"no hazard page: {error}") from error
        self._sessions.open_page(session, words)  # the daemon reads it before anyone can write
        descriptors.append(file.descriptor(writable=True))
        return {"ok": True, "bytes": file.size}

    def _lend(self, peer: _Peer, request: dict[str, Any], received: list[int]) -> dict[str, Any]:
        session = _own_session(peer, request)
        if self._regions is None:
            raise NotAllowed("lending is off: max_lent_pools is 0")
        if len(received) != 1:
            raise NotAllowed(f"{len(received)} descriptors; a region comes with one")
        self._sessions.require_session(session)  # what one passed after its end would be kept for ever
        return {"ok": True, "region": self._regions.pass_region(session, received[0])}

    def _hung_up(self, peer: _Peer) -> None:
        """A closed socket is a hint: the process decides, or the hint itself where there is no process."""
        for session in peer.sessions:
            if peer.process is None or not is_alive(peer.process):
                self._sessions.process_ended(session)


async def _accept(listener: socket.socket) -> socket.socket:
    """The next connection. Out of descriptors it waits for some to come back instead of failing."""
    while True:
        try:
            sock, _ = await asyncio.get_running_loop().sock_accept(listener)
        except OSError as error:
            log.warning("attach_accept_failed", reason=str(error))
            await asyncio.sleep(ACCEPT_RETRY_S)
        else:
            sock.setblocking(False)
            return sock


def _own_session(peer: _Peer, request: dict[str, Any]) -> int:
    session: int = _field(request, "session", int)
    if session not in peer.sessions:
        raise NotAllowed(f"session {session} is not attached by this connection")
    return session


def _field(request: dict[str, Any], name: str, kind: Callable[..., Any]) -> Any:
    value = request.get(name)
    if not isinstance(value, kind) or isinstance(value, bool):  # type: ignore[arg-type]
        raise NotAllowed(f"{name} is missing or of the wrong type")
    return value


def _parsed(frame: bytes) -> dict[str, Any]:
    try:
        request = json.loads(frame)
    except (ValueError, RecursionError) as error:
        raise BadFrame(f"a frame is no JSON: {error}") from error
    if not isinstance(request, dict):
        raise BadFrame("a frame is no JSON object")
    return request


async def _receive(sock: socket.socket, descriptors: list[int]) -> bytes | None:
    """One frame; None at the end of the stream. Waits for its first byte as long as it takes. Descriptors that come
    with it are added to the list."""
    first = await _some(sock, _LENGTH.size, descriptors)
    if not first:
        return None
    async with asyncio.timeout(FRAME_DEADLINE_S):
        head = first + await _exactly(sock, _LENGTH.size - len(first), descriptors)
        (size,) = _LENGTH.unpack(head)
        if size > FRAME_BYTES_MAX:
            raise BadFrame(f"a frame of {size} bytes; at most {FRAME_BYTES_MAX}")
        return await _exactly(sock, size, descriptors)


async def _some(sock: socket.socket, size: int, descriptors: list[int]) -> bytes:
    """What has come of so many bytes, at least one; none at the end of the stream."""
    while True:
        try:
            data, ancillary, _, _ = sock.recvmsg(size, _RIGHTS_BYTES, socket.MSG_CMSG_CLOEXEC)
        except BlockingIOError:
            await _until_ready(sock, writable=False)
            continue
        for level, kind, payload in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                descriptors += struct.unpack(f"{len(payload) // 4}i", payload[: len(payload) // 4 * 4])
        if len(descriptors) > DESCRIPTORS_MAX:
            raise BadFrame(f"{len(descriptors)} descriptors with one frame; at most {DESCRIPTORS_MAX}")
        return data


async def _exactly(sock: socket.socket, size: int, descriptors: list[int]) -> bytes:
    data = b""
    while len(data) < size:
        more = await _some(sock, size - len(data), descriptors)
        if not more:
            raise BadFrame("the stream ended inside a frame")
        data += more
    return data


async def _hung_up(sock: socket.socket) -> None:
    """Says no more, and waits for the peer to end the connection; what it still says is not heard."""
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_WR)
        while await asyncio.get_running_loop().sock_recv(sock, FRAME_BYTES_MAX):
            await asyncio.sleep(0)


async def _send(sock: socket.socket, reply: dict[str, Any], descriptors: Sequence[int]) -> None:
    """One frame with its descriptors, which travel with the first byte."""
    text = json.dumps(reply, separators=(",", ":")).encode()
    frame = _LENGTH.pack(len(text)) + text
    async with asyncio.timeout(FRAME_DEADLINE_S):
        sent = await _send_first(sock, frame, descriptors)
        await asyncio.get_running_loop().sock_sendall(sock, frame[sent:])


async def _send_first(sock: socket.socket, frame: bytes, descriptors: Sequence[int]) -> int:
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack(f"{len(descriptors)}i", *descriptors))]
    while True:
        try:
            return sock.sendmsg([frame], rights if descriptors else [])
        except BlockingIOError:
            await _until_ready(sock, writable=True)


async def _until_ready(sock: socket.socket, *, writable: bool) -> None:
    loop = asyncio.get_running_loop()
    ready = loop.create_future()

    def now() -> None:
        if not ready.done():
            ready.set_result(None)

    add, remove = (loop.add_writer, loop.remove_writer) if writable else (loop.add_reader, loop.remove_reader)
    add(sock.fileno(), now)
    try:
        await ready
    finally:
        remove(sock.fileno())
