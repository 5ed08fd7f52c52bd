"""What `tierd sim` shows: rows as JSON, CSV or a table, progress on stderr."""

from __future__ import annotations

import csv
import io
import json
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from tierd.sim.played import Advance
from tierd.sim.rows import GIB, Costs, Row, as_record, gap_closed

_QUIET_S = 2.0
"""A bar is shown only for work that takes longer."""
_REDRAW_S = 0.1
_FIRST_LINE_S, _NEXT_LINE_S = 10.0, 30.0
"""Where stderr is no terminal."""


def as_json(rows: Sequence[Row], costs: Costs) -> str:
    return json.dumps([as_record(row, rows, costs) for row in rows], indent=2)


def as_csv(rows: Sequence[Row], costs: Costs) -> str:
    """The same fields, a column for each tier's hits and each edge along which bytes moved."""
    records = [_flat(as_record(row, rows, costs)) for row in rows]
    text = io.StringIO()
    fields = list(dict.fromkeys(field for record in records for field in record))
    table = csv.DictWriter(text, fields, lineterminator="\n")
    table.writeheader()
    table.writerows(records)
    return text.getvalue()


def _flat(record: dict[str, Any]) -> dict[str, Any]:
    tiers, moved = record.pop("tiers"), record.pop("moved_bytes")
    hits = {f"{tier} {kind}": value for tier, of in tiers.items() for kind, value in of.items()}
    return record | hits | {f"bytes {edge}": value for edge, value in moved.items()}


def as_table(rows: Sequence[Row], costs: Costs) -> Table:
    """The rows for people, with hit rates in percent of all block accesses. `own`: evictions of blocks of the very
    request that was served. `gap`: share of the way from lru to belady. `s/GiB`: seconds of prefill that a GiB of
    the tier saved."""
    table = Table(title=rows[0].trace if rows else None, box=None, pad_edge=False, header_style="bold")
    table.add_column("policy", overflow="fold")
    for column in ("capacity", "prefix hits", "%", "block %", "gap", "own", "s/GiB"):
        table.add_column(column, justify="right", no_wrap=True)
    for row in rows:
        closed = gap_closed(row, rows)
        table.add_row(
            row.policy, f"{row.capacity_blocks:,}",
            f"{row.prefix_hits:,}", f"{row.prefix_percent:.2f}", f"{row.block_percent:.2f}",
            "" if closed is None else f"{closed:.1%}",
            f"{row.self_evictions:,}", f"{costs.seconds_per_gib(row):,.1f}",
        )
    return table


def as_tier_table(rows: Sequence[Row], costs: Costs) -> Table:
    """Prefix hits of each tier in percent of all block accesses, and GiB along each edge."""
    tiers = list(dict.fromkeys(tier for row in rows for tier in row.tier_hits))
    table = Table(title="prefix hits by tier, %", box=None, pad_edge=False, header_style="bold")
    table.add_column("policy", overflow="fold")
    for column in ("capacity", *tiers):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("GiB moved", overflow="fold")
    for row in rows:
        hits = [row.tier_hits.get(tier) for tier in tiers]
        gib = costs.block_bytes(row) / GIB
        moved = ", ".join(f"{edge} {blocks * gib:,.0f}" for edge, blocks in row.moved_blocks.items())
        rates = ["" if one is None else f"{100 * one[1] / max(1, row.accesses):.2f}" for one in hits]
        table.add_row(row.policy, f"{row.capacity_blocks:,}", *rates, moved)
    return table


@contextmanager
def progress(total: int, label: str) -> Iterator[Advance]:
    """Yields a function to be told of work done. Once two seconds have passed it shows a bar on stderr, or now and
    then a line where that is no terminal."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield _lines(total, label, console)
        return
    bar = Progress(
        TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:>3.0f}%"),
        TimeRemainingColumn(), console=console, transient=True,
    )
    task = bar.add_task(label, total=total)
    due = time.monotonic() + _QUIET_S
    done = 0

    def advance(work: int) -> None:
        nonlocal done, due
        done += work
        if time.monotonic() >= due:
            due = time.monotonic() + _REDRAW_S
            bar.start()
            bar.update(task, completed=done)

    try:
        yield advance
    finally:
        bar.stop()


def _lines(total: int, label: str, console: Console) -> Advance:
    began = time.monotonic()
    due = began + _FIRST_LINE_S
    done = 0

    def advance(work: int) -> None:
        nonlocal done, due
        done += work
        now = time.monotonic()
        if now >= due and 0 < done <= total:
            due = now + _NEXT_LINE_S
            left_s = (now - began) * (total - done) / done
            said = f"{label}: {100 * done / total:.0f} %, about {left_s / 60:.1f} min left"
            console.print(said, highlight=False, markup=False, soft_wrap=True)

    return advance
