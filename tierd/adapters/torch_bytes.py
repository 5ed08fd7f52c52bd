"""Torch tensors over memory that torch does not own. Imports torch: only the hbm adapters import this."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from tierd_client.format import U8Array


def use_one_thread() -> None:
    """Keeps torch from splitting a copy over threads of its own: the mover's threads are the parallel ones."""
    torch.set_num_threads(1)


def tensor_over(array: U8Array) -> torch.Tensor:
    """A flat uint8 tensor over the array's memory, which it keeps alive.

    It goes through a memoryview: a tensor made straight from an mmap object does not hold the mapping.
    """
    if array.flags.writeable:
        return torch.frombuffer(array.data, dtype=torch.uint8)
    return torch.frombuffer(_writable_alias(array).data, dtype=torch.uint8)


def _writable_alias(array: U8Array) -> U8Array:
    """The same memory as a writable array, for a tensor that is only read: torch knows no read-only ones."""

    return np.asarray(_Alias(array))


class _Alias:
    """Says of an array's memory that it is writable, and keeps the array alive."""

    def __init__(self, array: U8Array) -> None:
        self._array = array
        self.__array_interface__: dict[str, Any] = {
            "data": (array.ctypes.data, False), "shape": array.shape, "typestr": "|u1", "version": 3,
        }
