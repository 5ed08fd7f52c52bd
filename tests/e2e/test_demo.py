"""`tierd demo` as a user runs it: a process, its output, and what it leaves behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

TIMEOUT_S = 280
SHARED_MEMORY = Path("/dev/shm")


class Demo:
    """A demo whose temporary files lie in a directory of the test's own."""

    def __init__(self, directory: Path, *arguments: str, **environment: str) -> None:
        self._directory = directory
        self._names: set[str] = set()
        self._seen: dict[int, psutil.Process] = {}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tierd.cli", "demo", *arguments], stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, env={**os.environ, "TMPDIR": str(directory), **environment},
            # A shell starts what it runs in the background with Ctrl-C ignored, and that is inherited.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        )

    def finish(self, timeout_s: float = TIMEOUT_S) -> tuple[int, bytes, bytes]:
        out, err = self.process.communicate(timeout=timeout_s)
        return self.process.returncode, out, err

    def await_daemon(self) -> psutil.Process:
        """The daemon, once it listens."""
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and self.process.poll() is None:
            self.remember()
            for child in self._seen.values():
                if "serve" in command_of(child) and self._sockets():
                    return child
        raise AssertionError(f"no daemon; the demo ended with {self.process.poll()}")

    def _sockets(self) -> list[Path]:
        return list(self._directory.glob("tierd-demo-*/tierd.sock"))

    def remember(self) -> None:
        """Notes the processes below the demo and its directories' name, for `leftovers`."""
        self._names |= {directory.name for directory in self._directory.glob("tierd-demo-*")}
        for child in psutil.Process(self.process.pid).children(recursive=True):
            self._seen.setdefault(child.pid, child)

    def leftovers(self, wait_s: float = 30.0) -> list[str]:
        """Processes that outlive the demo, and files."""
        _, alive = psutil.wait_procs(list(self._seen.values()), timeout=wait_s)
        return [str(one) for one in alive] + [str(file) for file in self.files()]

    def files(self) -> list[Path]:
        shared = [SHARED_MEMORY / name for name in self._names]
        return [*self._directory.iterdir(), *(one for one in shared if one.exists())]


def command_of(process: psutil.Process) -> list[str]:
    """Empty for a process that has just ended."""
    try:
        return list(process.cmdline())
    except psutil.Error:
        return []


@pytest.fixture
def demo() -> Iterator[Any]:
    """Starts one; its temporary files go to a directory with a short name, as sockets need."""
    started: list[Demo] = []
    with tempfile.TemporaryDirectory(prefix="td-") as directory:

        def start(*arguments: str, **environment: str) -> Demo:
            started.append(Demo(Path(directory), *arguments, **environment))
            return started[-1]

        yield start
        for one in started:
            one.process.kill()
            one.finish()


def check(found: dict[str, Any]) -> None:
    """What every good run has in common."""
    assert found["failures"] == []
    assert found["byte_mismatches"] == 0 and found["bytes_verified"] > 0
    assert found["record_before"] == found["record_after"] != {}
    assert found["record_path"][:2] == ["hbm", "spill"] and "hbm" in found["record_path"][2]
    assert set(found["hits"]) == {"hbm", "host", "spill", "after_kill"}
    assert min(found["hits"].values()) > 0
    assert [snapshot["when"] for snapshot in found["tiers"]] == [
        "round 1", "re-admission", "round 2", "kill -9", "round 3"
    ]


def test_synthetic_demo(demo: Any) -> None:
    """Without a model the demo ends well within 30 s, prints one JSON object, and leaves nothing behind."""
    run = demo("--synthetic", "--json")
    run.await_daemon()
    status, out, err = run.finish()
    assert status == 0, err.decode()
    found = json.loads(out)
    check(found)
    assert found["model"] == "synthetic" and found["elapsed_s"] < 30
    assert found["logits_max_abs_diff"] is None and found["prefill_s_saved"] is None
    assert run.leftovers() == []


