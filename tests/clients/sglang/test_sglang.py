"""SGLang's storage backend, made by SGLang's own factory in SGLang's environment, on a real daemon."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

ENVIRONMENTS = Path(os.environ.get("TIERD_CLIENTS_DIR") or Path.home() / ".cache" / "tierd-clients")
SCRIPT = Path(__file__).with_name("sglang_round_trip.py")


@pytest.fixture(scope="module")
def sglang_python() -> Path:
    """The interpreter of SGLang's environment."""
    python = ENVIRONMENTS / "sglang" / "bin" / "python"
    if not python.exists():
        pytest.skip(f"no SGLang in {ENVIRONMENTS}: make clients installs it")
    return python


@pytest.mark.parametrize("case", ["layer_first", "page_first", "flat", "pools"])
def test_pages_come_back(module_daemon: Any, sglang_python: Path, case: str) -> None:
    """Pages that SGLang stores come back byte for byte by each interface; partial hits are leading runs."""
    daemon = module_daemon(host_bytes="64MiB")
    assert _told(sglang_python, daemon.address, case) == "ok"


def test_without_a_daemon_all_are_misses(sglang_python: Path, tmp_path: Path) -> None:
    """SGLang goes on with misses, and the log says once that the daemon is away."""
    assert _told(sglang_python, f"unix://{tmp_path}/tierd.sock", "away") == "ok"


def _told(python: Path, address: str, case: str) -> str:
    done = subprocess.run([str(python), str(SCRIPT), address, case], capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()[-1]
