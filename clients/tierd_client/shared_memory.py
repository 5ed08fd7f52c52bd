"""The client's half of the attach socket: maps the daemon's segments and gives views of addresses.

Protocol in docs/format.md, section 7. Segments are mapped read-only; one is mapped writable when this
session first holds a reservation in it. No mapping is inherited by a fork (MADV_DONTFORK): a child that
wrote through one would be nobody's session. Views keep their mapping alive, so that dropping this object
never pulls memory from under a reader.
"""

from __future__ import annotations

import contextlib
import json
import logging
import mmap
import os
import socket
import struct
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tierd_client.deadline import Deadline
from tierd_client.errors import (
    BrokenPeer,
    FailedPrecondition,
    ForkedClientError,
    SharedMemoryUnavailable,
    TierdClientError,
    Unavailable,
)
from tierd_client.format import (
    CATALOG_MAGIC,
    HAZARD_PAGE_BYTES,
    OFFSET_BITS,
    OFFSET_MASK,
    FormatError,
    Table,
    U8Array,
)
from tierd_client.hazards import HazardPage

if TYPE_CHECKING:
    from tierd_client.cuda import OpenedHandle

log = logging.getLogger(__name__)

HOST = 2
FRAME_BYTES_MAX = 4096
DESCRIPTORS_MAX = 253
"""SCM_MAX_FD of the kernel."""

LENGTH = struct.Struct("<I")
_PEER = struct.Struct("3i")


CONNECT_RETRY_S = 0.01


def connect(sock: socket.socket, path: str, deadline: Deadline) -> None:
    """Connects, also where more wait to be let in than the kernel has room for: it refuses a socket with a timeout
    then, instead of waiting. Raises OSError."""
    sock.settimeout(deadline.socket_s())
    while True:
        try:
            sock.connect(path)
            return
        except BlockingIOError:
            if deadline.passed():
                raise
            time.sleep(CONNECT_RETRY_S)


@dataclass(slots=True)
class _Segment:
    """One mapped segment: one array per access, made once and sliced for each block."""

    tier: int
    size: int
    read: U8Array
    write: U8Array | None = None
    tensor: Any = None


