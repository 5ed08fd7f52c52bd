"""A CUDA device: memory of its own by cudaMalloc, that of other processes by CUDA IPC, copies on side streams.

The runtime is the one that torch has loaded, called through ctypes where torch binds nothing: its allocator
would put a segment beside tensors of others, and its way of sharing needs torch's own counters on both sides.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Sequence
from typing import Any

import torch

from tierd.adapters.device import Copy, Memory, Part
from tierd.adapters.torch_bytes import tensor_over
from tierd.core.errors import Unavailable
from tierd.core.loans import HANDLE_BYTES
from tierd_client.format import U8Array

HOST_REGISTER_PORTABLE = 1
IPC_LAZY_PEER_ACCESS = 1
"""The only flag that cudaIpcOpenMemHandle takes."""


class CudaDevice:
    """A Device on one GPU. Each thread has its own stream, so that copies of two threads overlap and neither waits
    for work of somebody else on the default stream.
    """

    def __init__(self, name: str) -> None:
        """`name`: "cuda:N". Raises Unavailable naming hbm_device."""
        if not torch.cuda.is_available():
            raise Unavailable(
                f"hbm_device: {name} asked for, but torch {torch.__version__} finds no CUDA device"
            )
        self._device = torch.device(name)
        self._local = threading.local()
        self._lock = threading.Lock()
        self._opened: dict[bytes, tuple[Memory, int]] = {}
        """By handle: memory and users. A second open of one handle and its close are the driver's secret."""
        self._made: set[bytes] = set()
        with torch.cuda.device(self._device):
            torch.cuda.init()  # type: ignore[no-untyped-call]
            self._runtime = _runtime()
        self.uuid = normal_uuid(str(torch.cuda.get_device_properties(self._device).uuid))

    def allocate(self, size: int) -> Memory:
        pointer = ctypes.c_void_p()
        with torch.cuda.device(self._device):
            self._check("cudaMalloc", self._runtime.cudaMalloc(ctypes.byref(pointer), ctypes.c_size_t(size)))
            status = self._runtime.cudaMemset(pointer, 0, ctypes.c_size_t(size))
            self._check("cudaMemset", status or self._runtime.cudaDeviceSynchronize())
        return Memory(_tensor_at(int(pointer.value or 0), size, self._device), size)

    def free(self, memory: Memory) -> None:
        with torch.cuda.device(self._device), self._lock:
            if not memory.handle:
                self._check("cudaFree", self._runtime.cudaFree(ctypes.c_void_p(memory.base.data_ptr())))
                return
            first, users = self._opened.pop(memory.handle)
            if users > 1:
                self._opened[memory.handle] = (first, users - 1)
                return
            pointer = ctypes.c_void_p(first.base.data_ptr())
            self._check("cudaIpcCloseMemHandle", self._runtime.cudaIpcCloseMemHandle(pointer))

    def read(self, parts: Sequence[Part], out: U8Array) -> Copy:
        target, start = tensor_over(out), 0
        with torch.cuda.device(self._device), torch.cuda.stream(self._stream()):
            try:
                for part in parts:
                    source = part.memory.base[part.offset : part.offset + part.size]
                    target[start : start + part.size].copy_(source, non_blocking=True)
                    start += part.size
            except RuntimeError as error:
                raise self._failed(error) from error
            return self._mark()

    def write(self, part: Part, data: U8Array) -> Copy:
        with torch.cuda.device(self._device), torch.cuda.stream(self._stream()):
            try:
                target = part.memory.base[part.offset : part.offset + part.size]
                target.copy_(tensor_over(data), non_blocking=True)
            except RuntimeError as error:
                raise self._failed(error) from error
            return self._mark()

    def export(self, memory: Memory) -> bytes:
        handle = (ctypes.c_char * HANDLE_BYTES)()
        pointer = ctypes.c_void_p(memory.base.data_ptr())
        with torch.cuda.device(self._device):
            status = self._runtime.cudaIpcGetMemHandle(ctypes.byref(handle), pointer)
            self._check("cudaIpcGetMemHandle", status)
        self._made.add(handle.raw)
        return handle.raw

    def open(self, handle: bytes, size: int) -> Memory:
        if len(handle) != HANDLE_BYTES:
            raise Unavailable(f"a CUDA IPC handle has {HANDLE_BYTES} bytes, not {len(handle)}")
        if handle in self._made:
            raise Unavailable("a process cannot open a handle of its own")
        with torch.cuda.device(self._device), self._lock:
            known, users = self._opened.get(handle, (None, 0))
            if known is None:
                pointer = ctypes.c_void_p()
                status = self._runtime.cudaIpcOpenMemHandle(
                    ctypes.byref(pointer), _Handle.from_buffer_copy(handle), IPC_LAZY_PEER_ACCESS
                )
                self._check("cudaIpcOpenMemHandle", status)
                known = Memory(_tensor_at(int(pointer.value or 0), size, self._device), size, handle)
            self._opened[handle] = (known, users + 1)
            return Memory(_tensor_at(known.base.data_ptr(), size, self._device), size, handle)

    def register(self, array: U8Array) -> bool:
        runtime: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call]
        status = int(runtime.cudaHostRegister(array.ctypes.data, array.size, HOST_REGISTER_PORTABLE))
        if status:
            self._runtime.cudaGetLastError()
        return status == 0

    def unregister(self, array: U8Array) -> None:
        runtime: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call]
        if int(runtime.cudaHostUnregister(array.ctypes.data)):
            self._runtime.cudaGetLastError()

    def _stream(self) -> torch.cuda.Stream:
        stream: torch.cuda.Stream | None = getattr(self._local, "stream", None)
        if stream is None:
            stream = self._local.stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        return stream

    def _mark(self) -> Copy:
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record()
        return _CudaCopy(self, event)

    def _failed(self, error: RuntimeError) -> OSError:
        """The error of this seam for one of torch; CUDA's last error, which the next unrelated call would report as
        its own, is cleared."""
        self._runtime.cudaGetLastError()
        return OSError(f"{self._device}: {error}")

    def _check(self, call: str, status: int) -> None:
        if status:
            self._runtime.cudaGetLastError()
            text = self._runtime.cudaGetErrorString(status).decode()
            raise Unavailable(f"{call} on {self._device}: {text} ({status})")


