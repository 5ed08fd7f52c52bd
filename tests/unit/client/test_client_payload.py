"""Blocks in and out: which buffers are taken, and what form they come back in."""

from __future__ import annotations

import array
from typing import Any

import numpy as np
import pytest

from tierd_client.errors import InvalidArgument
from tierd_client.layout import Group, Layout, Part
from tierd_client.payload import Form, flat_blocks, float32_bytes, writable_blocks

SIZE = 64
DATA = bytes(range(SIZE))


@pytest.mark.parametrize(
    "block",
    [
        DATA, bytearray(DATA), memoryview(DATA), array.array("B", DATA), np.frombuffer(DATA, np.uint8),
        np.frombuffer(DATA, np.float16).reshape(4, 8), np.frombuffer(DATA, ">i4"),
        memoryview(DATA).cast("H", (4, 8)),
    ],
    ids=lambda block: type(block).__name__,
)
def test_any_contiguous_buffer_of_the_blocks_bytes_is_taken(block: Any) -> None:
    """A buffer of any type and dtype gives its bytes, in order and without a copy."""
    (flat,) = flat_blocks([block], 1, SIZE)
    assert flat.tobytes() == DATA
    assert flat.shape == (SIZE,)
    if isinstance(block, np.ndarray):
        assert np.shares_memory(flat, block)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float8_e4m3fn", "float32"])
def test_a_torch_tensor_is_taken_as_it_is(dtype: str) -> None:
    """A contiguous CPU tensor of any dtype gives its bytes without a copy, with gradients or not."""
    torch = pytest.importorskip("torch")
    tensor = torch.frombuffer(bytearray(DATA), dtype=torch.uint8).view(getattr(torch, dtype))
    (flat,) = flat_blocks([tensor], 1, SIZE)
    assert flat.tobytes() == DATA
    assert flat.ctypes.data == tensor.data_ptr()


def test_one_array_holds_all_blocks_along_its_first_axis() -> None:
    """One array whose first axis is the number of ids is as good as a list of blocks."""
    whole = np.arange(3 * SIZE, dtype=np.uint8).reshape(3, 4, 16)
    blocks = flat_blocks(whole, 3, SIZE)
    assert [block.tobytes() for block in blocks] == [row.tobytes() for row in whole]
    assert len(flat_blocks(whole.tobytes(), 3, SIZE)) == 3


@pytest.mark.parametrize(
    ("values", "count", "message"),
    [
        ([DATA, DATA[:-1]], 2, r"tensors\[1\]: 63 bytes, a block has 64"),
        ([DATA], 2, r"tensors: 1 buffers for 2 ids"),
        (np.zeros((2, SIZE), np.float32), 2, r"tensors: 512 bytes of shape \(2, 64\), not 2 blocks of 64"),
        (np.zeros((4, 32), np.uint8), 2, r"tensors: 128 bytes of shape \(4, 32\), not 2 blocks"),
        ([np.zeros((SIZE, 2), np.uint8)[:, 0]], 1, r"tensors\[0\]: not contiguous; strides \(2,\)"),
        ([memoryview(DATA * 2)[::2]], 1, r"tensors\[0\]: memoryview is no contiguous buffer"),
        (["text"], 1, r"tensors\[0\]: str is no contiguous buffer"),
        ([np.array([object()] * 8)], 1, r"tensors\[0\]: an array of Python objects"),
    ],
)
def test_a_buffer_that_does_not_fit_is_named(values: Any, count: int, message: str) -> None:
    """What is not exactly a block raises a ValueError with its index and both sizes."""
    with pytest.raises(ValueError, match=message):
        flat_blocks(values, count, SIZE)


def test_a_strided_tensor_is_named() -> None:
    """A tensor that is not contiguous is refused by index, never copied unseen."""
    torch = pytest.importorskip("torch")
    with pytest.raises(InvalidArgument, match=r"tensors\[0\]: not contiguous"):
        flat_blocks([torch.zeros(8, 8, dtype=torch.uint8).t()], 1, SIZE)


def test_a_read_only_buffer_cannot_be_read_into() -> None:
    """Buffers to be filled must be writable; the one that is not is named."""
    with pytest.raises(InvalidArgument, match=r"buffers\[1\]: read-only"):
        writable_blocks([bytearray(SIZE), DATA], 2, SIZE)


def test_the_usual_block_has_the_layouts_shape() -> None:
    """A block of K and V comes back as (2, layers, block_tokens, kv_heads, head_dim)."""
    layout = Layout("m", "float16", layers=2, kv_heads=3, head_dim=4, block_tokens=5)
    form = Form.of_group(layout.groups[0])
    flat = np.arange(form.block_bytes, dtype=np.uint8)
    shaped = form.array(flat)
    assert (shaped.shape, shaped.dtype) == ((2, 2, 5, 3, 4), np.float16)
    assert np.shares_memory(shaped, flat)


@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e4m3", "float8_e5m2"])
def test_what_numpy_lacks_is_flat_in_numpy_and_itself_in_torch(dtype: str) -> None:
    """A dtype that numpy lacks comes as flat uint8, and as a tensor of the layout's dtype and shape."""
    torch = pytest.importorskip("torch")
    form = Form.of_group(Layout("m", dtype, layers=2, kv_heads=1, head_dim=4, block_tokens=2).groups[0])
    flat = np.zeros(form.block_bytes, np.uint8)
    assert form.array(flat) is flat
    tensor = form.tensor(torch.from_numpy(flat))
    assert tensor.shape == (2, 2, 2, 1, 4)
    assert dtype in str(tensor.dtype)


def test_a_block_of_unlike_parts_is_flat() -> None:
    """Parts of different shapes have no common array: the block is flat bytes; one part has its own shape."""
    latent, rope = Part("latent", "float16", (2, 8)), Part("rope", "float16", (2, 4))
    assert Form.of_group(Group("g", 1, (latent, rope))) == Form("uint8", (48,), 48)
    assert Form.of_group(Group("g", 1, (latent,))) == Form("float16", (2, 8), 32)


def test_attention_is_sent_as_float32() -> None:
    """Numbers of any type along one axis become little-endian float32; anything else is refused."""
    expected = np.array([0.5, 0.25], "<f4").tobytes()
    assert float32_bytes([0.5, 0.25], "attention") == expected
    torch = pytest.importorskip("torch")
    assert float32_bytes(torch.tensor([0.5, 0.25], dtype=torch.bfloat16), "attention") == expected
    for bad in ([[0.5]], ["x"]):
        with pytest.raises(InvalidArgument, match=r"^attention: "):
            float32_bytes(bad, "attention")
