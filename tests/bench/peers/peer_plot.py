"""The plot of BENCHMARKS.md: the median of one call over that of memcpy, in SVG."""

from __future__ import annotations

import math
from collections.abc import Sequence
from xml.sax.saxutils import escape

from peer_figures import VERDICT_BLOCK_BYTES, Work, size_text
from peer_results import Result
from peer_subjects import OURS

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
        lines.append(_text(10, y + 14, f"{size_text(block_bytes)}, one block a call", "bold"))
        y += HEAD - 12
        for bar in _bars(measured, block_bytes):
            lines += _drawn(bar, y)
            y += BAR + GAP
        y += HEAD - 14
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{y + 10}" '
        f'viewBox="0 0 {WIDTH} {y + 10}" font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{y + 10}" fill="white"/>',
        _text(10, 18, "Median time of a call over that of memcpy in the same run (logarithmic; less is better)"),
        *_grid(y), *lines, "</svg>", "",
    ])


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
        _text(LEFT - 6, y + BAR - 2, f"{name}: {verb}", anchor="end"),
        f'<rect x="{LEFT}" y="{y}" width="{max(1.0, end - LEFT):.1f}" height="{BAR}" fill="{colour}"/>',
        _text(end + 4, y + BAR - 2, f"{times:.3g}"),
    ]


def _grid(bottom: int) -> list[str]:
    lines = []
    for power in range(DECADES):
        x = _x(10**power)
        lines.append(f'<line x1="{x:.1f}" y1="26" x2="{x:.1f}" y2="{bottom}" stroke="#ddd"/>')
        lines.append(_text(x, bottom + 4, f"{10**power}x", anchor="middle"))
    return lines


def _x(times: float) -> float:
    share = math.log10(max(times, 1.0)) / DECADES
    return LEFT + share * (WIDTH - LEFT - RIGHT)


def _text(x: float, y: float, text: str, weight: str = "normal", anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" font-weight="{weight}" text-anchor="{anchor}">{escape(text)}</text>'
