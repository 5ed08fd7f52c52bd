"""Turns a Llama in a GGUF file into a plain model directory: weights in float32, config, tokenizer.

Needs `gguf`, `safetensors` and `tokenizers`; no torch. GGUF keeps query and key rows in the order that
llama.cpp's rotary embedding wants (pairs side by side); the order of transformers has the halves side by side.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

PRE_TOKENIZERS = ("smollm",)
"""Names of GGUF pre-tokenizers that `_tokenizer` builds: single digits, then GPT-2's byte-level rule."""

_SPECIAL_TOKEN = 3
"""`tokenizer.ggml.token_type` of a control token."""

_TOP = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_IN_LAYER = {
    "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj", "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm",
}
_DERIVED = ("rope_freqs.weight",)
"""Tensors that the config already says."""


class UnsupportedModel(ValueError):
    """The file holds something else than a Llama that this module can turn into one."""


def convert(source: Path, target: Path, progress: Callable[[float], None]) -> None:
    """Writes `model.safetensors`, `config.json` and `tokenizer.json` into the directory `target`.

    `progress` is told the share of tensors done, 0 to 1. Raises UnsupportedModel, OSError.
    """
    from gguf import GGUFReader
    from safetensors.numpy import save_file

    reader = GGUFReader(source)
    fields = {name: field.contents() for name, field in reader.fields.items()}
    if fields.get("general.architecture") != "llama":
        raise UnsupportedModel(f"{source.name}: architecture {fields.get('general.architecture')!r}, not llama")
    weights = _weights(reader, fields, progress)
    tokenizer = _tokenizer(fields, source.name)
    target.mkdir(parents=True, exist_ok=True)
    save_file(weights, target / "model.safetensors", metadata={"format": "pt"})
    (target / "config.json").write_text(json.dumps(_config(fields, "lm_head.weight" not in weights), indent=1))
    tokenizer.save(str(target / "tokenizer.json"))


def _weights(
    reader: Any, fields: dict[str, Any], progress: Callable[[float], None]
) -> dict[str, NDArray[np.float32]]:
    from gguf import dequantize

    weights = {}
    for done, tensor in enumerate(reader.tensors):
        if tensor.name not in _DERIVED:
            values = dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
            weights[weight_name(tensor.name)] = _reordered(tensor.name, values, fields)
        progress((done + 1) / len(reader.tensors))
    return weights


def weight_name(name: str) -> str:
    """The name that transformers gives to a tensor of a GGUF Llama."""
    if name in _TOP:
        return _TOP[name]
    block, _, rest = name.partition(".")
    layer, _, rest = rest.partition(".")
    kind, _, suffix = rest.partition(".")
    if block != "blk" or kind not in _IN_LAYER or suffix != "weight":
        raise UnsupportedModel(f"tensor {name!r} is not one of a Llama")
    return f"model.layers.{layer}.{_IN_LAYER[kind]}.weight"


def _reordered(name: str, values: NDArray[np.float32], fields: dict[str, Any]) -> NDArray[np.float32]:
    if ".attn_q." in name:
        values = halves_side_by_side(values, fields["llama.attention.head_count"])
    elif ".attn_k." in name:
        values = halves_side_by_side(values, fields["llama.attention.head_count_kv"])
    return np.ascontiguousarray(values)


def halves_side_by_side(rows: NDArray[np.float32], heads: int) -> NDArray[np.float32]:
    """Rows of a query or key projection, from pairs (0, 1), (2, 3) ... to halves (0, n/2), (1, n/2 + 1) ..."""
    pairs = rows.reshape(heads, rows.shape[0] // heads // 2, 2, *rows.shape[1:])
    return pairs.swapaxes(1, 2).reshape(rows.shape)


def _config(fields: dict[str, Any], tied: bool) -> dict[str, Any]:
    heads, hidden = fields["llama.attention.head_count"], fields["llama.embedding_length"]
    return {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "dtype": "float32",
        "hidden_size": hidden, "intermediate_size": fields["llama.feed_forward_length"],
        "num_hidden_layers": fields["llama.block_count"], "num_attention_heads": heads,
        "num_key_value_heads": fields["llama.attention.head_count_kv"], "head_dim": hidden // heads,
        "max_position_embeddings": fields["llama.context_length"],
        "rms_norm_eps": float(f"{fields['llama.attention.layer_norm_rms_epsilon']:.6g}"),
        "rope_theta": float(fields.get("llama.rope.freq_base", 10_000.0)),
        "vocab_size": len(fields["tokenizer.ggml.tokens"]), "tie_word_embeddings": tied,
        "bos_token_id": int(fields["tokenizer.ggml.bos_token_id"]),
        "eos_token_id": int(fields["tokenizer.ggml.eos_token_id"]),
        "attention_bias": False, "mlp_bias": False,
    }


def _tokenizer(fields: dict[str, Any], where: str) -> Any:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    if fields.get("tokenizer.ggml.pre") not in PRE_TOKENIZERS:
        raise UnsupportedModel(f"{where}: pre-tokenizer {fields.get('tokenizer.ggml.pre')!r} is not known here")
    tokens, kinds = fields["tokenizer.ggml.tokens"], fields["tokenizer.ggml.token_type"]
    merges = [tuple(merge.split(" ", 1)) for merge in fields["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Digits(individual_digits=True),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
    ])
    tokenizer.decoder = decoders.ByteLevel()
    special = [token for token, kind in zip(tokens, kinds, strict=True) if kind == _SPECIAL_TOKEN]
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    return tokenizer