class SharedMemory:
    """The segments and the catalog of one session, mapped. Thread-safe."""

    def __init__(self, path: str, session: int, token: bytes, deadline: Deadline) -> None:
        """Attaches. Raises SharedMemoryUnavailable saying why it cannot."""
        self._request = {"op": "attach", "session": session, "token": token.hex()}
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._segments: dict[int, _Segment] = {}
        self.views: dict[int, U8Array] = {}
        """All bytes of each segment that is mapped, read-only."""
        self.files: dict[int, tuple[int, int]] = {}
        """Device and inode of each segment's file."""
        self._catalog: U8Array | None = None
        self.page: HazardPage | None = None
        """Where the session says what it looks at, once it was asked for by `hazards`."""
        self._no_page = False
        self._opened: dict[int, OpenedHandle] = {}
        self._pinned: list[U8Array] = []
        self._broken = False
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        try:
            connect(self._socket, path, deadline)
            self._attach(deadline)
        except (OSError, TierdClientError) as error:
            self._socket.close()
            raise SharedMemoryUnavailable(f"{path}: {error}") from error

    def catalog(self) -> Table | None:
        """The domain's catalog, read-only; None when its format is not one that this code reads."""
        with contextlib.suppress(FormatError):
            return None if self._catalog is None else Table.attach(CATALOG_MAGIC, self._catalog)
        return None

    def hazards(self, deadline: Deadline) -> HazardPage | None:
        """The session's hazard page, which is asked for once; None where the daemon gives none."""
        if self.page is None and not self._no_page:
            with self._lock:
                if self.page is None:
                    self.page = self._ask_for_page(deadline)
                    self._no_page = self.page is None
        return self.page

    def has(self, addresses: Iterable[int]) -> bool:
        """Whether all of these addresses can be looked at without asking the daemon for a segment; 0 is none."""
        return all(address >> OFFSET_BITS in self._segments for address in addresses if address)

    def refresh(self, deadline: Deadline) -> None:
        """Maps what the arena has grown by since."""
        with self._lock:
            self._attach(deadline)

    def view(self, address: int, size: int, deadline: Deadline) -> U8Array:
        """The bytes of a slot, read-only."""
        segment, offset = self._locate(address, size, deadline)
        return segment.read[offset : offset + size]

    def tensor(self, address: int, size: int, deadline: Deadline) -> Any:
        """The bytes of a slot as a torch uint8 tensor. Writing to it kills the process: it is read-only."""
        segment, offset = self._locate(address, size, deadline)
        if segment.tensor is None:
            import torch  # only those who ask for tensors pay for it

            segment.tensor = torch.from_numpy(np.asarray(_Disguised(segment.read)))
        return segment.tensor[offset : offset + size]

    def writable(self, addresses: Sequence[int], size: int, deadline: Deadline) -> list[U8Array]:
        """The bytes of slots of one size that this session has reserved, writable."""
        self._refuse_inherited()
        views, segments = [], self._segments
        for address in addresses:
            segment, offset = segments.get(address >> OFFSET_BITS), address & OFFSET_MASK
            if segment is None or segment.write is None or offset + size > segment.size:
                write = self._written(address, size, deadline)
            else:
                write = segment.write
            views.append(write[offset : offset + size])
        return views

    def _written(self, address: int, size: int, deadline: Deadline) -> U8Array:
        """All bytes of the segment of a slot, writable."""
        segment, _ = self._locate(address, size, deadline)
        with self._lock:
            if segment.write is None:
                request = {"op": "writable", "segment": address >> OFFSET_BITS}
                segment.write = self._map_writable(request, segment.size, deadline)
        return segment.write

    def pin(self) -> None:
        """Registers the host tier's segments with CUDA, one registration each, until this object is closed. Where
        that is refused they stay as they are: copies to a GPU are slower, and a line in the log says so."""
        try:
            from tierd_client.cuda import register  # only those who pin pay for it

            for number, segment in sorted(self._segments.items()):
                problem = register(segment.read, read_only=True) if segment.tier == HOST else ""
                if problem:
                    raise RuntimeError(f"segment {number}: {problem}")
                self._pinned += [segment.read] if segment.tier == HOST else []
        except (ImportError, RuntimeError) as error:
            log.warning("host memory is not pinned: %s", error)

    def device_tensor(self, address: int, size: int, deadline: Deadline) -> Any:
        """The bytes of a slot in a GPU's memory as a torch uint8 tensor there. Not to be written to."""
        number, offset = address >> OFFSET_BITS, address & OFFSET_MASK
        with self._lock:
            opened = self._opened.get(number)
            if opened is None:
                opened = self._opened[number] = self._open_on_device(number, deadline)
        if offset + size > opened.size:
            raise BrokenPeer(f"address {address:#x} and {size} bytes leave segment {number} ({opened.size})")
        return opened.tensor[offset : offset + size]

    def is_mapped(self, address: int) -> bool:
        """Whether an address is in a segment of shared memory; else it is in a device's."""
        return address >> OFFSET_BITS in self._segments

    def maps_tier(self, tier: int) -> bool:
        """Whether blocks of a tier lie in shared memory."""
        return any(segment.tier == tier for segment in self._segments.values())

    def _unpin(self) -> None:
        if self._pinned:
            from tierd_client.cuda import unregister

            for array in reversed(self._pinned):
                unregister(array)
            self._pinned.clear()

    def _open_on_device(self, number: int, deadline: Deadline) -> OpenedHandle:
        from tierd_client.cuda import OpenedHandle  # only those who read there pay for it

        reply, others = self._ask({"op": "device", "segment": number}, deadline)
        _close_all(others)
        try:
            return OpenedHandle(str(reply["device"]), bytes.fromhex(reply["handle"]), int(reply["bytes"]))
        except (KeyError, TypeError, ValueError) as error:
            raise BrokenPeer(f"device: {error!r}") from error

    def pass_region(self, session: int, descriptor: int, deadline: Deadline) -> int:
        """Lends the daemon a region of this process's memory; its number in the session."""
        with self._lock:
            reply, others = self._ask({"op": "lend", "session": session}, deadline, [descriptor])
        _close_all(others)
        if not isinstance(reply.get("region"), int):
            raise BrokenPeer("lend: the reply names no region")
        number: int = reply["region"]
        return number

    def daemon_pidfd(self) -> int:
        """A descriptor that is readable once the daemon's process has ended; -1 where that cannot be known."""
        pid, _, _ = _PEER.unpack(self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))
        try:
            return os.pidfd_open(pid) if pid > 0 else -1
        except OSError:
            return -1

    def is_inherited(self) -> bool:
        """Whether this process is a fork of the one that attached: nothing is mapped here, and what was leased
        is not its own."""
        return os.getpid() != self._pid

    def is_broken(self) -> bool:
        """Whether the attach socket has failed: nothing more can be mapped through it."""
        return self._broken

    def close(self) -> None:
        """Ends the connection and drops the views of this object; idempotent. Views of others stay."""
        self._broken = True
        self._socket.close()
        self._segments = {}
        self.views.clear()
        self._catalog = None
        self.page = None
        self._unpin()
        for opened in self._opened.values():
            opened.close()
        self._opened = {}

    def _locate(self, address: int, size: int, deadline: Deadline) -> tuple[_Segment, int]:
        self._refuse_inherited()
        number, offset = address >> OFFSET_BITS, address & OFFSET_MASK
        segment = self._segments.get(number)
        if segment is None:
            self.refresh(deadline)
            segment = self._segments.get(number)
        if segment is None:
            raise BrokenPeer(f"address {address:#x} is in segment {number}, which is not handed out")
        if offset + size > segment.size:
            raise BrokenPeer(f"address {address:#x} and {size} bytes leave segment {number} ({segment.size})")
        return segment, offset

    def _refuse_inherited(self) -> None:
        if self.is_inherited():
            raise ForkedClientError(f"the memory of process {self._pid} is not mapped in process {os.getpid()}")

    def _attach(self, deadline: Deadline) -> None:
        """Asks for all descriptors and maps those segments that are not mapped yet."""
        reply, descriptors = self._ask(self._request, deadline)
        try:
            listed = _listed(reply)
            if len(descriptors) != len(listed) + 1:
                raise BrokenPeer(f"{len(descriptors)} descriptors for a catalog and {len(listed)} segments")
            if self._catalog is None:
                self._catalog = _map(descriptors[0], os.fstat(descriptors[0]).st_size, mmap.PROT_READ)
            for (number, tier, size), descriptor in zip(listed, descriptors[1:], strict=True):
                if number not in self._segments:
                    status = os.fstat(descriptor)
                    self.files[number] = status.st_dev, status.st_ino
                    view = self.views[number] = _map(descriptor, size, mmap.PROT_READ)
                    self._segments[number] = _Segment(tier, size, view)
        finally:
            _close_all(descriptors)

    def _ask_for_page(self, deadline: Deadline) -> HazardPage | None:
        request = {"op": "hazards", "session": self._request["session"]}
        with contextlib.suppress(FailedPrecondition):  # a daemon of before, or one that has no room for it
            return HazardPage(self._map_writable(request, HAZARD_PAGE_BYTES, deadline))
        return None

    def _map_writable(self, request: dict[str, Any], size: int, deadline: Deadline) -> U8Array:
        """What the daemon hands out for writing."""
        _, descriptors = self._ask(request, deadline)
        try:
            if len(descriptors) != 1:
                raise BrokenPeer(f"{request['op']}: {len(descriptors)} descriptors for one file")
            return _map(descriptors[0], size, mmap.PROT_READ | mmap.PROT_WRITE)
        finally:
            _close_all(descriptors)

    def _ask(
        self, request: dict[str, Any], deadline: Deadline, passed: Sequence[int] = (),
    ) -> tuple[dict[str, Any], list[int]]:
        """One frame there, one back. Unavailable when the socket fails, which is then not used again: what would
        come next on it answers something else. It stays open: a daemon that cannot see this process takes its end
        for that of the process, whose slots it hands on. No descriptor of a failed answer is kept open."""
        if self._broken:
            raise Unavailable("attach socket: it has failed before")
        descriptors: list[int] = []
        try:
            self._socket.settimeout(deadline.socket_s())
            text = json.dumps(request).encode()
            frame = LENGTH.pack(len(text)) + text
            sent = socket.send_fds(self._socket, [frame], list(passed)) if passed else 0
            self._socket.sendall(frame[sent:])
            (size,) = LENGTH.unpack(self._receive(LENGTH.size, descriptors))
            if size > FRAME_BYTES_MAX:
                raise BrokenPeer(f"a frame of {size} bytes; at most {FRAME_BYTES_MAX}")
            return parsed(self._receive(size, descriptors)), descriptors
        except BaseException as error:
            _close_all(descriptors)
            if isinstance(error, OSError | BrokenPeer):
                self._broken = True
                raise Unavailable(f"attach socket: {error}") from error
            raise

    def _receive(self, size: int, descriptors: list[int]) -> bytes:
        data = b""
        room = socket.CMSG_SPACE(DESCRIPTORS_MAX * 4)
        while len(data) < size:
            more, ancillary, _, _ = self._socket.recvmsg(size - len(data), room, socket.MSG_CMSG_CLOEXEC)
            for level, kind, payload in ancillary:
                if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                    descriptors += struct.unpack(f"{len(payload) // 4}i", payload[: len(payload) // 4 * 4])
            if not more:
                raise BrokenPeer("the attach socket was closed")
            data += more
        return data


def parsed(frame: bytes) -> dict[str, Any]:
    """A reply that says yes. BrokenPeer for garbage, FailedPrecondition for a refusal, in the daemon's words."""
    try:
        reply = json.loads(frame)
    except ValueError as error:
        raise BrokenPeer(f"a frame is no JSON: {error}") from error
    if not isinstance(reply, dict):
        raise BrokenPeer("a frame is no JSON object")
    if reply.get("ok") is not True:
        raise FailedPrecondition(f"refused: {reply.get('error')}")
    return reply


def _listed(reply: dict[str, Any]) -> list[tuple[int, int, int]]:
    """Number, tier and bytes of each segment offered."""
    try:
        return [(int(one["id"]), int(one["tier"]), int(one["bytes"])) for one in reply["segments"]]
    except (KeyError, TypeError, ValueError) as error:
        raise BrokenPeer(f"segments: {error!r}") from error


class _Disguised:
    """A read-only array that says it is writable, for torch, which knows no read-only memory and warns."""

    def __init__(self, array: U8Array) -> None:
        self._array = array
        interface = dict(array.__array_interface__)
        interface["data"] = (interface["data"][0], False)
        self.__array_interface__ = interface


def _map(descriptor: int, size: int, access: int) -> U8Array:
    actual = os.fstat(descriptor).st_size
    if size < 1 or actual < size:
        raise BrokenPeer(f"{size} bytes announced, the file has {actual}")
    mapping = mmap.mmap(descriptor, size, flags=mmap.MAP_SHARED, prot=access)
    mapping.madvise(mmap.MADV_DONTFORK)
    return np.frombuffer(mapping, np.uint8)


def _close_all(descriptors: list[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
