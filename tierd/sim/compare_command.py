"""`tierd sim compare`: policies over several traces and capacities, in one table."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from tierd.core.errors import InvalidInput
from tierd.plugins import offer_policies
from tierd.sim.command import load_trace, refusals
from tierd.sim.compare import LRU, Point, as_cells, as_markdown, as_record, split_point
from tierd.sim.files import check_picture, check_place, draw, write
from tierd.sim.played import Advance
from tierd.sim.plots import shares_closed
from tierd.sim.replay import check_policy, parse_capacities
from tierd.sim.report import progress
from tierd.sim.rows import BELADY, row_of
from tierd.sim.study import Task, most_jobs, play_all
from tierd.sim.traces import Trace

DEFAULT_POLICIES = ("lrfu", "gab", "gittins")


def compare(
    points: Annotated[list[str], typer.Argument(
        metavar="TRACE@CAPACITIES...", help="What `tierd sim` takes, @, and capacities with commas: "
        "blocks, or percent of the distinct blocks.",
    )],
    policy: Annotated[
        list[str] | None, typer.Option(help="Beside lru and belady. Repeatable. Default: lrfu, gab, gittins.")
    ] = None,
    jobs: Annotated[int, typer.Option(min=0, max=256, help="Replays at once; 0: one a core.")] = 0,
    markdown: Annotated[Path | None, typer.Option(help="Also write the table to this file, as Markdown.")] = None,
    plot: Annotated[
        Path | None, typer.Option(help="Also draw the shares of the gap into this file, .svg or .png.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="A JSON array of points on stdout.")] = False,
) -> None:
    """Points of prefix hits over lru, and in brackets the share of the way from lru to belady."""
    named = dict.fromkeys(one.strip() for one in policy or DEFAULT_POLICIES)
    policies = [one for one in named if one not in (LRU, BELADY)]
    offer_policies()
    with refusals("tierd sim compare"):
        check_place(markdown)
        check_picture(plot)
        if not policies:
            raise InvalidInput("--policy", "names nothing beside lru and belady, which are compared with")
        for one in policies:
            check_policy(one)
        found = _replayed(points, policies, jobs or most_jobs())
        write(markdown, as_markdown(found, policies) if markdown else "")
        draw(plot, shares_closed(found, policies))
    if as_json:
        typer.echo(json.dumps([as_record(point, policies) for point in found], indent=2))
    else:
        Console().print(_table(found, policies))


def _replayed(texts: Sequence[str], policies: Sequence[str], jobs: int) -> list[Point]:
    """Each point, in the order in which they were named. All traces are read before the first is replayed."""
    planned = [_planned(text) for text in texts]
    specs = [LRU, BELADY, *policies]
    total = sum(trace.accesses * len(capacities) * len(specs) for trace, capacities in planned)
    with progress(total, "replaying") as advance:
        return [
            point for trace, capacities in planned for point in _points(trace, capacities, specs, jobs, advance)
        ]


def _planned(text: str) -> tuple[Trace, dict[str, int]]:
    """A trace, and the capacities at which it is replayed, in blocks by what was said."""
    source, capacities = split_point(text)
    trace = load_trace(source)
    return trace, {said: parse_capacities(said, trace.distinct)[0] for said in capacities}


def _points(
    trace: Trace, capacities: dict[str, int], specs: Sequence[str], jobs: int, advance: Advance
) -> Iterator[Point]:
    tasks = [Task(spec, blocks) for blocks in capacities.values() for spec in specs]
    played = iter(play_all(trace, tasks, jobs, advance))
    for said, blocks in capacities.items():
        percent = {spec: row_of(trace, spec, blocks, next(played)).prefix_percent for spec in specs}
        yield Point(trace.name, said, blocks, percent)


def _table(points: Sequence[Point], policies: Sequence[str]) -> Table:
    titles, lines = as_cells(points, policies)
    table = Table(box=None, pad_edge=False, header_style="bold", title="points over lru (gap closed)")
    table.add_column(titles[0], overflow="fold")
    for title in titles[1:]:
        table.add_column(title, justify="right")
    for line in lines:
        table.add_row(*line)
    return table
