"""LMCache's multiprocess server with tierd below it, in LMCache's environment, on a real daemon."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

ENVIRONMENTS = Path(os.environ.get("TIERD_CLIENTS_DIR") or Path.home() / ".cache" / "tierd-clients")
SCRIPT = Path(__file__).with_name("lmcache_round_trip.py")


@pytest.fixture(scope="module")
def lmcache_python() -> Path:
    """The interpreter of LMCache's environment."""
    python = ENVIRONMENTS / "lmcache" / "bin" / "python"
    if not python.exists():
        pytest.skip(f"no LMCache in {ENVIRONMENTS}: make clients installs it")
    return python


def test_a_new_server_answers_from_the_daemon(daemon: Any, lmcache_python: Path, tmp_path: Path) -> None:
    """What one server stored another reads, byte for byte; longer prompts are found as far as they were stored."""
    assert _told(lmcache_python, daemon(host_bytes="64MiB").address, tmp_path, "round_trip") == "ok"


def test_without_a_daemon_the_server_serves(lmcache_python: Path, tmp_path: Path) -> None:
    """The server starts and answers from its own memory."""
    assert _told(lmcache_python, f"unix://{tmp_path}/tierd.sock", tmp_path, "away") == "ok"


def test_objects_of_two_dtypes_are_told_apart(lmcache_python: Path, tmp_path: Path) -> None:
    """The namespace of an object says its dtype, which LMCache's key does not."""
    assert _told(lmcache_python, f"unix://{tmp_path}/tierd.sock", tmp_path, "dtypes") == "ok"


def _told(python: Path, address: str, folder: Path, case: str) -> str:
    command = [str(python), str(SCRIPT), address, str(folder), case]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280)
    logs = "\n".join(log.read_text()[-4000:] for log in folder.glob("*/lmcache.log"))
    assert done.returncode == 0, f"{done.stderr}\n{logs}"
    return done.stdout.split()[-1]
