"""A CUDA device passes the contract of devices, the arena over it that of arenas; pinning, asynchrony, rates."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tierd.adapters.device import Device, Part, Patience
from tierd.adapters.shm import SharedDirectory, WantedFile
from tierd.core.errors import Unavailable
from tierd.ports import ArenaStore
from tierd.testing.arena_contract import SEGMENTS, ArenaContract, random_bytes
from tierd.testing.device_contract import DeviceContract
from tierd_client import SharedRegion

torch = pytest.importorskip("torch")

GIB = 1 << 30
PINNED_SHARE = 0.9
"""Of the rate of torch's own pinned memory, that registered memory must reach."""


def cuda() -> Any:
    from tierd.adapters.hbm_cuda import CudaDevice

    return CudaDevice("cuda:0")


class TestCudaDevice(DeviceContract):
    @pytest.fixture
    def device(self) -> Device:
        device: Device = cuda()
        return device


class TestArenaOnCuda(ArenaContract):
    @pytest.fixture
    def arena(self) -> Iterator[ArenaStore]:
        from tierd.adapters.hbm_arena import HbmArena

        arena = HbmArena(cuda(), SEGMENTS)
        yield arena
        arena.close()


def test_a_pool_that_does_not_fit_leaves_cuda_usable() -> None:
    """Too large an arena is an error naming hbm_bytes, and the next CUDA call does not inherit it."""
    from tierd.adapters.hbm_arena import HbmArena

    with pytest.raises(Unavailable, match="hbm_bytes"):
        HbmArena(cuda(), {1: 1 << 50})
    assert int(torch.ones(4, device="cuda:0").sum()) == 4


def test_registered_memory_is_pinned() -> None:
    """CUDA knows registered memory as pinned, a second registration is refused, and torch works on after that."""
    device, host = cuda(), random_bytes(3, 1 << 20)
    assert device.register(host)
    assert torch.frombuffer(host.data, dtype=torch.uint8).is_pinned()
    assert not device.register(host)
    assert int(torch.ones(4, device="cuda:0").sum()) == 4
    device.unregister(host)
    assert not torch.frombuffer(host.data, dtype=torch.uint8).is_pinned()


def test_shared_memory_can_be_registered() -> None:
    """Files of shared memory, as host segments are, and sealed ones, as lent regions are, can be pinned."""
    device, size = cuda(), 4 << 20
    directory = SharedDirectory(Path("/dev/shm"), secrets.token_bytes(16))
    named = directory.replace([WantedFile("device", size, "host_bytes")])["device"]
    try:
        for array in (named.array(), SharedRegion(size).array):
            array[:] = 1
            assert device.register(array)
            device.unregister(array)
    finally:
        directory.remove(["device"])


def test_a_copy_of_registered_memory_does_not_hold_its_caller() -> None:
    """A copy of pinned memory is begun in a fraction of the time that it takes, and is not done at once."""
    device, host = cuda(), np.ones(GIB // 4, np.uint8)
    assert device.register(host)
    memory = device.allocate(host.size)
    Patience().wait(device.write(Part(memory, 0, host.size), host))
    began = time.perf_counter()
    copy = device.write(Part(memory, 0, host.size), host)
    returned = time.perf_counter() - began
    at_once = copy.done()
    Patience().wait(copy)
    took = time.perf_counter() - began
    device.unregister(host)
    device.free(memory)
    assert not at_once
    assert returned < took / 2


def test_rates(record_property: Callable[[str, object], None]) -> None:
    """Registered memory is copied as fast as memory that torch pinned, in both directions."""
    device, size = cuda(), GIB // 2
    memory = device.allocate(size)
    ours = np.ones(size, np.uint8)
    assert device.register(ours)
    theirs = torch.ones(size, dtype=torch.uint8, pin_memory=True).numpy()
    rates = {}
    part = Part(memory, 0, size)
    for name, host in (("registered", ours), ("pin_memory", theirs)):
        rates[f"h2d_{name}"] = rate_of(lambda host=host: device.write(part, host), size)
        rates[f"d2h_{name}"] = rate_of(lambda host=host: device.read([part], host), size)
    for name, rate in rates.items():
        record_property(f"{name}_gb_per_s", round(rate / 1e9, 2))
    device.unregister(ours)
    device.free(memory)
    for way in ("h2d", "d2h"):
        assert rates[f"{way}_registered"] >= PINNED_SHARE * rates[f"{way}_pin_memory"]


@pytest.mark.parametrize("piece", [4 << 10, 32 << 10, 256 << 10, 2 << 20])
def test_rates_of_pieces(piece: int, record_property: Callable[[str, object], None]) -> None:
    """A page in many pieces arrives whole; how fast is on record."""
    device, size = cuda(), 64 << 20
    memory, host = device.allocate(size), np.empty(size, np.uint8)
    assert device.register(host)
    data = random_bytes(9, size)
    Patience().wait(device.write(Part(memory, 0, size), data))
    count = size // piece
    order = np.random.default_rng(1).permutation(count)
    parts = [Part(memory, int(at) * piece, piece) for at in order]
    rate = rate_of(lambda: device.read(parts, host), size)
    record_property(f"d2h_pieces_{piece >> 10}k_gb_per_s", round(rate / 1e9, 2))
    assert np.array_equal(host.reshape(count, piece), data.reshape(count, piece)[order])
    device.unregister(host)
    device.free(memory)


def rate_of(begin: Callable[[], Any], size: int, rounds: int = 5) -> float:
    """Bytes per second of the best of several copies, after one that does not count."""
    times = []
    for _ in range(rounds + 1):
        began = time.perf_counter()
        Patience().wait(begin())
        times.append(time.perf_counter() - began)
    return size / min(times[1:])


@pytest.mark.skipif(torch.cuda.is_available(), reason="a CUDA device is here")
def test_without_a_device_that_is_said() -> None:
    """Without a device a CUDA arena is refused in words, naming the setting, and so is a GPU that nobody sees."""
    from tierd.adapters.hbm_cuda import CudaDevice, device_of

    with pytest.raises(Unavailable, match="hbm_device"):
        CudaDevice("cuda:0")
    with pytest.raises(Unavailable, match="GPU-1 is not visible here; there are none"):
        device_of("GPU-1")
