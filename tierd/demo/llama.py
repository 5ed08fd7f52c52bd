"""A Llama of transformers on the CPU in float32, whose KV cache can be taken out and put back in blocks.

A block holds keys and values of 16 tokens of all layers, in the order of the client's `Layout`: an array of
shape (2, layers, tokens, kv_heads, head_dim). Keys are stored after the rotary embedding, so a block belongs
to its place in its prompt, which its identity says.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM

from tierd.demo.model import BLOCK_TOKENS, LOGITS_KEPT, RANDOM_LLAMA, Block, ModelSource, Prefill
from tierd_client import Layout

CHUNK_TOKENS = 128
"""Tokens of one forward pass, as servers prefill in chunks. Kernels sum in an order that depends on the height of
their matrices; with fixed cuts a prompt that re-uses whole chunks is computed with the same heights as without,
and float32 logits come out alike on any machine, where they else differ by 5e-5."""

RANDOM_VOCABULARY = 512
"""Bytes, and room beside them."""


def load(source: ModelSource) -> Llama:
    """The model of a converted directory, or the random one, the same in every process."""
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    model: Any
    if source.directory:
        model = LlamaForCausalLM.from_pretrained(Path(source.directory), dtype=torch.float32)
    else:
        torch.manual_seed(0)
        model = LlamaForCausalLM(random_config())
    return Llama(source.name, model.eval())


def random_config() -> LlamaConfig:
    """A small Llama with logits as wide as SmolLM2's (standard deviation 4: 0.18 * sqrt(512)).

    With the usual 0.02 they would be so flat that a wrong cache hardly showed in them.
    """
    return LlamaConfig(
        hidden_size=512, intermediate_size=1408, num_hidden_layers=8, num_attention_heads=8,
        num_key_value_heads=4, vocab_size=RANDOM_VOCABULARY, max_position_embeddings=2048,
        initializer_range=0.18, tie_word_embeddings=True, pad_token_id=0, bos_token_id=None, eos_token_id=None,
    )


class Llama:
    """One model and its layout. Not thread-safe."""

    def __init__(self, name: str, model: Any) -> None:
        config = model.config
        self._model = model
        self._shape = (
            2, config.num_hidden_layers, BLOCK_TOKENS, config.num_key_value_heads, config.head_dim
        )
        # transformers 5.24 renamed the argument.
        names = inspect.signature(model.model.forward).parameters
        self._cache_argument = "cache" if "cache" in names else "past_key_values"
        self.layout = Layout(
            model=name, dtype="float32", layers=config.num_hidden_layers,
            kv_heads=config.num_key_value_heads, head_dim=config.head_dim, block_tokens=BLOCK_TOKENS,
            engine="transformers", revision="random" if name == RANDOM_LLAMA else "",
        )

    def prefill(self, tokens: Sequence[int], past: Sequence[Block]) -> Prefill:
        """Computes what `past`, the leading blocks, does not hold already.

        `seconds` is the time of that: filling the cache from `past` and running the model over the rest.
        """
        start = time.perf_counter()
        cache = DynamicCache(config=self._model.config)
        if past:
            self._fill(cache, past)
        logits: NDArray[np.float32] | None = None
        for chunk in chunks(tokens, len(past) * BLOCK_TOKENS):
            output = self._model(
                torch.tensor([chunk]), use_cache=True, logits_to_keep=min(LOGITS_KEPT, len(chunk)),
                **{self._cache_argument: cache},
            )
            logits = output.logits[0].numpy()
        seconds = time.perf_counter() - start
        return Prefill(self.pack(cache, len(past), len(tokens) // BLOCK_TOKENS), logits, seconds)

    def _fill(self, cache: DynamicCache, past: Sequence[Block]) -> None:
        keys, values = unpack(past, self._shape)
        for layer in range(self._shape[1]):
            cache.update(torch.from_numpy(keys[layer]), torch.from_numpy(values[layer]), layer)

    def pack(self, cache: Any, first: int, end: int) -> list[Block]:
        """Blocks `first` to `end` - 1 of a cache, each contiguous."""
        count = end - first
        if count <= 0:
            return []
        _, _, tokens, heads, width = self._shape
        packed = np.empty((count, *self._shape), np.float32)
        for layer, held in enumerate(cache.layers):
            for part, tensor in enumerate((held.keys, held.values)):
                span = tensor[0, :, first * tokens : end * tokens].numpy()
                blocks = span.reshape(heads, count, tokens, width)
                packed[:, part, layer] = blocks.transpose(1, 2, 0, 3)
        return list(packed)


def chunks(tokens: Sequence[int], start: int) -> Iterator[list[int]]:
    """The tokens from `start` on, cut where a prefill of the whole prompt is cut."""
    while start < len(tokens):
        end = min(start + CHUNK_TOKENS - start % CHUNK_TOKENS, len(tokens))
        yield list(tokens[start:end])
        start = end


def unpack(
    blocks: Sequence[Block], shape: tuple[int, ...],
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Keys and values, each (layers, 1, kv_heads, tokens, head_dim), of consecutive blocks; a copy."""
    _, layers, tokens, heads, width = shape
    joined = np.empty((2, layers, 1, heads, len(blocks) * tokens, width), np.float32)
    for i, block in enumerate(blocks):
        joined[:, :, 0, :, i * tokens : (i + 1) * tokens] = block.transpose(0, 1, 3, 2, 4)
    return joined[0], joined[1]
