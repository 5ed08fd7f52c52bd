"""A device without a GPU: tensors that say they are on one, and copies that happen only when they are waited for.

So a copy that nobody waits for shows as bytes that are not there, and one that is waited for too late as bytes of
another block.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import torch

ELSEWHERE = torch.device("cuda", 0)


class FakeTensor(torch.Tensor):
    """A tensor of the CPU that says it is on a GPU, and cannot be looked at from the host."""

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return ELSEWHERE

    def numpy(self, **_: Any) -> Any:  # type: ignore[override]
        raise TypeError("a tensor of a device has no numpy array")


def on_device(tensor: torch.Tensor) -> FakeTensor:
    return tensor.clone().as_subclass(FakeTensor)


def from_device(tensor: Any) -> torch.Tensor:
    assert isinstance(tensor, FakeTensor)
    return tensor.as_subclass(torch.Tensor)


class LazyCopier:
    """Keeps copies back until it must do them."""

    made: list[LazyCopier]

    def __init__(self, device: torch.device) -> None:
        assert device.type == "cuda"
        self._pending: deque[tuple[int, Callable[[], None]]] = deque()
        self._started = 0
        self.copied_bytes = 0
        type(self).made.append(self)

    @property
    def pending(self) -> int:
        return len(self._pending)

    def buffer(self, size: int) -> Any:
        return torch.full((size,), 0xEE, dtype=torch.uint8)

    def empty(self, size: int) -> Any:
        return on_device(torch.full((size,), 0xDD, dtype=torch.uint8))

    def start(self, target: Any, source: Any) -> int:
        def copy() -> None:
            target.as_subclass(torch.Tensor).copy_(source.as_subclass(torch.Tensor))
            self.copied_bytes += source.numel()

        return self.queue(copy)

    def queue(self, work: Callable[[], None]) -> int:
        self._started += 1
        self._pending.append((self._started, work))
        return self._started

    def send(self, numbers: Any) -> Any:
        return on_device(torch.from_numpy(numbers))

    def wait(self, started: int) -> None:
        while self._pending and self._pending[0][0] <= started:
            self._pending.popleft()[1]()
