"""What is printed: a table for people, JSON for programs, and the machine that it is true of."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from tierd.bench.figures import Finding

DIGITS = 4
"""Significant ones: more than a spread leaves."""
PIPE_COLUMNS = 160
"""A width where no terminal gives one: room for what each figure is."""


def as_json(findings: Sequence[Finding], seconds: float) -> str:
    """`figures` have gates; `told` stand beside them."""
    judged = [one for one in findings if one.figure.gate is not None]
    told = [one for one in findings if one.figure.gate is None]
    return json.dumps({
        "machine": machine(), "seconds": round(seconds), "figures": [_judged(one) for one in judged],
        "told": [_told(one) for one in told],
    }, indent=1)


def print_table(findings: Sequence[Finding], console: Console) -> None:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("figure", no_wrap=True)
    table.add_column("what")
    for column in ("value", "spread", "goal", "gate"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    for one in findings:
        figure = one.figure
        table.add_row(
            figure.name, figure.what, _number(one.result.value), _number(one.result.spread), _number(figure.goal),
            _number(figure.gate), _verdict(one),
        )
    if not console.is_terminal:
        console.width = max(console.width, PIPE_COLUMNS)
    console.print(table)


def machine() -> dict[str, Any]:
    """Where and when the figures were taken."""
    return {
        "cpu": _cpu_model(), "cores": os.cpu_count(), "memory_bytes": _memory_bytes(),
        "kernel": platform.release(), "python": platform.python_version(), "tierd": version("tierd"),
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"), "load": round(os.getloadavg()[0], 1),
    }


def _judged(one: Finding) -> dict[str, Any]:
    figure = one.figure
    return _told(one) | {"goal": figure.goal, "gate": figure.gate, "better": figure.better, "pass": one.passed}


def _told(one: Finding) -> dict[str, Any]:
    return {"name": one.figure.name, "value": _rounded(one.result.value), "spread": _rounded(one.result.spread)}


def _verdict(one: Finding) -> str:
    if one.figure.gate is None:
        return ""
    if not one.passed:
        return "[bold red]missed[/]"
    return "[green]goal[/]" if one.reached_goal else "pass"


def _rounded(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")


def _number(value: float | None) -> str:
    return "" if value is None else f"{_rounded(value):,.10g}"


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), "?")


def _memory_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
