"""Recorded attention: what policies over tokens retain of it, where it lies, and the command that says so."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from tierd import cli
from tierd.core.errors import InvalidInput
from tierd.sim.attention_trace import AttentionTrace, attention_trace, read_attention
from tierd.sim.retention import Plan, best, retained, sweep
from tierd.sim.sparsity import places_for, sparsity
from tierd_client.errors import InvalidArgument
from tierd_client.tokens import H2O, SlidingWindow, StreamingLLM, Tova

FROM_SECOND = Plan((), (), warm_up_steps=1)
FROM_THIRD = Plan((), (), warm_up_steps=2)

GROWING = [
    [0.5, 0.25, 0.25, 0.0, 0.0],
    [0.5, 0.125, 0.125, 0.25, 0.0],
    [0.25, 0.25, 0.0, 0.25, 0.25],
]
"""Three places, then four, then five: one layer, one head."""


def trace_of(*rows: list[list[float]]) -> AttentionTrace:
    """A trace of one layer, rows per head."""
    return attention_trace("made up", np.array(rows, np.float32).transpose(1, 0, 2)[:, None])


def drawn(seed: int = 0, steps: int = 12, layers: int = 3, heads: int = 4, places: int = 20) -> AttentionTrace:
    """Attention that differs by head and falls off at random; the context grows by one a step."""
    draw = np.random.default_rng(seed)
    weights = draw.random((steps, layers, heads, places)) ** 6 + 1e-6
    for step in range(steps):
        weights[step, ..., places - steps + step + 1 :] = 0
    return attention_trace("drawn", weights / weights.sum(-1, keepdims=True))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "attention.npz"
    np.savez(path, dec=drawn().weights.astype(np.float16), ids=np.arange(5))
    return path


def run(*words: object) -> Result:
    return CliRunner().invoke(cli.app, ["sim", "attention", *map(str, words)], env={"COLUMNS": "200"})


def test_what_is_held_by_hand() -> None:
    """After a step of warm-up H2O holds places 0 and 2 and the newest, a window its newest, sinks their first."""
    trace = trace_of(GROWING)
    assert trace.places.tolist() == [3, 4, 5]
    assert retained(trace, H2O(2), FROM_SECOND) == [(0.5 + 0.125 + 0.25 + 0.25 + 0.0 + 0.25) / 2]
    assert retained(trace, SlidingWindow(2), FROM_SECOND) == [(0.125 + 0.125 + 0.25 + 0.0 + 0.25 + 0.25) / 2]
    assert retained(trace, StreamingLLM(2, sinks=1), FROM_THIRD) == [0.25 + 0.25 + 0.25]
    assert best(trace, 2, 1) == [(0.75 + 0.5) / 2]


def test_all_that_fits_is_retained() -> None:
    """A budget of all places retains all mass, under each sharing that keeps it."""
    trace = drawn()
    for sharing in ("even", "adaptive", "guide"):
        assert retained(trace, H2O(20, recent=1), FROM_SECOND, sharing) == pytest.approx([1.0] * 3)


def test_layers_get_what_they_are_given() -> None:
    """A pyramid's first layer retains more than with an even budget, its last less; equal layers stay equal."""
    layer = drawn(layers=1)
    same = attention_trace("same", np.repeat(layer.weights, 3, axis=1))
    even, pyramid = (retained(same, Tova(8), FROM_SECOND, sharing) for sharing in ("even", "pyramid"))
    assert even[0] == even[1] == even[2]
    assert pyramid[0] > even[0] > pyramid[2]
    assert pyramid[1] == pytest.approx(even[1])


def test_heads_share_by_what_they_need() -> None:
    """Where one head attends to one place and another to all, budgets per head retain more of the same sum."""
    sharp, flat = [[1.0, 0, 0, 0, 0, 0, 0, 0]] * 4, [[0.125] * 8] * 4
    trace = trace_of(sharp, flat)
    even, adaptive = (retained(trace, H2O(4), FROM_SECOND, sharing)[0] for sharing in ("even", "adaptive"))
    assert even == (1.0 + 0.5) / 2
    assert adaptive == (1.0 + 0.875) / 2


def test_layers_may_split_their_budgets() -> None:
    """With the guide's split the first layer holds its longer window, the last its shorter one."""
    layer = drawn(layers=1)
    same = attention_trace("same", np.repeat(layer.weights, 2, axis=1))
    longer, shorter = (retained(layer, H2O(8, recent=recent), FROM_SECOND)[0] for recent in (6, 2))
    assert retained(same, H2O(8, recent=4), FROM_SECOND, "guide") == pytest.approx([longer, shorter])


def test_a_sweep_has_a_row_for_everything_that_means_something() -> None:
    """Each policy appears with its own parameters and sharings, and none above the best of its budget."""
    plan = Plan(("snapkv", "tova", "h2o"), (4, 8), (1, 4), (1, 3), sharings=("even", "adaptive", "guide"))
    told = []
    rows = sweep(drawn(), plan, told.append)
    assert len(told) == 2 * (4 * 3 + 1 + 3) == len(rows) - 2
    for row in rows:
        most = next(one for one in rows if one.policy == "best" and one.budget == row.budget)
        assert row.worst_layer <= row.mean
        assert row.sharing == "adaptive" or row.mean <= most.mean + 1e-6 or row.budget == 4


