"""Policies over several traces and capacities, in one table."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from tierd.sim.compare import Point, as_cells, as_markdown, split_point, summary_of
from tierd.sim.compare_command import compare
from tierd.sim.plots import shares_closed
from tierd.sim.replay import replay
from tierd.sim.workloads import make_trace

CHATS = "chained-zipf(requests=150,prompts=20,most_prompt_blocks=8,most_turn_blocks=4)"
POINTS = [
    Point("chat.jsonl", "5%", 50, {"lru": 20.0, "belady": 40.0, "lrfu": 25.0, "gab": 19.0}),
    Point("agents.npz", "100", 100, {"lru": 50.0, "belady": 60.0, "lrfu": 60.0, "gab": 55.0}),
    Point("all-fits", "100%", 9, {"lru": 60.0, "belady": 60.0, "lrfu": 60.0, "gab": 60.0}),
]


def run_command(*arguments: str) -> Result:
    app = typer.Typer()
    app.command()(compare)
    return CliRunner().invoke(app, list(arguments))


def test_a_mean_is_of_points_and_its_share_of_the_mean_gap() -> None:
    """5, 10 and 0 points over lru, of 20, 10 and 0, are a mean of 5 and half of the gap; the worst is the least."""
    summary = summary_of(POINTS, "lrfu")
    assert (summary.mean, summary.worst, summary.closed) == (5.0, 0.0, 0.5)
    assert summary_of(POINTS, "gab").worst == -1.0
    assert summary_of(POINTS[2:], "gab").closed is None


def test_a_table_has_a_line_a_point() -> None:
    """Each line has what lru hits, what the optimum adds, and of each policy points and share of the gap."""
    titles, lines = as_cells(POINTS, ["lrfu"])
    assert titles == ["trace", "capacity", "blocks", "lru", "belady", "lrfu"]
    assert lines[0] == ["chat.jsonl", "5%", "50", "20.00", "+20.00", "+5.00 (25%)"]
    assert lines[2][-1] == "+0.00"
    assert [line[-1] for line in lines[3:]] == ["+5.00 (50%)", "+0.00"]
    assert as_markdown(POINTS, ["lrfu"]).splitlines()[:2] == [
        "| trace | capacity | blocks | `lru` | `belady` | `lrfu` |", "| --- | --- | --- | --- | --- | --- |",
    ]


def test_more_policies_than_colours() -> None:
    """Colours begin again where they have run out: each policy has a bar."""
    policies = [f"policy {number}" for number in range(12)]
    point = Point("t", "5%", 50, {"lru": 20.0, "belady": 40.0} | dict.fromkeys(policies, 30.0))
    drawn = ElementTree.fromstring(shares_closed([point], policies))
    assert len(list(drawn.iter("{http://www.w3.org/2000/svg}rect"))) == 1 + 2 * len(policies)


def test_a_loss_is_drawn_below_the_line() -> None:
    """Bars grow from zero, up for what was gained and down for what was lost."""
    drawn = ElementTree.fromstring(shares_closed(POINTS[:1], ["lrfu", "gab"]))
    ground, won, lost = list(drawn.iter("{http://www.w3.org/2000/svg}rect"))[:3]
    assert float(ground.attrib["height"]) == float(drawn.attrib["height"])
    assert float(won.attrib["y"]) + float(won.attrib["height"]) == pytest.approx(float(lost.attrib["y"]), abs=0.2)


@pytest.mark.parametrize("text", ["trace.jsonl", "@5%", "trace.jsonl@"])
def test_a_point_names_trace_and_capacity(text: str) -> None:
    """What names no trace or no capacity is refused by status 2, and said."""
    refused = run_command(text)
    assert refused.exit_code == 2
    assert text in refused.stderr


@pytest.mark.parametrize("policy", ["lru", " belady"])
def test_what_is_compared_with_is_not_compared(policy: str) -> None:
    """A comparison of nothing but lru or the optimum is refused by status 2."""
    refused = run_command(f"{CHATS}@30", "--policy", policy)
    assert refused.exit_code == 2
    assert "--policy" in refused.stderr


def test_a_path_may_hold_the_sign() -> None:
    """The last @ divides."""
    assert split_point("a@b.jsonl@5%, 10") == ("a@b.jsonl", ["5%", "10"])


def test_the_command_compares(tmp_path: Path) -> None:
    """Two traces at three points are replayed by each policy as `sim` would, and written as table and picture."""
    table, plot = tmp_path / "table.md", tmp_path / "closed.svg"
    result = run_command(
        f"{CHATS}@30,60", "scan-polluted(requests=20,hot_blocks=20,hot_asked=5,scanned=2)@10%", "--policy", "lfu",
        "--jobs", "1", "--markdown", str(table), "--plot", str(plot), "--json",
    )
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)
    assert [one["capacity_blocks"] for one in found[:2]] == [30, 60]
    for policy in ("lru", "lfu", "belady"):
        alone = replay(make_trace(CHATS), policy, 60).prefix_percent
        assert found[1]["prefix_percent"][policy] == pytest.approx(alone, abs=1e-4)
    assert len(table.read_text().splitlines()) == 2 + 3 + 2
    assert plot.read_text().startswith("<svg")


def test_the_command_prints_for_people() -> None:
    """Without --json a person reads the table, with mean and worst."""
    shown = run_command(f"{CHATS}@30", "--policy", "lfu", "--jobs", "1").stdout
    assert "worst" in shown
    assert "lfu" in shown
