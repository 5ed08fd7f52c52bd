"""Blocks of callers as a transfer takes them: in host memory as they are, on a GPU through pinned host memory.

Bytes of a GPU are copied on a stream of their own, after all that the caller's current stream holds when the call
begins. Two staging buffers take turns, so that the GPU copies one block while the CPU works on the other. A call
returns when its copies are done: no event of it is left to wait for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from tierd_client.checks import checksum_of
from tierd_client.errors import InvalidArgument
from tierd_client.format import U8Array

DEPTH = 2
"""Staging buffers of one call."""


class Source(Protocol):
    """Where blocks are stored from, by their index in the call."""

    def __len__(self) -> int: ...

    def part(self, start: int, end: int) -> Source:
        """The blocks from `start` to before `end`."""

    def fill(self, indices: Sequence[int], slots: Sequence[U8Array]) -> list[int]:
        """Copies the blocks at `indices` into slots of their size, one each; their checksums."""

    def host(self) -> list[U8Array]:
        """All blocks at once in host memory; copies of those that are not there in one piece."""


class Sink(Protocol):
    """Where blocks are read to, by their index in the call; one block at a time."""

    def begin(self, index: int) -> U8Array:
        """Memory for a block's bytes. Asked for only when it is there."""

    def take(self, indices: Sequence[int], slots: Sequence[U8Array]) -> None:
        """Copies blocks out of slots, one each; whether they are right turns out later."""

    def ready(self) -> None:
        """The bytes of the block begun last are written, and are right."""

    @property
    def pending(self) -> bool:
        """Whether what is ready is still on its way to where the caller has it."""

    def finish(self) -> None:
        """Waits until nothing is pending; also after an error."""


class Copier(Protocol):
    """Copies between pinned host memory and one device, in the order in which they are started. Memory of either
    is a flat torch uint8 tensor; what a start returns is what `wait` waits for."""

    def buffer(self, size: int) -> Any:
        """Pinned host memory."""

    def empty(self, size: int) -> Any:
        """Memory of the device, for the caller to keep."""

    def start(self, target: Any, source: Any) -> Any:
        """Starts to copy."""

    def queue(self, work: Callable[[], None]) -> Any:
        """Has work for the device begin after all that was started."""

    def send(self, numbers: NDArray[np.int64]) -> Any:
        """Numbers as a tensor of the device."""

    def wait(self, started: Any) -> None:
        """Returns when that copy, and all before it, are done."""


class CudaCopier:
    """A Copier of one GPU. Made on the caller's thread, whose current stream it follows."""

    def __init__(self, device: Any) -> None:
        import torch

        self._torch: Any = torch
        self._caller = self._torch.cuda.current_stream(device)
        self._stream = self._torch.cuda.Stream(device)
        self._stream.wait_stream(self._caller)

    def buffer(self, size: int) -> Any:
        return self._torch.empty(size, dtype=self._torch.uint8, pin_memory=True)

    def empty(self, size: int) -> Any:
        with self._torch.cuda.stream(self._stream):
            tensor = self._torch.empty(size, dtype=self._torch.uint8, device=self._stream.device)
        tensor.record_stream(self._caller)  # freed memory is not handed on while the caller's stream uses it
        return tensor

    def start(self, target: Any, source: Any) -> Any:
        return self.queue(lambda: target.copy_(source, non_blocking=True))

    def queue(self, work: Callable[[], None]) -> Any:
        with self._torch.cuda.stream(self._stream):
            work()
            return self._stream.record_event()

    def send(self, numbers: NDArray[np.int64]) -> Any:
        with self._torch.cuda.stream(self._stream):
            return self._torch.from_numpy(numbers).to(self._stream.device)

    def wait(self, started: Any) -> None:
        started.synchronize()


COPIERS: dict[str, Callable[[Any], Copier]] = {"cuda": CudaCopier}
"""By torch's type of device."""


def copier_of(device: Any, name: str) -> Copier:
    """For a torch device. InvalidArgument for one that nobody can copy from."""
    copier = COPIERS.get(device.type)
    if copier is None:
        raise InvalidArgument(f"{name}: on {device}; only {', '.join(['cpu', *COPIERS])} can be copied")
    try:
        return copier(device)
    except (AssertionError, RuntimeError) as error:  # torch's words for a GPU that is not there
        raise InvalidArgument(f"{name}: on {device}, which is not there ({error})") from error


def source_of(blocks: list[Any], name: str) -> Source:
    """Blocks (payload.flat_blocks) to be stored. InvalidArgument for several devices in one call."""
    device = _device_of(blocks, name)
    return HostSource(blocks) if device is None else DeviceSource(blocks, copier_of(device, name))


def sink_of(blocks: list[Any] | U8Array, name: str) -> Sink:
    """The same to be read into."""
    device = _device_of(blocks, name)
    if device is None:
        return HostSink(blocks.__getitem__)
    return DeviceSink(blocks.__getitem__, copier_of(device, name))


def _device_of(blocks: list[Any] | U8Array, name: str) -> Any:
    """The device that all blocks are on; None for host memory."""
    if isinstance(blocks, np.ndarray) or all(isinstance(block, np.ndarray) for block in blocks):
        return None
    devices = [None if isinstance(block, np.ndarray) else block.device for block in blocks]
    for index, device in enumerate(devices):
        if device != devices[0]:
            places = f"on {device or 'cpu'}, {name}[0] on {devices[0] or 'cpu'}"
            raise InvalidArgument(f"{name}[{index}]: {places}; one call takes blocks of one device")
    return devices[0]


