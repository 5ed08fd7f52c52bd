"""Blocks' bytes as callers have them: any contiguous buffers in, arrays or tensors of the layout's form out."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tierd_client.errors import InvalidArgument
from tierd_client.format import U8Array
from tierd_client.layout import DTYPE_BYTES, Group
from tierd_client.staging import DeviceSink, HostSink, Sink, copier_of

_NUMPY_HAS_NOT = ("bfloat16", "float8_e4m3", "float8_e5m2")
_UINT8 = np.dtype(np.uint8)
_TORCH_NAMES = {"float8_e4m3": "float8_e4m3fn"}


def torch_name(dtype: str) -> str:
    """What torch calls a dtype of layouts."""
    return _TORCH_NAMES.get(dtype, dtype)


def dtype_bits(dtype: str) -> str:
    """The dtype by which arrays hold a dtype's elements: unsigned integers where numpy lacks it."""
    return f"uint{8 * DTYPE_BYTES[dtype]}" if dtype in _NUMPY_HAS_NOT else dtype


@dataclass(frozen=True, slots=True)
class Form:
    """How a block of a group looks to a caller: (parts, *shape) where all parts are alike, the shape of its
    only part, or flat bytes."""

    dtype: str
    shape: tuple[int, ...]
    block_bytes: int

    @classmethod
    def of_group(cls, group: Group) -> Form:
        first = group.parts[0]
        if any((part.dtype, part.shape) != (first.dtype, first.shape) for part in group.parts):
            return cls("uint8", (group.block_bytes,), group.block_bytes)
        shape = first.shape if len(group.parts) == 1 else (len(group.parts), *first.shape)
        return cls(first.dtype, shape, group.block_bytes)

    def array(self, flat: U8Array) -> Any:
        """A block's bytes as a numpy array; flat uint8 where numpy lacks the dtype. No copy."""
        if self.dtype in _NUMPY_HAS_NOT:
            return flat
        return flat.view(self.dtype).reshape(self.shape)

    def tensor(self, flat: Any) -> Any:
        """A block's bytes, a torch uint8 tensor, as a tensor of the layout's dtype. No copy."""
        torch = sys.modules["torch"]
        return flat.view(getattr(torch, torch_name(self.dtype))).view(self.shape)


class Made:
    """Memory for blocks that are read, made for each that is there: numpy arrays, or torch tensors on a device."""

    def __init__(self, block_bytes: int, tensors: bool, device: Any = None) -> None:
        """InvalidArgument for a device that is none, or that nobody can copy to."""
        self.blocks: dict[int, Any] = {}
        self.tensors = tensors
        self._size = block_bytes
        where = _device(device)
        if where is None or where.type == "cpu":
            self.sink: Sink = HostSink(self._in_host)
        else:
            copier = copier_of(where, "device")
            self.sink = DeviceSink(lambda index: self._keep(index, copier.empty(block_bytes)), copier)

    def _in_host(self, index: int) -> U8Array:
        if not self.tensors:
            array: U8Array = self._keep(index, np.empty(self._size, np.uint8))
            return array
        import torch  # only those who ask for tensors pay for it

        flat: U8Array = self._keep(index, torch.empty(self._size, dtype=torch.uint8)).numpy()
        return flat

    def _keep(self, index: int, block: Any) -> Any:
        self.blocks[index] = block
        return block


def _device(device: Any) -> Any:
    if device is None:
        return None
    import torch

    try:
        return torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise InvalidArgument(f"device: {device!r} ({error})") from error


