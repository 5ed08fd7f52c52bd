"""`tierd sim`: what policies would have made of a recorded trace."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from tierd.core.errors import InvalidInput, TierdError
from tierd.plugins import offer_policies
from tierd.sim.files import check_picture, check_place, draw, write
from tierd.sim.plots import hit_rates
from tierd.sim.replay import check_policy, parse_capacities
from tierd.sim.report import as_csv, as_json, as_table, as_tier_table, progress
from tierd.sim.rows import KV_BYTES_PER_TOKEN, PREFILL_TOKENS_PER_S, Costs, Row, row_of
from tierd.sim.study import Task, most_jobs, play_all
from tierd.sim.tiers import ONE_TIER, SETTABLE, Tiers, parse_settings
from tierd.sim.traces import Trace, read_trace, with_arrivals
from tierd.sim.workloads import WORKLOADS, is_workload, make_trace

DEFAULT_POLICIES = ("lru", "lrfu", "belady")


def sim(
    source: Annotated[str, typer.Argument(
        metavar="TRACE", help="File of JSON lines (Mooncake, Bailian) or a packed npz; or a workload to make: "
        f"{', '.join(WORKLOADS)}, each with (parameter=value,...).",
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
    hbm: Annotated[str, typer.Option(help="Capacity of an HBM tier above the host tier, as --capacity.")] = "",
    spill: Annotated[str, typer.Option(help="Capacity of a spill tier below it.")] = "",
    prefetch: Annotated[
        int, typer.Option(min=0, max=64, help="Bring a request's blocks up so many requests before it comes.")
    ] = 0,
    setting: Annotated[
        list[str] | None, typer.Option(help=f"Of the engine, name=value. Repeatable: {', '.join(SETTABLE)}.")
    ] = None,
    arrivals: Annotated[
        Path | None, typer.Option(help="CSV with a column TIMESTAMP (Azure): when the requests come.")
    ] = None,
    jobs: Annotated[int, typer.Option(min=0, max=256, help="Replays at once; 0: one a core.")] = 0,
    kv_bytes_per_token: Annotated[
        int, typer.Option(min=1, max=1 << 30, help="Of the model, for figures of a GiB. `tierd size` tells it.")
    ] = KV_BYTES_PER_TOKEN,
    prefill_tokens_per_s: Annotated[
        float, typer.Option(min=1e-3, max=1e9, help="Of the server, for seconds saved.")
    ] = PREFILL_TOKENS_PER_S,
    csv: Annotated[Path | None, typer.Option(help="Also write the rows to this file.")] = None,
    plot: Annotated[
        Path | None, typer.Option(help="Also draw hit rate by capacity into this file, .svg or .png.")
    ] = None,
    as_json_: Annotated[bool, typer.Option("--json", help="A JSON array of rows on stdout.")] = False,
) -> None:
    """Replays a trace of requests through the engine and counts hits, per policy and capacity.

    Of its table, `gap` is the share of the way from lru to belady; `own` counts evictions of blocks of the very
    request that was served; `s/GiB` is seconds of prefill saved by a GiB of the tier. See docs/policies.md.
    """
    costs = Costs(kv_bytes_per_token, prefill_tokens_per_s)
    offer_policies()
    with refusals("tierd sim"):
        check_place(csv)
        check_picture(plot)
        trace = load_trace(source, arrivals)
        tiers = _tiers(trace, hbm, spill, prefetch, setting or [])
        if unpinned and tiers != ONE_TIER:
            raise InvalidInput("--unpinned", "goes with one tier and no settings")
        tasks = _tasks(trace, policy or list(DEFAULT_POLICIES), capacity, not unpinned, tiers)
        rows = _rows(trace, tasks, first_counted(trace, warm_up), jobs)
        write(csv, as_csv(rows, costs))
        draw(plot, hit_rates(rows))
    if as_json_:
        typer.echo(as_json(rows, costs))
    else:
        Console().print(as_table(rows, costs))
        if any(row.tier_hits for row in rows):
            Console().print(as_tier_table(rows, costs))


@contextmanager
def refusals(command: str) -> Iterator[None]:
    """Errors that are raised on purpose end the command with one line on stderr: with status 2 what was asked for
    cannot be, with 1 it could not be done."""
    try:
        yield
    except TierdError as error:
        typer.echo(f"{command}: {error}", err=True)
        raise typer.Exit(2 if isinstance(error, InvalidInput) else 1) from error


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


def _tiers(trace: Trace, hbm: str, spill: str, prefetch: int, settings: list[str]) -> Tiers:
    def blocks(text: str, option: str) -> int:
        if not text:
            return 0
        capacities = parse_capacities(text, trace.distinct, option)
        if len(capacities) > 1:
            raise InvalidInput(option, f"{text!r} is more than one capacity")
        return capacities[0]

    tiers = Tiers(blocks(hbm, "--hbm"), blocks(spill, "--spill"), prefetch, parse_settings(settings))
    tiers.engine_settings()
    return tiers


def _tasks(trace: Trace, policies: list[str], capacity: str, pinned: bool, tiers: Tiers) -> list[Task]:
    """A replay for each policy and capacity, the policies outermost."""
    for policy in policies:
        check_policy(policy, pinned=pinned)
    capacities = parse_capacities(capacity, trace.distinct)
    return [Task(policy, blocks, pinned, tiers=tiers) for policy in policies for blocks in capacities]


def _rows(trace: Trace, tasks: list[Task], first: int, jobs: int) -> list[Row]:
    with progress(trace.accesses * len(tasks), f"replaying {trace.name}") as advance:
        counted = play_all(trace, tasks, jobs or most_jobs(), advance)
    return [
        row_of(trace, task.policy, task.capacity, played, first, task.tiers.hbm + task.tiers.spill)
        for task, played in zip(tasks, counted, strict=True)
    ]