class Staging:
    """Pinned buffers that take turns, each with the copy that still uses it."""

    def __init__(self, copier: Copier) -> None:
        self.copier = copier
        self._buffers: list[Any] = []
        self._started: list[Any] = [None] * DEPTH

    def buffer(self, index: int, size: int) -> Any:
        while len(self._buffers) < DEPTH:
            self._buffers.append(self.copier.buffer(size))
        return self._buffers[index % DEPTH]

    def started(self, index: int, copy: Any) -> None:
        self._started[index % DEPTH] = copy

    @property
    def pending(self) -> bool:
        return any(copy is not None for copy in self._started)

    def wait(self, index: int) -> None:
        """Until no copy uses the buffer of that turn."""
        copy = self._started[index % DEPTH]
        if copy is not None:
            self.copier.wait(copy)
            self._started[index % DEPTH] = None


class HostSource:
    """Blocks in host memory."""

    def __init__(self, blocks: list[U8Array]) -> None:
        self._blocks = blocks

    def __len__(self) -> int:
        return len(self._blocks)

    def part(self, start: int, end: int) -> HostSource:
        return HostSource(self._blocks[start:end])

    def fill(self, indices: Sequence[int], slots: Sequence[U8Array]) -> list[int]:
        return [_filled(slot, self._blocks[index]) for index, slot in zip(indices, slots, strict=True)]

    def host(self) -> list[U8Array]:
        return self._blocks


class DeviceSource:
    """Blocks of a device. While the CPU has one, the next one is on its way."""

    def __init__(self, tensors: list[Any], copier: Copier) -> None:
        self._tensors = tensors
        self._staging = Staging(copier)
        self._held: list[int | None] = [None] * DEPTH

    def __len__(self) -> int:
        return len(self._tensors)

    def part(self, start: int, end: int) -> DeviceSource:
        return DeviceSource(self._tensors[start:end], self._staging.copier)

    def fill(self, indices: Sequence[int], slots: Sequence[U8Array]) -> list[int]:
        return [_filled(slot, self.block(index)) for index, slot in zip(indices, slots, strict=True)]

    def host(self) -> list[U8Array]:
        return [self.block(index).copy() for index in range(len(self))]

    def block(self, index: int) -> U8Array:
        """One block, there until another one is asked for."""
        for wanted in (index, index + 1):
            self._fetch(wanted)
        self._staging.wait(index)
        block: U8Array = self._staging.buffer(index, 0).numpy()
        return block

    def _fetch(self, index: int) -> None:
        if index >= len(self) or self._held[index % DEPTH] == index:
            return
        tensor = self._tensors[index]
        buffer = self._staging.buffer(index, tensor.numel())
        self._staging.started(index, self._staging.copier.start(buffer, tensor))
        self._held[index % DEPTH] = index


def _filled(slot: U8Array, block: U8Array) -> int:
    np.copyto(slot, block)
    # Of the source, not of the slot: a wrong write is then found out, not sealed.
    return checksum_of(block)


class HostSink:
    """Into host memory, given by index."""

    def __init__(self, memory: Callable[[int], U8Array]) -> None:
        self.begin = memory

    def take(self, indices: Sequence[int], slots: Sequence[U8Array]) -> None:
        blocks = list(map(self.begin, indices))
        for block, slot in zip(blocks, slots, strict=True):
            block[...] = slot

    def ready(self) -> None:
        """It is where it should be."""

    @property
    def pending(self) -> bool:
        return False

    def finish(self) -> None:
        """There is nothing to wait for."""


class DeviceSink:
    """Into memory of a device, given by index when a block's bytes are there."""

    def __init__(self, memory: Callable[[int], Any], copier: Copier) -> None:
        self._memory = memory
        self._staging = Staging(copier)
        self._turn = 0
        self._target: Any = None

    def begin(self, index: int) -> U8Array:
        self._turn += 1
        self._target = self._memory(index)
        self._staging.wait(self._turn)
        block: U8Array = self._staging.buffer(self._turn, self._target.numel()).numpy()
        return block

    def take(self, indices: Sequence[int], slots: Sequence[U8Array]) -> None:
        for index, slot in zip(indices, slots, strict=True):
            np.copyto(self.begin(index), slot)
            self.ready()

    def ready(self) -> None:
        copy = self._staging.copier.start(self._target, self._staging.buffer(self._turn, 0))
        self._staging.started(self._turn, copy)

    @property
    def pending(self) -> bool:
        return self._staging.pending

    def finish(self) -> None:
        for turn in range(DEPTH):
            self._staging.wait(turn)


class Part:
    """Some blocks of a call, by their index among these."""

    def __init__(self, sink: Sink, indices: Sequence[int]) -> None:
        self._sink = sink
        self._indices = indices

    def begin(self, index: int) -> U8Array:
        return self._sink.begin(self._indices[index])

    def take(self, indices: Sequence[int], slots: Sequence[U8Array]) -> None:
        self._sink.take([self._indices[index] for index in indices], slots)

    def ready(self) -> None:
        self._sink.ready()

    @property
    def pending(self) -> bool:
        return self._sink.pending

    def finish(self) -> None:
        self._sink.finish()
