"""Request traces: which blocks each request asked for, read from files of the two public formats.

Mooncake's JSON lines: one object a line with `timestamp` (ms) and `hash_ids` (ids of the prompt's blocks in
prefix order). Packed npz: request i is the ranges of `run_len[k]` ids from `run_start[k]`, for each k in
`run_off[i] .. run_off[i + 1] - 1`; its time is `ts[i]` (s). Which one a file is, its first bytes say.
"""

from __future__ import annotations

import json
import zipfile
from array import array
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tierd.core.errors import InvalidInput
from tierd_client.format import IDENTITY_BYTES, I64Array, U8Array

F64Array = NDArray[np.float64]

_ZIP_MAGIC = b"PK\x03\x04"
_ID_LIMIT = 1 << 63


@dataclass(frozen=True, slots=True)
class Trace:
    """Requests in order of arrival. Blocks are numbered 0 .. distinct - 1."""

    name: str
    blocks: I64Array
    """Blocks of all requests, concatenated, in prefix order within each."""
    offsets: I64Array
    """Request i is `blocks[offsets[i] : offsets[i + 1]]`."""
    times_s: F64Array
    """Seconds since the start of the trace, never decreasing."""
    distinct: int

    @property
    def requests(self) -> int:
        return len(self.offsets) - 1

    @property
    def accesses(self) -> int:
        return len(self.blocks)

    def request(self, number: int) -> I64Array:
        return self.blocks[self.offsets[number] : self.offsets[number + 1]]


def build_trace(name: str, ids: I64Array, lengths: I64Array, times_s: F64Array) -> Trace:
    """A trace of requests of `lengths` blocks each, whose ids (any integers) stand one after the other."""
    distinct, blocks = np.unique(ids, return_inverse=True)
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    steady = np.maximum.accumulate(times_s) if len(times_s) else times_s
    return Trace(name, blocks.astype(np.int64), offsets, steady, len(distinct))


def read_trace(path: Path) -> Trace:
    """Reads a trace file. InvalidInput names the file, the line (or array) and the field that is wrong."""
    try:
        with path.open("rb") as file:
            head = file.read(4)
    except OSError as error:
        raise InvalidInput(str(path), f"cannot be read: {error.strerror}") from error
    trace = _read_packed(path) if head == _ZIP_MAGIC else _read_lines(path)
    if trace.accesses == 0:
        raise InvalidInput(str(path), "holds no block accesses")
    return trace


def identities_of(distinct: int) -> U8Array:
    """Identities (distinct, 32) that stand for the blocks of a trace: four splitmix64 words each.

    They replace the hash of a block's tokens, which a trace does not have. Source of the mixing: Steele, Lea,
    Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014.
    """
    words = IDENTITY_BYTES // 8
    mixed = (np.arange(1, distinct * words + 1, dtype=np.uint64)) * np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed ^= mixed >> np.uint64(31)
    return mixed.astype("<u8").view(np.uint8).reshape(distinct, IDENTITY_BYTES)


def _read_lines(path: Path) -> Trace:
    ids = array("q")
    lengths = array("q")
    times_ms = array("d")
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            request = _parsed_line(path, number, line)
            times_ms.append(_timestamp(path, number, request))
            before = len(ids)
            _append_ids(path, number, request, ids)
            lengths.append(len(ids) - before)
    return build_trace(
        path.name, np.array(ids, np.int64), np.array(lengths, np.int64),
        np.array(times_ms, np.float64) / 1000.0,
    )


def _parsed_line(path: Path, number: int, line: bytes) -> dict[str, Any]:
    try:
        request = json.loads(line)
    except ValueError as error:
        raise InvalidInput(f"{path}:{number}", f"is not JSON ({error})") from error
    if not isinstance(request, dict):
        raise InvalidInput(f"{path}:{number}", "is not a JSON object")
    return request


def _timestamp(path: Path, number: int, request: Mapping[str, Any]) -> float:
    value = request.get("timestamp")
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 1e15:
        raise InvalidInput(f"{path}:{number}: timestamp", f"{value!r} is not a number of milliseconds")
    return float(value)


def _append_ids(path: Path, number: int, request: Mapping[str, Any], ids: array[int]) -> None:
    value = request.get("hash_ids")
    if not isinstance(value, list):
        raise InvalidInput(f"{path}:{number}: hash_ids", f"{value!r} is not a list of integers")
    for one in value:
        if type(one) is not int or not -_ID_LIMIT <= one < _ID_LIMIT:
            raise InvalidInput(f"{path}:{number}: hash_ids", f"{one!r} is not a 64-bit integer")
    ids.extend(value)


def _read_packed(path: Path) -> Trace:
    try:
        with np.load(path, allow_pickle=False) as arrays:
            starts = _integers(path, arrays, "run_start")
            runs = _integers(path, arrays, "run_len")
            bounds = _integers(path, arrays, "run_off")
            times_s = _seconds(path, arrays, len(bounds) - 1)
    except (zipfile.BadZipFile, EOFError, OSError, ValueError) as error:
        raise InvalidInput(str(path), f"is not a packed trace ({error})") from error
    _check_runs(path, starts, runs, bounds)
    run_ends = np.zeros(len(runs) + 1, np.int64)
    np.cumsum(runs, out=run_ends[1:])
    ids = np.repeat(starts - run_ends[:-1], runs) + np.arange(run_ends[-1])
    return build_trace(path.name, ids, np.diff(run_ends[bounds]), times_s)


def _integers(path: Path, arrays: Mapping[str, NDArray[Any]], field: str) -> I64Array:
    found = _vector(path, arrays, field)
    if found.dtype.kind not in "iu":
        raise InvalidInput(f"{path}: {field}", f"has dtype {found.dtype}, not integers")
    return found.astype(np.int64)


def _seconds(path: Path, arrays: Mapping[str, NDArray[Any]], requests: int) -> F64Array:
    found = _vector(path, arrays, "ts")
    if found.dtype.kind not in "iuf" or not np.isfinite(found).all():
        raise InvalidInput(f"{path}: ts", "must be finite numbers of seconds")
    if len(found) != requests:
        raise InvalidInput(f"{path}: ts", f"has {len(found)} entries for {requests} requests")
    return found.astype(np.float64)


def _vector(path: Path, arrays: Mapping[str, NDArray[Any]], field: str) -> NDArray[Any]:
    if field not in arrays:
        raise InvalidInput(f"{path}: {field}", "is missing")
    found = arrays[field]
    if found.ndim != 1:
        raise InvalidInput(f"{path}: {field}", f"has {found.ndim} dimensions, not one")
    return found


def _check_runs(path: Path, starts: I64Array, runs: I64Array, bounds: I64Array) -> None:
    if len(starts) != len(runs):
        raise InvalidInput(f"{path}: run_len", f"has {len(runs)} entries, run_start {len(starts)}")
    if (runs < 0).any():
        raise InvalidInput(f"{path}: run_len", f"entry {int(np.argmax(runs < 0))} is negative")
    if len(bounds) == 0 or bounds[0] != 0 or bounds[-1] != len(runs) or (np.diff(bounds) < 0).any():
        raise InvalidInput(f"{path}: run_off", f"must rise from 0 to the {len(runs)} entries of run_len")
