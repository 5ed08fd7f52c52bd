"""The attach socket and the watch over processes, with real sockets, descriptors and processes."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import socket
import struct
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import uvloop

from tierd.adapters import attach
from tierd.adapters.attach import AttachServer, DeviceSegment, Offer
from tierd.adapters.hazards import HazardPages
from tierd.adapters.lent import LentMemory
from tierd.adapters.processes import Process, ProcessWatch, identify, is_alive
from tierd.adapters.shm import SharedDirectory, SharedFile, WantedFile
from tierd.core.errors import Refused
from tierd.core.messages import Tier
from tierd.settings import SEGMENTS_MAX
from tierd.testing.fake_device import FakeDevice
from tierd_client import SharedRegion
from tierd_client.format import HAZARD_PAGE_BYTES, U64Array

TOKEN = b"t" * 16
WAIT_S = 10.0


class Ledger:
    """Sessions as the socket sees them: one known session, its reservations, and what it was told."""

    def __init__(self) -> None:
        self.bound: dict[int, tuple[int, int]] = {}
        self.reserved: dict[int, frozenset[int]] = {}
        self.over: set[int] = set()
        self.pages: dict[int, U64Array] = {}
        self.ended: asyncio.Queue[int] = asyncio.Queue(100)

    def bind_process(self, session: int, token: bytes, pid: int, start_time: int) -> None:
        if session not in (7, 8) or token != TOKEN:
            raise Refused(f"the token is not that of session {session}")
        self.bound[session] = (pid, start_time)

    def require_session(self, session: int) -> None:
        if session in self.over:
            raise Refused(f"session {session} is ending")

    def open_page(self, session: int, page: U64Array) -> None:
        self.pages[session] = page

    def process_ended(self, session: int) -> None:
        self.ended.put_nowait(session)

    def segments_reserved(self, session: int) -> frozenset[int]:
        return self.reserved.get(session, frozenset())

    async def serve(self, sock: socket.socket) -> None:
        """Takes calls: echoes, to the end of the connection."""
        while data := await asyncio.get_running_loop().sock_recv(sock, 100):
            await asyncio.get_running_loop().sock_sendall(sock, data)

    async def next_ended(self) -> int:
        async with asyncio.timeout(WAIT_S):
            return await self.ended.get()


class Rig:
    """A listening server with its ledger, and a client side that blocks on a thread."""

    def __init__(self, directory: Path) -> None:
        shared = SharedDirectory(directory, bytes(16))
        names = ("catalog", "seg-1", "seg-16384")
        files = shared.replace([WantedFile(name, 8192, "host_bytes") for name in names])
        self.files: dict[str, SharedFile] = files
        self.ledger = Ledger()
        self.watch = ProcessWatch(self.ledger.process_ended)
        segments = [(1, Tier.HOST, files["seg-1"]), (0x4000, Tier.HBM, files["seg-16384"])]
        self.path = directory / "attach.sock"
        self.lent = LentMemory(lambda uuid: FakeDevice())
        on_device = {0x4001: DeviceSegment(Tier.HBM, 4096, "gpu-1", bytes(range(64)))}
        offer = Offer(b"b" * 16, files["catalog"], segments, devices=on_device)
        pages = HazardPages(shared, ())
        self.server = AttachServer(self.path, offer, self.ledger, self.watch, self.lent, self.ledger, pages)
        self.stop: Callable[[], object]

    def connect(self) -> socket.socket:
        sock = socket.socket(socket.AF_UNIX)
        sock.settimeout(WAIT_S)
        sock.connect(str(self.path))
        return sock

    async def ask(self, sock: socket.socket, request: Any) -> tuple[dict[str, Any], list[int]]:
        return await asyncio.to_thread(exchange, sock, json.dumps(request).encode())


def exchange(sock: socket.socket, frame: bytes) -> tuple[dict[str, Any], list[int]]:
    sock.sendall(struct.pack("<I", len(frame)) + frame)
    return receive(sock)


def open_files() -> int:
    gc.collect()  # what earlier tests left to be closed
    return len(list(Path("/proc/self/fd").iterdir()))


def exchange_passing(sock: socket.socket, frame: bytes, descriptors: list[int]) -> tuple[dict[str, Any], list[int]]:
    socket.send_fds(sock, [struct.pack("<I", len(frame)) + frame], descriptors)
    return receive(sock)


def receive(sock: socket.socket) -> tuple[dict[str, Any], list[int]]:
    data, descriptors, _, _ = socket.recv_fds(sock, 65536, 253)
    assert data, "the connection was closed"
    (size,) = struct.unpack_from("<I", data)
    assert size <= attach.FRAME_BYTES_MAX
    while len(data) < 4 + size:
        data += sock.recv(65536)
    return json.loads(data[4:]), descriptors


def closed(sock: socket.socket) -> bool:
    try:
        return sock.recv(1) == b""
    except ConnectionResetError:
        return True


@asynccontextmanager
async def running(directory: Path) -> AsyncIterator[Rig]:
    rig = Rig(directory)
    rig.server.listen()
    task = asyncio.create_task(rig.server.serve())
    rig.stop = task.cancel
    try:
        yield rig
    finally:
        task.cancel()
        await asyncio.wait([task], timeout=WAIT_S)
        rig.server.close()
        rig.watch.close()
        assert task.cancelled(), task
        assert not rig.path.exists()


@pytest.fixture(params=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[Callable[[Rig], Awaitable[None]]], None]:
    """Runs a scenario against a server, on both event loops."""

    def go(scenario: Callable[[Rig], Awaitable[None]]) -> None:
        async def whole() -> None:
            async with asyncio.timeout(60), running(tmp_path) as rig:
                await scenario(rig)

        factory = uvloop.new_event_loop if request.param == "uvloop" else None
        with asyncio.Runner(loop_factory=factory) as runner:
            runner.run(whole())

    return go


Run = Callable[[Callable[[Rig], Awaitable[None]]], None]
ATTACH = {"op": "attach", "session": 7, "token": TOKEN.hex()}


def test_a_session_gets_its_own_hazard_page_and_no_other(run: Run) -> None:
    """What a client writes into the page that it is given is what the daemon reads of that session; the page of a
    session that another connection attached is not handed out, nor that of one that is over."""

    async def scenario(rig: Rig) -> None:
        with rig.connect() as sock, rig.connect() as other:
            await rig.ask(sock, ATTACH)
            await rig.ask(other, ATTACH | {"session": 8})
            refused, _ = await rig.ask(other, {"op": "hazards", "session": 7})
            assert refused == {"ok": False, "error": "session 7 is not attached by this connection"}
            reply, (descriptor,) = await rig.ask(sock, {"op": "hazards", "session": 7})
            assert reply == {"ok": True, "bytes": HAZARD_PAGE_BYTES}
            os.pwrite(descriptor, (9).to_bytes(8, "little"), 16)
            os.close(descriptor)
            assert rig.ledger.pages.keys() == {7}
            assert rig.ledger.pages[7][1, 0] == 9
            rig.ledger.over.add(8)
            assert (await rig.ask(other, {"op": "hazards", "session": 8}))[0]["ok"] is False

    run(scenario)


def test_attach(run: Run) -> None:
    """Attach binds the session to the caller's process and gives catalog and segments, read-only, in order."""

    async def scenario(rig: Rig) -> None:
        rig.files["catalog"].array()[0] = 1
        rig.files["seg-16384"].array()[0] = 3
        with rig.connect() as sock:
            reply, descriptors = await rig.ask(sock, ATTACH)
        assert reply == {
            "ok": True, "boot": (b"b" * 16).hex(), "domain": "default",
            "segments": [{"id": 1, "tier": 2, "bytes": 8192}, {"id": 0x4000, "tier": 1, "bytes": 8192}],
        }
        assert [os.pread(descriptor, 1, 0) for descriptor in descriptors] == [b"\x01", b"\0", b"\x03"]
        for descriptor in descriptors:
            with pytest.raises(OSError):
                os.pwrite(descriptor, b"x", 0)
            os.close(descriptor)
        own = identify(os.getpid())
        assert rig.ledger.bound == {7: (own.pid, own.start_time)}

    run(scenario)


