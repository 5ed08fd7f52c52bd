"""What `tierd sim` shows: rows as JSON or a table on stdout, progress on stderr."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from tierd.sim.played import Advance
from tierd.sim.replay import Row

_QUIET_S = 2.0
"""A bar is shown only for work that takes longer."""
_REDRAW_S = 0.1


def as_json(rows: Sequence[Row]) -> str:
    return json.dumps([row.as_json() for row in rows], indent=2)


def as_table(rows: Sequence[Row]) -> Table:
    """The rows for people, with hit rates in percent of all block accesses. `own`: evictions of blocks of the very
    request that was served."""
    table = Table(title=rows[0].trace if rows else None)
    table.add_column("policy", overflow="fold")
    for column in ("capacity", "prefix hits", "%", "block %", "evictions", "own"):
        table.add_column(column, justify="right")
    for row in rows:
        table.add_row(
            row.policy, f"{row.capacity_blocks:,}",
            f"{row.prefix_hits:,}", f"{100 * row.prefix_hits / row.accesses:.2f}",
            f"{100 * row.block_hits / row.accesses:.2f}",
            f"{row.evictions:,}", f"{row.self_evictions:,}",
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
