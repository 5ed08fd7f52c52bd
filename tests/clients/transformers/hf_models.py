"""Small models of random weights whose answers depend on every key and value: a wrong block shows."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, set_seed

VOCABULARY = 512

torch.set_num_threads(1)  # tests that run beside each other would wait for each other's


@cache
def llama(seed: int = 0) -> Any:
    """Four layers, logits as wide as a trained model's (0.18 * sqrt(width))."""
    set_seed(seed)
    config = LlamaConfig(
        hidden_size=128, intermediate_size=256, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2,
        vocab_size=VOCABULARY, max_position_embeddings=2048, initializer_range=0.3, tie_word_embeddings=True,
        pad_token_id=0, bos_token_id=None, eos_token_id=None, _name_or_path="random-llama",
    )
    return LlamaForCausalLM(config).eval()


def prompt(tokens: int, seed: int = 0) -> torch.Tensor:
    """Token ids, [1, tokens]."""
    return torch.randint(1, VOCABULARY, (1, tokens), generator=torch.Generator().manual_seed(seed))


def tokenizer() -> Any:
    """Numbers up to 399 are tokens; everything else is one and the same."""
    words = {"[UNK]": 0} | {str(number): number + 1 for number in range(400)}
    made = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=made, unk_token="[UNK]")
