"""The demo's model, one token a step, with or without the weights of its attention."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from transformers import DynamicCache, LlamaForCausalLM

from tierd.demo.llama import random_config
from tierd.demo.model import find_model
from tierd.demo.text import encode_bytes

KERNEL = {False: "sdpa", True: "eager"}
"""Fused kernels compute no weights; whoever wants them has the slow one."""


class SmallModel:
    """On one thread in float32. `name` says which: SmolLM2 where its package is installed, else random weights."""

    def __init__(self) -> None:
        torch.set_grad_enabled(False)
        torch.set_num_threads(1)
        torch.manual_seed(0)
        source = find_model(lambda done: None)
        self.name = source.name
        self._directory = Path(source.directory) if source.directory else None
        self._model: Any = (
            LlamaForCausalLM.from_pretrained(self._directory, dtype=torch.float32) if self._directory
            else LlamaForCausalLM(random_config())
        ).eval()
        config = self._model.config
        self.layers, self.query_heads = config.num_hidden_layers, config.num_attention_heads
        self.kv_heads, self.head_dim = config.num_key_value_heads, config.head_dim
        names = inspect.signature(self._model.model.forward).parameters
        self._cache_argument = "cache" if "cache" in names else "past_key_values"

    def encode(self, text: str) -> list[int]:
        if self._directory is None:
            return encode_bytes(text)
        return list(Tokenizer.from_file(str(self._directory / "tokenizer.json")).encode(text).ids)

    def prefilled(self, tokens: list[int]) -> DynamicCache:
        """A cache of these tokens."""
        cache = DynamicCache(config=self._model.config)
        self._forward(tokens, cache, weights=False)
        return cache

    def decode(self, token: int, cache: DynamicCache, *, weights: bool) -> tuple[torch.Tensor, ...]:
        """One step, which appends to the cache: per layer [1, query heads, 1, tokens], or nothing."""
        return tuple(self._forward([token], cache, weights=weights).attentions or ())

    def _forward(self, tokens: list[int], cache: DynamicCache, *, weights: bool) -> Any:
        self._model.set_attn_implementation(KERNEL[weights])
        return self._model(
            torch.tensor([tokens]), use_cache=True, logits_to_keep=1, output_attentions=weights,
            **{self._cache_argument: cache},
        )
