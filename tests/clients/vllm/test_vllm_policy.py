"""LRFU in vLLM's own CPU tier, under the manager of that tier (policy_cases.py)."""

from __future__ import annotations

from pathlib import Path

from case_runner import failures

SCRIPT = Path(__file__).with_name("policy_cases.py")


def test_each_case_holds(vllm_python: Path) -> None:
    """LRFU evicts what brute force says, all that is asked or nothing, never what is in use, the end of a prompt
    first; what is used often outlives a scan, scores outlive their chunks, and memory is bounded."""
    assert not failures(vllm_python, SCRIPT)
