"""The benchmarks run, on sizes small enough for every check, and measure what they say."""

from __future__ import annotations

import json
import runpy
import subprocess
import sys
from pathlib import Path

import evict_flat
import pytest
import sim_rate
import spill_tls


def test_choosing_stays_flat_from_small_to_larger() -> None:
    """Choosing among 16 times as many blocks costs at most the ratio that is allowed for 64 times as many."""
    row = evict_flat.measure("lrfu", (4_096, 65_536))
    assert row["flat"], row
    assert all(cost > 0 for cost in row["choose_us_per_block"] + row["evict_us_per_block"])


def test_choice_is_a_part_of_the_reserve() -> None:
    """The choice is timed within the Reserve that makes it, so it costs less."""
    row = evict_flat.measure("lru", (2_048, 4_096))
    assert all(c < e for c, e in zip(row["choose_us_per_block"], row["evict_us_per_block"], strict=True))


def test_made_up_trace_is_replayed_whole() -> None:
    """Without a folder of traces the rate is measured on a trace that shares prefixes and repeats by seed."""
    trace = sim_rate.made_up(requests=300)
    assert (trace.blocks == sim_rate.made_up(requests=300).blocks).all()
    row = sim_rate.measure(trace, "lru")
    assert row["accesses"] == trace.accesses > trace.distinct
    assert row["accesses_per_minute"] > 0


@pytest.mark.parametrize("tls", [False, True])
def test_time_of_the_mover_is_counted(tls: bool) -> None:
    """Blocks go both ways, with TLS and without, and cost CPU time of the thread that moves them."""
    row = spill_tls.measure(tls, blocks=2, size=1 << 20)
    assert row["tls"] is tls
    assert row["put_cpu_s_per_gb"] > 0 and row["get_cpu_s_per_gb"] > 0


def test_unknown_benchmark_is_named() -> None:
    """A name that is no benchmark is refused with those that are."""
    command = [sys.executable, str(Path(__file__).parent), "nothing"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "evict_flat" in done.stderr
    assert done.stdout == ""


def test_result_is_json_with_machine_and_date(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is printed is one JSON object that names machine and date."""
    monkeypatch.setattr(evict_flat, "run", lambda: [{"policy": "none"}])
    runpy.run_path(str(Path(__file__).parent / "__main__.py"))["main"](["evict_flat"])
    printed = json.loads(capsys.readouterr().out)
    assert printed["evict_flat"] == [{"policy": "none"}]
    assert printed["machine"]["date"].startswith("20")