def test_hbm_is_lost_and_host_survives_the_kill(demo: Any) -> None:
    """After kill -9 HBM is empty, host holds what it held before, and Redis that and what of host was stored ahead
    at the start."""
    _, out, _ = demo("--synthetic", "--json").finish()
    before, after = json.loads(out)["tiers"][2:4]
    blocks = [[tier["blocks"] for tier in snapshot["tiers"]] for snapshot in (before, after)]
    (hbm, host, spill), (hbm_after, host_after, spill_after) = blocks
    assert hbm > 0 and (hbm_after, host_after) == (0, host)
    assert spill <= spill_after <= spill + host // 2, "the next victims are half of the tier at most"


def test_tables_for_people(demo: Any) -> None:
    """Without --json the tables are on stdout, and no setting of the environment reaches the demo's daemon."""
    status, out, err = demo("--synthetic", TIERD_HOST_BYTES="1", TIERD_NO_SUCH_SETTING="1").finish()
    assert status == 0, err.decode()
    text = out.decode()
    for words in ("Occupancy", "kill -9", "last_wall_s", "0 mismatches", "16 of 16", "random tensors"):
        assert words in text


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_clears_the_stage(demo: Any, number: int) -> None:
    """Ctrl-C or SIGTERM in the middle stops every process and removes every file."""
    run = demo("--synthetic", "--json")
    run.await_daemon()
    run.remember()
    run.process.send_signal(number)
    status, out, _ = run.finish(60)
    assert status == 130 and out == b""
    assert run.leftovers() == []


def test_no_process_outlives_a_killed_demo(demo: Any) -> None:
    """kill -9 of the demo itself ends its Valkey, its daemon and its workers."""
    run = demo("--synthetic", "--json")
    run.await_daemon()
    run.remember()
    run.process.kill()
    run.finish(60)
    assert not [left for left in run.leftovers() if "Process" in left]
    for left in run.files():
        if left.is_relative_to(SHARED_MEMORY):
            subprocess.run(["rm", "-r", str(left)], check=True)


def test_a_worker_that_dies_fails_the_demo(demo: Any) -> None:
    """The death of a worker ends the demo with status 1 and a sentence that names the worker."""
    run = demo("--synthetic", "--json")
    run.await_daemon()
    worker = next(
        child for child in psutil.Process(run.process.pid).children(recursive=True)
        if "tierd.demo.worker" in command_of(child)
    )
    worker.kill()
    status, out, err = run.finish(60)
    assert status == 1 and out == b""
    assert "worker a" in err.decode() or "worker b" in err.decode()
    assert run.leftovers() == []


@pytest.mark.slow
def test_random_model_where_there_is_no_other(demo: Any, tmp_path: Path) -> None:
    """Where SmolLM2 cannot be had a random Llama takes its place, says why, and the run is as good."""
    pytest.importorskip("transformers")
    broken = tmp_path / "cache"
    broken.write_text("no directory, so nothing can be converted into it")
    status, out, err = demo("--json", XDG_CACHE_HOME=str(broken)).finish()
    assert status == 0, err.decode()
    found = json.loads(out)
    check(found)
    assert found["model"] == "random-llama" and found["model_reason"]
    assert found["logits_max_abs_diff"] <= 1e-4


@pytest.mark.slow
def test_demo_with_a_language_model(demo: Any) -> None:
    """A real transformer on real text: same logits with and without re-use, seconds saved, all blocks verified."""
    pytest.importorskip("transformers")
    pytest.importorskip("gguf")
    run = demo("--json")
    run.await_daemon()
    status, out, err = run.finish()
    assert status == 0, err.decode()
    found = json.loads(out)
    check(found)
    assert found["logits_max_abs_diff"] <= 1e-4
    assert found["prefill_s_saved"] > 0
    assert found["elapsed_s"] < 240
    assert run.leftovers() == []
