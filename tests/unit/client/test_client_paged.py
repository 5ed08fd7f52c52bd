"""Paged tensors and blocks: every piece comes to its place and back, whatever the geometry and strides."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tierd_client import Group, InvalidArgument, Layout, PagedKV, Part, paged_host

SETTINGS = settings(max_examples=40, deadline=None)


@st.composite
def geometries(draw: st.DrawFn) -> tuple[Layout, PagedKV, list[Any], int]:
    """A layout, tensors of any strides by part and layer as one mapping, pages of a block."""
    layers, tokens, split = draw(st.integers(1, 4)), draw(st.sampled_from([1, 2, 6])), draw(st.booleans())
    inner = [tuple(draw(st.lists(st.integers(1, 5), max_size=2))) for _ in range(draw(st.integers(1, 3)))]
    dtypes = [draw(st.sampled_from(["float16", "uint8", "float64"])) for _ in inner]
    parts = [
        Part(f"p{i}", dtype, (layers, tokens, *rest))
        for i, (dtype, rest) in enumerate(zip(dtypes, inner, strict=True))
    ]
    layout = Layout.of_groups([Group("g", tokens, tuple(parts))])
    page_tokens = 1 if split else tokens
    pages = 8 * (tokens // page_tokens)
    tensors = {
        part.name: [_strided(draw, (pages, page_tokens, *part.shape[2:]), part.dtype) for _ in range(layers)]
        for part in parts
    }
    return layout, PagedKV(layout, tensors), [tensors[part.name] for part in parts], tokens // page_tokens


def _strided(draw: st.DrawFn, shape: tuple[int, ...], dtype: str) -> Any:
    """Zeros with axes in any order in memory, gaps between them, and an address of no particular alignment."""
    order = draw(st.permutations(range(len(shape))))
    steps = [draw(st.integers(1, 2)) for _ in shape]
    size = np.dtype(dtype).itemsize
    memory = np.zeros(math.prod(shape) * math.prod(steps) * size + 64, np.uint8)[draw(st.integers(0, 63)) :]
    whole = memory[: math.prod(shape) * math.prod(steps) * size].view(dtype)
    whole = whole.reshape([shape[axis] * steps[axis] for axis in order])
    return whole.transpose(np.argsort(order))[tuple(slice(None, None, step) for step in steps)]


def _expected(parts: list[Any], pages: Any) -> bytes:
    """A block's bytes by the plainest means."""
    return b"".join(np.ascontiguousarray(layer[pages]).tobytes() for of_part in parts for layer in of_part)


@given(geometries(), st.randoms(use_true_random=False), st.booleans(), st.integers(1, 40))
@SETTINGS
def test_what_is_gathered_is_the_block_and_scatters_back(
    made: tuple[Layout, PagedKV, list[Any], int], random: Any, by_layer: bool, index_max: int,
) -> None:
    """Gathered bytes are part after part, layer after layer; scattered into other pages they are the same there,
    and no other page has changed. Layer by layer, and in steps of any size, it is the same."""
    _, paged, parts, per_block = made
    for tensor in (layer for of_part in parts for layer in of_part):
        tensor[...] = np.frombuffer(random.randbytes(tensor.size), np.uint8).reshape(tensor.shape) % 64
    order = random.sample(range(paged.page_count), paged.page_count)
    source = paged.numbers(np.array(order[: 3 * per_block]).reshape(3, per_block), 3, writes=False)
    target = paged.numbers(np.array(order[3 * per_block : 6 * per_block]).reshape(3, per_block), 3, writes=True)
    blocks = [np.full(paged.block_bytes, 0xEE, np.uint8) for _ in range(3)]
    before = [[layer.copy() for layer in of_part] for of_part in parts]
    told: list[int] = []
    callback = told.append if by_layer else None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(paged_host, "INDEX_MAX", index_max)
        paged.copies().gather(source, blocks, callback)
        paged.copies().scatter(target, blocks, callback)
    assert told == (2 * list(range(paged.layers)) if by_layer else [])
    assert [bytes(block) for block in blocks] == [_expected(before, pages) for pages in source]
    assert [_expected(parts, pages) for pages in target] == [bytes(block) for block in blocks]
    others = sorted(set(range(paged.page_count)) - set(target.reshape(-1).tolist()))
    assert _expected(parts, others) == _expected(before, others)


LAYOUT = Layout(model="m", dtype="float16", layers=3, kv_heads=2, head_dim=4, block_tokens=8)
PAGE = (8, 2, 4)


def tensors(shape: tuple[int, ...] = (2, 10, *PAGE), dtype: str = "float16", layers: int = 3) -> list[Any]:
    return [np.zeros(shape, dtype) for _ in range(layers)]


def frozen() -> list[Any]:
    made = tensors()
    made[1].flags.writeable = False
    return made


