"""LRFU in vLLM's own CPU tier, under the manager of that tier (policy_cases.py)."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

SCRIPT = Path(__file__).with_name("policy_cases.py")


def test_each_case_holds(vllm_python: Path) -> None:
    """LRFU evicts what brute force says, all that is asked or nothing, never what is in use, the end of a prompt
    first; what is used often outlives a scan, scores outlive their chunks, and memory is bounded."""
    done = subprocess.run(
        [str(vllm_python), str(SCRIPT)], capture_output=True, text=True, timeout=200, check=False)
    cases = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"case"')]
    assert done.returncode == 0 and cases, done.stderr
    assert not {one["case"]: one["wrong"] for one in cases if one["wrong"]}
