"""What `python tests/bench/tokens` records and measures, with the demo's model."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tierd.sim.attention_trace import read_attention


def run(*words: object) -> str:
    command = [sys.executable, str(Path(__file__).parent), *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=280).stdout


@pytest.mark.slow
def test_attention_of_a_text_is_recorded(tmp_path: Path) -> None:
    """Each step's attention is over the prompt and the tokens up to its own, as `tierd sim attention` reads it."""
    pytest.importorskip("transformers")
    run("record", tmp_path / "made.npz", "--prompt", 12, "--steps", 3)
    trace = read_attention(tmp_path / "made.npz")
    assert trace.places.tolist() == [13, 14, 15]
    assert trace.weights.shape[0] == 3


@pytest.mark.slow
def test_overhead_is_told_for_each_policy() -> None:
    """Each policy has a share of a step, layer by layer and for all layers at once."""
    pytest.importorskip("transformers")
    told = run("overhead", "--budget", 48, "--repetitions", 1)
    assert all(name in told for name in ("decode_ms", "weights_share", "h2o_share", "tova_stacked_share"))
