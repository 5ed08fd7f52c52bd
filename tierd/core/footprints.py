"""How much room a stored block takes where there is no arena: what its server allocates for the value, once learnt.

Until then whole pages are assumed, as in an arena.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tierd.core.arena import slot_bytes, slots_of
from tierd.core.arrays import every
from tierd_client.format import I64Array

SIZES_MAX = 64
"""Most sizes of blocks of which it is known. Of any further one whole pages are assumed."""


class Footprints:
    """Bytes by size of a block, with the wall time (s) when each was learnt."""

    def __init__(self) -> None:
        self._bytes: dict[int, int] = {}
        self._learnt_s: dict[int, float] = {}
        self._sizes: I64Array = np.empty(0, np.int64)
        self._taken: I64Array = np.empty(0, np.int64)

    @property
    def learnt(self) -> dict[int, int]:
        """Bytes that a block takes, by its size, the smallest first."""
        return dict(self._bytes)

    def of(self, size: int) -> int:
        """Bytes that a block of `size` bytes takes."""
        return self._bytes.get(size) or slot_bytes(size)

    def each(self, sizes: NDArray[Any]) -> I64Array:
        """Bytes that blocks of these sizes take."""
        taken = slots_of(sizes)
        if self._bytes:
            at = np.searchsorted(self._sizes, sizes)
            at[at == len(self._sizes)] = 0
            known = self._sizes[at] == sizes
            taken[known] = self._taken[at[known]]
        return taken

    def total(self, sizes: NDArray[Any]) -> int:
        """Their sum; sizes are mostly alike."""
        if len(sizes) and every(sizes == sizes[:1]):
            return len(sizes) * self.of(sizes.item(0))
        return int(self.each(sizes).sum())

    def is_due(self, size: int, before_s: float) -> bool:
        """Whether what is known of a size was learnt before that time, or never."""
        learnt_s = self._learnt_s.get(size)
        return len(self._bytes) < SIZES_MAX if learnt_s is None else learnt_s < before_s

    def learn(self, bytes_by_size: Mapping[int, int], now_s: float) -> None:
        self._set({**self._bytes, **bytes_by_size})
        self._learnt_s |= dict.fromkeys(bytes_by_size, now_s)

    def forget(self) -> None:
        """The server is another one."""
        self._set({})
        self._learnt_s.clear()

    def _set(self, bytes_by_size: Mapping[int, int]) -> None:
        self._bytes = dict(sorted(bytes_by_size.items()))
        self._sizes = np.array(list(self._bytes), np.int64)
        self._taken = np.array(list(self._bytes.values()), np.int64)
