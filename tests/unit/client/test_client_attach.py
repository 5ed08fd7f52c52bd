"""The client's half of the attach socket, against a peer that follows docs/format.md or breaks it."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tierd_client.deadline import Deadline
from tierd_client.errors import BrokenPeer, FailedPrecondition, SharedMemoryUnavailable, Unavailable
from tierd_client.format import CATALOG_MAGIC, Table, catalog_columns, table_bytes
from tierd_client.shared_memory import SharedMemory, connect

SEGMENT_BYTES = 1 << 16
HOST = 2


class Peer:
    """Answers attach requests on a socket with files of its own, in a thread. `reply` and `size` may lie."""

    def __init__(self, directory: Path) -> None:
        self.path = str(directory / "attach.sock")
        self.segments = [1]
        self.announced = SEGMENT_BYTES
        self.raw: bytes | None = None
        self.silent = False
        self.requests: list[dict[str, Any]] = []
        self._directory = directory
        columns = catalog_columns(16, 32)
        catalog = np.zeros(table_bytes(columns), np.uint8)
        Table.create(CATALOG_MAGIC, columns, buffer=catalog)
        (directory / "catalog").write_bytes(catalog.tobytes())
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(self.path)
        self._listener.listen()
        threading.Thread(target=self._serve, daemon=True).start()

    def file(self, number: int) -> Path:
        return self._file(f"segment{number}", SEGMENT_BYTES)

    def close(self) -> None:
        self._listener.close()

    def _file(self, name: str, size: int) -> Path:
        path = self._directory / name
        if not path.exists():
            path.write_bytes(bytes(size))
        return path

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._converse, args=(connection,), daemon=True).start()

    def _converse(self, connection: socket.socket) -> None:
        """Until the client hangs up, which it does at the latest when it is collected."""
        while head := connection.recv(4, socket.MSG_WAITALL):
            request = json.loads(connection.recv(struct.unpack("<I", head)[0], socket.MSG_WAITALL))
            self.requests.append(request)
            if self.silent:
                continue
            if self.raw is not None:
                connection.sendall(self.raw)
                continue
            self._answer(connection, request)

    def _answer(self, connection: socket.socket, request: dict[str, Any]) -> None:
        if request["op"] == "attach":
            listed = [{"id": n, "tier": HOST, "bytes": self.announced} for n in self.segments]
            reply = {"ok": True, "boot": "00" * 16, "domain": "default", "segments": listed}
            files = [(self._directory / "catalog", os.O_RDONLY)]
            files += [(self.file(number), os.O_RDONLY) for number in self.segments]
        else:
            reply, files = {"ok": True}, [(self.file(request["segment"]), os.O_RDWR)]
        text = json.dumps(reply).encode()
        descriptors = [os.open(path, access) for path, access in files]
        frame = struct.pack("<I", len(text)) + text
        socket.send_fds(connection, [frame[:3]], descriptors)
        for descriptor in descriptors:  # before the client has the whole frame, so that a test may count
            os.close(descriptor)
        connection.sendall(frame[3:])


@pytest.fixture
def peer(tmp_path: Path) -> Iterator[Peer]:
    peer = Peer(tmp_path)
    yield peer
    peer.close()


def _attach(peer: Peer, seconds: float = 5.0) -> SharedMemory:
    return SharedMemory(peer.path, 7, b"t" * 16, Deadline(seconds))


def _address(segment: int, offset: int) -> int:
    return segment << 48 | offset


def test_slots_are_read_and_written_where_the_daemon_sees_them(peer: Peer) -> None:
    """Bytes written through a writable view are in the file, and in read-only views of the same address."""
    memory = _attach(peer)
    memory.writable([_address(1, 4096)], 8, Deadline(5))[0][:] = 9
    assert peer.file(1).read_bytes()[4096:4104] == b"\x09" * 8
    assert memory.view(_address(1, 4096), 8, Deadline(5)).tolist() == [9] * 8
    assert peer.requests == [
        {"op": "attach", "session": 7, "token": (b"t" * 16).hex()}, {"op": "writable", "segment": 1}]
    assert memory.catalog() is not None


def test_read_views_cannot_be_written(peer: Peer) -> None:
    """A view for reading refuses writes: the mapping behind it is read-only."""
    view = _attach(peer).view(_address(1, 0), 8, Deadline(5))
    with pytest.raises(ValueError, match="read-only"):
        view[0] = 1


def test_a_tensor_shares_the_memory(peer: Peer) -> None:
    """A tensor of a slot is no copy: it sees what is written to the slot afterwards."""
    pytest.importorskip("torch")
    memory = _attach(peer)
    tensor = memory.tensor(_address(1, 64), 4, Deadline(5))
    memory.writable([_address(1, 64)], 4, Deadline(5))[0][:] = [1, 2, 3, 4]
    assert tensor.tolist() == [1, 2, 3, 4]


def test_no_mapping_is_inherited_by_a_fork(peer: Peer) -> None:
    """Every mapping of a segment or the catalog carries the kernel's "don't copy on fork" flag."""
    memory = _attach(peer)
    memory.writable([_address(1, 0)], 8, Deadline(5))
    flags: dict[str, list[str]] = {}
    name = ""
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if line.split()[0].endswith(":"):
            if line.startswith("VmFlags:") and Path(peer.path).parent.name in name:
                flags.setdefault(name.rsplit("/", 1)[1], []).append(line)
        else:
            name = line
    assert len(flags["segment1"]) == 2
    assert all(" dc" in line for lines in flags.values() for line in lines)
    assert len(flags["catalog"]) == 1


