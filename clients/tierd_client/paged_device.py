"""Pages on a GPU: collected there by one kernel per part, layer and batch of blocks, and moved as one copy by DMA.

Layer after layer goes through pinned buffers that take turns, on a stream beside the caller's: the GPU collects and
copies one while the CPU puts the other where it belongs.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tierd_client.format import U8Array
from tierd_client.staging import DEPTH, Copier, Staging

CHUNK_BYTES = 16 << 20
"""Bytes of one layer that are moved at once, unless those of one block are more."""

I64 = NDArray[np.int64]
OfLayer = Callable[[int], None]


class DevicePages:
    """Tensors on a GPU, by part and layer, pages first."""

    def __init__(self, views: list[list[Any]], pages_per_block: int) -> None:
        self.views = [[_as_bits(view) for view in of_part] for of_part in views]
        self.layers = len(views[0])
        self.sizes = [pages_per_block * of_part[0][0].numel() * of_part[0].element_size() for of_part in views]
        """Bytes of one layer of a block's part."""
        self.layer_bytes = sum(self.sizes)

    def copies(self, copier: Copier) -> DeviceCopies:
        """For one call."""
        return DeviceCopies(self, copier)


@dataclass(frozen=True, slots=True)
class _Chunk:
    """Some blocks of a call, and the numbers of their pages on the GPU."""

    numbers: Any
    blocks: Sequence[U8Array]


class DeviceCopies:
    """PageCopies (paged.py) of tensors on a GPU. A layer of a chunk lies in a buffer part after part, and in each
    of these block after block."""

    def __init__(self, pages: DevicePages, copier: Copier) -> None:
        self._pages = pages
        self._copier = copier
        self._staging = Staging(copier)
        self._scratch: list[Any] = []
        self._turns = itertools.count()

    def gather(self, pages: I64, blocks: Sequence[U8Array], before: OfLayer | None) -> None:
        chunks = self._chunks(pages, blocks)
        waiting: tuple[int, _Chunk, int] | None = None
        with self._drained():
            for layer in range(self._pages.layers):
                if before is not None:
                    before(layer)
                for chunk in chunks:
                    fetched = layer, chunk, self._fetch(layer, chunk)
                    if waiting is not None:
                        self._hand_out(*waiting)
                    waiting = fetched
            if waiting is not None:
                self._hand_out(*waiting)

    def scatter(self, pages: I64, blocks: Sequence[U8Array], after: OfLayer | None) -> None:
        chunks = self._chunks(pages, blocks)
        sent: list[Any] = []
        with self._drained():
            for layer in range(self._pages.layers):
                sent += [self._send(layer, chunk) for chunk in chunks]
                if after is not None and layer:
                    self._tell(after, layer - 1, sent, len(chunks))
        if after is not None:
            after(self._pages.layers - 1)

    def _tell(self, after: OfLayer, layer: int, sent: list[Any], chunks: int) -> None:
        if chunks:
            self._copier.wait(sent[(layer + 1) * chunks - 1])
        after(layer)

    def _chunks(self, pages: I64, blocks: Sequence[U8Array]) -> list[_Chunk]:
        step = min(max(1, CHUNK_BYTES // self._pages.layer_bytes), max(1, len(blocks)))
        size = step * self._pages.layer_bytes
        for turn in range(DEPTH if blocks else 0):
            self._staging.buffer(turn, size)
            self._scratch.append(self._copier.empty(size))
        return [
            _Chunk(self._copier.send(pages[start : start + step].reshape(-1)), blocks[start : start + step])
            for start in range(0, len(blocks), step)
        ]

    def _fetch(self, layer: int, chunk: _Chunk) -> int:
        """Collects a layer of a chunk and starts its copy; the turn whose buffer it comes to."""
        turn = next(self._turns)
        size = self._pages.layer_bytes * len(chunk.blocks)
        pinned, scratch = self._staging.buffer(turn, size)[:size], self._scratch[turn % DEPTH][:size]

        def work() -> None:
            for view, rows in self._of_layer(layer, chunk, scratch):
                rows.copy_(view.index_select(0, chunk.numbers))
            pinned.copy_(scratch, non_blocking=True)

        self._staging.started(turn, self._copier.queue(work))
        return turn

    def _hand_out(self, layer: int, chunk: _Chunk, turn: int) -> None:
        self._staging.wait(turn)
        for block, buffer in self._pieces(layer, chunk, turn):
            np.copyto(block, buffer)

    def _send(self, layer: int, chunk: _Chunk) -> Any:
        """Starts to copy a layer of a chunk into its pages; what to wait for."""
        turn = next(self._turns)
        size = self._pages.layer_bytes * len(chunk.blocks)
        pinned, scratch = self._staging.buffer(turn, size)[:size], self._scratch[turn % DEPTH][:size]
        self._staging.wait(turn)
        for block, buffer in self._pieces(layer, chunk, turn):
            np.copyto(buffer, block)

        def work() -> None:
            scratch.copy_(pinned, non_blocking=True)
            for view, rows in self._of_layer(layer, chunk, scratch):
                view.index_copy_(0, chunk.numbers, rows)

        started = self._copier.queue(work)
        self._staging.started(turn, started)
        return started

    def _of_layer(self, layer: int, chunk: _Chunk, scratch: Any) -> Iterator[tuple[Any, Any]]:
        """Each part's tensor, and its rows of a buffer as one row per page."""
        start = 0
        for of_part, size in zip(self._pages.views, self._pages.sizes, strict=True):
            view, end = of_part[layer], start + size * len(chunk.blocks)
            yield view, scratch[start:end].view(view.dtype).view(-1, *view.shape[1:])
            start = end

    def _pieces(self, layer: int, chunk: _Chunk, turn: int) -> Iterator[tuple[U8Array, U8Array]]:
        """A layer's bytes in each block, with where they are in the buffer of that turn."""
        buffer: U8Array = self._staging.buffer(turn, 0).numpy()
        start = part_start = 0
        for size in self._pages.sizes:
            at = part_start + layer * size
            for block in chunk.blocks:
                yield block[at : at + size], buffer[start : start + size]
                start += size
            part_start += size * self._pages.layers

    @contextlib.contextmanager
    def _drained(self) -> Iterator[None]:
        """Leaves no copy under way, also after an error."""
        try:
            yield
        finally:
            for turn in range(DEPTH):
                self._staging.wait(turn)


def _as_bits(tensor: Any) -> Any:
    """The same elements as integers, which every operation of torch takes."""
    import torch

    integers = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return tensor.detach().view(integers[tensor.element_size()])
