"""`tierd bench` as a process, on sizes small enough for every check."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

COMMAND = [sys.executable, "-m", "tierd.cli", "bench", "--quick", "--json"]


def test_a_figure_is_measured_and_nothing_stays(tmp_path: Path) -> None:
    """One figure against a real daemon comes out with its limit's ratio, and no directory is left."""
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    done = subprocess.run(
        [*COMMAND, "--figure", "local_get_128k_1"], capture_output=True, text=True, env=environment, check=False
    )
    assert done.returncode in (0, 1), done.stderr
    (figure,) = json.loads(done.stdout)["figures"]
    assert figure["name"] == "local_get_128k_1"
    assert 0 < figure["value"] < 10
    assert done.returncode == (0 if figure["pass"] else 1)
    assert not list(tmp_path.glob("tierd-bench-*"))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_leaves_nothing(tmp_path: Path, number: signal.Signals) -> None:
    """Ctrl-C and SIGTERM in the middle of a measurement end the daemons and remove their files."""
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    running = subprocess.Popen(
        [*COMMAND, "local"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment
    )
    serving = _child_that_serves(running.pid)
    shm_dir = Path(serving.cmdline()[serving.cmdline().index("--shm-dir") + 1])
    running.send_signal(number)
    assert running.wait(60) == 130
    assert not serving.is_running() or serving.status() == psutil.STATUS_ZOMBIE
    assert not shm_dir.exists() and not list(tmp_path.glob("tierd-bench-*"))


def _child_that_serves(parent: int) -> psutil.Process:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        for child in psutil.Process(parent).children():
            with suppress(psutil.NoSuchProcess):
                if "--shm-dir" in child.cmdline():
                    return child
    raise AssertionError("no daemon was started")
