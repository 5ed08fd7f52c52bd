"""Lent pages: what a pool of them is, and which rows of a tier lie in an engine's own memory, by whose leave.

The address of a lent copy is a page of a pool: number of the pool (at least FIRST_POOL, so that it is no
segment of the daemon's) in the upper 16 bits, number of the page in the lower 48.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tierd_client.format import FIRST_POOL as FIRST_POOL
from tierd_client.format import OFFSET_BITS, I64Array, U64Array

HANDLE_BYTES = 64
"""Of a CUDA IPC memory handle."""


def page_address(pool: int, page: int) -> int:
    """Address of a page of a pool."""
    return (pool << OFFSET_BITS) | page


@dataclass(frozen=True, slots=True)
class Piece:
    """Where a part of every page of a pool lies: page p at `offset + p * stride` of region `region`, so many
    `bytes`."""

    region: int
    offset: int
    stride: int
    bytes: int


@dataclass(frozen=True, slots=True)
class CudaRegion:
    """Device memory of another process: a CUDA IPC handle (64 bytes) of an allocation, and where in it the region
    begins. `device`: UUID of the GPU."""

    device: str
    handle: bytes
    offset: int
    bytes: int


@dataclass(frozen=True, slots=True)
class PoolPlan:
    """Pages that a session lends: a block is the bytes of its page's pieces, one after the other.

    `regions`: numbers of shared-memory regions that the session passed, or CUDA memory. `fence`: such a region
    whose first word, 64 bits, only ever grows; None where pages are ready when they are adopted.
    """

    regions: tuple[int | CudaRegion, ...]
    pieces: tuple[Piece, ...]
    pages: int
    fence: int | None = None

    @property
    def page_bytes(self) -> int:
        return sum(piece.bytes for piece in self.pieces)


class Loans:
    """Lent copies of one tier, by row. They take none of the tier's bytes, and it chooses none of them."""

    def __init__(self, rows: int) -> None:
        self.lender: U64Array = np.zeros(rows, np.uint64)
        """Session that lends the copy of each row; 0: it is not lent."""
        self.fence: U64Array = np.zeros(rows, np.uint64)
        """What the pool's fence must have reached before the page is read; 0: it is ready."""
        self.recalled: NDArray[np.bool_] = np.zeros(rows, bool)
        """Its lender wants the page back: no move from it begins, and the copy goes with the last under way."""
        self.row_of: dict[int, int] = {}
        """Address of each lent page -> row."""
        self.saving: set[int] = set()
        """Rows for which a Withdraw has begun a copy down."""

    def begin(self, rows: I64Array, addresses: Sequence[int], lender: int, fences: U64Array) -> None:
        """Rows and addresses are distinct and not lent."""
        self.lender[rows], self.fence[rows] = lender, fences
        self.row_of.update(zip(addresses, rows.tolist(), strict=True))

    def end(self, rows: I64Array, addresses: U64Array) -> None:
        """Forgets loans; rows that are not lent are ignored."""
        lent = self.lender[rows] > 0
        for address in addresses[lent].tolist():
            del self.row_of[address]
        rows = rows[lent]
        self.lender[rows], self.fence[rows], self.recalled[rows] = 0, 0, False
        self.saving.difference_update(rows.tolist())

    def of(self, lender: int) -> I64Array:
        """Rows that a session lends."""
        return np.flatnonzero(self.lender == np.uint64(lender))

    def __len__(self) -> int:
        return len(self.row_of)
