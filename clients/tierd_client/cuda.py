"""CUDA memory across processes, from the worker's side: handles of tensors, events as fences.

Imports torch. The runtime and driver are those that torch has loaded, called through ctypes.
"""

from __future__ import annotations

import ctypes
import os
import threading
from dataclasses import dataclass
from typing import Any, ClassVar

from tierd_client.errors import FailedPrecondition, InvalidArgument
from tierd_client.format import U8Array

HANDLE_BYTES = 64
HOST_REGISTER_PORTABLE, HOST_REGISTER_READ_ONLY = 1, 8
IPC_LAZY_PEER_ACCESS = 1
"""The only flag that cudaIpcOpenMemHandle takes."""
_ALLOCATOR_SETTINGS = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")


@dataclass(frozen=True, slots=True)
class CudaRegion:
    """A tensor's memory on a GPU, as another process of this host can open it. `device`: UUID of the GPU; `offset`:
    where in its allocation the tensor begins. What is opened is the whole allocation: lend tensors that have one of
    their own. `tensor` is kept alive: who frees memory that others have opened gets undefined behaviour."""

    device: str
    handle: bytes
    offset: int
    size: int
    tensor: Any

    @classmethod
    def of(cls, tensor: Any) -> CudaRegion:
        """Raises InvalidArgument for a tensor that is not contiguous on a GPU, FailedPrecondition where its memory
        cannot be shared: torch's expandable segments have no such handle."""
        import torch

        if tensor.device.type != "cuda" or not tensor.is_contiguous():
            place = f"on {tensor.device}, strides {tensor.stride()}"
            raise InvalidArgument(f"tensor: {place}; it must be contiguous on a GPU")
        refuse_expandable_segments()
        with torch.cuda.device(tensor.device):
            base, handle = _allocation_of(torch, tensor.data_ptr())
        uuid = str(torch.cuda.get_device_properties(tensor.device).uuid)
        size = tensor.numel() * tensor.element_size()
        return cls(uuid, handle, tensor.data_ptr() - base, size, tensor)


def register(array: U8Array, *, read_only: bool) -> str:
    """Pins host memory for copies to a GPU by DMA; why it is not, empty when it is. Memory that is mapped read-only
    must be registered so."""
    import torch

    if not torch.cuda.is_available():
        return "torch finds no CUDA device here"
    flags = HOST_REGISTER_PORTABLE | (HOST_REGISTER_READ_ONLY if read_only else 0)
    status = int(torch.cuda.cudart().cudaHostRegister(array.ctypes.data, array.size, flags))  # type: ignore[no-untyped-call]
    if status:
        _runtime(torch).cudaGetLastError()  # or the next unrelated call would report it as its own
    return f"cudaHostRegister: error {status}" if status else ""


def unregister(array: U8Array) -> None:
    """Ends a registration, before the memory is unmapped."""
    import torch

    if int(torch.cuda.cudart().cudaHostUnregister(array.ctypes.data)):  # type: ignore[no-untyped-call]
        _runtime(torch).cudaGetLastError()


class OpenedHandle:
    """Memory of the daemon on a GPU, opened in this process; `tensor`: all of it, flat uint8.

    One handle is opened once in a process, however many clients it has: who opens it again gets the same memory,
    and the last one closes it. No tensor over it may be used after `close`.
    """

    _lock = threading.Lock()
    _users: ClassVar[dict[bytes, tuple[int, int]]] = {}
    """By handle: pointer and users."""

    def __init__(self, device: str, handle: bytes, size: int) -> None:
        """Raises FailedPrecondition where the GPU is not visible here, or the handle cannot be opened."""
        import torch

        if len(handle) != HANDLE_BYTES:
            raise FailedPrecondition(f"a handle has {HANDLE_BYTES} bytes, not {len(handle)}")
        self.handle, self.size = handle, size
        self._ordinal = _ordinal_of(torch, device)
        with self._lock, torch.cuda.device(self._ordinal):
            pointer, users = self._users.get(handle, (0, 0))
            pointer = pointer or _open(torch, handle)
            self._users[handle] = pointer, users + 1
        self.tensor: Any = torch.as_tensor(_Foreign(pointer, size), device=f"cuda:{self._ordinal}")

    def close(self) -> None:
        """Ends this use of the memory, after all that was put on the device before; idempotent."""
        import torch

        if self.tensor is None:
            return
        self.tensor = None
        with self._lock, torch.cuda.device(self._ordinal):
            pointer, users = self._users.pop(self.handle)
            if users > 1:
                self._users[self.handle] = pointer, users - 1
                return
            torch.cuda.synchronize()
            _runtime(torch).cudaIpcCloseMemHandle(ctypes.c_void_p(pointer))


