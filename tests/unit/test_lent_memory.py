"""Memory that engines lend: pools over sealed regions and devices, and who may still read what is closed."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import threading
from collections.abc import Iterator

import numpy as np
import pytest

from tierd.adapters.device import Device, Part, Patience
from tierd.adapters.lent import LentMemory
from tierd.adapters.processes import identify
from tierd.core.errors import InvalidInput, Refused, Unavailable
from tierd.core.loans import CudaRegion, Piece, PoolPlan, page_address
from tierd.testing.fake_device import FakeDevice
from tierd_client import SharedRegion
from tierd_client.format import U8Array

POOL, SESSION, PAGE = 0x8000, 7, 64
OURSELVES = (os.getpid(), identify(os.getpid()).start_time)


class Rig:
    """Lent memory with one fake GPU, and an engine's memory on it that is shared by its handle."""

    def __init__(self) -> None:
        self.device = FakeDevice()
        self.opened: list[str] = []
        self.lent = LentMemory(self.open_device)
        self.exported = self.device.allocate(8 * PAGE)
        self.handle = self.device.export(self.exported)

    def open_device(self, uuid: str) -> Device:
        self.opened.append(uuid)
        return self.device

    def fill(self, data: U8Array) -> None:
        Patience().wait(self.device.write(Part(self.exported, 0, data.size), data))

    def open_cuda(
        self, *, number: int = POOL, offset: int = 0, pages: int = 4, process: tuple[int, int] = OURSELVES
    ) -> None:
        region = CudaRegion("GPU-1", self.handle, offset, pages * PAGE)
        plan = PoolPlan((region,), (Piece(0, 0, PAGE, PAGE),), pages)
        self.lent.open_pool(number, SESSION, plan, process)

    def read(self, page: int, number: int = POOL, size: int = PAGE) -> U8Array:
        out = np.empty(size, np.uint8)
        self.lent.read(page_address(number, page), out)
        return out


@pytest.fixture
def rig() -> Iterator[Rig]:
    one = Rig()
    yield one
    one.lent.close()


def pages(count: int = 8) -> U8Array:
    return np.random.default_rng(count).integers(0, 256, count * PAGE, np.uint8)


def test_device_memory_is_read_from_its_offset(rig: Rig) -> None:
    """A region that begins inside an allocation is read from there; its GPU is opened once."""
    data = pages()
    rig.fill(data)
    rig.open_cuda(offset=2 * PAGE)
    rig.open_cuda(number=POOL + 1)
    assert np.array_equal(rig.read(1), data[3 * PAGE : 4 * PAGE])
    assert np.array_equal(rig.read(1, POOL + 1), data[PAGE : 2 * PAGE])
    assert rig.opened == ["GPU-1"]


def test_pieces_are_put_together(rig: Rig) -> None:
    """A page in pieces of several regions is their bytes in the order of the plan."""
    keys, values = SharedRegion(4 * PAGE), SharedRegion(4 * PAGE)
    keys.array[:], values.array[:] = pages(4), pages(4)[::-1]
    numbers = tuple(rig.lent.pass_region(SESSION, region.descriptor) for region in (keys, values))
    half = PAGE // 2
    plan = PoolPlan(numbers, (Piece(1, half, PAGE, half), Piece(0, 0, PAGE, half)), 4)
    rig.lent.open_pool(POOL, SESSION, plan, OURSELVES)
    expected = [values.array[2 * PAGE + half : 3 * PAGE], keys.array[2 * PAGE : 2 * PAGE + half]]
    assert np.array_equal(rig.read(2), np.concatenate(expected))


def test_only_sealed_memory_is_mapped(rig: Rig) -> None:
    """A file that could shrink under a reader, an empty one, and no file at all are refused."""
    plain = os.memfd_create("plain")
    os.ftruncate(plain, 4096)
    ends = os.pipe()
    for descriptor in (plain, *ends):
        with pytest.raises(Refused, match="sealed"):
            rig.lent.pass_region(SESSION, descriptor)
        os.close(descriptor)


