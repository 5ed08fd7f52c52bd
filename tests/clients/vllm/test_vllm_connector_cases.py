"""The KV connector under vLLM's own scheduler, with a model of a few lines (connector_cases.py)."""

from __future__ import annotations

from pathlib import Path

from case_runner import failures

from tierd.testing.serve import StartDaemon

SCRIPT = Path(__file__).with_name("connector_cases.py")


def test_each_case_holds(daemon: StartDaemon, vllm_python: Path, model: str) -> None:
    """Loads within a step and between steps, loads that fail, preemptions, chunked prompts, aborts, resets, events,
    statistics and hints: every case ends with the right tokens, and with the right bytes in the daemon."""
    assert not failures(vllm_python, SCRIPT, model, daemon(host_bytes="64MiB").address)
