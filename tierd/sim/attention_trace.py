"""Recorded attention: per step of decoding, layer and head, how much each place of the context was given.

A file is a npz with one array of four axes [steps, layers, heads, places], of any floating point dtype. A place is
a token, or a block of tokens whose weights were summed. Places that a step's context does not have yet are 0 in it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tierd.core.errors import InvalidInput
from tierd.sim.packed import read_arrays

F32Array = NDArray[np.float32]
I64Array = NDArray[np.int64]

WEIGHTS_MAX = 1 << 30
"""Most weights of a trace: 4 GiB as float32."""

SUM_TOLERANCE = 0.01
"""By how much a row's sum may differ from 1: rows are stored in half precision."""


@dataclass(frozen=True)
class AttentionTrace:
    """`weights`: float32 [steps, layers, heads, places], each row of sum 1. `places`: of each step, int64 [steps],
    never decreasing."""

    name: str
    weights: F32Array
    places: I64Array

    @property
    def steps(self) -> int:
        return len(self.weights)


def attention_trace(name: str, weights: NDArray[np.floating]) -> AttentionTrace:
    """A trace of such weights, rows scaled to sum 1. InvalidInput where they are none."""
    if weights.ndim != 4 or not weights.size:
        raise InvalidInput(name, f"has shape {weights.shape}, not (steps, layers, heads, places)")
    if weights.dtype.kind != "f":
        raise InvalidInput(name, f"has dtype {weights.dtype}, not floating point")
    if weights.size > WEIGHTS_MAX:
        raise InvalidInput(name, f"has {weights.size:,} weights, more than {WEIGHTS_MAX:,}")
    exact = weights.astype(np.float32)
    sums = exact.sum(-1, keepdims=True)
    if not (exact >= 0).all() or not (np.abs(sums - 1) <= SUM_TOLERANCE).all():
        raise InvalidInput(name, "a row is not attention: weights of at least 0 whose sum is 1")
    last = [int(np.flatnonzero(step.any(axis=(0, 1)))[-1]) + 1 for step in exact]
    return AttentionTrace(name, exact / sums, np.maximum.accumulate(np.array(last, np.int64)))


def read_attention(path: Path) -> AttentionTrace:
    """Reads a file. InvalidInput names it and what is wrong."""
    found = read_arrays(path, "npz of attention")
    recorded = [one for one in found.values() if one.ndim == 4]
    if len(recorded) != 1:
        raise InvalidInput(str(path), f"holds {len(recorded)} arrays of four axes, not one")
    return attention_trace(str(path), recorded[0])