class _Handle(ctypes.Structure):
    """cudaIpcMemHandle_t, which is passed by value."""

    _fields_ = (("reserved", ctypes.c_char * HANDLE_BYTES),)


class _Foreign:
    """Device memory that torch does not own, as the interface that torch reads."""

    def __init__(self, pointer: int, size: int) -> None:
        self.__cuda_array_interface__: dict[str, Any] = {
            "data": (pointer, False), "shape": (size,), "typestr": "|u1", "version": 3,
        }


def _open(torch: Any, handle: bytes) -> int:
    runtime, pointer = _runtime(torch), ctypes.c_void_p()
    status = runtime.cudaIpcOpenMemHandle(
        ctypes.byref(pointer), _Handle.from_buffer_copy(handle), IPC_LAZY_PEER_ACCESS)
    if status:
        runtime.cudaGetLastError()  # or the next unrelated call would report it as its own
        raise FailedPrecondition(f"cudaIpcOpenMemHandle: error {status}")
    return int(pointer.value or 0)


def _ordinal_of(torch: Any, uuid: str) -> int:
    """The number by which this process knows a GPU."""
    if not torch.cuda.is_available():
        raise FailedPrecondition(f"the block is in memory of GPU {uuid}, and torch finds no CUDA device here")
    seen = [torch.cuda.get_device_properties(ordinal) for ordinal in range(torch.cuda.device_count())]
    visible = {normal_uuid(str(one.uuid)): ordinal for ordinal, one in enumerate(seen)}
    if normal_uuid(uuid) not in visible:
        raise FailedPrecondition(f"GPU {uuid} is not visible here; there are {', '.join(visible)}")
    return visible[normal_uuid(uuid)]


def normal_uuid(text: str) -> str:
    """A GPU's UUID without the prefix that some tools give it."""
    return text.lower().removeprefix("gpu-")


def refuse_expandable_segments() -> None:
    """FailedPrecondition where torch is told to make memory that has no handle."""
    for name in _ALLOCATOR_SETTINGS:
        if "expandable_segments:true" in os.environ.get(name, "").replace(" ", "").lower():
            raise FailedPrecondition(f"{name}: memory of expandable_segments:True cannot be shared with the daemon")


def _allocation_of(torch: Any, pointer: int) -> tuple[int, bytes]:
    """Base and handle of the allocation that a device pointer is in."""
    runtime, driver = _runtime(torch), ctypes.CDLL("libcuda.so.1")
    base, size = ctypes.c_uint64(), ctypes.c_size_t()
    status = driver.cuMemGetAddressRange_v2(ctypes.byref(base), ctypes.byref(size), ctypes.c_uint64(pointer))
    if status:
        raise FailedPrecondition(f"cuMemGetAddressRange: error {status}")
    handle = (ctypes.c_char * HANDLE_BYTES)()
    status = runtime.cudaIpcGetMemHandle(ctypes.byref(handle), ctypes.c_void_p(base.value))
    if status:
        runtime.cudaGetLastError()  # or the next unrelated call would report it as its own
        raise FailedPrecondition(f"cudaIpcGetMemHandle: error {status}: is this memory of cudaMalloc?")
    return base.value, handle.raw


def _runtime(torch: Any) -> Any:
    """The CUDA runtime that torch has loaded; another copy of it would have other last errors."""
    return ctypes.CDLL(f"libcudart.so.{torch.version.cuda.split('.')[0]}")
