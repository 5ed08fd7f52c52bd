"""`tierd sim attention`: what policies over tokens would have kept of recorded attention."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from tierd.core.errors import InvalidInput
from tierd.sim.attention_trace import AttentionTrace, read_attention
from tierd.sim.replay import parse_capacities
from tierd.sim.report import progress
from tierd.sim.sparsity import Sparsity, sparsity

if TYPE_CHECKING:
    from tierd.sim.retention import Plan, Retained

DEFAULT_POLICIES = "h2o,snapkv,tova,scissorhands,streaming,sliding_window,strided,random"
PERCENT = "{:.1f} %"


def attention(
    file: Annotated[Path, typer.Argument(help="npz with one array of attention: steps, layers, heads, places.")],
    policy: Annotated[str, typer.Option(help="Policies over tokens, with commas.")] = DEFAULT_POLICIES,
    budget: Annotated[str, typer.Option(help="Places held per head, or percent of all; with commas.")] = "20%,50%",
    obs: Annotated[str, typer.Option(help="Rows of SnapKV's window; with commas.")] = "1,4,16,64",
    pool: Annotated[str, typer.Option(help="SnapKV's neighbours, odd; with commas.")] = "1,3",
    recent: Annotated[int, typer.Option(help="Newest places that never go, where a policy has such.")] = 1,
    share: Annotated[
        str, typer.Option(help="How layers and heads share a budget: even, pyramid, adaptive, guide; with commas.")
    ] = "even",
    kv_heads: Annotated[int, typer.Option(help="Heads that hold; 0: each query head for itself.")] = 0,
    grouping: Annotated[str, typer.Option(help="Of query heads: mean, sum, max, first, squares.")] = "mean",
    warm_up_steps: Annotated[int, typer.Option(help="First steps, which are seen whole and not counted.")] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="A JSON object on stdout.")] = False,
) -> None:
    """How much of recorded attention falls on what policies hold, and where attention lies at all."""
    from tierd.sim.retention import Plan
    from tierd_client.errors import InvalidArgument

    try:
        trace = read_attention(file)
        plan = Plan(
            policies=_words("--policy", policy), budgets=_budgets(budget, trace),
            windows=_numbers("--obs", obs), pools=_numbers("--pool", pool), recent=recent,
            sharings=_words("--share", share), warm_up_steps=warm_up_steps, heads=kv_heads, grouping=grouping,
        )
        rows = _swept(trace, plan)
    except (InvalidInput, InvalidArgument) as error:
        typer.echo(f"tierd sim attention: {error}", err=True)
        raise typer.Exit(2) from error
    if as_json:
        retained = [asdict(row) for row in rows]
        found = {"trace": trace.name, "attention": asdict(sparsity(trace)), "retained": retained}
        typer.echo(json.dumps(found, indent=2))
    else:
        Console().print(_where(trace.name, sparsity(trace)), _kept(rows))


def _swept(trace: AttentionTrace, plan: Plan) -> list[Retained]:
    from tierd.sim.retention import configurations, sweep

    with progress(len(configurations(plan)) * len(plan.budgets), f"replaying {trace.name}") as advance:
        return sweep(trace, plan, advance)


def _budgets(text: str, trace: AttentionTrace) -> tuple[int, ...]:
    return tuple(parse_capacities(text, int(trace.places[-1]), "--budget"))


def _words(option: str, text: str) -> tuple[str, ...]:
    words = tuple(word.strip() for word in text.split(",") if word.strip())
    if not words:
        raise InvalidInput(option, "names nothing")
    return words


def _numbers(option: str, text: str) -> tuple[int, ...]:
    try:
        return tuple(int(word) for word in _words(option, text))
    except ValueError as error:
        raise InvalidInput(option, f"{text!r} is not whole numbers with commas between") from error


def _where(name: str, found: Sparsity) -> Table:
    table = Table(title=name, show_header=False)
    lines = {
        "mass of the oldest place": found.first_place,
        "mass of the newest tenth of the places": found.recent_tenth,
        "weights below 1e-4": found.below_1e_4,
        "weights below 1 % of their row's largest": found.below_percent_of_maximum,
        "places with half of a row's mass": found.places_for_half,
        "places with 90 % of it": found.places_for_90,
        "places with 99 % of it": found.places_for_99,
        "places with 90 % of the mean row of all heads": found.same_for_all_heads_90,
        "later mass of places that were light before": found.risen,
    }
    for line, value in lines.items():
        table.add_row(line, PERCENT.format(100 * value))
    deciles = " ".join(f"{100 * one:.1f}" for one in found.deciles)
    table.add_row("mass of each tenth of the places, oldest first", deciles)
    return table


def _kept(rows: Sequence[Retained]) -> Table:
    table = Table(title="attention on what is held")
    table.add_column("policy")
    table.add_column("with", no_wrap=True)
    table.add_column("shared")
    for column in ("budget", "retained", "worst layer"):
        table.add_column(column, justify="right")
    for row in rows:
        shares = PERCENT.format(100 * row.mean), PERCENT.format(100 * row.worst_layer)
        table.add_row(row.policy, row.parameters, row.sharing, f"{row.budget:,}", *shares)
    return table
