"""Bytes of a stream on their way into the slots of its blocks, wherever the stream cuts them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import xxhash
from numpy.typing import NDArray

from tierd.core.errors import InvalidInput
from tierd.ports import ArenaStore
from tierd_client.format import U8Array, U64Array

Piece = tuple[int, int, U8Array]
"""Bytes of one block: its index, where in the block, what."""


class Filling:
    """Blocks of `size` bytes, of which those in `wanted` are written to `addresses` and the others passed over.

    `take` belongs to one thread, `write` to one at a time.
    """

    def __init__(
        self, arena: ArenaStore, size: int, wanted: NDArray[np.bool_], addresses: U64Array, checksums: U64Array
    ) -> None:
        self.corrupt = np.zeros(len(wanted), bool)
        """Blocks that did not have their checksum (xxh3_64)."""
        self._arena = arena
        self._size = size
        self._wanted: list[bool] = wanted.tolist()
        self._addresses: list[int] = addresses.tolist()
        self._checksums: list[int] = checksums.tolist()
        self._taken = 0
        self._checksum = xxhash.xxh3_64()

    def take(self, data: U8Array) -> list[Piece]:
        """The pieces of what came next. InvalidInput when it is more than the blocks' bytes."""
        if self._taken + len(data) > len(self._wanted) * self._size:
            problem = f"more bytes than the {len(self._wanted)} blocks of {self._size} that were announced"
            raise InvalidInput("data", problem)
        pieces = list(self._cut(data))
        self._taken += len(data)
        return pieces

    def _cut(self, data: U8Array) -> Iterator[Piece]:
        index, start = divmod(self._taken, self._size)
        done = 0
        while done < len(data):
            piece = data[done : done + self._size - start]
            if self._wanted[index]:
                yield index, start, piece
            index, start, done = index + 1, 0, done + len(piece)

    def end(self) -> None:
        """No more will come. InvalidInput when that is too early."""
        whole = len(self._wanted) * self._size
        if self._taken < whole:
            raise InvalidInput("data", f"ended after {self._taken} bytes of {whole}")

    def write(self, pieces: list[Piece]) -> None:
        """Writes pieces, in the order in which they came."""
        for index, start, data in pieces:
            if not start:
                self._checksum.reset()
            self._checksum.update(data.data)
            self._arena.write(self._addresses[index] + start, data)
            if start + len(data) == self._size:
                self.corrupt[index] = self._checksum.intdigest() != self._checksums[index]
