"""Pages in host memory: copied by numpy's `take` and indexed assignment over units of 256 bytes.

One array spans the addresses from the first to the last of all tensors that lie whole units apart; it is only ever
indexed at their pages. So few calls copy all pieces of a block, without the interpreter's lock and without a step
of Python per piece. Units of this size are copied faster than larger ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tierd_client.errors import InvalidArgument
from tierd_client.format import U8Array

UNIT_BYTES = 256
"""Most bytes that are copied as one; fewer where pieces or pages are no multiples of it."""

PIECES_MAX = 1 << 20
"""Contiguous pieces of one block: with more of them, each is too small to be worth a copy."""

INDEX_MAX = 1 << 15
"""Units of one step, unless one piece has more: bounds the memory of an index (8 bytes a unit)."""

I64 = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class _Pieces:
    """Contiguous pieces of one block's part of one tensor: address of each in page 0, and bytes of each."""

    starts: I64
    run: int
    page_stride: int
    columns: I64
    """Which of the block's pages each piece is in."""

    @classmethod
    def of(cls, view: Any, pages_per_block: int) -> _Pieces:
        address, strides, itemsize = _place(view)
        offsets, run = _runs(view.shape[1:], strides[1:], itemsize)
        columns = np.repeat(np.arange(pages_per_block), len(offsets))
        return cls(address + np.tile(offsets, pages_per_block), run, strides[0], columns)

    def cut(self, run: int) -> _Pieces:
        """The same in pieces of `run` bytes, which divides theirs."""
        each = np.arange(self.run // run) * run
        starts = (self.starts[:, None] + each).reshape(-1)
        return _Pieces(starts, run, self.page_stride, np.repeat(self.columns, len(each)))


class HostPages:
    """PageCopies (paged.py) of tensors in host memory, which it keeps alive."""

    def __init__(self, views: list[list[Any]], pages_per_block: int) -> None:
        """`views` by part and layer, pages first. InvalidArgument for more than PIECES_MAX pieces a block."""
        self._kept = views
        found = [[_Pieces.of(view, pages_per_block) for view in of_part] for of_part in views]
        self._run = math.gcd(*(one.run for of_part in found for one in of_part))
        _bounded(sum(len(one.starts) * one.run // self._run for of_part in found for one in of_part))
        pieces = [[one.cut(self._run) for one in of_part] for of_part in found]
        every = [one for of_part in pieces for one in of_part]
        starts = np.concatenate([one.starts for one in every])
        strides = np.concatenate([np.full(len(one.starts), one.page_stride) for one in every])
        self._columns = np.concatenate([one.columns for one in every])
        self._unit = math.gcd(UNIT_BYTES, self._run, int(np.gcd.reduce(strides)))
        self._each = np.arange(self._run // self._unit)
        ends = starts + strides * (len(views[0][0]) - 1) + self._run
        self._spans = _spans(starts, ends, self._unit)
        bases = np.concatenate([np.full(span.end - span.start, span.address) for span in self._spans])
        self._starts, self._strides = (starts - bases) // self._unit, strides // self._unit
        self._whole = [slice(0, len(starts))]
        self._layers = _rows_by_layer([[len(one.starts) for one in of_part] for of_part in pieces])

    def gather(self, pages: I64, blocks: Sequence[U8Array], before: Callable[[int], None] | None) -> None:
        if before is None:
            self._copy(pages, blocks, self._whole, into_pages=False)
            return
        for layer, rows in enumerate(self._layers):
            before(layer)
            self._copy(pages, blocks, rows, into_pages=False)

    def scatter(self, pages: I64, blocks: Sequence[U8Array], after: Callable[[int], None] | None) -> None:
        if after is None:
            self._copy(pages, blocks, self._whole, into_pages=True)
            return
        for layer, rows in enumerate(self._layers):
            self._copy(pages, blocks, rows, into_pages=True)
            after(layer)

    def _copy(self, pages: I64, blocks: Sequence[U8Array], rows: list[slice], *, into_pages: bool) -> None:
        """Copies the pieces at some rows of all blocks, in steps of a bounded index."""
        step = max(1, INDEX_MAX // len(self._each))
        units = [block.view(f"V{self._unit}") for block in blocks]
        for of_part in rows:
            for start in range(of_part.start, of_part.stop, step):
                some = slice(start, min(of_part.stop, start + step))
                many = max(1, step // (some.stop - some.start))
                for first in range(0, len(blocks), many):
                    self._copy_some(pages[first : first + many], units[first : first + many], some, into_pages)

    def _copy_some(self, pages: I64, units: Sequence[Any], some: slice, into_pages: bool) -> None:
        each = len(self._each)
        index = self._starts[some] + pages[:, self._columns[some]] * self._strides[some]
        index = (index[:, :, None] + self._each).reshape(len(pages), -1)
        spans = [
            (max(span.start, some.start) * each, min(span.end, some.stop) * each, span.memory)
            for span in self._spans if span.start < some.stop and some.start < span.end
        ]
        before = some.start * each
        for of_block, block in zip(index, units, strict=True):
            for start, end, memory in spans:
                places = of_block[start - before : end - before]
                if into_pages:
                    memory[places] = block[start:end]
                else:  # "raise" would copy twice; that each place is there has been checked
                    memory.take(places, None, block[start:end], "clip")


@dataclass(frozen=True, slots=True)
class _Span:
    """Pieces from `start` to before `end`, whose addresses differ by whole units, and all memory from the first of
    these addresses to the last as an array of units."""

    start: int
    end: int
    address: int
    memory: Any


def _spans(starts: I64, ends: I64, unit: int) -> list[_Span]:
    """`starts`, `ends`: of each piece, the address in page 0 and where its last page's ends."""
    bounds = [0, *(np.flatnonzero(np.diff(starts % unit)) + 1).tolist(), len(starts)]
    spans = []
    for first, last in pairwise(bounds):
        address = int(starts[first:last].min())
        memory = np.asarray(_Range(address, int(ends[first:last].max()), unit))
        spans.append(_Span(first, last, address, memory))
    return spans


class _Range:
    """A range of addresses, in units, as numpy's array interface."""

    def __init__(self, start: int, end: int, unit: int) -> None:
        self.__array_interface__ = {
            "data": (start, False), "shape": ((end - start) // unit,), "typestr": f"|V{unit}", "version": 3,
        }


def _runs(shape: Sequence[int], strides: Sequence[int], itemsize: int) -> tuple[I64, int]:
    """Offsets of the contiguous pieces of a page, in the order of its elements, and bytes of each."""
    axes = [axis for axis in zip(shape, strides, strict=True) if axis[0] > 1]
    run = itemsize
    while axes and axes[-1][1] == run:
        run *= axes.pop()[0]
    _bounded(math.prod(size for size, _ in axes))
    offsets = np.zeros(1, np.int64)
    for size, stride in axes:
        offsets = (offsets[:, None] + stride * np.arange(size)).reshape(-1)
    return offsets, run


def _bounded(pieces: int) -> None:
    if pieces > PIECES_MAX:
        raise InvalidArgument(f"tensors: a block lies in {pieces} contiguous pieces, more than {PIECES_MAX}")


def _place(view: Any) -> tuple[int, tuple[int, ...], int]:
    """Address, strides in bytes and bytes of an element."""
    if isinstance(view, np.ndarray):
        return view.ctypes.data, view.strides, view.itemsize
    itemsize = view.element_size()
    return view.data_ptr(), tuple(stride * itemsize for stride in view.stride()), itemsize


def _rows_by_layer(pieces: list[list[int]]) -> list[list[slice]]:
    """For each layer where its pieces are; `pieces`: how many of each part and layer, which lie in that order."""
    ends = np.cumsum([one for of_part in pieces for one in of_part]).reshape(len(pieces), -1)
    starts = ends - np.array(pieces)
    return [
        [slice(int(start), int(end)) for start, end in zip(starts[:, layer], ends[:, layer], strict=True)]
        for layer in range(ends.shape[1])
    ]
