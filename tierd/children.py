"""Processes that a command starts beside itself: they die with it, and what they said is told when they fail."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tierd.core.errors import TierdError
from tierd.interrupts import check_interrupt
from tierd.leash import leashed
from tierd_client import Client
from tierd_client.errors import Unavailable

READY_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 25.0
LOG_LINES = 15
TEMPORARY_PATH_BYTES_MAX = 60
"""Of the 107 of a socket's path; the rest is for `tierd-demo-xxxxxxxx/spill/valkey.sock` and the like."""


class ChildFailed(TierdError):
    """A process ended or did not answer; the message holds the end of its log."""


class DaemonChild:
    """`tierd serve`, set by `settings` alone (names and values of settings.py), and its one log."""

    def __init__(self, state_dir: Path, log: Path, settings: Mapping[str, Any]) -> None:
        listen = settings.get("listen", f"unix://{state_dir}/tierd.sock")
        self.state_dir = state_dir
        self.addresses: list[str] = listen if isinstance(listen, list) else [listen]
        self._log = log
        self._flags = [
            word for name, value in {**settings, "state_dir": state_dir, "listen": self.addresses}.items()
            for one in (value if isinstance(value, list) else [value])
            for word in (f"--{name.replace('_', '-')}", str(one))
        ]
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        """The first that it listens on."""
        return self.addresses[0]

    @property
    def pid(self) -> int:
        assert self._process is not None, "start comes first"
        return self._process.pid

    def start(self) -> None:
        """Starts it, anew after a kill, and waits until it answers. Raises ChildFailed."""
        self._process = start_leashed([sys.executable, "-m", "tierd.cli", "serve", *self._flags], self._log)
        deadline = time.monotonic() + READY_TIMEOUT_S
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                raise ChildFailed(f"the daemon ended with status {self._process.returncode}\n{tail(self._log)}")
            try:
                with Client(self.address) as client:
                    client.admin.occupancy()
                check_interrupt()
                return
            except Unavailable:
                check_interrupt()
                time.sleep(0.05)
        raise ChildFailed(f"the daemon was not ready within {READY_TIMEOUT_S:.0f} s\n{tail(self._log)}")

    def kill(self) -> None:
        """SIGKILL, and waits for the end."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(STOP_TIMEOUT_S)

    def stop(self) -> None:
        if self._process is not None:
            stop(self._process)


def start_leashed(command: Sequence[str], log: Path) -> subprocess.Popen[bytes]:
    """Starts a command that dies with this process, which alone Ctrl-C reaches: it stops the others in order."""
    with log.open("ab") as out:
        return subprocess.Popen(
            leashed(command), stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True,
            env=_without_settings(os.environ),
        )


def stop(process: subprocess.Popen[bytes]) -> None:
    """SIGTERM, then SIGKILL for one that does not end."""
    if process.poll() is None:
        process.terminate()
    try:
        process.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(STOP_TIMEOUT_S)


def tail(log: Path) -> str:
    """The last lines of a log."""
    try:
        lines = log.read_text(errors="replace").splitlines()
    except OSError:
        return ""
    return "\n".join(f"  | {line}" for line in lines[-LOG_LINES:])


def short_temporary_directory() -> str:
    """Where temporary files go, unless the paths of sockets in it would be longer than the kernel takes."""
    usual = tempfile.gettempdir()
    return usual if len(os.fsencode(usual)) <= TEMPORARY_PATH_BYTES_MAX else "/tmp"


def _without_settings(environ: Mapping[str, str]) -> dict[str, str]:
    """A child is set by its flags alone."""
    return {name: value for name, value in environ.items() if not name.startswith("TIERD_")}
