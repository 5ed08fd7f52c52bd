"""Blocks of random bytes to be moved, and buffers for them that are poisoned before and compared after."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from tierd.adapters.shm import Populator, SharedDirectory, WantedFile
from tierd.bench.measuring import WrongBytes
from tierd_client.format import IDENTITY_BYTES, I64Array, U8Array
from tierd_client.identity import Identities

POISON = 0xA5
SEED = 20261130


def random_blocks(count: int, block_bytes: int, seed: int = SEED) -> U8Array:
    """Shape (count, block_bytes)."""
    words = np.random.default_rng(seed).integers(0, 1 << 64, count * block_bytes // 8, np.uint64)
    return words.view(np.uint8).reshape(count, block_bytes)


def fresh_ids(rng: np.random.Generator, count: int) -> Identities:
    """Free-standing identities that nobody has used."""
    return Identities(rng.integers(0, 256, (count, IDENTITY_BYTES), np.uint8))


class Rotation:
    """Numbers below `count` in a random order, again and again: each comes back only after all the others, so
    that what it stands for has left the caches."""

    def __init__(self, count: int, seed: int) -> None:
        self._order = np.random.default_rng(seed).permutation(count)
        self._at = 0

    def next(self, count: int) -> I64Array:
        chosen = self._order.take(np.arange(self._at, self._at + count), mode="wrap")
        self._at += count
        return chosen


class Destinations:
    """Buffers that each take one block between two checks, and are poisoned before."""

    def __init__(self, data: U8Array) -> None:
        """`data`: what the blocks hold, by their numbers; there are as many buffers."""
        self._data = data
        self._ring = np.empty_like(data)
        self._ring.fill(POISON)
        self._expected: list[int] = []

    @property
    def blocks(self) -> int:
        return len(self._data)

    def take(self, blocks: I64Array) -> U8Array:
        """Buffers for these blocks, shape (n, block_bytes). Checks the others where they are used up."""
        start, end = len(self._expected), len(self._expected) + len(blocks)
        if end > len(self._ring):
            self.check()
            start, end = 0, len(blocks)
        self._expected += blocks.tolist()
        return self._ring[start:end]

    def check(self) -> None:
        """Compares every buffer that was taken with its block, and poisons it anew. Raises WrongBytes."""
        for place, number in enumerate(self._expected):
            if not np.array_equal(self._ring[place], self._data[number]):
                raise WrongBytes(f"block {number} did not come out as it was stored")
        self._ring[: len(self._expected)].fill(POISON)
        self._expected.clear()


@contextmanager
def shared_twin(data: U8Array, shm_dir: Path) -> Iterator[U8Array]:
    """The same bytes in memory of the same kind as the host tier's: a populated file beside the daemon's."""
    directory, name = SharedDirectory(shm_dir, bytes(16)), "limit"
    file = directory.replace([WantedFile(name, data.nbytes, "the benchmark")])[name]
    try:
        populator = Populator([file.array()], lambda *_: None)
        populator.start()
        populator.join(60.0)
        twin = file.array().reshape(data.shape)
        np.copyto(twin, data)
        yield twin
        del twin
    finally:
        file.close()
        directory.remove([name])
