"""The report of `tierd eval`: what the cells of its table say, and what one sample does not tell."""

from __future__ import annotations

import json
import math
from io import StringIO

import pytest
from rich.console import Console

from tierd.eval.report import COLUMNS, as_json, as_markdown, plot, print_table, rows
from tierd.eval.study import Cell, Plan

PLAN = Plan(("full", "h2o"), (10, 50), 2, 1, 1000, 20, 1)


def _cells() -> list[Cell]:
    """A whole cache, and one method at two budgets, each by two texts."""
    return [
        Cell("full", 100, [1.0, 1.2], [0.0, 0.0], [True, True], 4 << 20, 10.0),
        Cell("h2o", 10, [1.5, 1.9], [0.5, 0.7], [False, True], 1 << 20),
        Cell("h2o", 50, [1.1, 1.3], [0.1, 0.1], [True, True], 2 << 20, 8.0),
    ]


def test_cells_say_what_was_measured() -> None:
    """Perplexity is that of the mean surprise, the saving is of the whole cache's bytes, shares are percents."""
    whole, small, half = rows(_cells())
    assert whole[:3] == ["full", "100 %", f"{math.exp(1.1):.2f}"]
    assert whole[4] == ""
    assert small[4].startswith("+0.600 ± ")
    assert [row[5] for row in (whole, small, half)] == ["100 %", "50 %", "100 %"]
    assert [row[6] for row in (whole, small, half)] == ["10.0", "", "8.0"]
    assert [row[7:] for row in (whole, small, half)] == [["4.0", "0 %"], ["1.0", "75 %"], ["2.0", "50 %"]]
    assert all(len(row) == len(COLUMNS) for row in (whole, small, half))


def test_one_text_has_no_interval() -> None:
    """Of one sample nothing is known of the spread: empty in the table, null in JSON, which has no NaN."""
    cell = Cell("full", 100, [1.0], [0.0], [], 1 << 20)
    assert rows([cell])[0][3:6] == ["", "", ""]
    told = json.loads(as_json(PLAN, "model", "text", [cell]), parse_constant=lambda name: pytest.fail(name))
    row = told["rows"][0]
    assert (row["perplexity_low"], row["needles_percent"], row["tokens_per_s"]) == (None, None, None)


def test_json_names_what_it_is_true_of() -> None:
    """Model, text, machine and plan stand beside the rows."""
    told = json.loads(as_json(PLAN, "model", "text", _cells()))
    assert (told["model"], told["dataset"], told["plan"]["budgets"]) == ("model", "text", [10, 50])
    assert told["machine"]["cores"] >= 1
    assert [row["budget_percent"] for row in told["rows"]] == [100, 10, 50]


def test_markdown_has_a_line_for_each_cell() -> None:
    """A head, a rule, and the rows, under a sentence with model, text and date."""
    lines = as_markdown(PLAN, "model", "text", _cells()).splitlines()
    assert lines[0].startswith("model on text: 2 texts of 1,000 + 20 tokens, 2 needles.")
    assert len([line for line in lines if line.startswith("|")]) == 5


def test_a_plot_has_a_line_for_each_method() -> None:
    """The whole cache is the ground, not a line; the smaller budget lies higher."""
    drawn = plot(_cells(), "model")
    assert drawn.count("<polyline") == 1
    assert "h2o" in drawn
    points = drawn.split('points="')[1].split('"')[0].split()
    (left, high), (right, low) = (map(float, point.split(",")) for point in points)
    assert left < right
    assert high < low


def test_the_table_is_printed_whole() -> None:
    """All columns, unbroken, where the terminal is wide enough."""
    console = Console(file=StringIO(), width=160)
    print_table(_cells(), console)
    printed = console.file.getvalue()  # type: ignore[attr-defined]
    assert all(column in printed for column in COLUMNS)
    assert len(printed.splitlines()) == 4