def flat_blocks(values: Any, count: int, block_bytes: int, name: str = "tensors") -> list[Any]:
    """One flat uint8 view per block: numpy in host memory, torch on a device. `values`: one buffer per block, or
    one of all blocks, first axis `count`.

    Raises InvalidArgument naming index and sizes. No copies are made.
    """
    if is_buffer(values):
        whole = flat_bytes(values, name)
        shape = getattr(values, "shape", None)
        if len(whole) != count * block_bytes or (shape is not None and len(shape) > 1 and shape[0] != count):
            raise InvalidArgument(
                f"{name}: {len(whole)} bytes of shape {tuple(shape or ())}, not {count} blocks of {block_bytes} "
                "bytes along the first axis; a list has one buffer per block")
        return list(whole.reshape(count, block_bytes))
    if not isinstance(values, Iterable):
        raise InvalidArgument(f"{name}: {type(values).__name__} is neither a buffer nor a list of buffers")
    values = list(values)
    if len(values) != count:
        raise InvalidArgument(f"{name}: {len(values)} buffers for {count} ids")
    blocks = [
        value if _is_flat(value) else flat_bytes(value, f"{name}[{index}]") for index, value in enumerate(values)
    ]
    for index, block in enumerate(blocks):
        if len(block) != block_bytes:
            raise InvalidArgument(f"{name}[{index}]: {len(block)} bytes, a block has {block_bytes}")
    return blocks


def writable_blocks(values: Any, count: int, block_bytes: int) -> list[Any] | U8Array:
    """As flat_blocks, for buffers to be written into. An array of them is its own sequence of views."""
    if is_plain_room(values, (count, block_bytes)):
        rows: U8Array = values
        return rows
    blocks = flat_blocks(values, count, block_bytes, "buffers")
    for index, block in enumerate(blocks):
        if isinstance(block, np.ndarray) and not block.flags.writeable:
            raise InvalidArgument(f"buffers[{index}]: read-only")
    return blocks


def is_plain_room(value: Any, shape: tuple[int, ...]) -> bool:
    """Whether a value is an array of bytes of this shape that can be written as it is."""
    if type(value) is not np.ndarray or value.dtype is not _UINT8 or value.shape != shape:
        return False
    flags = value.flags
    return flags.c_contiguous and flags.writeable


def is_buffer(value: Any) -> bool:
    """Whether a value is one buffer, not a collection of them."""
    return isinstance(value, bytes | bytearray | memoryview | np.ndarray) or is_tensor(value)


def flat_bytes(value: Any, name: str) -> Any:
    """All bytes of one contiguous buffer, as a flat view: a numpy array, or a torch tensor on a device.
    InvalidArgument when that needs a copy."""
    if _is_flat(value):
        return value
    if is_tensor(value):
        return _tensor_bytes(value, name)
    try:
        array = value if isinstance(value, np.ndarray) else np.frombuffer(memoryview(value), np.uint8)
    except (TypeError, ValueError, BufferError) as error:
        raise InvalidArgument(f"{name}: {type(value).__name__} is no contiguous buffer ({error})") from error
    if array.dtype.hasobject:
        raise InvalidArgument(f"{name}: an array of Python objects has no bytes")
    if not array.flags.c_contiguous:
        raise InvalidArgument(f"{name}: not contiguous; strides {array.strides} for shape {array.shape}")
    flat: U8Array = array.reshape(-1).view(np.uint8)
    return flat


def _is_flat(value: Any) -> bool:
    return type(value) is np.ndarray and value.dtype is _UINT8 and value.ndim == 1 and value.flags.c_contiguous


def float32_bytes(values: Any, name: str) -> bytes:
    """One axis of numbers as little-endian float32."""
    if is_tensor(values):
        values = values.detach().float().cpu().numpy()
    try:
        array = np.asarray(values, "<f4")
    except (TypeError, ValueError) as error:
        raise InvalidArgument(f"{name}: not numbers ({error})") from error
    if array.ndim != 1:
        raise InvalidArgument(f"{name}: {array.ndim} axes, not one")
    return array.tobytes()


def is_tensor(value: Any) -> bool:
    """Whether a value is a torch tensor; without loading torch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def _tensor_bytes(tensor: Any, name: str) -> Any:
    if not tensor.is_contiguous():
        raise InvalidArgument(f"{name}: not contiguous; strides {tensor.stride()}")
    flat = tensor.detach().reshape(-1).view(sys.modules["torch"].uint8)
    return flat.numpy() if tensor.device.type == "cpu" else flat