class _CudaCopy:
    """An event behind the copies of one call."""

    def __init__(self, device: CudaDevice, event: Any) -> None:
        self._device = device
        self._event = event

    def done(self) -> bool:
        try:
            return bool(self._event.query())
        except RuntimeError as error:
            raise self._device._failed(error) from error


class _Handle(ctypes.Structure):
    """cudaIpcMemHandle_t, which is passed by value."""

    _fields_ = (("reserved", ctypes.c_char * HANDLE_BYTES),)


class _Foreign:
    """Device memory that torch does not own, as the interface that torch reads."""

    def __init__(self, pointer: int, size: int) -> None:
        self.__cuda_array_interface__: dict[str, Any] = {
            "data": (pointer, False), "shape": (size,), "typestr": "|u1", "version": 3,
        }


def normal_uuid(text: str) -> str:
    """A GPU's UUID without the prefix that some tools give it."""
    return text.lower().removeprefix("gpu-")


def device_of(uuid: str) -> CudaDevice:
    """The visible GPU of a UUID. Raises Unavailable naming those that are visible."""
    visible = {}
    for ordinal in range(torch.cuda.device_count()):
        visible[normal_uuid(str(torch.cuda.get_device_properties(ordinal).uuid))] = ordinal
    if normal_uuid(uuid) not in visible:
        raise Unavailable(f"GPU {uuid} is not visible here; there are {', '.join(visible) or 'none'}")
    return CudaDevice(f"cuda:{visible[normal_uuid(uuid)]}")


def _tensor_at(pointer: int, size: int, device: torch.device) -> torch.Tensor:
    return torch.as_tensor(_Foreign(pointer, size), device=device)


def _runtime() -> Any:
    """The CUDA runtime that torch has loaded; another copy of it would have other last errors."""
    version = (torch.version.cuda or "").split(".")[0]
    try:
        library = ctypes.CDLL(f"libcudart.so.{version}")
    except OSError as error:
        raise Unavailable(f"hbm_device: the CUDA runtime is not there: {error}") from error
    library.cudaGetErrorString.restype = ctypes.c_char_p
    return library
