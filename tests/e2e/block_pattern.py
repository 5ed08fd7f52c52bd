"""Blocks whose bytes follow from their number, cheap to make and to compare; no two have a page in common."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_GOLDEN = 0x9E3779B97F4A7C15
_WORD = (1 << 64) - 1


def pattern(number: int, size: int) -> NDArray[np.uint8]:
    """The bytes of block `number`: every word depends on the number and on its place."""
    words = np.arange(1, size // 8 + 1, dtype=np.uint64) * np.uint64(2 * number + 1)
    words += np.uint64((number * _GOLDEN) & _WORD)
    words ^= words >> np.uint64(31)
    return (words * np.uint64(_GOLDEN)).view(np.uint8)


def wrong_bytes(block: NDArray[np.uint8], number: int) -> int:
    """How many bytes of a block are not those of its number."""
    return int(np.count_nonzero(np.asarray(block).view(np.uint8).ravel() != pattern(number, block.nbytes)))
