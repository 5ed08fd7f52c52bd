"""A device that fails on demand: its copies end late, out of order, wrong or never, as a script or a test says.

Its memory is host memory behind a queue. A copy that has not ended has touched nothing: source and target are read
and written when it ends, so that who re-uses one of them too early is found out.
"""

from __future__ import annotations

import errno
import secrets
import threading
from collections.abc import Callable, Sequence

import numpy as np

from tierd.adapters.device import Copy, Memory, Part
from tierd.core.errors import Unavailable
from tierd.testing.faulty import Fault, Operation, Script, Scripted
from tierd_client.format import U8Array


class FakeCopy:
    """A copy that ends when it is told to, or with `prompt` when it is first asked about."""

    def __init__(self, carry_out: Callable[[], None], prompt: bool, error: OSError | None) -> None:
        self._carry_out = carry_out
        self._prompt = prompt
        self._error = error
        self._lock = threading.Lock()
        self.ended = False

    def end(self) -> None:
        """All bytes arrive now. Idempotent."""
        with self._lock:
            if not self.ended:
                self.ended = True
                self._carry_out()

    def done(self) -> bool:
        if self._error is not None:
            raise self._error
        if self._prompt:
            self.end()
        return self.ended


class FakeDevice:
    """A Device. `pending`: copies that have not ended, in the order in which they were begun.

    Faults of the script, by call (READ, WRITE): DOWN fails to begin, DOWN_AFTER fails while it is waited for,
    having done nothing, DELAY is pending until the test ends it, CORRUPT ends with one byte changed.
    """

    uuid = "fake"

    def __init__(self, script: Script | None = None, *, prompt: bool = True, pins: bool = True) -> None:
        """`prompt`: copies end when they are waited for. `pins`: whether host memory can be registered."""
        self.prompt = prompt
        self.pins = pins
        self.pending: list[FakeCopy] = []
        self.begun = 0
        """Copies so far."""
        self.registered: dict[int, int] = {}
        """Address of each registered array -> bytes."""
        self.allocated = 0
        self.open_handles = 0
        self._script = script or Scripted([])
        self._shared: dict[bytes, Memory] = {}
        self._lock = threading.Lock()

    def allocate(self, size: int) -> Memory:
        if size > 1 << 40:
            raise Unavailable(f"{size} bytes are more than this device has")
        self.allocated += size
        return Memory(np.zeros(size, np.uint8), size)

    def free(self, memory: Memory) -> None:
        if memory.handle:
            self.open_handles -= 1
        else:
            self.allocated -= memory.size

    def read(self, parts: Sequence[Part], out: U8Array) -> Copy:
        def carry_out() -> None:
            start = 0
            for part in parts:
                out[start : start + part.size] = part.memory.base[part.offset : part.offset + part.size]
                start += part.size

        return self._begin(Operation.READ, carry_out, lambda: out)

    def write(self, part: Part, data: U8Array) -> Copy:
        def carry_out() -> None:
            part.memory.base[part.offset : part.offset + part.size] = data

        return self._begin(Operation.WRITE, carry_out, lambda: part.memory.base[part.offset :])

    def export(self, memory: Memory) -> bytes:
        handle = secrets.token_bytes(64)
        self._shared[handle] = memory
        return handle

    def open(self, handle: bytes, size: int) -> Memory:
        memory = self._shared.get(handle)
        if memory is None or size > memory.size:
            raise Unavailable("invalid resource handle")
        self.open_handles += 1
        return Memory(memory.base, size, handle)

    def register(self, array: U8Array) -> bool:
        start, end = array.ctypes.data, array.ctypes.data + array.size
        overlaps = any(start < other + size and other < end for other, size in self.registered.items())
        if self.pins and not overlaps:
            self.registered[start] = array.size
        return self.pins and not overlaps

    def unregister(self, array: U8Array) -> None:
        self.registered.pop(array.ctypes.data, None)

    def end(self, *order: int) -> None:
        """Ends pending copies: all, or those at these places of `pending`, in this order."""
        with self._lock:
            waiting = [one for one in self.pending if not one.ended]
        for place in order or range(len(waiting)):
            waiting[place].end()

    def _begin(self, operation: Operation, carry_out: Callable[[], None], target: Callable[[], U8Array]) -> Copy:
        with self._lock:
            fault = self._script.next(operation)
            if fault is Fault.DOWN:
                raise OSError(errno.EIO, f"injected: {operation.value} did not begin")
            error = OSError(errno.EIO, f"injected: {operation.value} failed") if fault is Fault.DOWN_AFTER else None
            prompt = self.prompt and fault is not Fault.DELAY

            def corrupt() -> None:
                carry_out()
                target()[0] ^= 0x40

            copy = FakeCopy(corrupt if fault is Fault.CORRUPT else carry_out, prompt, error)
            self.begun += 1
            self.pending = [one for one in self.pending if not one.ended]
            if not prompt:
                self.pending.append(copy)
            return copy
