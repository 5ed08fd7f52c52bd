"""For all tests: real processes, `tierd serve` as a user starts it and an external Valkey; and this process's log,
limited as a daemon's is, without the drawings that take longer than a test."""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog

from tierd.app.log_limit import RepeatLimit
from tierd.testing.serve import ServeProcess, StartDaemon
from tierd.testing.valkey import ExternalValkey
from tierd_client.session import Session

# Not cached, so that a test can capture it.
structlog.configure(processors=[
    RepeatLimit(),
    structlog.processors.add_log_level,
    structlog.processors.TimeStamper(fmt="iso", utc=True),
    structlog.dev.ConsoleRenderer(colors=False, exception_formatter=structlog.dev.plain_traceback),
])


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each RPC was made."""
    made: Counter[str] = Counter()
    original = Session.call

    def call(self: Session, method: str, *arguments: Any, **keywords: Any) -> Any:
        made[method] += 1
        return original(self, method, *arguments, **keywords)

    monkeypatch.setattr(Session, "call", call)
    return made


@pytest.fixture
def daemon() -> Iterator[StartDaemon]:
    """Starts daemons: `daemon(host_bytes="8MiB", ...)`; `start=False` leaves it to the test.

    Each has directories of its own unless `beside=other` is given. All are killed at the end, and their logs
    printed, so that a failure shows them.
    """
    yield from _daemons()


@pytest.fixture(scope="module")
def module_daemon() -> Iterator[StartDaemon]:
    """As `daemon`, for daemons that the tests of a module share."""
    yield from _daemons()


def _daemons() -> Iterator[StartDaemon]:
    made: list[ServeProcess] = []
    directories: list[Path] = []

    def fresh(base: str | None) -> Path:
        # Not tmp_path: the path of a socket has at most 107 bytes.
        directories.append(Path(tempfile.mkdtemp(prefix="tierd-test-", dir=base)))
        return directories[-1]

    def start(*, start: bool = True, beside: ServeProcess | None = None, **settings: Any) -> ServeProcess:
        shm_dir = beside.shm_dir if beside else fresh("/dev/shm")
        made.append(ServeProcess(fresh(None), shm_dir, settings))
        return made[-1].start() if start else made[-1]

    yield start
    for one in made:
        if one.process is not None and one.process.poll() is None:
            one.kill()
        print(f"--- log of {one.state_dir}\n{one.log}")
    for directory in directories:
        shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture
def valkey() -> Iterator[ExternalValkey]:
    """A Valkey server that outlives daemons, on a Unix socket and on TCP."""
    directory = Path(tempfile.mkdtemp(prefix="tierd-valkey-"))
    with ExternalValkey(directory) as server:
        yield server
    shutil.rmtree(directory, ignore_errors=True)