def test_query_heads_that_hold_together() -> None:
    """Two query heads that hold one set retain, each of its own mass, what the grouping's choice leaves them."""
    trace = trace_of([[0.5, 0.3, 0.2, 0.0]] * 3, [[0.0, 0.125, 0.25, 0.625]] * 3)
    together = {
        grouping: retained(trace, Tova(2), replace(FROM_SECOND, heads=1, grouping=grouping))[0]
        for grouping in ("mean", "max", "first")
    }
    assert together["mean"] == together["max"] == pytest.approx((0.5 + 0.625) / 2)
    assert together["first"] == pytest.approx((0.8 + 0.125) / 2)


def test_where_attention_lies_by_hand() -> None:
    """Figures of one row of ten places, by hand."""
    row = [0.4, 0.3, 0.0, 0.0, 0.00005, 0.0, 0.0, 0.04995, 0.05, 0.2]
    found = sparsity(trace_of([row, row]))
    assert found.deciles == pytest.approx(row)
    assert (found.first_place, found.recent_tenth) == pytest.approx((0.4, 0.2))
    assert found.below_1e_4 == found.below_percent_of_maximum == 0.5
    assert (found.places_for_half, found.places_for_90) == pytest.approx((0.2, 0.3))
    assert found.places_for_99 == pytest.approx(0.5)
    assert found.risen == pytest.approx(0.0)


def test_places_of_no_weight_are_not_needed() -> None:
    """All of a row's mass is on its places of weight, whatever the rounding of its sum."""
    assert places_for(np.array([[0.5, 0.5, 0.0, 0.0]], np.float32), 1.0) == 0.5


def test_what_was_light_may_rise() -> None:
    """Mass that moves in the second half to places that were light in the first is counted as risen."""
    early, late = [0.5, 0.5, 0.0, 0.0, 0.0], [0.0, 0.0, 0.75, 0.25, 0.0]
    assert sparsity(trace_of([early, late])).risen == 0.0  # the median is 0: none is below it
    early = [0.4, 0.3, 0.2, 0.05, 0.05]
    assert sparsity(trace_of([early, late])).risen == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("weights", "problem"),
    [
        (np.zeros((2, 3), np.float32), "shape"), (np.zeros((1, 1, 1, 2), np.int64), "dtype"),
        (np.zeros((1, 1, 1, 0), np.float32), "shape"), (np.zeros((1, 1, 1, 2), np.float32), "row"),
        (np.array([[[[1.5, -0.5]]]], np.float32), "row"), (np.full((1, 1, 1, 2), np.nan, np.float32), "row"),
    ],
)
def test_what_is_no_attention_is_refused(weights: np.ndarray, problem: str) -> None:
    """Arrays of another shape, dtype, or whose rows are not attention, are refused with the reason."""
    with pytest.raises(InvalidInput, match=problem):
        attention_trace("made up", weights)


def test_files_are_refused_by_name(tmp_path: Path) -> None:
    """A missing file, one that is no npz, one that is an array alone, and one without attention are named."""
    text, empty, alone = tmp_path / "text.npz", tmp_path / "empty.npz", tmp_path / "alone.npy"
    text.write_text("no npz")
    np.savez(empty, ids=np.arange(3))
    np.save(alone, np.ones((1, 1, 1, 1)))
    for path in (tmp_path / "missing.npz", text, empty, alone):
        with pytest.raises(InvalidInput, match=path.name):
            read_attention(path)


def test_plans_that_do_not_fit_are_refused() -> None:
    """No warm-up, an unknown sharing, an unknown policy: each is refused by name."""
    with pytest.raises(InvalidInput, match="warm_up_steps"):
        sweep(drawn(), Plan(("tova",), (4,), warm_up_steps=12))
    with pytest.raises(InvalidInput, match="heads"):
        sweep(drawn(), Plan(("tova",), (4,), heads=3))
    with pytest.raises(InvalidInput, match="sharing"):
        sweep(drawn(), Plan(("tova",), (4,), sharings=("fair",)))
    with pytest.raises(InvalidArgument, match="name"):
        sweep(drawn(), Plan(("h3o",), (4,)))


def test_the_command_prints_tables_and_json(file: Path) -> None:
    """`tierd sim attention` shows shares in percent for people, and all of it as one JSON object."""
    shown = run(file, "--budget", "50%", "--policy", "snapkv, tova", "--obs", "4", "--pool", "1,3")
    assert shown.exit_code == 0
    assert "obs 4, pool 3" in shown.stdout
    assert "mass of the oldest place" in shown.stdout
    found = json.loads(run(file, "--budget", "5,10", "--policy", "h2o", "--kv-heads", "2", "--json").stdout)
    assert [row["budget"] for row in found["retained"]] == [5, 5, 10, 10]
    assert 0 < found["retained"][1]["mean"] < 1
    assert len(found["attention"]["deciles"]) == 10


@pytest.mark.parametrize(
    "words",
    [["--policy", "h3o"], ["--budget", "0"], ["--obs", "four"], ["--pool", "2"], ["--share", "fair"],
     ["--policy", ","], ["--warm-up-steps", "12"], ["--kv-heads", "3"]],
)
def test_the_command_refuses_by_name(file: Path, words: list[str]) -> None:
    """A wrong option ends with status 2 and one line on stderr."""
    refused = run(file, *words)
    assert refused.exit_code == 2
    assert refused.stderr.strip().startswith("tierd sim attention: ")
    assert len(refused.stderr.strip().splitlines()) == 1
