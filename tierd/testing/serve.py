"""`tierd serve` as a process of its own, for tests: started as a user does, watched by its log, killed at will."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

READY_WITHIN_S = 60.0
EXIT_WITHIN_S = 20.0


class ServeProcess:
    """One state directory, and the `tierd serve` process on it, which can be killed and started again.

    `python_path`: where it finds its sources, when they are not those that run the tests.
    """

    def __init__(self, state_dir: Path, shm_dir: Path, settings: dict[str, Any]) -> None:
        self.state_dir = state_dir
        self.shm_dir = shm_dir
        self.settings = {
            "host_bytes": "64MiB", "spill": "none", "catalog_rows": 4096, "log_level": "debug",
            "http_address": "127.0.0.1:0",
        } | settings
        self.python_path = ""
        self.lines: list[str] = []
        self.process: subprocess.Popen[str] | None = None
        self._news = threading.Condition()
        self._ended = False

    @property
    def address(self) -> str:
        return f"unix://{self.state_dir}/tierd.sock"

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def start(self, *, wait: bool = True) -> ServeProcess:
        """Starts it and waits until it is ready."""
        command = [sys.executable, "-m", "tierd.cli", "serve", "--log-format", "json"]
        for name, value in (self.settings | {"state_dir": self.state_dir, "shm_dir": self.shm_dir}).items():
            for one in value if isinstance(value, list) else [value]:
                command += [f"--{name.replace('_', '-')}", str(one)] if one is not True else [f"--{name}"]
        self.lines, self._ended = [], False
        environment = {name: value for name, value in os.environ.items() if not name.startswith("TIERD_")}
        directory = None
        if self.python_path:
            environment["PYTHONPATH"] = self.python_path
            directory = self.state_dir  # before all else Python looks where it was started
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment, cwd=directory)
        threading.Thread(target=self._read, args=(self.process,), daemon=True).start()
        if wait:
            self.event("READY", READY_WITHIN_S)
        return self

    def event(self, name: str, within_s: float = READY_WITHIN_S) -> dict[str, Any]:
        """The first log line of that event since the start; fails when it does not come or the process ends."""
        with self._news:
            self._news.wait_for(lambda: self._find(name) or self._ended, within_s)
        found = self._find(name)
        assert found is not None, f"no {name} in the log:\n{self.log}"
        return found

    def kill(self) -> None:
        """kill -9."""
        self._send(signal.SIGKILL)

    def terminate(self) -> int:
        """SIGTERM; returns the exit status, which must come within 20 s."""
        return self._send(signal.SIGTERM)

    def wait(self, timeout_s: float = EXIT_WITHIN_S) -> int:
        assert self.process is not None
        status = self.process.wait(timeout_s)
        with self._news:
            self._news.wait_for(lambda: self._ended, 5)
        return status

    def restart(self) -> ServeProcess:
        """kill -9 and start again on the same directories."""
        self.kill()
        return self.start()

    @property
    def log(self) -> str:
        return "".join(self.lines)

    def shm_files(self) -> list[str]:
        """Names of its files without the instance."""
        return sorted(path.name.split("-", 2)[2] for path in self.shm_dir.iterdir())

    def _send(self, number: signal.Signals) -> int:
        assert self.process is not None
        self.process.send_signal(number)
        return self.wait()

    def _find(self, name: str) -> dict[str, Any] | None:
        for line in list(self.lines):
            if line.startswith("{") and name in line:
                entry: dict[str, Any] = json.loads(line)
                if entry["event"] == name:
                    return entry
        return None

    def _read(self, process: subprocess.Popen[str]) -> None:
        assert process.stderr is not None
        lines = self.lines
        for line in process.stderr:
            with self._news:
                lines.append(line)
                self._news.notify_all()
        with self._news:
            self._ended |= process is self.process
            self._news.notify_all()


StartDaemon = Callable[..., ServeProcess]
"""The fixture `daemon` of tests/e2e."""
