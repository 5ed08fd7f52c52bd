"""The fake device and the CPU pass the contract of devices, and the arena over each that of arenas."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from tierd.adapters.device import CpuDevice, Device, Patience
from tierd.adapters.hbm_arena import HbmArena
from tierd.core.errors import Unavailable
from tierd.ports import ArenaStore
from tierd.testing.arena_contract import SEGMENTS, ArenaContract, address, random_bytes
from tierd.testing.device_contract import DeviceContract
from tierd.testing.fake_device import FakeDevice
from tierd.testing.faulty import Fault, Operation, Scripted

SLOT = 4096


class TestCpuDevice(DeviceContract):
    @pytest.fixture
    def device(self) -> Device:
        return CpuDevice()


class TestFakeDevice(DeviceContract):
    @pytest.fixture
    def device(self) -> Device:
        return FakeDevice()


class TestArenaOnFakeDevice(ArenaContract):
    @pytest.fixture
    def arena(self) -> Iterator[ArenaStore]:
        arena = HbmArena(FakeDevice(), SEGMENTS)
        yield arena
        arena.close()


class Late:
    """An arena on a device whose copies end when the test says so, and calls to it on threads."""

    def __init__(self) -> None:
        self.device = FakeDevice(prompt=False)
        self.arena = HbmArena(self.device, SEGMENTS)
        self.threads: list[threading.Thread] = []

    def begin(self, call: Callable[[], None]) -> threading.Thread:
        """Starts a call and returns when its copy has begun."""
        before = self.device.begun
        thread = threading.Thread(target=call)
        thread.start()
        while self.device.begun == before:
            threading.Event().wait(0.001)
        self.threads.append(thread)
        return thread


@pytest.fixture
def late() -> Iterator[Late]:
    one = Late()
    yield one
    one.device.end()
    for thread in one.threads:
        thread.join(10)


def test_a_call_returns_when_its_copy_has_ended(late: Late) -> None:
    """A read returns no sooner than its bytes have arrived, so that nobody uses what is still being written."""
    out = np.full(SLOT, 7, np.uint8)
    thread = late.begin(lambda: late.arena.read(address(3, 0), out))
    thread.join(0.05)
    assert thread.is_alive()
    assert (out == 7).all()
    late.device.end()
    thread.join(10)
    assert not thread.is_alive()
    assert not out.any()


def test_copies_may_end_in_any_order(late: Late) -> None:
    """A copy that ends before one that began earlier has its own bytes, and waits for nobody."""
    data = [random_bytes(seed, SLOT) for seed in range(3)]
    threads = [late.begin(lambda i=i: late.arena.write(address(3, i * SLOT), data[i])) for i in range(3)]
    late.device.end(2)
    threads[2].join(10)
    assert [thread.is_alive() for thread in threads] == [True, True, False]
    late.device.end(1, 0)
    for thread in threads:
        thread.join(10)
    for index, block in enumerate(data):
        out = np.empty(SLOT, np.uint8)
        reading = late.begin(lambda index=index, out=out: late.arena.read(address(3, index * SLOT), out))
        late.device.end()
        reading.join(10)
        assert np.array_equal(out, block)


@pytest.mark.parametrize("fault", [Fault.DOWN, Fault.DOWN_AFTER])
def test_a_failed_copy_is_an_error_and_no_more(fault: Fault) -> None:
    """A copy that fails to begin, or fails under way, is an OSError; the next one works."""
    arena = HbmArena(FakeDevice(Scripted([fault], [Operation.WRITE])), SEGMENTS)
    data = random_bytes(4, SLOT)
    with pytest.raises(OSError, match="injected"):
        arena.write(address(3, 0), data)
    arena.write(address(3, 0), data)
    out = np.empty(SLOT, np.uint8)
    arena.read(address(3, 0), out)
    assert np.array_equal(out, data)


def test_closing_ends_the_waits_and_frees_nothing_under_a_copy(late: Late) -> None:
    """A wait for a copy that never ends ends with the arena, whose memory and pins stay: the copy may still run."""
    host = random_bytes(5, SLOT)
    assert late.arena.pin([host]) == SLOT
    errors: list[Exception] = []

    def read() -> None:
        try:
            late.arena.read(address(3, 0), np.empty(SLOT, np.uint8))
        except Unavailable as error:
            errors.append(error)

    thread = late.begin(read)
    late.arena.close()
    thread.join(10)
    assert len(errors) == 1
    assert late.device.allocated == sum(SEGMENTS.values())
    assert late.device.registered


def test_an_idle_arena_gives_everything_back() -> None:
    """Without a copy under way closing unpins and frees all."""
    device = FakeDevice()
    arena = HbmArena(device, SEGMENTS)
    arena.pin([random_bytes(6, SLOT)])
    arena.close()
    assert (device.allocated, device.registered) == (0, {})


def test_pinning_that_is_refused_is_no_failure() -> None:
    """Where the device refuses to pin, nothing is pinned, and copies are right all the same."""
    arena = HbmArena(FakeDevice(pins=False), SEGMENTS)
    data = random_bytes(7, SLOT)
    assert arena.pin([data]) == 0
    arena.write(address(3, 0), data)
    out = np.empty(SLOT, np.uint8)
    arena.read(address(3, 0), out)
    assert np.array_equal(out, data)


def test_a_pool_that_does_not_fit_names_its_setting() -> None:
    """An arena that the device has no room for is an error naming hbm_bytes, and keeps nothing."""
    device = FakeDevice()
    with pytest.raises(Unavailable, match="hbm_bytes"):
        HbmArena(device, {1: 4096, 2: 1 << 50})
    assert device.allocated == 0


def test_segments_are_opened_by_their_handles() -> None:
    """What another user of the device opens by a segment's handle is that segment."""
    device = FakeDevice()
    arena = HbmArena(device, SEGMENTS)
    handles = arena.handles()
    data = random_bytes(8, SLOT)
    arena.write(address(7, SLOT), data)
    opened = device.open(handles[7], SEGMENTS[7])
    assert np.array_equal(opened.base[SLOT : 2 * SLOT], data)


def test_patience_ends_with_its_owner() -> None:
    """After `close` no wait begins anew for a copy that has not ended."""
    patience = Patience()
    patience.close()
    device = FakeDevice(prompt=False)
    with pytest.raises(Unavailable):
        patience.wait(device.read([], np.empty(0, np.uint8)))