def test_writable_only_while_reserved(run: Run) -> None:
    """A writable descriptor is given for a segment in which this connection's session holds a reservation."""

    async def scenario(rig: Rig) -> None:
        request = {"op": "writable", "segment": 1}
        with rig.connect() as sock, rig.connect() as stranger:
            rig.ledger.reserved[7] = frozenset({1})
            assert (await rig.ask(sock, request))[0]["ok"] is False
            for descriptor in (await rig.ask(sock, ATTACH))[1]:
                os.close(descriptor)
            reply, (descriptor,) = await rig.ask(sock, request)
            assert reply == {"ok": True}
            os.pwrite(descriptor, b"y", 5)
            os.close(descriptor)
            assert rig.files["seg-1"].array()[5] == ord("y")
            assert (await rig.ask(stranger, request))[0]["ok"] is False
            assert (await rig.ask(sock, {"op": "writable", "segment": 0x4000}))[0]["ok"] is False
            rig.ledger.reserved[7] = frozenset()
            reply, descriptors = await rig.ask(sock, request)
            assert not reply["ok"] and "reservation in segment 1" in reply["error"] and descriptors == []

    run(scenario)


def test_a_segment_on_a_device(run: Run) -> None:
    """An attached client is told the handle of a segment in a device's memory; others are told nothing."""

    async def scenario(rig: Rig) -> None:
        ask = {"op": "device", "segment": 0x4001}
        with rig.connect() as sock:
            assert "no session is attached" in (await rig.ask(sock, ask))[0]["error"]
            await rig.ask(sock, ATTACH)
            reply, descriptors = await rig.ask(sock, ask)
            handle = bytes(range(64)).hex()
            assert reply == {"ok": True, "tier": 1, "bytes": 4096, "device": "gpu-1", "handle": handle}
            assert descriptors == []
            assert "no device" in (await rig.ask(sock, ask | {"segment": 1}))[0]["error"]

    run(scenario)


