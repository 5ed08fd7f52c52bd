"""Blocks that lie in pieces in an engine's pages, against a copy of blocks in one piece."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tierd.bench.blocks import POISON, SEED, Rotation, shared_twin
from tierd.bench.local import per_repetition, working_set
from tierd.bench.measuring import Measured, Scale, Timed, WrongBytes, alternate, ratio
from tierd.bench.stage import shared_memory_directory
from tierd_client.format import U8Array
from tierd_client.layout import Layout
from tierd_client.paged import PagedKV

LAYERS, TOKENS, HEAD_DIM = 80, 16, 128
PIECES = 2 * LAYERS

Copy = Callable[[list[int], Sequence[U8Array]], None]
"""Copies blocks by their numbers to or from buffers, one each."""


def exchange(gather: str, scatter: str, piece_bytes: int, scale: Scale, *, apart: bool = False) -> Measured:
    """memcpy / gather and memcpy / scatter of blocks of 160 pieces, to and from memory like the host tier's. The
    layers' tensors are one allocation, or `apart`: one each, with no alignment in common."""
    data = working_set(scale, PIECES * piece_bytes, 1)
    paged = PagedKV(_layout(piece_bytes), _tensors(len(data), piece_bytes, apart))
    copies, blocks = paged.copies(), list(data)

    def gather_all(numbers: list[int], buffers: Sequence[U8Array]) -> None:
        copies.gather(paged.numbers(numbers, len(numbers), writes=False), buffers, None)

    def scatter_all(numbers: list[int], buffers: Sequence[U8Array]) -> None:
        copies.scatter(paged.numbers(numbers, len(numbers), writes=True), buffers, None)

    def copy_in(numbers: list[int], buffers: Sequence[U8Array]) -> None:
        for number, buffer in zip(numbers, buffers, strict=True):
            np.copyto(buffer, blocks[number])

    def copy_out(numbers: list[int], buffers: Sequence[U8Array]) -> None:
        for number, buffer in zip(numbers, buffers, strict=True):
            np.copyto(blocks[number], buffer)

    with shared_memory_directory() as directory, shared_twin(data, directory) as twin:
        slots = list(twin)
        scattered = alternate(
            {"limit": _timed(copy_out, slots, same=True), "ours": _timed(scatter_all, slots, same=True)},
            scale.repetitions)
        scatter_all(list(range(len(data))), slots)
        twin.fill(POISON)
        gather_all(list(range(len(data))), slots)
        if not np.array_equal(twin, data):
            raise WrongBytes("blocks did not come out of pages as they were put in")
        gathered = alternate(
            {"limit": _timed(copy_in, slots), "ours": _timed(gather_all, slots)}, scale.repetitions)
    return {
        gather: ratio(gathered["limit"], gathered["ours"]), scatter: ratio(scattered["limit"], scattered["ours"]),
    }


def _timed(copy: Copy, buffers: list[U8Array], *, same: bool = False) -> Timed:
    """Copies cold blocks; `same`: to or from the buffer of their own number, else any."""
    count = per_repetition(buffers[0].size, 1)
    numbers, places = Rotation(len(buffers), SEED), Rotation(len(buffers), SEED if same else SEED + 1)

    def repeat() -> float:
        chosen, into = numbers.next(count).tolist(), [buffers[place] for place in places.next(count)]
        began = time.perf_counter()
        copy(chosen, into)
        return time.perf_counter() - began

    return repeat


def _layout(piece_bytes: int) -> Layout:
    heads = piece_bytes // (TOKENS * HEAD_DIM * 2)
    return Layout(
        model="bench", dtype="bfloat16", layers=LAYERS, kv_heads=heads, head_dim=HEAD_DIM, block_tokens=TOKENS)


def _tensors(pages: int, piece_bytes: int, apart: bool) -> list[Any]:
    """A tensor of each layer, as an engine has them: (2, pages, tokens, heads, head_dim)."""
    shape = (2, pages, TOKENS, piece_bytes // (TOKENS * HEAD_DIM * 2), HEAD_DIM)
    if not apart:
        return list(np.zeros((LAYERS, *shape), np.uint16))
    size = int(np.prod(shape))
    return [np.zeros(size + LAYERS, np.uint16)[layer : layer + size].reshape(shape) for layer in range(LAYERS)]
