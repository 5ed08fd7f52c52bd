"""The contract of a Device as tests: subclass `DeviceContract` and give it the fixture `device`."""

from __future__ import annotations

import numpy as np
import pytest

from tierd.adapters.device import Device, Part, Patience
from tierd.core.errors import Unavailable
from tierd.testing.arena_contract import random_bytes

SIZE = 1 << 20


class DeviceContract:
    """What every Device must do."""

    def test_memory_is_wiped(self, device: Device) -> None:
        """Memory that was allocated holds nobody's bytes."""
        memory, out = device.allocate(SIZE), np.ones(SIZE, np.uint8)
        Patience().wait(device.read([Part(memory, 0, SIZE)], out))
        assert not out.any()
        device.free(memory)

    def test_round_trip(self, device: Device) -> None:
        """What was written is read, and nothing beside it was touched."""
        memory, data = device.allocate(SIZE), random_bytes(1, 10_000)
        Patience().wait(device.write(Part(memory, 4099, data.size), data))
        out = np.empty(SIZE, np.uint8)
        Patience().wait(device.read([Part(memory, 0, SIZE)], out))
        assert np.array_equal(out[4099:14_099], data)
        assert not out[:4099].any()
        assert not out[14_099:].any()
        device.free(memory)

    def test_parts_are_put_together_in_order(self, device: Device) -> None:
        """A read of parts, also of several memories, has their bytes one after the other."""
        first, second, data = device.allocate(SIZE), device.allocate(SIZE), random_bytes(2, 9000)
        Patience().wait(device.write(Part(first, 100, 4000), data[:4000]))
        Patience().wait(device.write(Part(second, 7, 5000), data[4000:]))
        out = np.empty(9000, np.uint8)
        parts = [Part(second, 7, 1000), Part(first, 100, 4000), Part(second, 1007, 4000)]
        Patience().wait(device.read(parts, out))
        assert np.array_equal(out, np.concatenate([data[4000:5000], data[:4000], data[5000:]]))
        device.free(first)
        device.free(second)

    def test_what_a_register_takes_it_gives_back(self, device: Device) -> None:
        """Host memory is registered once at a time; copies of it are right while it is, and when it is no more."""
        host, memory = random_bytes(3, SIZE), device.allocate(SIZE)
        pinned = device.register(host)
        if pinned:
            assert not device.register(host), "an overlap is refused, as CUDA does"
        Patience().wait(device.write(Part(memory, 0, SIZE), host))
        device.unregister(host)
        device.unregister(host)
        out = np.empty(SIZE, np.uint8)
        Patience().wait(device.read([Part(memory, 0, SIZE)], out))
        assert np.array_equal(out, host)
        assert device.register(host) == pinned
        device.unregister(host)
        device.free(memory)

    def test_a_handle_that_is_none_is_refused(self, device: Device) -> None:
        """Bytes that no device gave out open nothing, and the device works on."""
        for handle in (bytes(64), b"short"):
            with pytest.raises(Unavailable):
                device.open(handle, SIZE)
        self.test_round_trip(device)

    def test_more_than_there_is(self, device: Device) -> None:
        """Memory that the device does not have is an error in words, and the device works on."""
        with pytest.raises((Unavailable, MemoryError)):
            device.allocate(1 << 60)
        self.test_round_trip(device)
