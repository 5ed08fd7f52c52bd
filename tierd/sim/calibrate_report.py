"""What `tierd calibrate` shows: tables, a map, JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from tierd.sim.calibrate import DEFAULT, Grid, Outcome, Verdict
from tierd.sim.keyed import MEMORIES
from tierd.sim.persistence import Worth
from tierd.sim.plots import heat_map

MOST_SHOWN = 8
"""Of the settings that were tried, beside the default."""


def print_verdict(console: Console, name: str, made: Sequence[Grid], verdict: Verdict) -> None:
    """What was found of the trace `name` at one capacity."""
    console.print(
        f"{name}, {verdict.capacity:,} blocks. Prefix hits of lru on the second half: {verdict.lru_percent:.2f} %; "
        f"the optimum is at {verdict.optimum.as_text()}.", highlight=False, markup=False,
    )
    for grid in made:
        console.print(_grid_table(grid, verdict))
    console.print(_outcome_table(verdict))
    console.print(verdict.sentence(), highlight=False, markup=False)
    console.print(f"Recommended: --policy '{verdict.recommended}'\n", highlight=False, markup=False)


def _table(title: str) -> Table:
    return Table(title=title, box=None, pad_edge=False, header_style="bold", title_justify="left")


def _grid_table(grid: Grid, verdict: Verdict) -> Table:
    """Points over lru, first half / second half."""
    table = _table(f"{grid.title}: points over lru, first half / second half")
    table.add_column(f"{grid.row_name} \\ {grid.column_name}")
    for column in grid.columns:
        table.add_column(f"{column:g}", justify="right")
    for row in grid.rows:
        cells = [verdict.of(grid.spec(row, column)) for column in grid.columns]
        table.add_row(f"{row:g}", *map(_halves, cells))
    return table


def _outcome_table(verdict: Verdict) -> Table:
    """The best on the first half, and the default."""
    table = _table("best on the first half: points over lru")
    table.add_column("policy", overflow="fold")
    for column in ("first half", "second half", "90 % interval"):
        table.add_column(column, justify="right", no_wrap=True)
    for one in dict.fromkeys([*verdict.outcomes[:MOST_SHOWN], verdict.of(DEFAULT)]):
        held_out = one.held_out
        interval = f"{held_out.low:+.2f} to {held_out.high:+.2f}"
        table.add_row(one.spec, f"{one.fitted:+.2f}", f"{held_out.points:+.2f}", interval)
    return table


def map_of(grid: Grid, verdict: Verdict) -> str:
    """A heat map as SVG: coloured by what was fitted, with what was held out beside it."""
    cells = [[verdict.of(grid.spec(row, column)) for column in grid.columns] for row in grid.rows]
    return heat_map(
        f"{grid.title}, {verdict.capacity:,} blocks: points over lru, first half / second half", grid.row_name,
        [f"{row:g}" for row in grid.rows], grid.column_name, [f"{column:g}" for column in grid.columns],
        [[one.fitted for one in line] for line in cells], [[_halves(one) for one in line] for line in cells],
    )


def _halves(one: Outcome) -> str:
    return f"{one.fitted:+.2f} / {one.held_out.points:+.2f}"


def verdicts_as_json(verdicts: Sequence[Verdict]) -> str:
    return json.dumps([_as_record(verdict) for verdict in verdicts], indent=2)


def _as_record(verdict: Verdict) -> dict[str, Any]:
    return {
        "capacity_blocks": verdict.capacity, "lru_percent": round(verdict.lru_percent, 4),
        "optimum_points": round(verdict.optimum.points, 4), "recommended": verdict.recommended,
        "sentence": verdict.sentence(),
        "outcomes": [
            {"policy": one.spec, "first_half_points": round(one.fitted, 4),
             "second_half_points": round(one.held_out.points, 4),
             "interval_90": [round(one.held_out.low, 4), round(one.held_out.high, 4)]}
            for one in verdict.outcomes
        ],
    }


def worths_table(found: Sequence[Worth], blocks: bool) -> Table:
    """Hit rate without surviving records, and points that they add."""
    table = _table(
        f"{'block' if blocks else 'prefix'} hits in %, records reset at eviction; points if they age, or are "
        "frozen, while the block is away"
    )
    table.add_column("policy", overflow="fold")
    for column in ("capacity", "pinned", "ageing", "frozen", "unpinned", "ageing", "frozen"):
        table.add_column(column, justify="right", no_wrap=True)
    for worth in found:
        cells = []
        for pinned in (True, False):
            reset = worth.rows.get((pinned, "reset"))
            rate = reset and (reset.block_percent if blocks else reset.prefix_percent)
            cells.append("" if rate is None else f"{rate:.2f}")
            gains = [worth.gain(pinned, memory, blocks=blocks) for memory in MEMORIES[1:]]
            cells += ["" if gain is None else f"{gain:+.2f}" for gain in gains]
        table.add_row(worth.policy, f"{worth.capacity:,}", *cells)
    return table


def worths_as_json(found: Sequence[Worth], blocks: bool) -> str:
    return json.dumps([
        {"policy": worth.policy, "capacity_blocks": worth.capacity, "assumptions": [
            {"pinned": pinned, "records": memory, "prefix_percent": round(row.prefix_percent, 4),
             "block_percent": round(row.block_percent, 4), "self_evictions": row.self_evictions,
             "gain_points": worth.gain(pinned, memory, blocks=blocks)}
            for (pinned, memory), row in worth.rows.items()
        ]} for worth in found
    ], indent=2)
