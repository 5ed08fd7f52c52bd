"""HBM that the daemon owns on a device: one memory per segment, which other processes open by a handle."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import structlog

from tierd.adapters.arena_host import locate
from tierd.adapters.device import Device, Memory, Part, Patience
from tierd.core.errors import Unavailable
from tierd.core.messages import Tier
from tierd_client.format import U8Array

log = structlog.get_logger(__name__)


class HbmArena:
    """An ArenaStore in device memory. It cannot be mapped as host memory; a copy has ended when a call returns."""

    tier = Tier.HBM

    def __init__(self, device: Device, lengths: Mapping[int, int]) -> None:
        """Allocates and wipes. `lengths`: bytes of each segment by number. Raises Unavailable naming hbm_bytes."""
        self._device = device
        self._patience = Patience()
        self._memories: dict[int, Memory] = {}
        self._lengths = dict(lengths)
        self._pinned: list[U8Array] = []
        try:
            for number, size in lengths.items():
                self._memories[number] = device.allocate(size)
        except Unavailable as error:
            self.close()
            raise Unavailable(f"hbm_bytes: {sum(lengths.values()):,} bytes: {error}") from error

    @property
    def mappable(self) -> bool:
        return False

    def view(self, address: int, size: int) -> U8Array:
        raise Unavailable(f"hbm on a device cannot be mapped: {size} bytes at {address:#x}")

    def read(self, address: int, out: U8Array) -> None:
        self._patience.wait(self._device.read([self._part(address, out.size)], out))

    def write(self, address: int, data: U8Array) -> None:
        self._patience.wait(self._device.write(self._part(address, data.size), data))

    def pin(self, arrays: Sequence[U8Array]) -> int:
        """Registers host memory with the device; bytes of what it took. One registration per segment, since no copy
        may straddle two. Populated memory registers several times faster."""
        for array in arrays:
            if not self._device.register(array):
                log.warning("pinning_refused", bytes=array.size, note="copies of hbm are slower, nothing else")
                break
            self._pinned.append(array)
        return sum(array.size for array in self._pinned)

    @property
    def device_name(self) -> str:
        """The device's UUID; empty where it has none."""
        return self._device.uuid

    def handles(self) -> dict[int, bytes]:
        """By segment, what other processes open it with. Raises Unavailable where the device shares nothing."""
        return {number: self._device.export(memory) for number, memory in self._memories.items()}

    def close(self) -> None:
        """Unpins and frees, unless a copy is still under way: then all goes with the process."""
        self._patience.close()
        if not self._patience.waiting:
            for array in reversed(self._pinned):
                self._device.unregister(array)
            for memory in self._memories.values():
                self._device.free(memory)
        self._pinned.clear()
        self._memories.clear()
        self._lengths.clear()

    def _part(self, address: int, size: int) -> Part:
        segment, offset = locate(address, size, self._lengths)
        return Part(self._memories[segment], offset, size)
