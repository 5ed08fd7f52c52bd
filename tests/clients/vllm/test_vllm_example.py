"""The example with two engines runs as it stands."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "vllm_two_workers" / "vllm_two_workers.py"


def test_two_engines_share_a_daemon_that_is_killed(vllm_python: Path, model: str) -> None:
    """The second engine finds what the first one computed; all answers agree while the daemon is dead, and after it
    was started again blocks are shared as before."""
    done = subprocess.run(
        [sys.executable, str(EXAMPLE), "--vllm", str(vllm_python), "--model", model],
        capture_output=True, text=True, timeout=1_000)
    assert done.returncode == 0, done.stdout + done.stderr[-4000:]
    found = list(map(int, re.findall(r"(\d+) of 650 tokens found", done.stdout)))
    assert (found[0], found[2], found[3]) == (0, 0, 0)
    assert found[1] == found[-1] == 640
    assert done.stdout.count("yes: both answers are the same") == 3
