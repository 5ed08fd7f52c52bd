"""What `tierd calibrate` chooses, and what it says when there is nothing to choose."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import typer
from typer.testing import CliRunner, Result

from tierd.core.policy.registry import parse
from tierd.sim.calibrate import BELADY, BY_REQUESTS, DEFAULT, LRU, Verdict, candidates, grids, judge
from tierd.sim.calibrate_command import calibrate
from tierd.sim.keyed import MEMORIES
from tierd.sim.noise import difference
from tierd.sim.persistence import plan
from tierd.sim.played import Played
from tierd.sim.report import progress
from tierd.sim.traces import Trace, build_trace, head_of
from tierd.sim.workloads import make_trace
from tierd_client.format import I64Array

REQUESTS = 400
SCANS = "scan-polluted(requests=100,hot_blocks=150,hot_asked=24,scanned=8)"


def trace() -> Trace:
    lengths = np.full(REQUESTS, 10)
    return build_trace("made up", np.arange(10 * REQUESTS), lengths, np.arange(REQUESTS, dtype=np.float64))


def hits(first: int, second: int) -> I64Array:
    """Of each request: `first` in the first half, `second` in the second."""
    return np.repeat(np.array([first, second]), REQUESTS // 2)


def verdict_of(**found: I64Array) -> Verdict:
    specs = [LRU, DEFAULT, *(name for name in found if name not in (LRU, DEFAULT, BELADY)), BELADY]
    played = [Played(found[name], found[name]) for name in specs]
    return judge(trace(), 50, specs, played)


def run_command(*arguments: str) -> Result:
    app = typer.Typer()
    app.command()(calibrate)
    return CliRunner().invoke(app, list(arguments))


def test_the_best_of_the_first_half_is_judged_on_the_second() -> None:
    """What is best on the first half is recommended for its gain on the second, not what is best there."""
    verdict = verdict_of(lru=hits(2, 2), lrfu=hits(2, 2), fitted=hits(5, 3), late=hits(4, 9), belady=hits(9, 9))
    assert verdict.best.spec == verdict.recommended == "fitted"
    assert verdict.best.fitted == pytest.approx(30.0)
    assert verdict.best.held_out.points == pytest.approx(10.0)
    assert "beats lru" in verdict.sentence()


def test_what_was_overfitted_is_not_recommended() -> None:
    """A setting that wins on the first half alone is said to be no better than noise, and the default stays."""
    verdict = verdict_of(lru=hits(2, 2), lrfu=hits(2, 2), fitted=hits(5, 2), belady=hits(9, 9))
    assert verdict.best.spec == "fitted"
    assert verdict.recommended == DEFAULT
    assert verdict.sentence().startswith("Nothing beats lru by more than noise")


def test_a_default_that_beats_lru_is_said_to() -> None:
    """Where the best on the first half does not hold and the default does, the sentence tells both."""
    verdict = verdict_of(lru=hits(2, 2), lrfu=hits(3, 4), fitted=hits(5, 2), belady=hits(9, 9))
    assert verdict.recommended == DEFAULT
    assert "fitted, the best on the first half, beats lru on the second by no more than noise" in verdict.sentence()
    assert "the default, lrfu, does by +20.00 points" in verdict.sentence()


def test_lru_is_recommended_where_it_beats_the_default() -> None:
    """Where the default loses beyond noise and nothing wins, lru is what is recommended."""
    verdict = verdict_of(lru=hits(4, 4), lrfu=hits(3, 3), belady=hits(9, 9))
    assert verdict.recommended == LRU


def test_noise_grows_with_what_is_noisy() -> None:
    """The interval holds the difference, is a point for a constant one, and is wide where few requests decide."""
    asked = np.full(1000, 10)
    base = np.zeros(1000, np.int64)
    steady = difference(base + 1, base, asked)
    rng = np.random.default_rng(1)
    bursts = np.where(rng.random(1000) < 0.01, 10, 0)
    bursty = difference(bursts, base, asked)
    assert (steady.points, steady.low, steady.high) == (10.0, 10.0, 10.0)
    assert bursty.low < bursty.points < bursty.high
    assert difference(bursts, base, asked) == bursty


def test_every_spec_of_the_grids_is_a_policy_once() -> None:
    """The sweeps name policies that exist, each once, lru first and the optimum last."""
    specs = candidates(grids(fine=True), ["lru", "lfu"])
    assert (specs[0], specs[-1], len(specs)) == (LRU, BELADY, len(set(specs)))
    for spec in specs[:-1]:
        parse(spec)


def test_what_is_tried_by_name_exists() -> None:
    """Each policy that is tried unasked is one."""
    assert [parse(spec).name for spec in BY_REQUESTS]


def test_the_first_requests_are_a_trace() -> None:
    """A sweep over the first requests alone judges each of their halves."""
    result = run_command(SCANS, "--capacity", "50%", "--requests", "40", "--policy", "lfu", "--jobs", "1", "--json")
    head = head_of(make_trace(SCANS), 40)
    assert (head.requests, head.accesses, head.chained) == (40, 40 * 32, False)
    assert head.distinct == len(set(head.blocks.tolist())) == int(head.blocks.max()) + 1
    assert json.loads(result.stdout)[0]["capacity_blocks"] == head.distinct // 2


def test_progress_is_written_where_there_is_no_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """After ten seconds, and then twice a minute, a line tells how much is done and what is left."""
    now = iter([0.0, 5.0, 20.0, 25.0, 60.0])
    monkeypatch.setattr("tierd.sim.report.time.monotonic", lambda: next(now))
    with progress(100, "replaying") as advance:
        for _ in range(4):
            advance(10)
    assert capsys.readouterr().err.splitlines() == [
        "replaying: 20 %, about 1.3 min left", "replaying: 40 %, about 1.5 min left",
    ]


def test_persistence_is_planned_under_every_assumption() -> None:
    """A policy by keys is replayed pinned and not, with records reset, ageing and frozen; another by the engine."""
    planned = plan(["lfu", "lrfu"], [10])
    lfu = [place for place, policy, _ in planned if policy == "lfu"]
    assert sorted(lfu) == sorted((pinned, memory) for pinned in (True, False) for memory in MEMORIES)
    specs = {place[1]: task.policy for place, policy, task in planned if policy == "lrfu"}
    assert "persist=false" in specs["reset"]
    assert "persist=true" in specs["ageing"]


def test_the_command_sweeps_and_recommends(tmp_path: Path) -> None:
    """calibrate finds on the scan-polluted stream that frequency pays, says so, and draws the map."""
    plot = tmp_path / "map.svg"
    result = run_command(SCANS, "--capacity", "160", "--policy", "lfu", "--plot", str(plot), "--json")
    assert result.exit_code == 0, result.stderr
    (found,) = json.loads(result.stdout)
    assert found["recommended"] == found["outcomes"][0]["policy"]
    assert found["outcomes"][0]["interval_90"][0] > 0
    assert plot.read_text().startswith("<svg")


def test_the_command_prints_for_people() -> None:
    """Without --json a person reads the sentence and the setting."""
    result = run_command(SCANS, "--capacity", "160", "--jobs", "1")
    assert "Recommended: --policy" in result.stdout
    assert "beta" in result.stdout


def test_the_command_tells_what_survival_is_worth() -> None:
    """--persistence has a line for each policy; LFU gains by records that survive."""
    result = run_command(
        SCANS, "--capacity", "160", "--persistence", "--blocks", "--policy", "lfu", "--policy", "lrfu", "--json"
    )
    lfu, lrfu = json.loads(result.stdout)
    gains = {(one["pinned"], one["records"]): one["gain_points"] for one in lfu["assumptions"]}
    assert gains[True, "ageing"] > 1
    assert gains[False, "ageing"] > gains[True, "ageing"]
    assert {(one["pinned"], one["records"]) for one in lrfu["assumptions"]} == {(True, "reset"), (True, "ageing")}


@pytest.mark.parametrize(
    ("options", "named"),
    [(["--persistence", "--plot", "map.svg"], "--plot"), (["--persistence", "--fine"], "--fine"),
     (["--blocks"], "--blocks"), (["--warm-up", "5%"], "--warm-up")],
)
def test_options_that_would_be_passed_over_are_refused(options: list[str], named: str) -> None:
    """An option of the other kind of calibration ends the command with status 2 and is named."""
    refused = run_command(SCANS, *options)
    assert refused.exit_code == 2
    assert named in refused.stderr


@pytest.mark.parametrize(
    ("arguments", "named"),
    [(["nowhere.npz"], "nowhere.npz"), (["multi-turn(turns=5)"], "5 requests"), ([SCANS, "--policy", "x"], "'x'"),
     ([SCANS, "--capacity", "0"], "--capacity")],
)
def test_bad_arguments_are_named(arguments: list[str], named: str) -> None:
    """What cannot be calibrated ends the command with status 2 and says what is wrong."""
    result = run_command(*arguments)
    assert result.exit_code == 2
    assert named in result.stderr
