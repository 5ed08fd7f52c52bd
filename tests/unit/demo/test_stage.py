"""The directories and processes of the demo."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import psutil
import pytest

from tierd.children import ChildFailed
from tierd.demo import stage
from tierd.demo.model import SYNTHETIC, Kind, ModelSource
from tierd.demo.stage import DemoFailed, Sizes, Stage


def test_a_long_temporary_directory_is_avoided(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sockets fit into the kernel's limit however long the path for temporary files is."""
    long = tmp_path / ("x" * 100)
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    with Stage() as made:
        assert len(os.fsencode(made.state_dir / "state" / "attach.sock")) <= 107
    assert not made.state_dir.exists()


def test_shared_memory_that_is_too_small_is_avoided(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Tiers that do not fit into the shared-memory directory go to a file system; both are removed."""
    with Stage() as made:
        shared = made._shared_memory(Sizes(1 << 60, 1 << 60))
        assert shared.is_relative_to(made.state_dir)
    monkeypatch.setattr(stage, "SHARED_MEMORY", tmp_path)
    with Stage() as made:
        shared = made._shared_memory(Sizes(4096, 4096))
        assert shared.parent == tmp_path and shared.stat().st_mode & 0o777 == 0o700
    assert not shared.exists() and not made.state_dir.exists()


def test_a_daemon_that_cannot_start_is_told_with_its_words() -> None:
    """A refused setting ends the demo at once, with the daemon's own sentence."""
    with Stage() as made:
        made.spill_url = "no-url"
        with pytest.raises(ChildFailed, match="spill"):
            made.start_daemon(Sizes(1 << 20, 1 << 20))


def test_workers_end_with_the_stage() -> None:
    """Leaving the stage ends a worker that waits for a prompt."""
    with Stage() as made:
        (worker,) = made.start_workers(["a"], ModelSource(Kind.SYNTHETIC, SYNTHETIC))
        assert worker.receive()["layout"]
        process = psutil.Process(worker.process.pid)
    assert not process.is_running()


def test_a_worker_that_fails_says_why() -> None:
    """An exception in a worker reaches the demo with its name, its message and the end of its log."""
    with Stage() as made:
        (worker,) = made.start_workers(["a"], ModelSource(Kind.SYNTHETIC, SYNTHETIC))
        worker.receive()
        worker.send({"server": f"unix://{made.state_dir}/nobody.sock"})
        with pytest.raises(DemoFailed, match=r"(?s)worker a: ConnectFailed: .*session.py"):
            worker.receive()


def test_a_leashed_process_dies_with_its_parent() -> None:
    """What was started through the leash ends when the process that started it is killed."""
    sleeper = f"{sys.executable!r}, '-c', 'import signal; print(flush=True); signal.pause()'"
    script = (
        "import subprocess\nfrom tierd.leash import leashed\n"
        f"child = subprocess.Popen(leashed([{sleeper}]), stdout=subprocess.PIPE)\n"
        "child.stdout.readline()\n"
        "print(child.pid, flush=True)\n"
        "child.wait()\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child = psutil.Process(int(parent.stdout.readline()))
    assert child.is_running()
    parent.kill()
    parent.communicate()
    child.wait(10)
    assert not psutil.pid_exists(child.pid) or child.status() == psutil.STATUS_ZOMBIE
