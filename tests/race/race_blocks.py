"""What writer and readers of test_race.py agree on: the identities, their bytes, and the sizes of everything."""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray

from tierd.adapters.memory import HOST_SEGMENT_BASE, MemoryPlan

BLOCK_BYTES = 4096
IDENTITIES = 640
ABSENT = 64
"""Further identities, which nobody ever puts."""
SLOTS = 320
BATCH = 16
HOLDERS = (2, 3)
"""Sessions of readers that hold on to what they look at."""
_ROWS = 512

PLAN = MemoryPlan(
    catalog_rows=_ROWS, catalog_buckets=2 * _ROWS, ghost_rows=_ROWS, sessions=4, holds=64,
    host_segments=((HOST_SEGMENT_BASE, SLOTS * BLOCK_BYTES),),
)


def identity_of(number: int) -> bytes:
    return hashlib.blake2b(b"race-%d" % number, digest_size=32).digest()


def pattern_of(number: int) -> NDArray[np.uint8]:
    """The identity, again and again, each word mixed with its place: no word is the same in two blocks."""
    words = np.frombuffer(identity_of(number), np.uint64)
    places = np.arange(BLOCK_BYTES // 8, dtype=np.uint64)
    return (np.tile(words, BLOCK_BYTES // 32) ^ (places * np.uint64(0x9E3779B97F4A7C15))).view(np.uint8)


def all_identities() -> NDArray[np.uint8]:
    return np.frombuffer(b"".join(map(identity_of, range(IDENTITIES))), np.uint8).reshape(-1, 32)


def all_patterns() -> list[NDArray[np.uint8]]:
    return [pattern_of(number) for number in range(IDENTITIES)]
