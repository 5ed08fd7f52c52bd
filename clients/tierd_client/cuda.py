"""CUDA memory across processes, from the worker's side: handles of tensors, events as fences.

Imports torch. The runtime and driver are those that torch has loaded, called through ctypes.
"""

from __future__ import annotations

import ctypes
import os
from dataclasses import dataclass
from typing import Any

from tierd_client.errors import FailedPrecondition, InvalidArgument

HANDLE_BYTES = 64
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


def refuse_expandable_segments() -> None:
    """FailedPrecondition where torch is told to make memory that has no handle."""
    for name in _ALLOCATOR_SETTINGS:
        if "expandable_segments:true" in os.environ.get(name, "").replace(" ", "").lower():
            raise FailedPrecondition(f"{name}: memory of expandable_segments:True cannot be shared with the daemon")


def _allocation_of(torch: Any, pointer: int) -> tuple[int, bytes]:
    """Base and handle of the allocation that a device pointer is in."""
    version = torch.version.cuda.split(".")[0]
    runtime, driver = ctypes.CDLL(f"libcudart.so.{version}"), ctypes.CDLL("libcuda.so.1")
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
