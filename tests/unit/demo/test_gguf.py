"""Reading a GGUF file, on a tiny one that the `gguf` package writes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("gguf")
pytest.importorskip("safetensors")
pytest.importorskip("tokenizers")

import safetensors.numpy
import tokenizers
from gguf_file import HEAD_DIM, HEADS, KV_HEADS, TOKENS, tensors, write_gguf

from tierd.demo.gguf import UnsupportedModel, convert, halves_side_by_side, weight_name


@pytest.fixture(scope="module")
def converted(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, np.ndarray], Path]:
    directory = tmp_path_factory.mktemp("gguf")
    weights = tensors()
    shares: list[float] = []
    convert(write_gguf(directory / "tiny.gguf", weights), directory / "out", shares.append)
    assert shares == sorted(shares) and shares[-1] == 1, "progress goes up to 1"
    return weights, directory / "out"


def test_weights_arrive_under_the_names_of_transformers(converted: tuple[dict, Path]) -> None:
    """Every tensor of the file but the derived ones is in the output, and nothing else."""
    weights, out = converted
    found = safetensors.numpy.load_file(out / "model.safetensors")
    assert set(found) == {weight_name(name) for name in weights if name != "rope_freqs.weight"}
    assert all(values.dtype == np.float32 for values in found.values())


def test_plain_weights_are_unchanged(converted: tuple[dict, Path]) -> None:
    """A tensor in float32 that needs no reordering has the same bits after the conversion."""
    weights, out = converted
    found = safetensors.numpy.load_file(out / "model.safetensors")
    for kind, name in (("attn_v", "self_attn.v_proj"), ("ffn_down", "mlp.down_proj")):
        np.testing.assert_array_equal(
            found[f"model.layers.0.{name}.weight"], weights[f"blk.0.{kind}.weight"]
        )


def test_quantised_weights_are_dequantised(converted: tuple[dict, Path]) -> None:
    """A quantised tensor comes out within half a step of its scale."""
    weights, out = converted
    found = safetensors.numpy.load_file(out / "model.safetensors")["model.embed_tokens.weight"]
    step = np.abs(weights["token_embd.weight"]).max() / 127
    assert np.abs(found - weights["token_embd.weight"]).max() <= 0.51 * step


def test_query_and_key_rows_are_reordered_per_head(converted: tuple[dict, Path]) -> None:
    """Row 2 i + j of a head in the file is row i + j * head_dim / 2 of that head in the output."""
    weights, out = converted
    found = safetensors.numpy.load_file(out / "model.safetensors")
    for kind, name, heads in (("attn_q", "q_proj", HEADS), ("attn_k", "k_proj", KV_HEADS)):
        rows = found[f"model.layers.0.self_attn.{name}.weight"]
        for head in range(heads):
            for i in range(HEAD_DIM // 2):
                for j in range(2):
                    expected = weights[f"blk.0.{kind}.weight"][head * HEAD_DIM + 2 * i + j]
                    np.testing.assert_array_equal(rows[head * HEAD_DIM + i + j * HEAD_DIM // 2], expected)


def test_reordering_keeps_every_row() -> None:
    """Putting halves side by side is a permutation of rows within heads."""
    rows = np.arange(32, dtype=np.float32).reshape(32, 1)
    moved = halves_side_by_side(rows, 4)
    assert sorted(moved.ravel()) == sorted(rows.ravel())
    assert moved[:8].ravel().tolist() == [0, 2, 4, 6, 1, 3, 5, 7]


def test_config_says_what_the_file_says(converted: tuple[dict, Path]) -> None:
    """Geometry, rope base, norm epsilon and tied embeddings are those of the file."""
    config = json.loads((converted[1] / "config.json").read_text())
    assert config["num_hidden_layers"] == 1
    assert (config["num_attention_heads"], config["num_key_value_heads"], config["head_dim"]) == (4, 2, 8)
    assert (config["rope_theta"], config["rms_norm_eps"]) == (100_000.0, 1e-5)
    assert config["vocab_size"] == len(TOKENS)
    assert config["tie_word_embeddings"] is True


def test_tokenizer_merges_and_splits_digits(converted: tuple[dict, Path]) -> None:
    """The tokenizer applies the file's merges, takes digits one by one and knows its special token."""
    tokenizer = tokenizers.Tokenizer.from_file(str(converted[1] / "tokenizer.json"))
    assert tokenizer.encode("ab a12<|end|>").tokens == ["ab", "\u0120a", "1", "2", "<|end|>"]


def test_other_architectures_are_refused(tmp_path: Path) -> None:
    """A file of another architecture is UnsupportedModel, and nothing is written."""
    with pytest.raises(UnsupportedModel, match="falcon"):
        convert(write_gguf(tmp_path / "x.gguf", {}, architecture="falcon"), tmp_path / "out", print)
    assert not (tmp_path / "out").exists()


def test_unknown_tensors_and_pre_tokenizers_are_refused(tmp_path: Path) -> None:
    """What the converter does not understand it refuses, naming it."""
    with pytest.raises(UnsupportedModel, match="attn_qkv"):
        weight_name("blk.0.attn_qkv.weight")
    with pytest.raises(UnsupportedModel, match="deepseek"):
        convert(write_gguf(tmp_path / "x.gguf", tensors(), pre="deepseek"), tmp_path / "out", print)