@pytest.mark.parametrize(
    ("given", "options", "message"),
    [
        (tensors(layers=2), {}, r"^tensors: 2 layers, the layout has 3$"),
        (7, {}, "^tensors: int is no list"),
        ([1, 2, 3], {}, r"^tensors\[0\]: int is neither"),
        (tensors((10,)), {}, r"^tensors\[0\]: shape \(10,\) has no pages"),
        (tensors((3, 10, *PAGE)), {}, r"^tensors\[0\]: shape .* has 2 parts \(k, v\)$"),
        (tensors(), {"page_axis": 0}, r"^tensors\[0\]: shape"),
        (tensors(), {"page_axis": 2}, "^page_axis: 2 is neither"),
        (tensors((2, 10, 8, 2, 5)), {}, r"^tensors\[0\]: pages of shape \(8, 2, 5\)"),
        (tensors((2, 10, 3, 2, 4)), {}, r"^tensors\[0\]: pages of shape \(3, 2, 4\)"),
        ([*tensors(layers=2), np.zeros((2, 10, 4, 2, 4), "f2")], {}, r"^tensors\[2\]: pages of shape \(4, 2, 4\)"),
        ([*tensors(layers=2), np.zeros((2, 9, *PAGE), "f2")], {}, r"^tensors\[2\]: 9 pages, tensors\[0\] has 10$"),
        (tensors(dtype="float32"), {}, r"^tensors\[0\]: float32, part k has float16$"),
        (tensors(dtype=">f2"), {}, r"^tensors\[0\]: >f2, part k"),
        ([one[:, ::-1] for one in tensors()], {}, r"^tensors\[0\]: strides"),
        ({"k": tensors((10, *PAGE))}, {}, r"^tensors: of parts \['k'\], the layout has \['k', 'v'\]$"),
        ({"k": tensors((10, *PAGE)), "v": tensors((9, *PAGE))}, {}, r"^tensors\['v'\]\[0\]: 9 pages"),
        ({"k": [], "v": []}, {"page_axis": 0}, "^page_axis: 0 has no meaning"),
        (tensors(), {"group": 1}, "^group: 1, the layout has 1$"),
    ],
)
def test_tensors_that_do_not_fit_are_named(given: Any, options: dict[str, Any], message: str) -> None:
    """What is wrong with tensors is said when they are given, with the tensor's name."""
    with pytest.raises(InvalidArgument, match=message):
        PagedKV(LAYOUT, given, **options)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([0, 10], r"^page_numbers\[1\]: 10 is not from 0 to 9$"),
        ([-1, 3], r"^page_numbers\[0\]: -1 is not from 0 to 9$"),
        ([3, 3], r"^page_numbers\[1\]: page 3 would be written twice$"),
        ([1], r"^page_numbers: shape \(1,\) for 2 blocks; \(2,\) is wanted$"),
        ([[1, 2], [3, 4]], r"^page_numbers: shape \(2, 2\)"),
        ([0.5, 1.0], r"^page_numbers: float64, not integers$"),
        ([True, False], r"^page_numbers: bool, not integers$"),
        (["a", "b"], r"^page_numbers: <U1, not integers$"),
        ([[1], [2, 3]], "^page_numbers: not numbers"),
    ],
)
def test_page_numbers_that_cannot_be_are_named(given: Any, message: str) -> None:
    """Numbers are checked before anything is copied, and the block is named."""
    with pytest.raises(InvalidArgument, match=message):
        PagedKV(LAYOUT, tensors()).numbers(given, 2, writes=True)


def test_pages_are_read_as_often_as_one_likes_and_written_once() -> None:
    """A page may be named twice where it is only read, and so may read-only tensors; neither may be written."""
    paged = PagedKV(LAYOUT, frozen())
    assert paged.numbers([3, 3], 2, writes=False).tolist() == [[3], [3]]
    with pytest.raises(InvalidArgument, match=r"^tensors\[1\]: read-only$"):
        paged.numbers([3, 4], 2, writes=True)


def test_a_block_in_crumbs_is_refused() -> None:
    """Tensors whose blocks lie in more than the most pieces are refused, with their number."""
    layout = Layout(model="m", dtype="uint8", layers=1, kv_heads=2048, head_dim=512, block_tokens=1)
    crumbs = np.zeros((1, 2, 2, 1, 2048, 1024), np.uint8)[..., ::2]
    with pytest.raises(InvalidArgument, match=r"^tensors: a block lies in 2097152"):
        PagedKV(layout, crumbs)


def test_all_ways_to_give_tensors_are_the_same() -> None:
    """Parts before or behind the pages, apart by name, layers as an axis, torch: one and the same block."""
    torch = pytest.importorskip("torch")
    whole = np.random.default_rng(1).random((3, 2, 10, *PAGE)).astype(np.float16)
    swapped = np.ascontiguousarray(whole.swapaxes(1, 2))
    ways = [
        PagedKV(LAYOUT, whole), PagedKV(LAYOUT, list(whole)), PagedKV(LAYOUT, swapped, page_axis=0),
        PagedKV(LAYOUT, {"v": list(whole[:, 1]), "k": list(whole[:, 0])}),
        PagedKV(LAYOUT, torch.from_numpy(whole)), PagedKV(LAYOUT, list(torch.from_numpy(swapped)), page_axis=0),
    ]
    for paged in ways:
        block = np.empty(paged.block_bytes, np.uint8)
        paged.copies().gather(paged.numbers([7], 1, writes=True), [block], None)
        assert block.tobytes() == whole[:, 0, 7].tobytes() + whole[:, 1, 7].tobytes()


def test_dtypes_that_numpy_lacks_are_taken_by_their_bits() -> None:
    """bfloat16 goes as torch's own and as uint16, latents of MLA have one part, and several pages make a block."""
    torch = pytest.importorskip("torch")
    layout = Layout.mla(model="m", dtype="bfloat16", layers=2, latent_dim=6, block_tokens=4)
    bits = np.random.default_rng(2).integers(0, 2**16, (2, 9, 2, 6), np.uint16)
    paged = PagedKV(layout, torch.from_numpy(bits).view(torch.bfloat16))
    assert paged.pages_per_block == PagedKV(layout, bits).pages_per_block == 2
    block = np.empty(layout.block_bytes, np.uint8)
    paged.copies().gather(paged.numbers(torch.tensor([[5, 1]]), 1, writes=True), [block], None)
    assert block.tobytes() == bits[:, [5, 1]].tobytes()
    with pytest.raises(InvalidArgument, match=r"^page_numbers: shape \(1,\) for 1 blocks; \(1, 2\) is wanted$"):
        paged.numbers([5], 1, writes=False)
