"""Repetitions of several things in turn, and what their times say of each other."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np

from tierd.core.errors import TierdError
from tierd.interrupts import check_interrupt

MIB, GIB = 1 << 20, 1 << 30
LAST_LEVEL_CACHE = Path("/sys/devices/system/cpu/cpu0/cache/index3/size")
CACHES_IN_SET = 4
WORKING_SET_BYTES = 256 * MIB
WORKING_SET_BYTES_MAX = 2048 * MIB

T = TypeVar("T")

Timed = Callable[[], float]
"""Does one repetition of a thing; seconds of the part of it that counts."""


class WrongBytes(TierdError):
    """What was read is not what was stored: no figure of such a run means anything."""


@dataclass(frozen=True, slots=True)
class Result:
    """Median and spread (distance of the quartiles) of the repetitions of a figure."""

    value: float
    spread: float

    @classmethod
    def of(cls, samples: Iterable[float]) -> Result:
        low, middle, high = np.quantile(np.fromiter(samples, np.float64), (0.25, 0.5, 0.75)).tolist()
        return cls(middle, high - low)


Measured = Mapping[str, Result]
"""Results by the names of their figures."""


@dataclass(frozen=True, slots=True)
class Scale:
    """How much is measured. Quick runs show that everything works; their figures mean little."""

    repetitions: int
    working_set_bytes: int
    identities: int

    @classmethod
    def full(cls) -> Scale:
        cold = min(WORKING_SET_BYTES_MAX, max(WORKING_SET_BYTES, CACHES_IN_SET * last_level_cache_bytes()))
        return cls(40, cold, 1 << 20)

    @classmethod
    def quick(cls) -> Scale:
        return cls(4, 64 * MIB, 1 << 15)


def alternate(things: Mapping[str, Callable[[], T]], repetitions: int) -> dict[str, list[T]]:
    """What each repetition of each thing took. All take turns, each time beginning with the next one, so that
    a slow moment of the machine hits them alike; the first round warms up and does not count."""
    names = list(things)
    taken: dict[str, list[T]] = {name: [] for name in names}
    for repetition in range(repetitions + 1):
        check_interrupt()
        first = repetition % len(names)
        for name in names[first:] + names[:first]:
            taken[name].append(things[name]())
    return {name: each[1:] for name, each in taken.items()}


def ratio(numerators: Iterable[float], denominators: Iterable[float]) -> Result:
    """Of the ratios within each repetition."""
    return Result.of(a / b for a, b in zip(numerators, denominators, strict=True))


def last_level_cache_bytes() -> int:
    """0 where the kernel does not say it."""
    try:
        return int(LAST_LEVEL_CACHE.read_text().strip().removesuffix("K")) << 10
    except (OSError, ValueError):
        return 0
