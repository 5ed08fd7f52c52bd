"""Arguments of callers, checked before anything is asked: InvalidArgument names the argument and its limits."""

from __future__ import annotations

import re
from numbers import Real
from operator import index
from typing import Any, TypeVar

from tierd_client.errors import InvalidArgument

TIMEOUT_S_MAX = 600.0
"""Most that a call may wait, here and in the daemon."""

NAME_BYTES_MAX = 256

ADDRESS_BYTES_MAX = 4096

_ADDRESS = re.compile(r"unix:(//)?/[^/].*|(dns:///)?[^/\s]+:[0-9]{1,5}")

M = TypeVar("M")


def seconds(value: Any, name: str, least: float = 0.0) -> float:
    """A time to wait, at most 600 s."""
    if not isinstance(value, Real) or isinstance(value, bool):
        raise InvalidArgument(f"{name}: {value!r} is no number of seconds")
    if not least <= float(value) <= TIMEOUT_S_MAX:  # nor is NaN
        raise InvalidArgument(f"{name}: {value!r} is not from {least:g} to {TIMEOUT_S_MAX:g} seconds")
    return float(value)


def number(value: Any, name: str, least: float, most: float) -> float:
    """A number within limits."""
    if not isinstance(value, Real) or isinstance(value, bool):
        raise InvalidArgument(f"{name}: {value!r} is no number")
    if not least <= float(value) <= most:  # nor is NaN
        raise InvalidArgument(f"{name}: {value!r} is not from {least:g} to {most:g}")
    return float(value)


def whole(value: Any, name: str, least: int, most: int) -> int:
    """A whole number within limits."""
    try:
        number = index(value)
    except TypeError as error:
        raise InvalidArgument(f"{name}: {value!r} is no whole number") from error
    if not least <= number <= most:
        raise InvalidArgument(f"{name}: {value!r} is not from {least:,} to {most:,}")
    return number


def text(value: Any, name: str, bytes_max: int = NAME_BYTES_MAX) -> str:
    """Text of at most so many bytes of UTF-8."""
    if not isinstance(value, str):
        raise InvalidArgument(f"{name}: {value!r} is no text")
    try:
        size = len(value.encode())
    except UnicodeEncodeError as error:
        raise InvalidArgument(f"{name}: {value!r} cannot be written as UTF-8") from error
    if size > bytes_max:
        raise InvalidArgument(f"{name}: {size} bytes, more than {bytes_max}")
    return value


def address(value: Any, name: str) -> str:
    """Where a daemon is, of a form that can lead to one."""
    if not _ADDRESS.fullmatch(text(value, name, ADDRESS_BYTES_MAX)):
        raise InvalidArgument(f"{name}: {value!r} is neither unix:///PATH nor HOST:PORT")
    return str(value)


def message(kind: type[M], **fields: Any) -> M:
    """A message of the wire from arguments of the same names."""
    try:
        return kind(**fields)
    except (TypeError, ValueError):
        for name, value in fields.items():
            try:
                kind(**{name: value})
            except (TypeError, ValueError) as error:
                raise InvalidArgument(f"{name}: {value!r} ({error})") from error
        raise
