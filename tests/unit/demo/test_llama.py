"""Taking blocks out of a model's cache and putting them back."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM

from tierd.demo.llama import CHUNK_TOKENS, Llama, chunks, random_config, unpack
from tierd.demo.model import RANDOM_LLAMA
from tierd.demo.report import LOGITS_TOLERANCE

LAYERS, KV_HEADS, HEAD_DIM, BLOCK = 3, 2, 8, 16


@pytest.fixture(scope="module")
def llama() -> Llama:
    """Small, and with weights so wide that what is in the cache shows in the logits."""
    torch.manual_seed(0)
    torch.set_grad_enabled(False)
    config = LlamaConfig(
        hidden_size=32, intermediate_size=64, num_hidden_layers=LAYERS, num_attention_heads=4,
        num_key_value_heads=KV_HEADS, vocab_size=64, initializer_range=0.3, pad_token_id=0,
        bos_token_id=None, eos_token_id=None,
    )
    return Llama("tiny", LlamaForCausalLM(config).eval())


def tokens(count: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(1, 64, count).tolist()


def test_blocks_have_the_bytes_of_the_layout(llama: Llama) -> None:
    """A block is as large as the layout says, and holds keys then values in the layout's order."""
    computed = llama.prefill(tokens(40), [])
    assert [block.nbytes for block in computed.blocks] == [llama.layout.block_bytes] * 2
    shapes = [part.shape for part in llama.layout.groups[0].parts]
    assert shapes == [(LAYERS, BLOCK, KV_HEADS, HEAD_DIM)] * 2


def test_packing_keeps_every_bit(llama: Llama) -> None:
    """What pack takes out of a cache, unpack gives back: the same bits at the same places."""
    draw = torch.Generator().manual_seed(1)
    cache = DynamicCache(config=llama._model.config)
    held = [torch.randn(2, 1, KV_HEADS, 70, HEAD_DIM, generator=draw) for _ in range(LAYERS)]
    for layer, (keys, values) in enumerate(held):
        cache.update(keys, values, layer)
    blocks = llama.pack(cache, 0, 4)
    keys, values = unpack(blocks, (2, LAYERS, BLOCK, KV_HEADS, HEAD_DIM))
    for layer in range(LAYERS):
        np.testing.assert_array_equal(keys[layer], held[layer][0][:, :, :64].numpy())
        np.testing.assert_array_equal(values[layer], held[layer][1][:, :, :64].numpy())
    for one, other in zip(llama.pack(cache, 2, 4), blocks[2:], strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_block_is_in_the_order_of_the_layout(llama: Llama) -> None:
    """Element (part, layer, token, head, d) of a block is that of the cache."""
    cache = DynamicCache(config=llama._model.config)
    for layer in range(LAYERS):
        place = torch.arange(KV_HEADS * 16 * HEAD_DIM, dtype=torch.float32).reshape(1, KV_HEADS, 16, HEAD_DIM)
        cache.update(place + 1000 * layer, -place - 1000 * layer, layer)
    block = llama.pack(cache, 0, 1)[0]
    assert block.flags.c_contiguous and block.shape == (2, LAYERS, BLOCK, KV_HEADS, HEAD_DIM)
    assert block[0, 2, 5, 1, 3] == 2000 + 16 * HEAD_DIM + 5 * HEAD_DIM + 3
    assert block[1, 1, 15, 0, 7] == -(1000 + 15 * HEAD_DIM + 7)


@pytest.mark.parametrize("reused", [1, 3, 5])
def test_reuse_gives_the_logits_of_recomputation(llama: Llama, reused: int) -> None:
    """With leading blocks put back the last logits are those of the whole prompt, and so are new blocks."""
    prompt = tokens(101)
    whole = llama.prefill(prompt, [])
    again = llama.prefill(prompt, whole.blocks[:reused])
    assert whole.logits is not None and again.logits is not None
    assert np.abs(whole.logits - again.logits).max() <= LOGITS_TOLERANCE
    assert len(again.blocks) == 6 - reused
    for one, other in zip(again.blocks, whole.blocks[reused:], strict=True):
        np.testing.assert_allclose(one, other, atol=1e-4)


def test_chunks_are_cut_where_the_whole_prompt_is() -> None:
    """From any start the chunks are those of the whole prompt, the first one cut short, and miss no token."""
    prompt = list(range(3 * CHUNK_TOKENS + 40))
    whole = list(chunks(prompt, 0))
    assert [len(chunk) for chunk in whole] == [CHUNK_TOKENS] * 3 + [40]
    assert list(chunks(prompt, 2 * CHUNK_TOKENS)) == whole[2:]
    assert list(chunks(prompt, CHUNK_TOKENS + 16)) == [whole[1][16:], *whole[2:]]
    assert list(chunks(prompt, len(prompt))) == []


def test_reuse_of_whole_chunks_is_exact(llama: Llama) -> None:
    """Logits and new blocks of a prompt that re-uses whole chunks have the bits of a recomputation, although
    the blocks were made by a shorter prompt."""
    prompt = tokens(2 * CHUNK_TOKENS + 40)
    made = llama.prefill(prompt[: 2 * CHUNK_TOKENS], []).blocks
    whole, again = llama.prefill(prompt, []), llama.prefill(prompt, made)
    np.testing.assert_array_equal(whole.logits, again.logits)
    np.testing.assert_array_equal(whole.blocks[-1], again.blocks[-1])


def test_blocks_of_another_prompt_show(llama: Llama) -> None:
    """The comparison of logits would see a wrong block: one exchanged block moves them visibly."""
    prompt = tokens(101)
    whole = llama.prefill(prompt, [])
    wrong = [*whole.blocks[:2], llama.prefill(tokens(101, seed=9), []).blocks[2]]
    again = llama.prefill(prompt, wrong)
    assert whole.logits is not None and again.logits is not None
    assert np.abs(whole.logits - again.logits).max() > 100 * LOGITS_TOLERANCE


def test_the_random_llama_is_the_same_in_every_process() -> None:
    """Two models made from the same seed have the same weights, and its logits are as wide as a real one's."""
    made = []
    for _ in range(2):
        torch.manual_seed(0)
        made.append(LlamaForCausalLM(random_config()).eval())
    for one, other in zip(made[0].parameters(), made[1].parameters(), strict=True):
        assert torch.equal(one, other)
    logits = Llama(RANDOM_LLAMA, made[0]).prefill(tokens(64), []).logits
    assert logits is not None and 2 < logits.std() < 8
