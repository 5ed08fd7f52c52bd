"""The plot of BENCHMARKS.md: the median of one call over that of memcpy, in SVG."""

from __future__ import annotations

import math
from collections.abc import Sequence

from peer_figures import VERDICT_BLOCK_BYTES, Work, size_text
from peer_results import Result
from peer_subjects import OURS

from tierd.sim.svg import document, line, rect, text

WIDTH, LEFT, RIGHT = 900, 250, 50
BAR, GAP, HEAD = 13, 5, 34
DECADES = 3
"""Of the scale: up to a thousand times the limit."""
COLOURS = {"get": "#3572b0", "put": "#e08a3c"}
OURS_COLOURS = {"get": "#12395e", "put": "#a3520b"}

Bar = tuple[str, str, str, float]
"""Name, verb, colour, times the limit."""


def plot(results: Sequence[Result]) -> str:
    """Bars on a logarithmic scale, a group for each size of block; 1 is memcpy."""
    measured = [result for result in results if result.figures]
    lines, y = [], 30
    for block_bytes in VERDICT_BLOCK_BYTES:
        lines.append(text(10, y + 14, f"{size_text(block_bytes)}, one block a call", "bold"))
        y += HEAD - 12
        for bar in _bars(measured, block_bytes):
            lines += _drawn(bar, y)
            y += BAR + GAP
        y += HEAD - 14
    title = "Median time of a call over that of memcpy in the same run (logarithmic; less is better)"
    return document(WIDTH, y + 10, [text(10, 18, title), *_grid(y), *lines])


def _bars(results: Sequence[Result], block_bytes: int) -> list[Bar]:
    """tierd first, by its median over the runs, then each peer."""
    bars: list[Bar] = []
    for verb in ("get", "put"):
        work = Work(verb, block_bytes, 1)
        own = sorted(r.ours[work].p50_us / r.limit[work].p50_us for r in results if work in r.ours)
        if own:
            bars.append((OURS.title, verb, OURS_COLOURS[verb], own[len(own) // 2]))
        bars += [
            (r.subject.title, verb, COLOURS[verb], r.theirs[work].p50_us / r.limit[work].p50_us)
            for r in results if work in r.theirs and r.theirs[work].calls
        ]
    return bars


def _drawn(bar: Bar, y: int) -> list[str]:
    name, verb, colour, times = bar
    end = _x(times)
    return [
        text(LEFT - 6, y + BAR - 2, f"{name}: {verb}", anchor="end"),
        rect(LEFT, y, max(1.0, end - LEFT), BAR, colour),
        text(end + 4, y + BAR - 2, f"{times:.3g}"),
    ]


def _grid(bottom: int) -> list[str]:
    lines = []
    for power in range(DECADES):
        x = _x(10**power)
        lines.append(line(x, 26, x, bottom))
        lines.append(text(x, bottom + 4, f"{10**power}x", anchor="middle"))
    return lines


def _x(times: float) -> float:
    share = math.log10(max(times, 1.0)) / DECADES
    return LEFT + share * (WIDTH - LEFT - RIGHT)

