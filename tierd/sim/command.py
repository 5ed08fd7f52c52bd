"""`tierd sim`: what policies would have made of a recorded trace."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from tierd.core.errors import InvalidInput
from tierd.sim.replay import Row, parse_capacities, replay_all
from tierd.sim.report import as_json, as_table, progress
from tierd.sim.traces import read_trace

DEFAULT_POLICIES = ("lru", "lrfu", "belady")


def sim(
    file: Annotated[Path, typer.Argument(help="Trace: Mooncake's JSON lines or a packed npz.")],
    policy: Annotated[
        list[str] | None,
        typer.Option(help="Policy, or belady (offline optimum). Repeatable. Default: lru, lrfu, belady."),
    ] = None,
    capacity: Annotated[
        str, typer.Option(help="Blocks, or percent of the distinct blocks; several with commas.")
    ] = "5%,10%",
    as_json_: Annotated[bool, typer.Option("--json", help="A JSON array of rows on stdout.")] = False,
) -> None:
    """Replays a trace of requests through the engine and counts hits, per policy and capacity."""
    try:
        rows = _rows(file, policy or list(DEFAULT_POLICIES), capacity)
    except InvalidInput as error:
        typer.echo(f"tierd sim: {error}", err=True)
        raise typer.Exit(2) from error
    if as_json_:
        typer.echo(as_json(rows))
    else:
        Console().print(as_table(rows))


def _rows(file: Path, policies: list[str], capacity: str) -> list[Row]:
    trace = read_trace(file)
    capacities = parse_capacities(capacity, trace.distinct)
    total = trace.accesses * len(policies) * len(capacities)
    with progress(total, f"replaying {trace.name}") as advance:
        return replay_all(trace, policies, capacities, advance)
