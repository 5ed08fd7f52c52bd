"""`tierd bench`: the figures of this machine, each beside its limit."""

from __future__ import annotations

import time
from collections.abc import Sequence
from enum import StrEnum
from importlib.util import find_spec
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from tierd.bench.figures import Finding, Measurement
from tierd.bench.measuring import Scale
from tierd.bench.report import as_json as report_json
from tierd.bench.report import print_table
from tierd.bench.table import MEASUREMENTS
from tierd.interrupts import terminated_as_interrupt

EXIT_MISSED = 1


class Suite(StrEnum):
    LOCAL = "local"
    SPILL = "spill"
    REMOTE = "remote"
    CONTROL = "control"
    EVICT = "evict"
    SCALE = "scale"
    ALL = "all"


def bench(
    suites: Annotated[list[Suite] | None, typer.Argument(help="Which figures; all of them by default.")] = None,
    figure: Annotated[list[str] | None, typer.Option(help="One figure by its name; repeatable.")] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Little of everything: shows that it runs, measures nothing well.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """Measure how near to the limits of this machine the product works; status 1 when a figure misses its gate.

    Starts daemons of its own and leaves nothing behind. docs/bench.md says what each figure is.
    """
    began = time.monotonic()
    with terminated_as_interrupt():
        findings = run(chosen(suites or [], figure or []), Scale.quick() if quick else Scale.full())
    if as_json:
        typer.echo(report_json(findings, time.monotonic() - began))
    else:
        print_table(findings, Console())
    if not all(one.passed for one in findings):
        if quick:
            typer.echo("A gate that --quick missed says nothing: measure without it, on a quiet machine.", err=True)
        raise typer.Exit(EXIT_MISSED)


def chosen(suites: Sequence[Suite], names: Sequence[str]) -> list[Measurement]:
    """What measures these figures, and those of these suites; everything when neither is given."""
    known = set().union(*(measurement.figure_names() for measurement in MEASUREMENTS))
    if unknown := sorted(set(names) - known):
        raise typer.BadParameter(f"{', '.join(unknown)}: none of {', '.join(sorted(known))}", param_hint="--figure")
    everything = Suite.ALL in suites or not (suites or names)
    return [
        measurement for measurement in MEASUREMENTS
        if everything or measurement.suite in suites or measurement.figure_names() & set(names)
    ]


def run(measurements: Sequence[Measurement], scale: Scale) -> list[Finding]:
    """Takes one measurement after the other, and says on stderr which, and which cannot be taken here."""
    findings = []
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=None)
        for measurement in measurements:
            bar.update(task, description=measurement.figures[0].name)
            if measurement.needs and find_spec(measurement.needs) is None:
                bar.console.print(f"{measurement.figures[0].name}: left out, {measurement.needs} is not installed")
                continue
            measured = measurement.measure(scale)
            findings += [Finding(figure, measured[figure.name]) for figure in measurement.figures]
    return findings
