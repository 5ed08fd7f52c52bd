"""What the demo found out, as one JSON object or as tables for people."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group, RenderableType
from rich.table import Table

from tierd.demo.model import ModelSource

LOGITS_TOLERANCE = 1e-4
"""float32: the same sums in another order (matrices of another height)."""

TIERS = ("hbm", "host", "spill")


@dataclass(slots=True)
class TierUse:
    """One tier at one moment."""

    tier: str
    blocks: int
    used_bytes: int
    capacity_bytes: int
    hits_total: int


@dataclass(slots=True)
class Snapshot:
    when: str
    tiers: list[TierUse]


@dataclass(slots=True)
class Round:
    """One round of prompts. Hits: blocks that were served, by the fastest tier that held them."""

    name: str
    prompts: int = 0
    tokens: int = 0
    blocks: int = 0
    stored: int = 0
    hits: dict[str, int] = field(default_factory=lambda: dict.fromkeys(TIERS, 0))
    cold_s: float = 0.0
    reuse_s: float = 0.0

    @property
    def served(self) -> int:
        return sum(self.hits.values())


@dataclass(slots=True)
class Result:
    """Everything that is shown. None: not measured (a synthetic run has neither logits nor prefill)."""

    source: ModelSource
    rounds: list[Round] = field(default_factory=list)
    snapshots: list[Snapshot] = field(default_factory=list)
    record_before: dict[str, Any] = field(default_factory=dict)
    record_after: dict[str, Any] = field(default_factory=dict)
    record_path: list[str] = field(default_factory=list)
    records_compared: int = 0
    records_equal: int = 0
    blocks_verified: int = 0
    bytes_verified: int = 0
    mismatches: list[str] = field(default_factory=list)
    logits_max_abs_diff: float | None = None
    prefill_s_saved: float | None = None
    elapsed_s: float = 0.0

    def hits(self) -> dict[str, int]:
        """Of round two by tier; `after_kill`: all of round three."""
        second = self.rounds[1].hits if len(self.rounds) > 1 else dict.fromkeys(TIERS, 0)
        after = self.rounds[2].served if len(self.rounds) > 2 else 0
        return {**second, "after_kill": after}

    def failures(self) -> list[str]:
        """What did not come out as it must, in words."""
        found = [f"no hits: {name}" for name, count in self.hits().items() if count == 0]
        if self.mismatches:
            found.append(f"{len(self.mismatches)} blocks were read that nobody stored, first {self.mismatches[0]}")
        if self.blocks_verified == 0:
            found.append("no block was verified")
        if self.record_before != self.record_after or not self.record_before:
            found.append("the record changed on its way through the tiers")
        if self.records_equal != self.records_compared:
            found.append(f"{self.records_compared - self.records_equal} records of the prefix changed")
        diff = self.logits_max_abs_diff
        if diff is not None and not diff <= LOGITS_TOLERANCE:
            found.append(f"logits differ by {diff:.2e}, more than {LOGITS_TOLERANCE:.0e}")
        return found

    def as_json(self) -> str:
        return json.dumps({
            "byte_mismatches": len(self.mismatches),
            "bytes_verified": self.bytes_verified,
            "logits_max_abs_diff": self.logits_max_abs_diff,
            "record_before": self.record_before,
            "record_after": self.record_after,
            "record_path": self.record_path,
            "hits": self.hits(),
            "prefill_s_saved": self.prefill_s_saved,
            "tiers": [asdict(snapshot) for snapshot in self.snapshots],
            "rounds": [asdict(one) for one in self.rounds],
            "model": self.source.name,
            "model_reason": self.source.reason,
            "elapsed_s": round(self.elapsed_s, 3),
            "failures": self.failures(),
        }, indent=2)


def show(result: Result, console: Console) -> None:
    """The tables."""
    console.print(Group(
        _occupancy_table(result), _rounds_table(result), _record_table(result), _facts_table(result)
    ))
    for failure in result.failures():
        console.print(f"[bold red]FAILED[/] {failure}")


def _table(title: str) -> Table:
    return Table(title=title, title_justify="left", title_style="bold", box=SIMPLE_HEAD)


def _occupancy_table(result: Result) -> RenderableType:
    table = _table("Occupancy: blocks per tier (MiB used of capacity)")
    table.add_column("after")
    for tier in TIERS:
        table.add_column(tier, justify="right")
    for snapshot in result.snapshots:
        cells = {use.tier: _use(use) for use in snapshot.tiers}
        table.add_row(snapshot.when, *(cells.get(tier, "-") for tier in TIERS))
    return table


def _use(use: TierUse) -> str:
    capacity = f"{use.capacity_bytes / 2**20:.1f}" if use.capacity_bytes else "unbounded"
    return f"{use.blocks} ({use.used_bytes / 2**20:.1f} of {capacity})"


def _rounds_table(result: Result) -> RenderableType:
    table = _table("Rounds: blocks served by tier; seconds of prefill")
    table.add_column("round")
    for name in ("blocks", *TIERS, "stored", "cold s", "re-use s", "saved s"):
        table.add_column(name, justify="right", no_wrap=True)
    for one in result.rounds:
        measured = one.cold_s > 0
        table.add_row(
            one.name, str(one.blocks),
            *(str(one.hits[tier]) for tier in TIERS), str(one.stored),
            f"{one.cold_s:.2f}" if measured else "-", f"{one.reuse_s:.2f}" if measured else "-",
            f"{one.cold_s - one.reuse_s:.2f}" if measured else "-",
        )
    return table


def _record_table(result: Result) -> RenderableType:
    table = _table("The record of one block of the shared prefix")
    table.add_column("field")
    table.add_column("before demotion to Redis")
    table.add_column("after re-admission")
    for name, value in result.record_before.items():
        after = result.record_after.get(name)
        table.add_row(name, _cell(value), _cell(after) if after == value else f"[red]{_cell(after)}[/]")
    return table


def _cell(value: Any) -> str:
    text = repr(value) if isinstance(value, float) else str(value)
    return text if len(text) <= 24 else f"{text[:16]}..."


def _facts_table(result: Result) -> RenderableType:
    table = Table(show_header=False, box=None)
    table.add_column(style="bold")
    table.add_column()
    hits = result.hits()
    verdict = f"{len(result.mismatches)} mismatches"
    equal = f"{result.records_equal} of {result.records_compared}"
    table.add_row("model", result.source.name + (f" ({result.source.reason})" if result.source.reason else ""))
    table.add_row("hits", ", ".join(f"{name} {count}" for name, count in hits.items()))
    table.add_row("verified", f"{result.bytes_verified:,} bytes in {result.blocks_verified} blocks: {verdict}")
    table.add_row("its way", " -> ".join(result.record_path))
    table.add_row("records", f"{equal} of the prefix equal to the last bit, after re-admission and after kill -9")
    if result.logits_max_abs_diff is not None:
        table.add_row("logits", f"re-use differs from recomputation by at most {result.logits_max_abs_diff:.2e}")
    if result.prefill_s_saved is not None:
        table.add_row("prefill saved", f"{result.prefill_s_saved:.2f} s")
    table.add_row("took", f"{result.elapsed_s:.1f} s")
    return table
