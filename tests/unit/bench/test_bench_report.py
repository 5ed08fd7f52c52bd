"""Verdicts of figures, the JSON of a run, and which figures a command line means."""

from __future__ import annotations

import json
import re

import pytest
import typer
from typer.testing import CliRunner

from tierd.bench import command
from tierd.bench.command import Suite, chosen
from tierd.bench.figures import Figure, Finding, Measurement
from tierd.bench.measuring import Result
from tierd.bench.report import as_json
from tierd.bench.table import MEASUREMENTS

FAST = Figure("fast", "limit / ours", goal=0.9, gate=0.5)
CHEAP = Figure("cheap", "ours / limit", goal=1.2, gate=1.5, better="lower")
BESIDE = Figure("beside", "told without a gate")
FIGURES = [figure for measurement in MEASUREMENTS for figure in measurement.figures]


@pytest.mark.parametrize(("figure", "value", "passed", "reached"), [
    (FAST, 0.95, True, True), (FAST, 0.5, True, False), (FAST, 0.49, False, False),
    (CHEAP, 1.1, True, True), (CHEAP, 1.5, True, False), (CHEAP, 1.51, False, False),
    (BESIDE, 0.0, True, True),
])
def test_verdicts(figure: Figure, value: float, passed: bool, reached: bool) -> None:
    """A figure passes at its gate and better, in its own direction; one without a gate always does."""
    finding = Finding(figure, Result(value, 0.1))
    assert (finding.passed, finding.reached_goal) == (passed, reached)


def test_json_has_a_line_for_each_figure() -> None:
    """Figures with a gate say value, spread, goal, gate, direction and verdict; the others stand apart."""
    printed = json.loads(as_json([Finding(CHEAP, Result(1.6, 0.25)), Finding(BESIDE, Result(3.0, 0.0))], 12.0))
    assert printed["figures"] == [{
        "name": "cheap", "value": 1.6, "spread": 0.25, "goal": 1.2, "gate": 1.5, "better": "lower", "pass": False,
    }]
    assert printed["told"] == [{"name": "beside", "value": 3.0, "spread": 0.0}]
    assert {"cpu", "cores", "python", "date"} <= set(printed["machine"])


def _measuring(value: float) -> Measurement:
    return Measurement("local", (FAST,), lambda _: {"fast": Result(value, 0.0)})


@pytest.mark.parametrize(("value", "status"), [(0.6, 0), (0.4, 1)])
def test_exit_status_is_the_verdict(monkeypatch: pytest.MonkeyPatch, value: float, status: int) -> None:
    """A figure that misses its gate makes the command fail, after everything was printed."""
    monkeypatch.setattr(command, "MEASUREMENTS", (_measuring(value),))
    app = typer.Typer()
    app.command()(command.bench)
    done = CliRunner().invoke(app, ["--json"])
    assert done.exit_code == status
    assert json.loads(done.stdout)["figures"][0]["pass"] is (status == 0)


def test_quick_misses_mean_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A gate that --quick misses is told with what it is worth; a pipe has room for what each figure is."""
    monkeypatch.setattr(command, "MEASUREMENTS", (_measuring(0.4),))
    app = typer.Typer()
    app.command()(command.bench)
    done = CliRunner().invoke(app, ["--quick"])
    assert done.exit_code == 1 and "says nothing" in done.stderr
    assert re.search(r"fast +limit / ours +0.4 .* missed", done.stdout)


def test_an_unknown_figure_is_refused() -> None:
    """A name that is no figure is refused with those that are."""
    with pytest.raises(typer.BadParameter, match=r"nothing: none of .*rpc_unary"):
        chosen([], ["nothing"])


def test_suites_and_figures_add_up() -> None:
    """A figure is measured by what measures it, once, also when its suite is named as well."""
    assert [one.suite for one in chosen([Suite.CONTROL], ["rpc_unary"])] == ["control"]
    assert chosen([], []) == chosen([Suite.ALL], ["rpc_unary"]) == list(MEASUREMENTS)


def test_what_needs_another_package_is_left_out(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A measurement whose package is not installed is named and left out, and the others are taken."""
    needy = Measurement("local", (CHEAP,), lambda _: {}, needs="no_such_package")
    findings = command.run([needy, _measuring(0.6)], command.Scale.quick())
    assert [one.figure.name for one in findings] == ["fast"]
    assert re.search("cheap: left out, no_such_package", capsys.readouterr().err)


def test_every_figure_has_a_name_of_its_own() -> None:
    """No two figures share a name, every one with a gate has a goal that is at least as good."""
    assert len({figure.name for figure in FIGURES}) == len(FIGURES)
    assert all(figure.reaches(figure.goal, figure.gate) for figure in FIGURES if figure.goal is not None)


def test_every_suite_has_figures() -> None:
    """Each suite that can be named measures something."""
    assert {one.suite for one in MEASUREMENTS} == set(Suite) - {Suite.ALL}
