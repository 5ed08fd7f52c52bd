"""Memory that engines lend: shared-memory regions by descriptor, device memory by handle; pools of pages over them.

A region in shared memory must be sealed against shrinking: one that shrank under a reader would end the daemon.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np

from tierd.adapters.device import CpuDevice, Device, Memory, Part, Patience
from tierd.adapters.processes import Process, is_running
from tierd.core.errors import InvalidInput, Refused, Unavailable
from tierd.core.loans import CudaRegion, Piece, PoolPlan
from tierd_client.format import OFFSET_BITS, OFFSET_MASK, U8Array

REGIONS_MAX = 1024
"""Regions of one session: two per layer of the deepest models are fewer."""


@dataclass(slots=True)
class _Pool:
    """`readers`: copies under way. `closed`: the memory goes with the last of them."""

    session: int
    plan: PoolPlan
    device: Device
    memories: list[Memory]
    fence: Memory | None
    process: Process | None
    readers: int = 0
    closed: bool = False


@dataclass(slots=True)
class _Passed:
    """Regions that one session passed, by number."""

    regions: dict[int, Memory] = field(default_factory=dict)
    last: int = 0


class LentMemory:
    """A LentStore."""

    def __init__(self, open_device: Callable[[str], Device]) -> None:
        """`open_device`: the device of a GPU's UUID; called once for each. Raises Unavailable."""
        self._open_device = open_device
        self._cpu = CpuDevice()
        self._devices: dict[str, Device] = {}
        self._lock = threading.Lock()
        self._opening = threading.Lock()
        self._passed: dict[int, _Passed] = {}
        self._pools: dict[int, _Pool] = {}
        self._patience = Patience()

    def pass_region(self, session: int, descriptor: int) -> int:
        """Maps a region of shared memory, read only; its number in the session. The descriptor stays the caller's.

        Raises Refused: it is not sealed or cannot be mapped, or the session has passed too many.
        """
        memory = _map_sealed(descriptor)
        with self._lock:
            passed = self._passed.setdefault(session, _Passed())
            if len(passed.regions) >= REGIONS_MAX:
                raise Refused(f"the session has passed {REGIONS_MAX} regions already")
            passed.last += 1
            passed.regions[passed.last] = memory
            return passed.last

    def open_pool(self, number: int, session: int, plan: PoolPlan, process: tuple[int, int]) -> None:
        device = self._device_of(plan)
        memories = self._memories(session, plan, device)
        fence = None if plan.fence is None else self._region(session, plan.fence, "fence")
        if fence is not None and fence.size < 8:
            raise InvalidInput("fence", f"its region has {fence.size} bytes, a fence takes 8")
        lender = Process(*process) if process[0] else None
        with self._lock:
            self._pools[number] = _Pool(session, plan, device, memories, fence, lender)

    def close_pool(self, number: int) -> None:
        with self._lock:
            pool = self._pools.pop(number, None)
            if pool is None:
                return
            pool.closed = True
            idle = pool.readers == 0
        if idle:
            _free(pool)

    def forget(self, session: int) -> None:
        with self._lock:
            self._passed.pop(session, None)

    def reached(self, address: int, fence: int) -> bool:
        pool = self._pool(address)
        if fence == 0:
            return True
        if pool.fence is None:
            raise Unavailable("a fence is waited for, but the pool has none")
        return int(pool.fence.base[:8].view("<u8")[0]) >= fence

    def read(self, address: int, out: U8Array) -> None:
        page = address & OFFSET_MASK
        with self._reading(address) as pool:
            plan = pool.plan
            if page >= plan.pages or out.size != plan.page_bytes:
                raise ValueError(f"page {page} of {plan.pages}, {out.size} bytes of {plan.page_bytes}")
            parts = [
                Part(pool.memories[piece.region], _start(plan, piece) + page * piece.stride, piece.bytes)
                for piece in plan.pieces
            ]
            self._patience.wait(pool.device.read(parts, out))
            if pool.closed or (pool.process is not None and not is_running(pool.process)):
                raise Unavailable("the engine went away while its page was being copied")

    def close(self) -> None:
        """Gives all memory up; idempotent. Copies under way end with the process."""
        self._patience.close()
        for number in list(self._pools):
            self.close_pool(number)
        self._passed.clear()

    def _pool(self, address: int) -> _Pool:
        pool = self._pools.get(address >> OFFSET_BITS)
        if pool is None:
            raise Unavailable(f"pool {address >> OFFSET_BITS} is closed")
        return pool

    @contextlib.contextmanager
    def _reading(self, address: int) -> Iterator[_Pool]:
        with self._lock:
            pool = self._pool(address)
            pool.readers += 1
        try:
            yield pool
        finally:
            with self._lock:
                pool.readers -= 1
                last = pool.closed and pool.readers == 0
            if last:
                _free(pool)

    def _device_of(self, plan: PoolPlan) -> Device:
        names = {region.device if isinstance(region, CudaRegion) else "" for region in plan.regions}
        if len(names) > 1:
            raise InvalidInput("regions", "they lie on different devices")
        (name,) = names
        if not name:
            return self._cpu
        with self._opening:
            if name not in self._devices:
                self._devices[name] = self._open_device(name)
            return self._devices[name]

    def _memories(self, session: int, plan: PoolPlan, device: Device) -> list[Memory]:
        memories: list[Memory] = []
        try:
            for index, region in enumerate(plan.regions):
                memories.append(self._memory(session, region, device, f"regions[{index}]"))
            _check_pieces(plan, memories)
        except BaseException:
            for memory in memories:
                device.free(memory)
            raise
        return memories

    def _memory(self, session: int, region: int | CudaRegion, device: Device, name: str) -> Memory:
        if not isinstance(region, CudaRegion):
            return self._region(session, region, name)
        return device.open(region.handle, region.offset + region.bytes)

    def _region(self, session: int, number: int, name: str) -> Memory:
        with self._lock:
            passed = self._passed.get(session)
            if passed is None or number not in passed.regions:
                raise InvalidInput(name, f"the session has passed no region {number}")
            return passed.regions[number]


