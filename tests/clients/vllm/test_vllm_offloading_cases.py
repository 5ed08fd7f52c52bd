"""OffloadingSpec and secondary tier under vLLM's own scheduler, with a toy model (offloading_cases.py)."""

from __future__ import annotations

from pathlib import Path

from case_runner import failures

from tierd.testing.serve import StartDaemon

SCRIPT = Path(__file__).with_name("offloading_cases.py")


def test_each_case_holds(daemon: StartDaemon, vllm_python: Path, model: str) -> None:
    """What is stored comes back byte for byte, below vLLM's own CPU tier too and in other engines; a load that
    cannot be done is computed; after a reset nothing of before is found; without a daemon vLLM goes on."""
    assert not failures(vllm_python, SCRIPT, model, daemon(host_bytes="64MiB").address)
