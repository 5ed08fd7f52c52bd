"""The CPU twin of HBM: a second arena in shared memory, moved with torch as a GPU's would be.

It lets everything above run where there is no GPU. Unlike a GPU's memory it can be mapped by other processes.
"""

from __future__ import annotations

from collections.abc import Mapping

from tierd.adapters.arena_host import locate
from tierd.adapters.torch_bytes import tensor_over
from tierd.core.messages import Tier
from tierd_client.format import U8Array


class HbmCpuTwin:
    """An ArenaStore whose segments are CPU tensors over shared memory."""

    tier = Tier.HBM

    def __init__(self, segments: Mapping[int, U8Array]) -> None:
        """`segments`: bytes of each segment by its number; wiped, as a restart wipes a GPU."""
        self._arrays = dict(segments)
        self._tensors = {number: tensor_over(array) for number, array in segments.items()}
        self._lengths = {number: array.size for number, array in segments.items()}

    @property
    def mappable(self) -> bool:
        return True

    def view(self, address: int, size: int) -> U8Array:
        segment, offset = locate(address, size, self._lengths)
        return self._arrays[segment][offset : offset + size]

    def read(self, address: int, out: U8Array) -> None:
        segment, offset = locate(address, out.size, self._lengths)
        tensor_over(out).copy_(self._tensors[segment][offset : offset + out.size])

    def write(self, address: int, data: U8Array) -> None:
        segment, offset = locate(address, data.size, self._lengths)
        self._tensors[segment][offset : offset + data.size].copy_(tensor_over(data))

    def close(self) -> None:
        self._arrays.clear()
        self._tensors.clear()
        self._lengths.clear()
