"""The seam to a device's memory: begin a copy, see it end, share memory with other processes, pin host memory.

`CpuDevice` is the trivial one; `hbm_cuda.py` has CUDA's, `tierd/testing/fake_device.py` one that fails on demand.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import structlog

from tierd.core.errors import Unavailable
from tierd_client.format import U8Array

log = structlog.get_logger(__name__)

PAUSE_FIRST_S, PAUSE_MAX_S = 20e-6, 1e-3
"""Between two looks at a copy: a block of 1 MiB takes 20 us over PCIe; a waiting thread must not spin for long."""

SLOW_S = 5.0
"""A copy that takes longer is said in the log, once; a device that lost it may never end it."""


@dataclass(frozen=True, slots=True, eq=False)
class Memory:
    """A piece of device memory. `base`: the device's own idea of it. `handle`: where it was opened by one."""

    base: Any
    size: int
    handle: bytes = b""


@dataclass(frozen=True, slots=True)
class Part:
    """Some bytes of a memory."""

    memory: Memory
    offset: int
    size: int


class Copy(Protocol):
    """A copy that was begun. Until it is done both its sides belong to it."""

    def done(self) -> bool:
        """Whether all bytes have arrived. Raises OSError when the device failed."""


class Device(Protocol):
    """Caller: passes ranges inside memories, keeps both sides of a copy until it is done, and opens no handle of
    its own process. Implementer: thread-safe; failures are OSError, after which the device can be used; copies may
    end in any order.
    """

    @property
    def uuid(self) -> str:
        """What other processes know the device by; empty for host memory."""

    def allocate(self, size: int) -> Memory:
        """Wiped memory. Raises Unavailable when there is not so much."""

    def free(self, memory: Memory) -> None:
        """Gives back what was allocated or opened; its copies are done."""

    def read(self, parts: Sequence[Part], out: U8Array) -> Copy:
        """Begins to copy parts, one after the other, into as many bytes of host memory."""

    def write(self, part: Part, data: U8Array) -> Copy:
        """Begins to copy host memory into as many bytes of the device's."""

    def export(self, memory: Memory) -> bytes:
        """A handle by which other processes open memory that was allocated here. Raises Unavailable."""

    def open(self, handle: bytes, size: int) -> Memory:
        """Memory of another process. Raises Unavailable when it cannot be opened."""

    def register(self, array: U8Array) -> bool:
        """Pins host memory, so that copies run by DMA. False: it stays as it is, slower, never wrong."""

    def unregister(self, array: U8Array) -> None:
        """Ends a registration before the memory is unmapped; none is ignored."""


class Patience:
    """Waits for copies, for as long as they take: what a copy uses may not be used again before it is done.

    The bound of each wait is its caller's: the move, lease or page that the copy belongs to stays in use, and who
    asked for it is told PENDING at its own deadline.
    """

    def __init__(self) -> None:
        self._closed = threading.Event()
        self._complained = False
        self.waiting = 0

    def wait(self, copy: Copy) -> None:
        """Returns when it is done. Raises OSError as the copy does, Unavailable after `close`."""
        began, pause_s = time.monotonic(), PAUSE_FIRST_S
        self.waiting += 1
        try:
            while not copy.done():
                if self._closed.wait(pause_s):
                    raise Unavailable("the device is being closed, and a copy has not ended")
                pause_s = min(2 * pause_s, PAUSE_MAX_S)
                if not self._complained and time.monotonic() - began > SLOW_S:
                    self._complained = True
                    log.warning("device_copy_slow", after_s=SLOW_S, note="what it uses stays in use until it ends")
        finally:
            self.waiting -= 1

    def close(self) -> None:
        """Ends all waits: the process is about to end, and with it every copy."""
        self._closed.set()


class Done:
    """A copy that has ended."""

    def done(self) -> bool:
        return True


class CpuDevice:
    """Host memory as a device: copies end at once, and it is shared by descriptors, not by handles."""

    uuid = ""

    def allocate(self, size: int) -> Memory:
        return Memory(np.zeros(size, np.uint8), size)

    def free(self, memory: Memory) -> None:
        pass

    def read(self, parts: Sequence[Part], out: U8Array) -> Copy:
        start = 0
        for part in parts:
            np.copyto(out[start : start + part.size], part.memory.base[part.offset : part.offset + part.size])
            start += part.size
        return Done()

    def write(self, part: Part, data: U8Array) -> Copy:
        np.copyto(part.memory.base[part.offset : part.offset + part.size], data)
        return Done()

    def export(self, memory: Memory) -> bytes:
        raise Unavailable(f"{memory.size} bytes of host memory are shared by a descriptor, not by a handle")

    def open(self, handle: bytes, size: int) -> Memory:
        raise Unavailable(f"no device here opens a handle of {len(handle)} bytes for {size}")

    def register(self, array: U8Array) -> bool:
        del array
        return False

    def unregister(self, array: U8Array) -> None:
        del array