def test_a_region_is_passed(run: Run) -> None:
    """A sealed region gets a number, a plain file is refused, and so is any region once the session is over; none
    stays open but the one of each mapping."""

    async def scenario(rig: Rig) -> None:
        lend = json.dumps({"op": "lend", "session": 7}).encode()
        region, plain = SharedRegion(8192), os.memfd_create("plain")
        with rig.connect() as sock:
            await rig.ask(sock, ATTACH)
            before = open_files()
            for passed, answer in (([region.descriptor], 1), ([region.descriptor], 2)):
                reply, _ = await asyncio.to_thread(exchange_passing, sock, lend, passed)
                assert reply == {"ok": True, "region": answer}
            for passed, problem in (([plain], "sealed"), ([], "0 descriptors"), ([plain, plain], "2 descriptors")):
                reply, _ = await asyncio.to_thread(exchange_passing, sock, lend, passed)
                assert problem in reply["error"]
            many = [plain] * (attach.DESCRIPTORS_MAX + 1)  # of which the kernel drops what is too much
            assert (await asyncio.to_thread(exchange_passing, sock, lend, many))[0]["ok"] is False
            rig.ledger.over.add(7)
            reply, _ = await asyncio.to_thread(exchange_passing, sock, lend, [region.descriptor])
            assert reply == {"ok": False, "error": "session 7 is ending"}, "nothing of it would ever be given up"
            assert open_files() == before + 2
        os.close(plain)

    run(scenario)


def test_descriptors_of_a_frame_are_few(run: Run) -> None:
    """A frame whose bytes each bring descriptors ends its connection while few are open; all of them are closed."""

    def flood(sock: socket.socket) -> dict[str, Any]:
        frame = b" " * 3000
        for byte in struct.pack("<I", len(frame)):
            socket.send_fds(sock, [bytes([byte])], [0] * attach.DESCRIPTORS_MAX)
        return receive(sock)[0]

    async def scenario(rig: Rig) -> None:
        with rig.connect() as sock:
            before = open_files()
            reply = await asyncio.to_thread(flood, sock)
            assert f"at most {attach.DESCRIPTORS_MAX}" in reply["error"]
        assert open_files() <= before

    run(scenario)