def test_a_region_too_large_to_map_is_refused(rig: Rig) -> None:
    """A sealed file of more bytes than there are addresses is refused in words, and takes no number."""
    huge = os.memfd_create("huge", os.MFD_ALLOW_SEALING)
    os.ftruncate(huge, 1 << 62)
    fcntl.fcntl(huge, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
    with pytest.raises(Refused, match=f"{1 << 62} bytes cannot be mapped"):
        rig.lent.pass_region(SESSION, huge)
    os.close(huge)
    assert rig.lent.pass_region(SESSION, SharedRegion(PAGE).descriptor) == 1


def test_a_region_belongs_to_the_session_that_passed_it(rig: Rig) -> None:
    """No session lends the region of another, nor one that was never passed."""
    region = SharedRegion(4 * PAGE)
    number = rig.lent.pass_region(SESSION + 1, region.descriptor)
    with pytest.raises(InvalidInput, match=r"regions\[0\]"):
        rig.lent.open_pool(POOL, SESSION, PoolPlan((number,), (Piece(0, 0, PAGE, PAGE),), 4), OURSELVES)


def test_a_fence_is_read_as_it_is_written(rig: Rig) -> None:
    """The fence is the first word of its region, as the engine's process has written it last."""
    region, word = SharedRegion(4 * PAGE), SharedRegion(8)
    numbers = [rig.lent.pass_region(SESSION, one.descriptor) for one in (region, word)]
    plan = PoolPlan((numbers[0],), (Piece(0, 0, PAGE, PAGE),), 4, fence=numbers[1])
    rig.lent.open_pool(POOL, SESSION, plan, OURSELVES)
    at = page_address(POOL, 0)
    assert rig.lent.reached(at, 0)
    assert not rig.lent.reached(at, 5)
    word.array.view("<u8")[0] = 5
    assert rig.lent.reached(at, 5)
    assert not rig.lent.reached(at, 6)


def test_what_was_read_of_a_dead_process_does_not_count(rig: Rig) -> None:
    """A copy of a page whose process has died is an error: nobody knows what was in that memory by then."""
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    rig.open_cuda(process=(child.pid, identify(child.pid).start_time))
    rig.read(0)
    child.kill()
    child.wait()
    with pytest.raises(Unavailable, match="went away"):
        rig.read(0)


def test_a_pool_that_is_closed_under_a_copy(rig: Rig) -> None:
    """The copy fails, the memory stays open until it has ended, and no other begins."""
    rig.open_cuda()
    rig.device.prompt = False
    errors: list[Exception] = []

    def read() -> None:
        try:
            rig.read(0)
        except Unavailable as error:
            errors.append(error)

    begun = rig.device.begun
    thread = threading.Thread(target=read)
    thread.start()
    while rig.device.begun == begun:
        threading.Event().wait(0.001)
    rig.lent.close_pool(POOL)
    with pytest.raises(Unavailable, match="closed"):
        rig.read(0)
    assert rig.device.open_handles == 1
    rig.device.end()
    thread.join(10)
    assert "went away" in str(errors[0])
    assert rig.device.open_handles == 0


@pytest.mark.parametrize(
    ("piece", "problem"),
    [
        (Piece(1, 0, PAGE, PAGE), "region 1 of 1"), (Piece(0, 0, PAGE - 1, PAGE), "overlap"),
        (Piece(0, 1, PAGE, PAGE), "ends at 257"), (Piece(0, 1 << 63, PAGE, PAGE), "ends at"),
        (Piece(0, 0, 1 << 62, PAGE), "ends at"),
    ],
)
def test_plans_that_leave_their_memory(rig: Rig, piece: Piece, problem: str) -> None:
    """A piece outside its region, or over another page, is refused by name, and nothing stays open."""
    region = CudaRegion("GPU-1", rig.handle, 0, 4 * PAGE)
    with pytest.raises(InvalidInput, match=problem):
        rig.lent.open_pool(POOL, SESSION, PoolPlan((region,), (piece,), 4), OURSELVES)
    assert rig.device.open_handles == 0


def test_a_handle_that_does_not_open_closes_the_others(rig: Rig) -> None:
    """When one region cannot be opened those before it are given back."""
    regions = (CudaRegion("GPU-1", rig.handle, 0, PAGE), CudaRegion("GPU-1", bytes(64), 0, PAGE))
    with pytest.raises(Unavailable):
        rig.lent.open_pool(POOL, SESSION, PoolPlan(regions, (Piece(0, 0, PAGE, PAGE),), 1), OURSELVES)
    assert rig.device.open_handles == 0


def test_regions_of_one_pool_lie_on_one_device(rig: Rig) -> None:
    """Pages that are partly on a GPU and partly not are refused."""
    number = rig.lent.pass_region(SESSION, SharedRegion(4 * PAGE).descriptor)
    mixed = (number, CudaRegion("GPU-1", rig.handle, 0, PAGE))
    with pytest.raises(InvalidInput, match="different devices"):
        rig.lent.open_pool(POOL, SESSION, PoolPlan(mixed, (Piece(0, 0, PAGE, PAGE),), 1), OURSELVES)
