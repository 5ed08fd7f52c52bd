"""The comparison as a table for people, as JSON, as Markdown and as a plot."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.table import Table

from tierd.bench.report import machine
from tierd.eval.methods import FULL
from tierd.eval.study import Cell, Plan, interval
from tierd.sim import svg
from tierd.sim.plots import COLOURS

COLUMNS = (
    "method", "budget", "perplexity", "95 %", "extra nats", "needles", "tokens/s", "KV MiB", "saved",
)
MIB = 1 << 20
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 760, 420, 60, 24, 40, 46
LEGEND_ROW = 18


def rows(cells: Sequence[Cell]) -> list[list[str]]:
    """The table's cells, as text."""
    whole = cells[0].held_bytes
    return [_row(cell, whole) for cell in cells]


def as_json(plan: Plan, model: str, dataset: str, cells: Sequence[Cell]) -> str:
    return json.dumps({
        "machine": machine(), "model": model, "dataset": dataset, "plan": asdict(plan),
        "rows": [_figures(cell, cells[0].held_bytes) for cell in cells],
    }, indent=1)


def as_markdown(plan: Plan, model: str, dataset: str, cells: Sequence[Cell]) -> str:
    """With the machine and date that it is true of."""
    here = machine()
    head = (
        f"{model} on {dataset}: {plan.texts} texts of {plan.prompt_tokens:,} + {plan.answer_tokens} tokens, "
        f"{len(cells[0].needles)} needles. {here['cpu']}, {here['cores']} cores, {here['date']}.")
    lines = ["| " + " | ".join(COLUMNS) + " |", "|" + " --- |" * len(COLUMNS)]
    lines += ["| " + " | ".join(row) + " |" for row in rows(cells)]
    return "\n".join([head, "", *lines, ""])


def print_table(cells: Sequence[Cell], console: Console) -> None:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for number, column in enumerate(COLUMNS):
        table.add_column(column, justify="left" if number == 0 else "right", no_wrap=True)
    for row in rows(cells):
        table.add_row(*row)
    console.print(table)


def plot(cells: Sequence[Cell], title: str) -> str:
    """SVG: extra nats over the whole cache by budget, a line for each method."""
    some = [cell for cell in cells if cell.method != FULL]
    percents = sorted({cell.percent for cell in some})
    means = {(cell.method, cell.percent): interval(cell.extra)[0] for cell in some}
    top = max(0.1, *means.values()) * 1.05
    low = min(0.0, *means.values())

    def place(percent: int, nats: float) -> tuple[float, float]:
        share = percents.index(percent) / max(1, len(percents) - 1)
        height = (nats - low) / (top - low)
        return LEFT + share * (WIDTH - LEFT - RIGHT), HEIGHT - BOTTOM - height * (HEIGHT - BOTTOM - TOP)

    drawn = [svg.text(10, 20, f"{title}: surprise above that of the whole cache, nats a token", "bold")]
    for step in range(6):
        nats = low + (top - low) * step / 5
        y = place(percents[0], nats)[1]
        drawn += [svg.line(LEFT, y, WIDTH - RIGHT, y), svg.text(LEFT - 8, y + 4, f"{nats:.2f}", anchor="end")]
    for percent in percents:
        drawn.append(svg.text(place(percent, low)[0], HEIGHT - BOTTOM + 18, f"{percent} %", anchor="middle"))
    for number, method in enumerate(dict.fromkeys(cell.method for cell in some)):
        colour, dashes = COLOURS[number % len(COLOURS)], "none" if number < len(COLOURS) else "5,4"
        points = [place(percent, means[method, percent]) for percent in percents]
        y = HEIGHT + number * LEGEND_ROW
        drawn += [svg.polyline(points, colour, dashes), *(svg.dot(x, y, colour) for x, y in points)]
        drawn += [svg.rect(LEFT, y, 14, 10, colour), svg.text(LEFT + 22, y + 9, method)]
    return svg.document(WIDTH, HEIGHT + (number + 1) * LEGEND_ROW + 8, drawn)


def _row(cell: Cell, whole: int) -> list[str]:
    figures = _figures(cell, whole)
    half = figures["extra_half"]
    width = "" if half is None else f" ± {half:.3f}"
    extra = "" if cell.method == FULL else f"{figures['extra_nats']:+.3f}{width}"
    return [
        cell.method, f"{cell.percent} %", f"{figures['perplexity']:.2f}",
        _between(figures["perplexity_low"], figures["perplexity_high"]), extra,
        _optional(figures["needles_percent"], " %"), _optional(figures["tokens_per_s"]),
        f"{figures['held_bytes'] / MIB:.1f}", f"{figures['saved_percent']:.0f} %",
    ]


def _optional(value: float | None, unit: str = "") -> str:
    return "" if value is None else f"{value:.{0 if unit else 1}f}{unit}"


def _between(low: float | None, high: float | None) -> str:
    return "" if low is None or high is None else f"{low:.1f} to {high:.1f}"


def _known(value: float) -> float | None:
    """None for what one sample does not tell."""
    return None if math.isnan(value) else value


def _figures(cell: Cell, whole: int) -> dict[str, Any]:
    middle, low, high = cell.perplexity()
    extra, half = interval(cell.extra)
    return {
        "method": cell.method, "budget_percent": cell.percent, "perplexity": middle,
        "perplexity_low": _known(low), "perplexity_high": _known(high), "extra_nats": extra,
        "extra_half": _known(half),
        "needles_percent": 100 * sum(cell.needles) / len(cell.needles) if cell.needles else None,
        "tokens_per_s": _known(cell.tokens_per_s), "held_bytes": cell.held_bytes,
        "saved_percent": 100 * (1 - cell.held_bytes / whole) if whole else 0.0,
    }