def _start(plan: PoolPlan, piece: Piece) -> int:
    """Where page 0 of a piece begins in its memory, which is a whole allocation where a handle opened it."""
    region = plan.regions[piece.region]
    return piece.offset + (region.offset if isinstance(region, CudaRegion) else 0)


def _check_pieces(plan: PoolPlan, memories: list[Memory]) -> None:
    """InvalidInput unless each piece of each page lies inside its region, and no two pages of a piece overlap."""
    for index, piece in enumerate(plan.pieces):
        name = f"pieces[{index}]"
        if piece.region >= len(memories):
            raise InvalidInput(name, f"region {piece.region} of {len(memories)}")
        if piece.stride < piece.bytes:
            raise InvalidInput(name, f"stride {piece.stride} is less than its {piece.bytes} bytes: pages overlap")
        end = _start(plan, piece) + (plan.pages - 1) * piece.stride + piece.bytes
        if end > memories[piece.region].size:
            problem = f"page {plan.pages - 1} ends at {end}, region {piece.region} at {memories[piece.region].size}"
            raise InvalidInput(name, problem)


def _map_sealed(descriptor: int) -> Memory:
    try:
        sealed = fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK
    except OSError:
        sealed = 0
    if not sealed:
        raise Refused("the region is not sealed against shrinking: lend a memfd with F_SEAL_SHRINK")
    size = os.fstat(descriptor).st_size
    if size < 1:
        raise Refused("the region is empty")
    try:
        mapping = mmap.mmap(descriptor, size, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ)
    except (OSError, ValueError, OverflowError) as error:
        raise Refused(f"the region of {size} bytes cannot be mapped: {error}") from error
    return Memory(np.frombuffer(mapping, np.uint8), size)


def _free(pool: _Pool) -> None:
    for memory in pool.memories:
        pool.device.free(memory)
    pool.memories.clear()