def test_a_view_outlives_the_connection(peer: Peer) -> None:
    """Closing drops no memory that a view still shows."""
    memory = _attach(peer)
    memory.writable([_address(1, 0)], 4, Deadline(5))[0][:] = 5
    view = memory.view(_address(1, 0), 4, Deadline(5))
    memory.close()
    memory.close()
    assert view.tolist() == [5] * 4


def test_descriptors_are_closed(peer: Peer) -> None:
    """Of the descriptors that the daemon sends, only those that the mappings need stay open, and those go with
    the views."""
    memory = _attach(peer)
    memory.writable([_address(1, 0)], 8, Deadline(5))
    assert sorted(_open_files(peer)) == ["catalog", "segment1", "segment1"]
    memory.close()
    assert _open_files(peer) == []


def _open_files(peer: Peer) -> list[str]:
    """Names of the peer's files that this process has open."""
    names = []
    for descriptor in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            target = descriptor.readlink()
            if target.parent == Path(peer.path).parent:
                names.append(target.name)
    return names


def test_an_arena_that_has_grown_is_mapped_when_it_is_met(peer: Peer) -> None:
    """An address in a segment that came later is found by attaching again; one that nobody has is refused."""
    memory = _attach(peer)
    peer.segments = [1, 2]
    assert memory.view(_address(2, 0), 4, Deadline(5)).tolist() == [0] * 4
    assert memory.views[2].size
    assert 3 not in memory.views
    with pytest.raises(BrokenPeer, match="segment 3"):
        memory.view(_address(3, 0), 4, Deadline(5))


def test_an_address_outside_its_segment_is_refused(peer: Peer) -> None:
    """A slot that would leave its segment raises BrokenPeer instead of showing other memory."""
    memory = _attach(peer)
    with pytest.raises(BrokenPeer, match="leave segment 1"):
        memory.view(_address(1, SEGMENT_BYTES - 4), 8, Deadline(5))


def test_a_file_smaller_than_announced_is_refused(peer: Peer) -> None:
    """A segment whose file is shorter than its announced size is not mapped: reading on would kill."""
    peer.announced = SEGMENT_BYTES + 1
    with pytest.raises(SharedMemoryUnavailable, match=f"the file has {SEGMENT_BYTES}"):
        _attach(peer)


@pytest.mark.parametrize(
    "raw",
    [
        struct.pack("<I", 5) + b"nope!", struct.pack("<I", 1 << 30), struct.pack("<I", 2) + b"[]",
        struct.pack("<I", 2) + b"{}", struct.pack("<I", 11) + b'{"ok":true}',
        struct.pack("<I", 31) + b'{"ok":false,"error":"not yours"}'[:31],
    ],
)
def test_a_peer_that_speaks_otherwise_is_no_shared_memory(peer: Peer, raw: bytes) -> None:
    """Garbage, an oversized frame, a refusal or missing fields all raise SharedMemoryUnavailable."""
    peer.raw = raw
    with pytest.raises(SharedMemoryUnavailable):
        _attach(peer)


def test_a_refusal_is_told_in_the_daemons_words(peer: Peer) -> None:
    """The daemon's reason is in the error."""
    text = b'{"ok":false,"error":"not yours"}'
    peer.raw = struct.pack("<I", len(text)) + text
    with pytest.raises(SharedMemoryUnavailable, match="not yours"):
        _attach(peer)


def test_a_socket_that_failed_is_not_used_again(peer: Peer) -> None:
    """After an answer that did not come in time the socket is closed: the late answer would be taken for the
    next one. What is mapped stays readable."""
    memory = _attach(peer)
    peer.silent = True
    with pytest.raises(Unavailable, match="attach socket"):
        memory.writable([_address(1, 0)], 8, Deadline(0.1))
    assert memory.is_broken()
    assert memory.view(_address(1, 0), 4, Deadline(5)).tolist() == [0] * 4


def test_a_refused_segment_is_told(peer: Peer) -> None:
    """A segment that the daemon does not give out writable raises its words and leaves the socket in use."""
    memory = _attach(peer)
    text = b'{"ok":false,"error":"no reservation"}'
    peer.raw = struct.pack("<I", len(text)) + text
    with pytest.raises(FailedPrecondition, match="no reservation"):
        memory.writable([_address(1, 0)], 8, Deadline(5))
    assert not memory.is_broken()


def test_a_silent_peer_costs_the_deadline(peer: Peer) -> None:
    """A socket that never answers is given up at the deadline."""
    peer.silent = True
    start = time.monotonic()
    with pytest.raises(SharedMemoryUnavailable):
        _attach(peer, 0.2)
    assert time.monotonic() - start < 4.0


def test_nobody_there_is_no_shared_memory(tmp_path: Path) -> None:
    """A path without a socket raises SharedMemoryUnavailable naming it."""
    with pytest.raises(SharedMemoryUnavailable, match=r"none\.sock"):
        SharedMemory(str(tmp_path / "none.sock"), 1, bytes(16), Deadline(1))


def test_a_full_queue_of_the_socket_is_waited_for(tmp_path: Path) -> None:
    """Who finds no room in the kernel's queue is let in when there is, and refused at the deadline."""
    path = str(tmp_path / "attach.sock")
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.socket(socket.AF_UNIX))
        listener.bind(path)
        listener.listen(0)
        stack.enter_context(socket.socket(socket.AF_UNIX)).connect(path)
        late = stack.enter_context(socket.socket(socket.AF_UNIX))
        with pytest.raises(BlockingIOError):
            connect(late, path, Deadline(0.05))
        taken: list[socket.socket] = []
        accepting = threading.Timer(0.1, lambda: taken.append(listener.accept()[0]))
        accepting.start()
        connect(late, path, Deadline(10.0))
        accepting.join()
        taken[0].close()
