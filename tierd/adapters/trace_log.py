"""The log of recorded requests: JSON lines in two files of bounded size, blocks by salted numbers.

Lines are those of Mooncake's traces: `timestamp` (ms since the recording began), `input_length` (tokens of the
blocks) and `hash_ids`; `reply_blocks`, where it is known that so many at the end were not asked for. A number is
the SipHash-2-4 of the first 8 bytes of an identity under a key that is made when the daemon starts and kept
nowhere: blocks can be told apart within a run, but neither recognised nor found in another.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

import numpy as np
import structlog

from tierd_client.format import I64Array, U64Array

log = structlog.get_logger(__name__)

NAME, OLD_NAME = "trace.jsonl", "trace.1.jsonl"
KEY_BYTES = 16
LOOKED_AT_BYTES = 1 << 16
"""At once, for the end of the last line."""
_INT63 = np.uint64((1 << 63) - 1)


class Recorded(Protocol):
    """A request: when (s, of any clock), and the first words of its blocks in order."""

    at_s: float
    block_tokens: int
    words: dict[int, None]
    replies: int


class TraceLog:
    """`trace.jsonl` in a directory; when it is half of `most_bytes` it becomes `trace.1.jsonl`, in place of the one
    before. Belongs to one thread."""

    def __init__(self, directory: Path, most_bytes: int) -> None:
        """Makes the directory. What an earlier run left in the first file is the second from now on: its numbers
        mean other blocks. It ends with its last whole line, and goes where it is larger than half. OSError."""
        self._path, self._old = directory / NAME, directory / OLD_NAME
        self._most_bytes = most_bytes // 2
        self._key = secrets.token_bytes(KEY_BYTES)
        self._began_s: float | None = None
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._turn()
        if self._old.exists():
            self._take_over()

    def write(self, requests: Iterable[Recorded]) -> None:
        """Appends requests, given in order of their beginning. OSError: then part of them, in whole lines."""
        lines = [self._line(request) for request in requests]
        size = self._path.stat().st_size if self._path.exists() else 0
        kept: list[bytes] = []
        fitting = [line for line in lines if len(line) <= self._most_bytes]
        if len(fitting) < len(lines):
            log.warning("trace_has_gaps", requests=len(lines) - len(fitting), reason="larger than one of its files")
        for line in fitting:
            if size + len(line) > self._most_bytes:
                self._append(kept)
                self._turn()
                kept, size = [], 0
            kept.append(line)
            size += len(line)
        self._append(kept)

    def _line(self, request: Recorded) -> bytes:
        if self._began_s is None:
            self._began_s = request.at_s
        words = np.fromiter(request.words, np.uint64, len(request.words))
        line = {
            "timestamp": max(0, round(1000 * (request.at_s - self._began_s))),
            "input_length": len(words) * request.block_tokens, "hash_ids": numbers_of(words, self._key).tolist(),
        }
        if request.replies:
            line["reply_blocks"] = request.replies
        return json.dumps(line, separators=(",", ":")).encode() + b"\n"

    def _append(self, lines: list[bytes]) -> None:
        if not lines:
            return
        file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            with os.fdopen(file, "ab") as out:
                out.writelines(lines)
        except OSError:  # of a disk that is full, say
            _end_with_a_line(self._path)
            raise

    def _take_over(self) -> None:
        if (size := self._old.stat().st_size) > self._most_bytes:
            log.warning("trace_removed", file=str(self._old), bytes=size, reason="larger than record_bytes allows")
            self._old.unlink()
        else:
            _end_with_a_line(self._old)

    def _turn(self) -> None:
        if self._path.exists():
            self._path.replace(self._old)


def _end_with_a_line(path: Path) -> None:
    """Cuts off what follows the last whole line, which nobody could read."""
    with path.open("rb+") as file:
        end = file.seek(0, os.SEEK_END)
        while end:
            start = max(0, end - LOOKED_AT_BYTES)
            file.seek(start)
            last = file.read(end - start).rfind(b"\n")
            if last >= 0:
                end = start + last + 1
                break
            end = start
        file.truncate(end)


def numbers_of(words: U64Array, key: bytes) -> I64Array:
    """Numbers of 63 bits: SipHash-2-4 of each word as 8 bytes, under a key of 16 bytes.

    Aumasson, Bernstein, "SipHash: a fast short-input PRF", INDOCRYPT 2012.
    """
    low, high = np.frombuffer(key, "<u8")
    start = [int(low) ^ 0x736F6D6570736575, int(high) ^ 0x646F72616E646F6D,
             int(low) ^ 0x6C7967656E657261, int(high) ^ 0x7465646279746573]
    state = [np.full(len(words), one, np.uint64) for one in start]
    for block in (words, np.full(len(words), 8 << 56, np.uint64)):
        state[3] ^= block
        _rounds(state, 2)
        state[0] ^= block
    state[2] ^= np.uint64(0xFF)
    _rounds(state, 4)
    mixed: U64Array = state[0] ^ state[1] ^ state[2] ^ state[3]
    return (mixed & _INT63).astype(np.int64)


def _rounds(state: list[U64Array], count: int) -> None:
    for _ in range(count):
        for first, second, bits in ((0, 1, 13), (2, 3, 16)):
            _half(state, first, second, bits)
        state[0] = _rotated(state[0], 32)
        for first, second, bits in ((2, 1, 17), (0, 3, 21)):
            _half(state, first, second, bits)
        state[2] = _rotated(state[2], 32)


def _half(state: list[U64Array], first: int, second: int, bits: int) -> None:
    state[first] = state[first] + state[second]
    state[second] = _rotated(state[second], bits) ^ state[first]


def _rotated(words: U64Array, bits: int) -> U64Array:
    rotated: U64Array = (words << np.uint64(bits)) | (words >> np.uint64(64 - bits))
    return rotated
