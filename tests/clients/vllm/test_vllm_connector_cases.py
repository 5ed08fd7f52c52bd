"""The KV connector under vLLM's own scheduler, with a model of a few lines (connector_cases.py)."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from tierd.testing.serve import StartDaemon

SCRIPT = Path(__file__).with_name("connector_cases.py")


def test_each_case_holds(daemon: StartDaemon, vllm_python: Path, model: str) -> None:
    """Loads within a step and between steps, loads that fail, preemptions, chunked prompts, aborts, resets, events,
    statistics and hints: every case ends with the right tokens, and with the right bytes in the daemon."""
    command = [str(vllm_python), str(SCRIPT), model, daemon(host_bytes="64MiB").address]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    cases = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"case"')]
    assert done.returncode == 0 and cases, done.stderr
    assert not {one["case"]: one["wrong"] for one in cases if one["wrong"]}