def test_most_segments_fit_one_reply(tmp_path: Path) -> None:
    """As many segments as the settings allow, of the largest size, are listed by one frame with their files."""

    async def scenario() -> None:
        async with running(tmp_path) as rig:
            file = Large(rig.files["seg-1"])
            segments = [(0x7FFF - number, Tier.HOST, file) for number in range(SEGMENTS_MAX)]
            rig.server._offer = Offer(b"b" * 16, rig.files["catalog"], segments)
            with rig.connect() as sock:
                reply, descriptors = await rig.ask(sock, ATTACH)
            assert [one["id"] for one in reply["segments"]] == [number for number, _, _ in segments]
            assert len(descriptors) == SEGMENTS_MAX + 1
            for descriptor in descriptors:
                os.close(descriptor)

    asyncio.run(scenario())


class Large:
    """A file that says it is as large as a segment may be."""

    size = 1 << 40

    def __init__(self, file: SharedFile) -> None:
        self._file = file

    def descriptor(self, *, writable: bool) -> int:
        return self._file.descriptor(writable=writable)


@pytest.mark.parametrize(
    "request_",
    [
        {"op": "attach", "session": 7, "token": "00" * 16},
        {"op": "attach", "session": 7, "token": "xyz"},
        {"op": "attach", "session": "7", "token": TOKEN.hex()},
        {"op": "attach", "token": TOKEN.hex()},
        {"op": "attach", "session": True, "token": TOKEN.hex()},
        {"op": "open"},
        {},
        {"op": "writable", "segment": None},
        {"op": ["attach"]},
    ],
)
def test_what_is_not_allowed(run: Run, request_: dict[str, Any]) -> None:
    """A wrong request gets a reason and no descriptor, and the connection goes on."""

    async def scenario(rig: Rig) -> None:
        with rig.connect() as sock:
            reply, descriptors = await rig.ask(sock, request_)
            assert reply["ok"] is False and reply["error"] and descriptors == []
            reply, descriptors = await rig.ask(sock, ATTACH)
            assert reply["ok"] is True
            for descriptor in descriptors:
                os.close(descriptor)

    run(scenario)


@pytest.mark.parametrize(
    "raw",
    [
        struct.pack("<I", 4097) + b"{}",
        struct.pack("<I", 0xFFFFFFFF),
        struct.pack("<I", 5) + b"{oops",
        struct.pack("<I", 2) + b"[]",
        struct.pack("<I", 2) + b"\xff\xfe",
        struct.pack("<I", 4096) + b"[" * 4096,
        struct.pack("<I", 0),
        b"GET / HTTP/1.1\r\n\r\n",
    ],
)
def test_malformed_frame_closes_that_connection_only(run: Run, raw: bytes) -> None:
    """Whoever does not speak the protocol is told so and closed; another connection does not notice."""

    async def scenario(rig: Rig) -> None:
        with rig.connect() as good, rig.connect() as bad:
            bad.sendall(raw)
            reply, descriptors = await asyncio.to_thread(receive, bad)
            assert reply["ok"] is False and descriptors == []
            assert await asyncio.to_thread(closed, bad)
            assert (await rig.ask(good, {"op": "?"}))[0]["ok"] is False

    run(scenario)


