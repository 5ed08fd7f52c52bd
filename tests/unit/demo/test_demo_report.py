"""The verdict of the demo and how it is shown."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from typing import Any

import pytest
from rich.console import Console

from tierd.demo import rounds
from tierd.demo.model import SYNTHETIC, Kind, ModelSource
from tierd.demo.report import Result, Round, Snapshot, TierUse, show


def good() -> Result:
    """A run in which everything came out as it must."""
    record = {"identity": "ab" * 32, "touches": 11, "ema": 0.1 + 0.2, "parent": ""}
    second = Round("2", prompts=2, hits={"hbm": 3, "host": 2, "spill": 1}, cold_s=2.0, reuse_s=0.5)
    third = Round("3", prompts=1, hits={"hbm": 0, "host": 4, "spill": 5}, cold_s=1.0, reuse_s=0.25)
    use = TierUse("hbm", 3, 300, 1000, 7)
    return Result(
        ModelSource(Kind.SMOLLM2, "smol"), [Round("1"), second, third], [Snapshot("round 1", [use])],
        dict(record), dict(record), ["hbm", "spill", "hbm"], 8, 8, 15, 1500, [], 1e-6, 2.25, 60.0,
    )


def test_a_good_run_has_no_failures() -> None:
    """Hits are those of round two by tier and of round three in one; nothing is amiss."""
    assert good().failures() == []
    assert good().hits() == {"hbm": 3, "host": 2, "spill": 1, "after_kill": 9}


BREAKS: dict[str, Callable[[Result], Any]] = {
    "no hits: spill": lambda r: r.rounds[1].hits.update(spill=0),
    "no hits: after_kill": lambda r: r.rounds[2].hits.update(host=0, spill=0),
    "blocks were read": lambda r: r.mismatches.append("ab"),
    "no block was verified": lambda r: setattr(r, "blocks_verified", 0),
    "the record changed": lambda r: r.record_after.update(ema=0.3),
    "records of the prefix": lambda r: setattr(r, "records_equal", 7),
    "logits differ": lambda r: setattr(r, "logits_max_abs_diff", 1.1e-4),
    "logits differ by nan": lambda r: setattr(r, "logits_max_abs_diff", float("nan")),
}


@pytest.mark.parametrize("words", BREAKS)
def test_each_fault_is_a_failure(words: str) -> None:
    """Whatever may go wrong makes exactly one failure that says it, in JSON and in red."""
    result = good()
    BREAKS[words](result)
    (failure,) = result.failures()
    assert words in failure
    out = io.StringIO()
    show(result, Console(file=out, width=200))
    assert f"FAILED {failure}" in out.getvalue()


def test_an_unfinished_run_fails() -> None:
    """A result without rounds is not good by default."""
    assert len(Result(ModelSource(Kind.RANDOM, "x")).failures()) >= 5


def test_json_has_the_promised_keys() -> None:
    """The object holds what scripts read; floats keep every bit."""
    found = json.loads(good().as_json())
    assert {
        "byte_mismatches", "logits_max_abs_diff", "record_before", "record_after", "hits", "prefill_s_saved",
        "tiers", "model", "elapsed_s",
    } <= set(found)
    assert found["byte_mismatches"] == 0
    assert found["record_before"]["ema"] == 0.1 + 0.2


def test_what_was_not_measured_is_null() -> None:
    """A synthetic run reports neither logits nor prefill, in JSON as null and in the tables not at all."""
    result = good()
    result.source = ModelSource(Kind.SYNTHETIC, SYNTHETIC)
    result.logits_max_abs_diff = result.prefill_s_saved = None
    found = json.loads(result.as_json())
    assert found["logits_max_abs_diff"] is None and found["prefill_s_saved"] is None
    assert result.failures() == []
    out = io.StringIO()
    show(result, Console(file=out, width=200))
    assert "logits" not in out.getvalue() and "0.30000000000000004" in out.getvalue()


def test_the_sizes_make_the_outcome_certain() -> None:
    """Running prompts fit into HBM, round 1 overflows both tiers by more than one document, and round 3 is
    part of round 2."""
    running = rounds.PREFIX_BLOCKS + len(rounds.WORKERS) * (rounds.DOCUMENT_BLOCKS + 3)
    assert running <= rounds.HBM_BLOCKS
    made = rounds.PREFIX_BLOCKS + rounds.CONVERSATIONS * rounds.DOCUMENT_BLOCKS
    assert made > rounds.HBM_BLOCKS + rounds.HOST_BLOCKS + rounds.DOCUMENT_BLOCKS
    assert rounds.SURVIVORS <= rounds.CONVERSATIONS
    assert rounds.CONVERSATIONS % len(rounds.WORKERS) == rounds.SURVIVORS % len(rounds.WORKERS) == 0
