"""Request traces: which blocks each request asked for, read from files of the public formats.

JSON lines: one object a line with `timestamp` (ms, as Mooncake has it; s where the line names a `chat_id`, as the
Bailian traces of 16-token blocks do), `hash_ids` (ids of the prompt's blocks in prefix order), to tell what a block
is, `input_length` (tokens) and, where the last ids are of the answer, `reply_blocks`. Packed npz: request i is the
ranges of `run_len[k]` ids from `run_start[k]`, for each k in `run_off[i] .. run_off[i + 1] - 1`; its time is
`ts[i]` (s), `bt` tokens make a block. Which one a file is, its first bytes say. Arrivals alone come from CSV files
with a column `TIMESTAMP`, as Azure publishes them.
"""

from __future__ import annotations

import csv
import json
from array import array
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tierd.core.errors import InvalidInput
from tierd.core.shadow import splitmix64
from tierd.sim.packed import read_arrays
from tierd_client.format import IDENTITY_BYTES, I64Array, U8Array

F64Array = NDArray[np.float64]

BLOCK_TOKENS = 16
"""Of a trace that does not say."""
MOST_BLOCK_TOKENS = 1 << 16

_ZIP_MAGIC = b"PK\x03\x04"
_ID_LIMIT = 1 << 63
MOST_SECONDS = 1e12
"""Of a time: steps of the clock are 64-bit integers, a million a second at most."""
MOST_ACCESSES = 1 << 28
"""Of a packed file, which can name more blocks than there is memory for; each takes 8 bytes, some four times."""


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
    block_tokens: int = BLOCK_TOKENS
    replies: I64Array | None = None
    """Of each request's blocks, how many at its end are the answer: stored, not asked for. None: of none any."""
    chained: bool = True
    """Each block of a request is the parent of the next; else they have nothing to do with one another."""

    @property
    def requests(self) -> int:
        return len(self.offsets) - 1

    @property
    def asked(self) -> I64Array:
        """Of each request, the number of blocks that it asks for."""
        lengths: I64Array = np.diff(self.offsets)
        return lengths if self.replies is None else lengths - self.replies

    @property
    def accesses(self) -> int:
        return int(self.asked.sum())

    def request(self, number: int) -> I64Array:
        return self.blocks[self.offsets[number] : self.offsets[number + 1]]


def build_trace(
    name: str, ids: I64Array, lengths: I64Array, times_s: F64Array, block_tokens: int = BLOCK_TOKENS
) -> Trace:
    """A trace of requests of `lengths` blocks each, whose ids (any integers) stand one after the other. Blocks are
    numbered in the order of the ids."""
    distinct, blocks = np.unique(ids, return_inverse=True)
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    steady = np.maximum.accumulate(times_s) if len(times_s) else times_s
    return Trace(name, blocks.astype(np.int64), offsets, steady, len(distinct), block_tokens)


def head_of(trace: Trace, requests: int) -> Trace:
    """The first so many requests, as a trace of their own blocks."""
    offsets = trace.offsets[: requests + 1]
    head = build_trace(
        trace.name, trace.blocks[: offsets[-1]], np.diff(offsets), trace.times_s[:requests], trace.block_tokens
    )
    replies = None if trace.replies is None else trace.replies[:requests]
    return replace(head, replies=replies, chained=trace.chained)


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


def with_arrivals(trace: Trace, path: Path) -> Trace:
    """The same requests at the times of a CSV file, over again when the file has fewer than the trace."""
    times_s = read_arrivals(path)
    rounds, place = np.divmod(np.arange(trace.requests), len(times_s))
    mean_gap = times_s[-1] / max(1, len(times_s) - 1)
    return replace(trace, times_s=times_s[place] + rounds * (times_s[-1] + mean_gap))


def read_arrivals(path: Path) -> F64Array:
    """Seconds since the first of the times in the column TIMESTAMP of a CSV file, in ascending order."""
    times = array("d")
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            for number, row in enumerate(csv.DictReader(file), 2):
                times.append(_moment(path, number, row.get("TIMESTAMP")))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InvalidInput(str(path), f"cannot be read as CSV: {error}") from error
    if not times:
        raise InvalidInput(str(path), "holds no arrivals")
    seconds: F64Array = np.sort(np.array(times, np.float64))
    seconds -= seconds[0]
    return seconds


def _moment(path: Path, number: int, text: str | None) -> float:
    """Seconds since 1970 of a time as Azure writes it, with up to seven digits of a second."""
    head, _, fraction = (text or "").strip().partition(".")
    try:
        return datetime.fromisoformat(f"{head}+00:00").timestamp() + float(f"0.{fraction.rstrip('Z') or 0}")
    except ValueError as error:
        raise InvalidInput(f"{path}:{number}: TIMESTAMP", f"{text!r} is not a time") from error


