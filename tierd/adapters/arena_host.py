"""The host tier: blocks in shared memory that other processes map."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from tierd.core.messages import Tier
from tierd_client.format import OFFSET_BITS, OFFSET_MASK, U8Array


def locate(address: int, size: int, lengths: Mapping[int, int]) -> tuple[int, int]:
    """Segment and offset of an address. ValueError when the range is not inside one of the segments.

    The check is what keeps a bug of the engine from becoming bytes of a neighbour: a slice beyond the end
    would only be shorter.
    """
    segment, offset = address >> OFFSET_BITS, address & OFFSET_MASK
    length = lengths.get(segment, 0)
    if size <= 0 or offset + size > length:
        raise ValueError(f"{size} bytes at {offset} are not inside segment {segment} of {length} bytes")
    return segment, offset


class HostArena:
    """An ArenaStore over mapped segments. Copies run at memory speed without the GIL (np.copyto)."""

    def __init__(self, segments: Mapping[int, U8Array], tier: Tier = Tier.HOST) -> None:
        """`segments`: bytes of each segment by its number; the caller keeps the files behind them open."""
        self.tier = tier
        self._segments = dict(segments)
        self._lengths = {number: array.size for number, array in segments.items()}

    @property
    def mappable(self) -> bool:
        return True

    def view(self, address: int, size: int) -> U8Array:
        segment, offset = locate(address, size, self._lengths)
        return self._segments[segment][offset : offset + size]

    def read(self, address: int, out: U8Array) -> None:
        np.copyto(out, self.view(address, out.size))

    def write(self, address: int, data: U8Array) -> None:
        np.copyto(self.view(address, data.size), data)

    def close(self) -> None:
        self._segments.clear()
        self._lengths.clear()
