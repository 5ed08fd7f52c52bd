"""HBM of one CUDA device, owned by the daemon: one uint8 tensor per segment, copies on a side stream."""

from __future__ import annotations

import contextlib
import ctypes
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from tierd.adapters.arena_host import locate
from tierd.adapters.torch_bytes import tensor_over
from tierd.core.errors import Unavailable
from tierd.core.messages import Tier
from tierd_client.format import U8Array

HOST_REGISTER_PORTABLE = 1


class HbmCuda:
    """An ArenaStore in device memory. Nothing can map it; a copy has ended on the device when a call returns.

    Each thread has its own stream, so that copies of two mover threads overlap and neither waits for work
    of somebody else on the default stream.
    """

    tier = Tier.HBM

    def __init__(self, device: str, lengths: Mapping[int, int]) -> None:
        """Allocates and wipes. `lengths`: bytes of each segment by number. Raises Unavailable."""
        if not torch.cuda.is_available():
            raise Unavailable(
                f"hbm_device: {device} asked for, but torch {torch.__version__} finds no CUDA device"
            )
        self._device = torch.device(device)
        self._lengths = dict(lengths)
        self._local = threading.local()
        try:
            with torch.cuda.device(self._device):
                self._tensors = {
                    number: torch.zeros(size, dtype=torch.uint8, device=self._device)
                    for number, size in lengths.items()
                }
                torch.cuda.synchronize()
        except RuntimeError as error:
            drain_last_error()
            raise Unavailable(f"hbm_bytes: {sum(lengths.values()):,} bytes on {device}: {error}") from error

    @property
    def mappable(self) -> bool:
        return False

    def view(self, address: int, size: int) -> U8Array:
        raise Unavailable(f"hbm on {self._device} cannot be mapped: {size} bytes at {address:#x}")

    def read(self, address: int, out: U8Array) -> None:
        segment, offset = locate(address, out.size, self._lengths)
        with self._stream():
            tensor_over(out).copy_(self._tensors[segment][offset : offset + out.size], non_blocking=True)

    def write(self, address: int, data: U8Array) -> None:
        segment, offset = locate(address, data.size, self._lengths)
        with self._stream():
            target = self._tensors[segment][offset : offset + data.size]
            target.copy_(tensor_over(data), non_blocking=True)

    def close(self) -> None:
        self._tensors.clear()
        self._lengths.clear()

    @contextlib.contextmanager
    def _stream(self) -> Iterator[None]:
        """This thread's stream as the current one; everything put on it is done at the exit."""
        with torch.cuda.device(self._device):
            stream = getattr(self._local, "stream", None)
            if stream is None:
                stream = self._local.stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
            try:
                with torch.cuda.stream(stream):
                    yield
                stream.synchronize()
            except RuntimeError:
                drain_last_error()
                raise


def pin(arrays: Sequence[U8Array]) -> int:
    """Registers host memory with CUDA, so that copies run by DMA; returns the bytes registered.

    One registration per segment (no copy may straddle two). A refusal leaves the rest pageable: slower,
    never wrong. Populate first: registration of untouched pages is several times slower.
    """
    pinned = 0
    runtime: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call]
    for array in arrays:
        status = runtime.cudaHostRegister(array.ctypes.data, array.size, HOST_REGISTER_PORTABLE)
        if int(status) != 0:
            drain_last_error()
            break
        pinned += array.size
    return pinned


def unpin(arrays: Sequence[U8Array]) -> None:
    """Ends registrations made by `pin`; one that does not exist is ignored."""
    runtime: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call]
    for array in arrays:
        if int(runtime.cudaHostUnregister(array.ctypes.data)) != 0:
            drain_last_error()


def drain_last_error() -> None:
    """Clears CUDA's last error, which the next unrelated call would report as its own."""
    version = torch.version.cuda
    if version is None:
        return
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(f"libcudart.so.{version.split('.')[0]}").cudaGetLastError()
