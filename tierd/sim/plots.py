"""Plots of what was replayed: hit rate by capacity, shares of the gap closed, and a map of two parameters."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tierd.sim import svg
from tierd.sim.compare import Point
from tierd.sim.rows import BELADY, Row

WIDTH, HEIGHT = 760, 420
LEFT, RIGHT, TOP, BOTTOM = 60, 24, 40, 46
LEGEND_ROW = 18
MOST_LETTERS = 12
COLOURS = ("#3572b0", "#e08a3c", "#4d9a4d", "#b04a4a", "#7a5aa6", "#8a6a50", "#c46aa6", "#5f8f94", "#999933")
OPTIMUM = "#222222"
CELL_WIDTH, CELL_HEIGHT = 104, 30
LOW, HIGH = (246, 226, 203), (33, 97, 140)
"""Colours of the least and the greatest value of a map."""


def hit_rates(rows: Sequence[Row]) -> str:
    """A line for each policy: prefix hits in percent over the capacity, which is drawn by its logarithm."""
    capacities = sorted({row.capacity_blocks for row in rows})
    policies = list(dict.fromkeys(row.policy for row in rows))
    top = _ceiling(max(row.prefix_percent for row in rows))
    low, high = math.log(capacities[0]), math.log(capacities[-1])

    def place(row: Row) -> tuple[float, float]:
        share = (math.log(row.capacity_blocks) - low) / (high - low) if high > low else 0.5
        return LEFT + share * (WIDTH - LEFT - RIGHT), _height(row.prefix_percent / top)

    drawn = [*_axes(top), svg.text(10, 20, f"{rows[0].trace}: prefix hits, % of blocks asked for", "bold")]
    for capacity in capacities:
        x, _ = place(next(row for row in rows if row.capacity_blocks == capacity))
        drawn.append(svg.text(x, HEIGHT - BOTTOM + 18, f"{capacity:,}", anchor="middle"))
    drawn.append(svg.text(WIDTH / 2, HEIGHT - 10, "capacity, blocks (logarithmic)", anchor="middle"))
    for number, policy in enumerate(policies):
        colour = OPTIMUM if policy.strip() == BELADY else _colour(number)
        points = sorted(place(row) for row in rows if row.policy == policy)
        drawn += [svg.polyline(points, colour, "5,4" if colour == OPTIMUM else "none")]
        drawn += [svg.dot(x, y, colour) for x, y in points]
        drawn += _legend(number, colour, policy)
    return svg.document(WIDTH, HEIGHT + len(policies) * LEGEND_ROW + 8, drawn)


def shares_closed(points: Sequence[Point], policies: Sequence[str]) -> str:
    """Bars for each point: what share of the way from lru to the optimum each policy goes, in percent."""
    closed = [[100 * (point.closed(policy) or 0.0) for policy in policies] for point in points]
    top = _ceiling(max(map(max, closed)))
    least = -_ceiling(-min(map(min, closed))) if min(map(min, closed)) < 0 else 0.0
    drawn = [svg.text(10, 20, "share of the gap between lru and belady that is closed, %", "bold")]
    drawn += _axes(top, least)
    group = (WIDTH - LEFT - RIGHT) / len(points)
    bar = group / (len(policies) + 1)
    for number, (point, shares) in enumerate(zip(points, closed, strict=True)):
        left = LEFT + number * group
        drawn.append(svg.text(left + group / 2, HEIGHT - BOTTOM + 18, _short_name(point.trace), anchor="middle"))
        drawn.append(svg.text(left + group / 2, HEIGHT - BOTTOM + 34, point.capacity, anchor="middle"))
        for place, share in enumerate(shares):
            ends = sorted(_height((value - least) / (top - least)) for value in (0.0, share))
            drawn.append(svg.rect(left + (place + 0.5) * bar, ends[0], bar - 2, ends[1] - ends[0], _colour(place)))
    for number, policy in enumerate(policies):
        drawn += _legend(number, _colour(number), policy)
    return svg.document(WIDTH, HEIGHT + len(policies) * LEGEND_ROW + 8, drawn)


def _colour(number: int) -> str:
    return COLOURS[number % len(COLOURS)]


def _short_name(trace: str) -> str:
    """What fits under a group of bars."""
    name = trace.partition("(")[0].partition(".")[0]
    return name if len(name) <= MOST_LETTERS else name[: MOST_LETTERS - 1] + "\u2026"


def _legend(number: int, colour: str, policy: str) -> list[str]:
    y = HEIGHT + number * LEGEND_ROW
    return [svg.rect(LEFT, y, 14, 10, colour), svg.text(LEFT + 22, y + 9, policy)]


def heat_map(
    title: str, row_name: str, row_labels: Sequence[str], column_name: str, column_labels: Sequence[str],
    values: Sequence[Sequence[float]], labels: Sequence[Sequence[str]],
) -> str:
    """A cell for each pair, coloured by its value, with its label; that of the greatest in bold."""
    low, high = min(map(min, values)), max(map(max, values))
    left, top = 120, 70
    drawn = [svg.text(10, 20, title, "bold"), svg.text(10, top - 8, row_name),
             svg.text(left, top - 28, column_name)]
    for column, label in enumerate(column_labels):
        drawn.append(svg.text(left + (column + 0.5) * CELL_WIDTH, top - 8, label, anchor="middle"))
    for number, (label, cells) in enumerate(zip(row_labels, values, strict=True)):
        y = top + number * CELL_HEIGHT
        drawn.append(svg.text(left - 8, y + 20, label, anchor="end"))
        for column, value in enumerate(cells):
            share = (value - low) / (high - low) if high > low else 0.0
            x = left + column * CELL_WIDTH
            drawn.append(svg.rect(x, y, CELL_WIDTH - 1, CELL_HEIGHT - 1, _between(share)))
            drawn.append(svg.text(
                x + CELL_WIDTH / 2, y + 20, labels[number][column], "bold" if value == high else "normal", "middle",
                "white" if share > 0.6 else "black",
            ))
    width = max(WIDTH // 2, left + len(column_labels) * CELL_WIDTH + 10)
    return svg.document(width, top + len(row_labels) * CELL_HEIGHT + 12, drawn)


def _axes(top: float, least: float = 0.0) -> list[str]:
    drawn = []
    for step in range(6):
        y = _height(step / 5)
        drawn.append(svg.line(LEFT, y, WIDTH - RIGHT, y))
        drawn.append(svg.text(LEFT - 8, y + 4, f"{least + (top - least) * step / 5:g}", anchor="end"))
    return drawn


def _height(share: float) -> float:
    return HEIGHT - BOTTOM - share * (HEIGHT - BOTTOM - TOP)


def _ceiling(value: float) -> float:
    """The next multiple of 5 above a percentage."""
    return max(5.0, 5.0 * math.ceil(value / 5.0))


def _between(share: float) -> str:
    red, green, blue = (round(low + share * (high - low)) for low, high in zip(LOW, HIGH, strict=True))
    return f"#{red:02x}{green:02x}{blue:02x}"
