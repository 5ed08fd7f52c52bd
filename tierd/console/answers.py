"""Answers for people (tables) and for programs (JSON): the same facts, in the same words."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import fields, is_dataclass
from enum import IntEnum, IntFlag
from typing import Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
SHORT_ID_DIGITS = 16
WIDEST_COLUMNS = 10_000
"""A width that no table needs."""


def print_json(value: Any) -> None:
    """One JSON document, alone on stdout."""
    typer.echo(json.dumps(plain(value), indent=2))


def plain(value: Any) -> Any:
    """What JSON can hold: bytes as hex, enum members as lower-case names, records as objects."""
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, dict):
        return {plain(key): plain(one) for key, one in value.items()}
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, IntFlag):
        return [member.name.lower() for member in type(value) if member and member in value and member.name]
    if isinstance(value, IntEnum):
        return value.name.lower()
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    return value


def print_table(
    columns: Sequence[str], rows: Iterable[Sequence[object]], *, left: int = 1, title: str = ""
) -> None:
    """A table; the first `left` columns are words, the others numbers. On a pipe it takes the width it needs."""
    console = Console()
    table = Table(title=title or None, title_justify="left", box=None, pad_edge=False, header_style="bold")
    for index, column in enumerate(columns):
        table.add_column(column, justify="left" if index < left else "right", no_wrap=True)
    for row in rows:
        table.add_row(*(Text(visible(str(cell))) for cell in row))
    if not console.is_terminal:
        unbounded = console.options.update(max_width=WIDEST_COLUMNS)
        console.width = max(console.width, console.measure(table, options=unbounded).maximum)
    console.print(table)


def visible(text: str) -> str:
    """Names are clients' words: what would move the cursor or break a line is shown as its escape."""
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)


def size(value: int) -> str:
    """Bytes with a binary unit, three digits or so."""
    amount = float(value)
    for unit in UNITS:
        if amount < 1024 or unit == UNITS[-1]:
            return f"{amount:.0f} B" if unit == "B" else f"{amount:.{1 if amount >= 100 else 2}f} {unit}"
        amount /= 1024
    raise AssertionError("the last unit takes everything")


def short(identity: bytes) -> str:
    """The beginning of an identity, enough to tell blocks apart and to be used as a --prefix."""
    return identity.hex()[:SHORT_ID_DIGITS]


def number(value: float) -> str:
    return f"{value:.6g}"