def identities_of(distinct: int) -> U8Array:
    """Identities (distinct, 32) that stand for the blocks of a trace: four splitmix64 words each.

    They replace the hash of a block's tokens, which a trace does not have.
    """
    words = np.arange(1, distinct * (IDENTITY_BYTES // 8) + 1, dtype=np.uint64)
    return splitmix64(words).astype("<u8").view(np.uint8).reshape(distinct, IDENTITY_BYTES)


def _read_lines(path: Path) -> Trace:
    ids = array("q")
    lengths, replies = array("q"), array("q")
    times_s = array("d")
    block_tokens = 0
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            request = _parsed_line(path, number, line)
            times_s.append(_timestamp(path, number, request))
            before = len(ids)
            _append_ids(path, number, request, ids)
            lengths.append(len(ids) - before)
            replies.append(_reply_blocks(path, number, request, lengths[-1]))
            block_tokens = max(block_tokens, _tokens_a_block(request.get("input_length"), lengths[-1]))
    trace = build_trace(
        path.name, np.array(ids, np.int64), np.array(lengths, np.int64), np.array(times_s, np.float64),
        block_tokens or BLOCK_TOKENS,
    )
    return replace(trace, replies=np.array(replies, np.int64)) if any(replies) else trace


def _tokens_a_block(input_tokens: Any, blocks: int) -> int:
    """The power of two that this request's blocks have at least in tokens; 0 when it does not say."""
    if type(input_tokens) is not int or not blocks or not 0 < input_tokens <= MOST_BLOCK_TOKENS * blocks:
        return 0
    return 1 << (-(-input_tokens // blocks) - 1).bit_length()


def _reply_blocks(path: Path, number: int, request: Mapping[str, Any], blocks: int) -> int:
    value = request.get("reply_blocks", 0)
    if type(value) is not int or not 0 <= value <= blocks:
        raise InvalidInput(f"{path}:{number}: reply_blocks", f"{value!r} is no number of its {blocks} blocks")
    return value


def _parsed_line(path: Path, number: int, line: bytes) -> dict[str, Any]:
    try:
        request = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"{path}:{number}", f"is not JSON ({error})") from error
    if not isinstance(request, dict):
        raise InvalidInput(f"{path}:{number}", "is not a JSON object")
    return request


def _timestamp(path: Path, number: int, request: Mapping[str, Any]) -> float:
    value = request.get("timestamp")
    unit = 1.0 if "chat_id" in request else 1000.0
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < MOST_SECONDS * unit:
        raise InvalidInput(f"{path}:{number}: timestamp", f"{value!r} is not a time")
    return value / unit


def _append_ids(path: Path, number: int, request: Mapping[str, Any], ids: array[int]) -> None:
    value = request.get("hash_ids")
    if not isinstance(value, list):
        raise InvalidInput(f"{path}:{number}: hash_ids", f"{value!r} is not a list of integers")
    for one in value:
        if type(one) is not int or not -_ID_LIMIT <= one < _ID_LIMIT:
            raise InvalidInput(f"{path}:{number}: hash_ids", f"{one!r} is not a 64-bit integer")
    ids.extend(value)


def _read_packed(path: Path) -> Trace:
    arrays = read_arrays(path, "packed trace", ("run_start", "run_len", "run_off", "ts", "bt"))
    starts = _integers(path, arrays, "run_start")
    runs = _integers(path, arrays, "run_len")
    bounds = _integers(path, arrays, "run_off")
    _check_runs(path, starts, runs, bounds)
    times_s = _seconds(path, arrays, len(bounds) - 1)
    block_tokens = _block_tokens(path, arrays)
    run_ends = np.zeros(len(runs) + 1, np.int64)
    np.cumsum(runs, out=run_ends[1:])
    ids = np.repeat(starts - run_ends[:-1], runs) + np.arange(run_ends[-1])
    return build_trace(path.name, ids, np.diff(run_ends[bounds]), times_s, block_tokens)


def _block_tokens(path: Path, arrays: Mapping[str, NDArray[Any]]) -> int:
    if "bt" not in arrays:
        return BLOCK_TOKENS
    found = arrays["bt"]
    if found.size != 1 or found.dtype.kind not in "iu" or not 1 <= int(found.flat[0]) <= MOST_BLOCK_TOKENS:
        raise InvalidInput(f"{path}: bt", f"is not one number of tokens from 1 to {MOST_BLOCK_TOKENS}")
    return int(found.flat[0])


def _integers(path: Path, arrays: Mapping[str, NDArray[Any]], field: str) -> I64Array:
    found = _vector(path, arrays, field)
    if found.dtype.kind not in "iu":
        raise InvalidInput(f"{path}: {field}", f"has dtype {found.dtype}, not integers")
    if len(found) and int(found.max()) >= _ID_LIMIT:
        raise InvalidInput(f"{path}: {field}", f"entry {int(found.argmax())} is no signed 64-bit integer")
    return found.astype(np.int64)


def _seconds(path: Path, arrays: Mapping[str, NDArray[Any]], requests: int) -> F64Array:
    found = _vector(path, arrays, "ts")
    if found.dtype.kind not in "iuf" or not (np.abs(found.astype(np.float64)) < MOST_SECONDS).all():
        raise InvalidInput(f"{path}: ts", f"must be numbers of seconds below {MOST_SECONDS:g}")
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
    if (total := runs.sum(dtype=np.float64)) > MOST_ACCESSES:
        raise InvalidInput(f"{path}: run_len", f"names {total:.3g} blocks, over {MOST_ACCESSES:,}")
    if (beyond := starts > _ID_LIMIT - 1 - runs).any():
        raise InvalidInput(f"{path}: run_start", f"entry {int(np.argmax(beyond))} leads beyond 64-bit integers")
    if len(bounds) == 0 or bounds[0] != 0 or bounds[-1] != len(runs) or (np.diff(bounds) < 0).any():
        raise InvalidInput(f"{path}: run_off", f"must rise from 0 to the {len(runs)} entries of run_len")