def test_slow_frame_closes_that_connection_only(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """A frame that does not come to its end in time closes its connection; idle ones stay open."""
    monkeypatch.setattr(attach, "FRAME_DEADLINE_S", 0.2)

    async def scenario(rig: Rig) -> None:
        with rig.connect() as idle, rig.connect() as slow:
            slow.sendall(struct.pack("<I", 100) + b"{")
            assert await asyncio.to_thread(closed, slow)
            assert (await rig.ask(idle, {"op": "?"}))[0]["ok"] is False

    run(scenario)


def test_bytes_one_by_one(run: Run) -> None:
    """A frame may arrive in any pieces."""

    async def scenario(rig: Rig) -> None:
        with rig.connect() as sock:
            text = json.dumps({"op": "?"}).encode()
            for byte in struct.pack("<I", len(text)) + text:
                sock.sendall(bytes([byte]))
                await asyncio.sleep(0)
            assert (await asyncio.to_thread(receive, sock))[0]["ok"] is False

    run(scenario)


def test_too_many_connections(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Connections are limited; one over the limit is told so, and there is room again when one ends."""
    monkeypatch.setattr(attach, "CONNECTIONS_MAX", 2)

    async def scenario(rig: Rig) -> None:
        with rig.connect() as first, rig.connect() as second:
            for sock in (first, second):
                assert (await rig.ask(sock, {"op": "?"}))[0]["ok"] is False
            with rig.connect() as third:
                reply, _ = await asyncio.to_thread(receive, third)
                assert "2 connections" in reply["error"]
                assert await asyncio.to_thread(closed, third)
        async with asyncio.timeout(WAIT_S):
            while rig.server.connections:
                await asyncio.sleep(0)
        with rig.connect() as fourth:
            assert "unknown" in (await rig.ask(fourth, {"op": "?"}))[0]["error"]

    run(scenario)


def test_socket_is_private_and_replaces_a_dead_one(tmp_path: Path) -> None:
    """The socket has mode 0600, and one left by a killed daemon is in nobody's way."""

    async def scenario() -> None:
        async with running(tmp_path) as rig:
            assert rig.path.stat().st_mode & 0o777 == 0o600

    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(tmp_path / "attach.sock"))
    asyncio.run(scenario())


CHILD = """
import json, socket, struct, sys
sock = socket.socket(socket.AF_UNIX)
sock.connect(sys.argv[1])
text = json.dumps({"op": "attach", "session": int(sys.argv[2]), "token": sys.argv[3]}).encode()
sock.sendall(struct.pack("<I", len(text)) + text)
assert socket.recv_fds(sock, 65536, 253)[0]
print("attached", flush=True)
if sys.argv[4] == "close":
    sock.close()
    print("closed", flush=True)
sys.stdin.read()
"""


def start_child(rig: Rig, session: int, how: str = "stay") -> subprocess.Popen[str]:
    command = [sys.executable, "-c", CHILD, str(rig.path), str(session), TOKEN.hex(), how]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def stop(child: subprocess.Popen[str]) -> None:
    child.kill()
    child.communicate(timeout=WAIT_S)


def test_death_of_the_process_ends_its_session(run: Run) -> None:
    """A client killed with -9 is noticed by the kernel's word, without any sign from it."""

    async def scenario(rig: Rig) -> None:
        child = start_child(rig, 8)
        try:
            assert await asyncio.to_thread(child.stdout.readline) == "attached\n"  # type: ignore[union-attr]
            assert rig.ledger.bound[8][0] == child.pid
        finally:
            stop(child)
        assert await rig.ledger.next_ended() == 8
        assert len(rig.watch) == 0

    run(scenario)


def test_a_closed_socket_is_only_a_hint(run: Run) -> None:
    """A client that closes its socket and lives keeps its session; its death, later, still ends it."""

    async def scenario(rig: Rig) -> None:
        child = start_child(rig, 8, "close")
        try:
            for line in ("attached\n", "closed\n"):
                assert await asyncio.to_thread(child.stdout.readline) == line  # type: ignore[union-attr]
            async with asyncio.timeout(WAIT_S):
                while rig.server.connections:
                    await asyncio.sleep(0)
            assert rig.ledger.ended.empty()
        finally:
            stop(child)
        assert await rig.ledger.next_ended() == 8

    run(scenario)


class Peer:
    """What the kernel says of a peer, decided by the test."""

    size = 12

    def __init__(self, pid: int, uid: int) -> None:
        self._word = (pid, uid, 0)

    def unpack(self, raw: bytes) -> tuple[int, int, int]:
        assert len(raw) == self.size
        return self._word


def test_process_of_another_pid_namespace(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """A peer that the kernel shows as pid 0 may attach, and the end of its socket is the end of its session."""
    monkeypatch.setattr(attach, "_PEER", Peer(0, os.geteuid()))

    async def scenario(rig: Rig) -> None:
        with rig.connect() as sock:
            reply, descriptors = await rig.ask(sock, ATTACH)
            assert reply["ok"] and rig.ledger.bound == {7: (0, attach.FOREIGN_START_TIME)}
            assert rig.ledger.ended.empty()
        for descriptor in descriptors:
            os.close(descriptor)
        assert await rig.ledger.next_ended() == 7

    run(scenario)


def test_only_the_peer_ends_a_process_that_is_not_seen(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the daemon ends a conversation, because of a bad frame or of its own stop, the session of a peer of
    another pid namespace goes on; the end of the peer's socket ends it, where the daemon is still there."""
    monkeypatch.setattr(attach, "_PEER", Peer(0, os.geteuid()))

    async def scenario(rig: Rig) -> None:
        with rig.connect() as broken, rig.connect() as stopped:
            for sock, request in ((broken, ATTACH), (stopped, ATTACH | {"session": 8})):
                _, descriptors = await rig.ask(sock, request)
                for descriptor in descriptors:
                    os.close(descriptor)
            reply, _ = await asyncio.to_thread(exchange, broken, b"no JSON")
            assert not reply["ok"]
            assert await asyncio.to_thread(closed, broken)
            assert rig.ledger.ended.empty()
            broken.close()
            assert await rig.ledger.next_ended() == 7
            rig.stop()
            assert await asyncio.to_thread(closed, stopped)
        await asyncio.sleep(0)
        assert rig.ledger.ended.empty()

    run(scenario)


def test_other_users_are_refused(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """A peer of another user than the daemon's or root gets neither descriptor nor conversation."""
    monkeypatch.setattr(attach, "_PEER", Peer(os.getpid(), os.geteuid() + 1))

    async def scenario(rig: Rig) -> None:
        with rig.connect() as sock:
            reply, descriptors = await asyncio.to_thread(receive, sock)
            assert reply["ok"] is False and "uid" in reply["error"] and descriptors == []
            assert await asyncio.to_thread(closed, sock)
        assert rig.ledger.bound == {}

    run(scenario)


def test_identify() -> None:
    """A process is its pid and start time; one that ended, even as a zombie, is not alive."""
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    process = identify(child.pid)
    assert is_alive(process)
    assert not is_alive(Process(process.pid, process.start_time + 1))
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert not is_alive(process)
    child.communicate(timeout=WAIT_S)
    with pytest.raises(ProcessLookupError):
        identify(child.pid)


def test_watch_of_a_dead_process_says_so() -> None:
    """Watching what has already ended, or another process with its pid, is refused at once."""

    async def scenario() -> None:
        watch = ProcessWatch(lambda session: None)
        own = identify(os.getpid())
        assert not watch.watch(Process(own.pid, own.start_time + 1), 1)
        child = subprocess.Popen([sys.executable, "-c", ""])
        dead = Process(child.pid, 1)
        child.wait(WAIT_S)
        assert not watch.watch(dead, 1)
        assert watch.watch(own, 1) and watch.watch(own, 2)
        assert len(watch) == 1
        watch.forget(1)
        assert len(watch) == 1
        watch.forget(2)
        watch.forget(2)
        assert len(watch) == 0

    asyncio.run(scenario())


CALLS = {"op": "calls", "session": 7, "token": TOKEN.hex()}


def test_calls_are_taken_from_who_shows_a_token(run: Run) -> None:
    """A connection that shows its session's token carries calls from then on; its end is not the session's."""

    async def scenario(rig: Rig) -> None:
        with rig.connect() as sock:
            assert await rig.ask(sock, CALLS) == ({"ok": True}, [])
            await asyncio.to_thread(sock.sendall, b"a call")
            assert await asyncio.to_thread(sock.recv, 100) == b"a call"
        while rig.server.connections:
            await asyncio.sleep(0.001)
        assert rig.ledger.ended.empty()

    run(scenario)


def test_calls_are_refused_to_others(run: Run) -> None:
    """Without the token, or where a session is attached whose end it would hide, no connection carries calls."""

    async def scenario(rig: Rig) -> None:
        with rig.connect() as sock:
            assert not (await rig.ask(sock, {**CALLS, "token": "00"}))[0]["ok"]
            for descriptor in (await rig.ask(sock, ATTACH))[1]:
                os.close(descriptor)
            assert not (await rig.ask(sock, CALLS))[0]["ok"]
            assert "unknown" in (await rig.ask(sock, {"op": "more"}))[0]["error"]

    run(scenario)
