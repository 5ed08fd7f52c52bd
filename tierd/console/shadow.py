"""`tierd stats --shadow`: what host memory of several sizes would have saved, as a table."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import typer

from tierd.console.answers import print_table, size
from tierd_client.shadow import ShadowEstimate, ShadowNamespace, ShadowSize, ShadowStats

NOTHING = """No request was reported in shadow mode since this daemon started. A client says so in its options:
docs/shadow.md has a line for each engine."""


def with_seconds(found: ShadowStats, prefill_tokens_per_s: float | None) -> dict[str, Any]:
    """The figures for programs, with rates, tokens and seconds of prefill; null for seconds where nobody has said
    how fast prefill is."""
    record = asdict(found)
    for one, shown in zip(found.namespaces, record["namespaces"], strict=True):
        shown["prefill_tokens_per_s"] = rate = prefill_tokens_per_s or one.prefill_tokens_per_s
        for kept, figures in zip(one.sizes, shown["sizes"], strict=True):
            figures["block_hit_rate"] = kept.block_hits.blocks / max(1, one.asked_blocks)
            figures["prefix_hit_rate"] = kept.prefix_hits.blocks / max(1, one.asked_blocks)
            figures["saved_tokens"] = tokens = kept.saved.blocks * one.block_tokens
            figures["saved_prefill_s"] = tokens / rate if rate else None
    return record


def print_shadow(found: ShadowStats, prefill_tokens_per_s: float | None) -> None:
    if not found.namespaces:
        typer.echo(NOTHING)
    for one in found.namespaces:
        _print_namespace(one, prefill_tokens_per_s or one.prefill_tokens_per_s)
    if found.left_out_calls_total:
        typer.echo(f"{found.left_out_calls_total} reports are in no figure: they came faster than "
                   "shadow_cpu_percent allows")


def _print_namespace(one: ShadowNamespace, rate: float) -> None:
    typer.echo(
        f"namespace {one.namespace}, {one.name or one.model or 'without a name'}: {one.requests} requests in "
        f"{one.observed_s:.0f} s, {one.asked_blocks} blocks of {one.block_tokens} tokens, {size(one.block_bytes)} "
        f"each\nof these {_percent(one.served_blocks, one)} were in the engine's own cache; prefill "
        + (f"{rate:,.0f} tokens/s" if rate else "rate not known: --prefill-tokens-per-s")
        + f"; policy {one.policy}\n"
    )
    columns = ["host memory", "sample", "in use", "prefix hits", "block hits", "prefill tokens saved",
               "seconds saved"]
    print_table(columns, [_row(kept, one, rate) for kept in one.sizes])
    typer.echo()


def _row(kept: ShadowSize, one: ShadowNamespace, rate: float) -> tuple[object, ...]:
    tokens, error = (blocks * one.block_tokens for blocks in (kept.saved.blocks, kept.saved.error))
    return (
        size(kept.capacity_bytes), "all" if kept.sampled_share == 1 else f"1/{1 / kept.sampled_share:.0f}",
        f"{100 * kept.held_blocks / kept.capacity_blocks:.0f} %", _share(kept.prefix_hits, one),
        _share(kept.block_hits, one), f"{tokens:,}" + (f" ± {error:,}" if error else ""),
        f"{tokens / rate:,.1f}" + (f" ± {error / rate:,.1f}" if error else "") if rate else "-",
    )


def _share(hits: ShadowEstimate, one: ShadowNamespace) -> str:
    error = f" ± {100 * hits.error / max(1, one.asked_blocks):.1f}" if hits.error else ""
    return f"{100 * hits.blocks / max(1, one.asked_blocks):.1f}{error} %"


def _percent(blocks: int, one: ShadowNamespace) -> str:
    return f"{100 * blocks / max(1, one.asked_blocks):.1f} %"
