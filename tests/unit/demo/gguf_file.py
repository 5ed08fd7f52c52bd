"""A tiny Llama in a GGUF file, as a model package would hold it."""

from __future__ import annotations

from pathlib import Path

import numpy as np

HEADS, KV_HEADS, HEAD_DIM, HIDDEN, INNER = 4, 2, 8, 32, 64
TOKENS = ["<|end|>", "a", "b", "ab", "1", "2", "\u0120", "\u0120a"]
MERGES = ["a b", "\u0120 a"]


def tensors(layers: int = 1) -> dict[str, np.ndarray]:
    """Weights of a Llama under their GGUF names, every number different."""
    shapes = {
        "token_embd.weight": (len(TOKENS), HIDDEN), "output_norm.weight": (HIDDEN,),
        "rope_freqs.weight": (HEAD_DIM // 2,),
    }
    for layer in range(layers):
        shapes |= {
            f"blk.{layer}.attn_q.weight": (HEADS * HEAD_DIM, HIDDEN),
            f"blk.{layer}.attn_k.weight": (KV_HEADS * HEAD_DIM, HIDDEN),
            f"blk.{layer}.attn_v.weight": (KV_HEADS * HEAD_DIM, HIDDEN),
            f"blk.{layer}.attn_output.weight": (HIDDEN, HEADS * HEAD_DIM),
            f"blk.{layer}.ffn_gate.weight": (INNER, HIDDEN), f"blk.{layer}.ffn_up.weight": (INNER, HIDDEN),
            f"blk.{layer}.ffn_down.weight": (HIDDEN, INNER),
            f"blk.{layer}.attn_norm.weight": (HIDDEN,), f"blk.{layer}.ffn_norm.weight": (HIDDEN,),
        }
    draw = np.random.default_rng(0)
    return {name: draw.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


def write_gguf(
    path: Path, weights: dict[str, np.ndarray], *, architecture: str = "llama", pre: str = "smollm"
) -> Path:
    """A GGUF file of those weights; the matrix of the embeddings in Q8_0, as a quantised model has it."""
    import gguf

    writer = gguf.GGUFWriter(path, architecture)
    writer.add_block_count(1)
    writer.add_context_length(128)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(100_000.0)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(TOKENS)
    writer.add_token_types([3] + [1] * (len(TOKENS) - 1))
    writer.add_token_merges(MERGES)
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(0)
    for name, values in weights.items():
        if name == "token_embd.weight":
            kind = gguf.GGMLQuantizationType.Q8_0
            writer.add_tensor(name, gguf.quantize(values, kind), raw_dtype=kind)
        else:
            writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
