"""`tierd sim`: what policies would have made of a recorded trace."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from tierd.core.errors import InvalidInput
from tierd.sim.replay import Row, parse_capacities, replay_all
from tierd.sim.report import as_json, as_table, progress
from tierd.sim.traces import Trace, read_trace, with_arrivals
from tierd.sim.workloads import is_workload, make_trace

DEFAULT_POLICIES = ("lru", "lrfu", "belady")


def sim(
    source: Annotated[str, typer.Argument(
        metavar="TRACE", help="File of JSON lines (Mooncake, Bailian) or a packed npz; or a workload to make: "
        "chained-zipf, scan-polluted, multi-turn, each with (parameter=value,...).",
    )],
    policy: Annotated[
        list[str] | None,
        typer.Option(help="Policy, or belady (offline optimum). Repeatable. Default: lru, lrfu, belady."),
    ] = None,
    capacity: Annotated[
        str, typer.Option(help="Blocks, or percent of the distinct blocks; several with commas.")
    ] = "5%,10%",
    warm_up: Annotated[
        str, typer.Option(help="Leading requests, in percent, whose hits are not counted.")
    ] = "0%",
    unpinned: Annotated[bool, typer.Option(
        "--unpinned", help="Let a request push out its own blocks, and break ties by block number: a study of what "
        "simulations without pinning report.",
    )] = False,
    arrivals: Annotated[
        Path | None, typer.Option(help="CSV with a column TIMESTAMP (Azure): when the requests come.")
    ] = None,
    as_json_: Annotated[bool, typer.Option("--json", help="A JSON array of rows on stdout.")] = False,
) -> None:
    """Replays a trace of requests through the engine and counts hits, per policy and capacity."""
    try:
        trace = load_trace(source, arrivals)
        rows = _rows(trace, policy or list(DEFAULT_POLICIES), capacity, first_counted(trace, warm_up), unpinned)
    except InvalidInput as error:
        typer.echo(f"tierd sim: {error}", err=True)
        raise typer.Exit(2) from error
    if as_json_:
        typer.echo(as_json(rows))
    else:
        Console().print(as_table(rows))


def load_trace(source: str, arrivals: Path | None = None) -> Trace:
    """The trace of a file, or of a workload."""
    trace = make_trace(source) if is_workload(source) else read_trace(Path(source))
    return with_arrivals(trace, arrivals) if arrivals else trace


def first_counted(trace: Trace, warm_up: str) -> int:
    """The number of the first request whose hits count."""
    try:
        share = float(warm_up.removesuffix("%")) / 100
    except ValueError:
        share = -1.0
    if not 0 <= share < 1:
        raise InvalidInput("--warm-up", f"{warm_up!r} is not from 0% to less than 100%")
    return int(share * trace.requests)


def _rows(trace: Trace, policies: list[str], capacity: str, first: int, unpinned: bool) -> list[Row]:
    capacities = parse_capacities(capacity, trace.distinct)
    total = trace.accesses * len(policies) * len(capacities)
    with progress(total, f"replaying {trace.name}") as advance:
        return replay_all(trace, policies, capacities, advance, first=first, unpinned=unpinned)
