"""What made traces are made of: parameters with ranges, chances, ids and requests of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from typing import Any, ClassVar, Protocol

import numpy as np

from tierd.sim.traces import BLOCK_TOKENS, F64Array, Trace, build_trace
from tierd_client.format import I64Array


class Workload(Protocol):
    """A frozen dataclass whose fields are its parameters; their ranges are in the fields' metadata."""

    name: ClassVar[str]

    def accesses(self) -> float:
        """About how many blocks will be asked for and stored."""

    def make(self) -> Trace:
        """The trace, named later."""


def within(default: float, low: float, high: float) -> Any:
    """A field of that type and range."""
    return field(default=default, metadata={"low": low, "high": high})


def zipf(count: int, exponent: float) -> F64Array:
    """Probabilities of ranks 1 to `count`."""
    weights: F64Array = 1.0 / np.arange(1, count + 1, dtype=np.float64) ** exponent
    weights /= weights.sum()
    return weights


class FreshIds:
    """Ids that nobody was given before."""

    def __init__(self) -> None:
        self._next = 0

    def take(self, count: int) -> I64Array:
        self._next += count
        return np.arange(self._next - count, self._next)

    def chains(self, lengths: I64Array) -> list[I64Array]:
        """One chain of ids of each length."""
        return [self.take(length) for length in lengths.tolist()]


def of_requests(
    requests: Sequence[I64Array], times_s: Sequence[float] | None = None, block_tokens: int = BLOCK_TOKENS
) -> Trace:
    """Requests of these ids, one a second where nothing is said of their times."""
    lengths = np.array([len(one) for one in requests])
    times = np.arange(len(requests), dtype=np.float64) if times_s is None else np.array(times_s)
    return build_trace("", np.concatenate(requests), lengths, times, block_tokens)


def of_runs(starts: I64Array, runs: I64Array, lengths: I64Array) -> Trace:
    """Requests made of runs of ids, one a second."""
    ends = np.cumsum(runs)
    ids = np.repeat(starts - (ends - runs), runs) + np.arange(ends[-1] if len(ends) else 0)
    return at_one_second(ids, lengths)


def at_one_second(ids: I64Array, lengths: I64Array) -> Trace:
    return build_trace("", ids, lengths, np.arange(len(lengths), dtype=np.float64))
