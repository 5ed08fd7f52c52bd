"""The examples run as they stand."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from hf_models import llama, tokenizer

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def test_agent_sessions_compares_policies() -> None:
    """It prints a share of prefix hits for each policy, which is more than nothing where conversations go on."""
    told = _run("agent_sessions/agent_sessions.py", "--agents", "4", "--turns", "4", "--policies", "lru,gab")
    shares = re.findall(r"^(lru|gab) +([\d.]+)%$", told, re.MULTILINE)
    assert [policy for policy, _ in shares] == ["lru", "gab"]
    assert all(0 < float(share) < 100 for _, share in shares)


def test_long_context_reads_a_prompt_again_and_compares_caches(tmp_path: Path) -> None:
    """With any model's directory: the second time most tokens are read, and budgets hold less than all tokens."""
    llama(5).save_pretrained(tmp_path)
    tokenizer().save_pretrained(tmp_path)
    sizes_asked = ("--tokens", "300", "--budget", "128")
    told = _run("hf_long_context/hf_long_context.py", "--model", str(tmp_path), *sizes_asked)
    tokens, read = re.findall(r"([\d,]+) tokens, ([\d,]+) of them read", told)[1]
    assert int(tokens) - int(read) <= 16
    sizes = [float(size) for size in re.findall(r"([\d.]+) MiB", told)]
    assert len(sizes) == 4
    assert max(sizes[1:]) < sizes[0]


def _run(script: str, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / script), *arguments], capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    return done.stdout
