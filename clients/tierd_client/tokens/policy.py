"""What a policy over tokens is: columns of state per held token, how attention changes them, and a key.

The token with the lowest key goes first, on equal keys the lowest position. The newest `recent` tokens and the
first `sinks` positions of a sequence are never chosen. A policy is its parameters; the state is in `Slots`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from tierd_client import arguments
from tierd_client.errors import InvalidArgument

TOKENS_MAX = (1 << 31) - 1
"""Positions are int32."""

PADDING = -1
"""Position of a slot in which nothing is held: heads of one tensor may hold different numbers of tokens."""


class Column(NamedTuple):
    """State that a policy keeps per held token: `shape` values of `dtype`, `fresh` for a token just appended."""

    name: str
    dtype: torch.dtype
    fresh: float = 0
    shape: tuple[int, ...] = ()

    @property
    def bytes(self) -> int:
        return self.dtype.itemsize * math.prod(self.shape)


POSITION = Column("position", torch.int32)


@dataclass(slots=True)
class Slots:
    """State of the held tokens of all sequences and heads, in order of position, padding first.

    `columns[name]` is [batch, heads, slots, *shape]; `rows` counts the rows of attention observed so far.
    """

    columns: dict[str, Tensor]
    rows: int = 0

    @property
    def positions(self) -> Tensor:
        """Positions of the held tokens, int32 [batch, heads, slots]."""
        return self.columns[POSITION.name]


@dataclass(frozen=True)
class TokenPolicy:
    """Base of all policies. `budget`: tokens held per head. Raises InvalidArgument naming the parameter."""

    name: ClassVar[str]
    needs_attention: ClassVar[bool] = True
    budget: int

    def __post_init__(self) -> None:
        count("budget", self.budget, 1, TOKENS_MAX)

    @property
    def recent(self) -> int:
        """Newest tokens that are never chosen."""
        return 0

    @property
    def sinks(self) -> int:
        """First positions of the sequence that are never chosen."""
        return 0

    @property
    def columns(self) -> tuple[Column, ...]:
        """State beside the position."""
        return ()

    @property
    def bytes_per_slot(self) -> int:
        """Bytes of state per held token and head, the position's four included."""
        return POSITION.bytes + sum(column.bytes for column in self.columns)

    def observe(self, slots: Slots, weights: Tensor) -> None:
        """Takes in attention: float32 [batch, heads, rows, slots], oldest row first."""

    def keys(self, slots: Slots) -> Tensor:
        """A number per held token, [batch, heads, slots]: the lowest goes first, infinity never."""
        raise NotImplementedError


def count(name: str, value: Any, least: int, most: int) -> int:
    """A parameter that is a whole number within limits, and no bool."""
    if isinstance(value, bool):
        raise InvalidArgument(f"{name}: {value!r} is no whole number")
    return arguments.whole(value, name, least, most)


def share(name: str, value: Any, least: float, most: float) -> float:
    """A parameter that is a number within limits, and no bool."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidArgument(f"{name}: {value!r} is no number")
    if not least <= value <= most:  # nor is NaN
        raise InvalidArgument(f"{name}: {value!r} is not from {least:g} to {most:g}")
    return float(value)


def within_budget(name: str, value: Any, budget: int) -> int:
    """A number of protected tokens, fewer than the budget, so that there is a choice."""
    if count(name, value, 0, TOKENS_MAX) >= budget:
        raise InvalidArgument(f"{name}: {value} is not below the budget, {budget}")
    return int(value)


def choice(name: str, value: Any, allowed: tuple[str, ...]) -> str:
    """A parameter that is one of some names."""
    if value not in allowed:
        raise InvalidArgument(f"{name}: {value!r} is none of {', '.join(allowed)}")
    return str(value)


def rows_that_saw(rows: int, slots: int, device: torch.device) -> Tensor:
    """How many of the last `rows` causal rows could see each slot, int32 [slots]: the last row's own token was
    seen by one, the token before it by two, and so on up to all."""
    return torch.arange(slots, 0, -1, dtype=torch.int32, device=device).clamp_(max=rows)
