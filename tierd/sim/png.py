"""A picture made of the elements of svg.py, as PNG: drawn by Pillow, which the extra `plots` brings."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator
from importlib.util import find_spec
from itertools import pairwise
from math import hypot
from typing import TYPE_CHECKING
from xml.etree import ElementTree

from tierd.core.errors import InvalidInput

if TYPE_CHECKING:
    from PIL.ImageDraw import ImageDraw

PIXELS = 2
"""Of the PNG, each way, for one of the SVG."""
_OVERSAMPLED = 2
_SCALE = PIXELS * _OVERSAMPLED
_FONT_SIZE = 12
_ANCHORS = {"start": "ls", "middle": "ms", "end": "rs"}

Point = tuple[float, float]


def check_drawable(asked_by: str) -> None:
    """InvalidInput of the option `asked_by` where Pillow is not installed."""
    if find_spec("PIL") is None:
        raise InvalidInput(asked_by, "PNG needs Pillow: pip install 'tierd[plots]'; SVG needs nothing")


def as_png(document: str) -> bytes:
    """An SVG document of svg.py, drawn at PIXELS times its size."""
    from PIL import Image, ImageDraw

    root = ElementTree.fromstring(document)
    width, height = (round(float(root.attrib[side])) for side in ("width", "height"))
    image = Image.new("RGB", (width * _SCALE, height * _SCALE), "white")
    pen = ImageDraw.Draw(image)
    for element in root:
        _DRAWN[element.tag.partition("}")[2]](pen, element)
    drawn = io.BytesIO()
    image.reduce(_OVERSAMPLED).save(drawn, "PNG", optimize=True)
    return drawn.getvalue()


def _numbers(element: ElementTree.Element, *names: str) -> list[float]:
    """Lengths of the SVG, in pixels of the canvas."""
    return [_SCALE * float(element.get(name, 0)) for name in names]


def _rect(pen: ImageDraw, element: ElementTree.Element) -> None:
    x, y, width, height = _numbers(element, "x", "y", "width", "height")
    pen.rectangle((x, y, x + width - 1, y + height - 1), fill=element.get("fill"))


def _text(pen: ImageDraw, element: ElementTree.Element) -> None:
    from PIL.ImageFont import load_default

    x, y = _numbers(element, "x", "y")
    pen.text(
        (x, y), element.text or "", element.get("fill"), load_default(_FONT_SIZE * _SCALE),
        _ANCHORS[element.get("text-anchor", "start")], stroke_width=element.get("font-weight") == "bold",
    )


def _line(pen: ImageDraw, element: ElementTree.Element) -> None:
    pen.line(_numbers(element, "x1", "y1", "x2", "y2"), element.get("stroke"), _SCALE)


def _polyline(pen: ImageDraw, element: ElementTree.Element) -> None:
    points = [
        (_SCALE * float(x), _SCALE * float(y))
        for x, _, y in (place.partition(",") for place in element.get("points", "").split())
    ]
    width = round(_SCALE * float(element.get("stroke-width", 1)))
    dashes = element.get("stroke-dasharray", "none")
    pieces = [points] if dashes == "none" else _dashed(points, *map(float, dashes.split(",")))
    for piece in pieces:
        pen.line(piece, element.get("stroke"), width, joint="curve")


def _dashed(points: Iterable[Point], dash: float, gap: float) -> Iterator[list[Point]]:
    """The dashes along a line, which begin anew at each of its points."""
    for (x, y), (next_x, next_y) in pairwise(points):
        length = hypot(next_x - x, next_y - y)
        start = 0.0
        while start < length:
            ends = (start, min(length, start + _SCALE * dash))
            yield [(x + (next_x - x) * at / length, y + (next_y - y) * at / length) for at in ends]
            start += _SCALE * (dash + gap)


def _circle(pen: ImageDraw, element: ElementTree.Element) -> None:
    x, y, radius = _numbers(element, "cx", "cy", "r")
    pen.ellipse((x - radius, y - radius, x + radius, y + radius), fill=element.get("fill"))


_DRAWN = {"rect": _rect, "text": _text, "line": _line, "polyline": _polyline, "circle": _circle}
