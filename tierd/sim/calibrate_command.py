"""`tierd calibrate`: which setting serves a trace, and what surviving records are worth on it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from tierd.core.errors import InvalidInput
from tierd.plugins import offer_policies
from tierd.sim.calibrate import BY_REQUESTS, Verdict, candidates, grids, judge
from tierd.sim.calibrate_report import map_of, print_verdict, verdicts_as_json, worths_as_json, worths_table
from tierd.sim.command import first_counted, load_trace, refusals
from tierd.sim.files import check_picture, draw
from tierd.sim.persistence import POLICIES as STUDIED
from tierd.sim.persistence import Worth, plan, worths
from tierd.sim.replay import check_policy, parse_capacities
from tierd.sim.report import progress
from tierd.sim.study import Task, most_jobs, play_all
from tierd.sim.traces import Trace, head_of

NO_WARM_UP = "0%"
LEAST_REQUESTS = 20
"""Of a trace: fewer have no halves to speak of."""


def calibrate(
    source: Annotated[str, typer.Argument(metavar="TRACE", help="File or workload, as `tierd sim` takes it.")],
    capacity: Annotated[
        str, typer.Option(help="Blocks, or percent of the distinct blocks; several with commas.")
    ] = "5%",
    policy: Annotated[
        list[str] | None, typer.Option(
            help="Beside lru and lrfu, try this policy. Repeatable. Default: each that goes by requests."
        )
    ] = None,
    requests: Annotated[
        int, typer.Option(min=0, max=1 << 40, help="Only so many first requests of the trace; 0: all.")
    ] = 0,
    fine: Annotated[bool, typer.Option("--fine", help="Sweep more values, in three times the replays.")] = False,
    persistence: Annotated[bool, typer.Option(
        "--persistence", help="Instead: what records that survive eviction are worth.",
    )] = False,
    blocks: Annotated[bool, typer.Option(
        "--blocks", help="With --persistence: count block hits, not prefix hits.",
    )] = False,
    warm_up: Annotated[
        str, typer.Option(help="With --persistence: leading requests, in percent, whose hits are not counted.")
    ] = NO_WARM_UP,
    jobs: Annotated[int, typer.Option(min=0, max=256, help="Replays at once; 0: one a core.")] = 0,
    plot: Annotated[
        Path | None, typer.Option(help="Also draw alpha x beta at the first capacity into this file, .svg or .png.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Everything that was found, on stdout.")] = False,
) -> None:
    """Sweeps the parameters of a policy on the first half of a trace and judges the best on the second."""
    console = Console()
    offer_policies()
    with refusals("tierd calibrate"):
        _check_options(persistence, plot, fine, blocks, warm_up)
        check_picture(plot)
        trace = load_trace(source)
        if requests:
            trace = head_of(trace, requests)
        capacities = parse_capacities(capacity, trace.distinct)
        for one in policy or ():
            check_policy(one)
        if persistence:
            found = _worths(trace, policy or list(STUDIED), capacities, first_counted(trace, warm_up), jobs)
            typer.echo(worths_as_json(found, blocks)) if as_json else console.print(worths_table(found, blocks))
            return
        made = grids(fine=fine)
        verdicts = _verdicts(trace, candidates(made, policy or BY_REQUESTS), capacities, jobs)
        draw(plot, map_of(made[0], verdicts[0]))
    if as_json:
        typer.echo(verdicts_as_json(verdicts))
        return
    for verdict in verdicts:
        print_verdict(console, trace.name, made, verdict)


def _check_options(persistence: bool, plot: Path | None, fine: bool, blocks: bool, warm_up: str) -> None:
    """InvalidInput for an option that would be passed over."""
    if persistence:
        passed_over, problem = {"--plot": plot, "--fine": fine}, "does not go with --persistence"
    else:
        passed_over, problem = {"--blocks": blocks, "--warm-up": warm_up != NO_WARM_UP}, "goes with --persistence"
    for option, given in passed_over.items():
        if given:
            raise InvalidInput(option, problem)


def _verdicts(trace: Trace, specs: list[str], capacities: Sequence[int], jobs: int) -> list[Verdict]:
    if trace.requests < LEAST_REQUESTS:
        raise InvalidInput(trace.name, f"has {trace.requests} requests; a setting is judged on {LEAST_REQUESTS}")
    tasks = [Task(spec, blocks) for blocks in capacities for spec in specs]
    with progress(trace.accesses * len(tasks), f"replaying {trace.name}") as advance:
        played = play_all(trace, tasks, jobs or most_jobs(), advance)
    count = len(specs)
    return [
        judge(trace, blocks, specs, played[number * count : (number + 1) * count])
        for number, blocks in enumerate(capacities)
    ]


def _worths(trace: Trace, policies: list[str], capacities: Sequence[int], first: int, jobs: int) -> list[Worth]:
    planned = plan(policies, capacities)
    with progress(trace.accesses * len(planned), f"replaying {trace.name}") as advance:
        played = play_all(trace, [task for _, _, task in planned], jobs or most_jobs(), advance)
    return worths(trace, planned, played, first)
