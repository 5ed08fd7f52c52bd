"""Policies over many points, each a trace at a capacity: points over `lru`, and share of the way to the optimum."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tierd.core.errors import InvalidInput
from tierd.sim.rows import BELADY

LRU = "lru"


@dataclass(frozen=True, slots=True)
class Point:
    """Prefix hits in percent of the blocks that `trace` asks for, by policy, in a cache of so many blocks."""

    trace: str
    capacity: str
    """As it was said: blocks, or percent of the distinct ones."""
    capacity_blocks: int
    percent: dict[str, float]

    def gain(self, policy: str) -> float:
        """Points over `lru`."""
        return self.percent[policy] - self.percent[LRU]

    def closed(self, policy: str) -> float | None:
        """Share of the way from `lru` to the optimum; None where there is no way to go."""
        gap = self.gain(BELADY)
        return self.gain(policy) / gap if gap > 0 else None


@dataclass(frozen=True, slots=True)
class Summary:
    """Of one policy over all points. `closed`: of the mean gap, the share that the mean gain is."""

    mean: float
    worst: float
    closed: float | None


def summary_of(points: Sequence[Point], policy: str) -> Summary:
    gains = [point.gain(policy) for point in points]
    gap = sum(point.gain(BELADY) for point in points)
    return Summary(sum(gains) / len(gains), min(gains), sum(gains) / gap if gap > 0 else None)


def split_point(text: str) -> tuple[str, list[str]]:
    """Trace and capacities of `TRACE@CAPACITY,...`."""
    source, at, capacities = text.rpartition("@")
    if not at or not source or not capacities:
        raise InvalidInput("TRACE@CAPACITIES", f"{text!r} names no capacity: FILE@5%,10%")
    return source, [one.strip() for one in capacities.split(",")]


def as_cells(points: Sequence[Point], policies: Sequence[str]) -> tuple[list[str], list[list[str]]]:
    """Titles and lines of a table: a line for each point, then mean and worst."""
    titles = ["trace", "capacity", "blocks", LRU, BELADY, *policies]
    lines = [
        [point.trace, point.capacity, f"{point.capacity_blocks:,}", f"{point.percent[LRU]:.2f}",
         f"{point.gain(BELADY):+.2f}", *(_cell(point.gain(policy), point.closed(policy)) for policy in policies)]
        for point in points
    ]
    of = {policy: summary_of(points, policy) for policy in (BELADY, *policies)}
    means = [_cell(of[policy].mean, of[policy].closed) for policy in policies]
    lines.append(["mean", "", "", "", f"{of[BELADY].mean:+.2f}", *means])
    lines.append(["worst", "", "", "", "", *(f"{of[policy].worst:+.2f}" for policy in policies)])
    return titles, lines


def _cell(gain: float, closed: float | None) -> str:
    return f"{gain:+.2f}" if closed is None else f"{gain:+.2f} ({closed:.0%})"


def as_markdown(points: Sequence[Point], policies: Sequence[str]) -> str:
    titles, lines = as_cells(points, policies)
    named = [f"`{title}`" if title in (LRU, BELADY, *policies) else title for title in titles]
    return "".join(f"| {' | '.join(line)} |\n" for line in [named, ["---"] * len(titles), *lines])


def as_record(point: Point, policies: Sequence[str]) -> dict[str, Any]:
    """A point for programs, with what is derived from it."""
    closed = {policy: point.closed(policy) for policy in policies}
    return {
        "trace": point.trace, "capacity_blocks": point.capacity_blocks,
        "prefix_percent": {policy: round(one, 4) for policy, one in point.percent.items()},
        "gain_points": {policy: round(point.gain(policy), 4) for policy in policies},
        "gap_closed": {policy: None if one is None else round(one, 4) for policy, one in closed.items()},
    }
