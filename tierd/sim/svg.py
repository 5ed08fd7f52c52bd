"""Elements of SVG, as text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from xml.sax.saxutils import escape


def document(width: int, height: int, elements: Iterable[str]) -> str:
    """A whole file: a white ground and what is drawn on it."""
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12">',
        f'<rect width="{width}" height="{height}" fill="white"/>', *elements, "</svg>", "",
    ])


def text(x: float, y: float, said: str, weight: str = "normal", anchor: str = "start", fill: str = "black") -> str:
    return (
        f'<text x="{_short(x)}" y="{_short(y)}" font-weight="{weight}" text-anchor="{anchor}" fill="{fill}">'
        f"{escape(said)}</text>"
    )


def rect(x: float, y: float, width: float, height: float, fill: str) -> str:
    size = f'width="{_short(width)}" height="{_short(height)}"'
    return f'<rect x="{_short(x)}" y="{_short(y)}" {size} fill="{fill}"/>'


def line(x1: float, y1: float, x2: float, y2: float, stroke: str = "#ddd") -> str:
    return f'<line x1="{_short(x1)}" y1="{_short(y1)}" x2="{_short(x2)}" y2="{_short(y2)}" stroke="{stroke}"/>'


def polyline(points: Sequence[tuple[float, float]], stroke: str, dashes: str = "none") -> str:
    places = " ".join(f"{_short(x)},{_short(y)}" for x, y in points)
    pen = f'fill="none" stroke="{stroke}" stroke-width="2" stroke-dasharray="{dashes}"'
    return f'<polyline points="{places}" {pen}/>'


def dot(x: float, y: float, fill: str) -> str:
    return f'<circle cx="{_short(x)}" cy="{_short(y)}" r="3" fill="{fill}"/>'


def _short(length: float) -> str:
    """To a tenth, without what says nothing."""
    return f"{round(length, 1):g}"
