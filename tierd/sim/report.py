"""What `tierd sim` shows: rows as JSON, CSV or a table, progress on stderr."""

from __future__ import annotations

import csv
import io
import json
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from tierd.sim.played import Advance
from tierd.sim.rows import Costs, Row, as_record, gap_closed

_QUIET_S = 2.0
"""A bar is shown only for work that takes longer."""
_REDRAW_S = 0.1


def as_json(rows: Sequence[Row], costs: Costs) -> str:
    return json.dumps([as_record(row, rows, costs) for row in rows], indent=2)


def as_csv(rows: Sequence[Row], costs: Costs) -> str:
    """The same fields, a column for each edge along which bytes moved."""
    records = [as_record(row, rows, costs) for row in rows]
    edges = sorted({edge for record in records for edge in record["moved_bytes"]})
    text = io.StringIO()
    fields = [field for field in records[0] if field != "moved_bytes"]
    table = csv.writer(text, lineterminator="\n")
    table.writerow([*fields, *(f"bytes {edge}" for edge in edges)])
    for record in records:
        moved = record["moved_bytes"]
        table.writerow([*(record[field] for field in fields), *(moved.get(edge, "") for edge in edges)])
    return text.getvalue()


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


@contextmanager
def progress(total: int, label: str) -> Iterator[Advance]:
    """Yields a function to be told of work done; shows a bar on stderr once two seconds have passed."""
    bar = Progress(
        TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:>3.0f}%"),
        TimeRemainingColumn(), console=Console(stderr=True), transient=True,
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
