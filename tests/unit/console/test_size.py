"""`tierd size`: bytes of models' blocks against arithmetic by hand and against the caches of transformers."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from tierd import cli
from tierd.console.models import MODELS, geometry_of, read_config
from tierd.console.size import ModelSize, size_of
from tierd.core.errors import InvalidInput

GIB = 1 << 30
LLAMA = {"num_hidden_layers": 2, "num_attention_heads": 8, "num_key_value_heads": 2, "hidden_size": 64}
TINY = {
    "hidden_size": 64, "intermediate_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2,
    "vocab_size": 128, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}
"""What keeps a model of any family small."""


def sized(model: str, *, dtype: str = "bfloat16", tp: int = 1, sequence_tokens: int = 8192) -> ModelSize:
    return size_of(MODELS[model], dtype, tp, 16, 64 * GIB, sequence_tokens)


@pytest.mark.parametrize(
    ("model", "dtype", "block_bytes"),
    [
        ("llama-3.1-8b", "bfloat16", 2 * 32 * 16 * 8 * 128 * 2),
        ("llama-3.1-70b", "bfloat16", 5 << 20),
        ("llama-3.1-70b", "float8_e4m3", 5 << 19),
        ("deepseek-v3", "bfloat16", 61 * 16 * 576 * 2),
        ("gpt-oss-120b", "bfloat16", 2 * 36 * 16 * 8 * 64 * 2),
        ("smollm2-135m", "bfloat16", 360 << 10),
    ],
)
def test_bytes_of_a_block(model: str, dtype: str, block_bytes: int) -> None:
    """A block of 16 tokens has K and V of each layer, head and token; a latent is stored once."""
    assert sized(model, dtype=dtype).rank_block_bytes == block_bytes


def test_what_a_tier_holds() -> None:
    """64 GiB hold 13,107 blocks of the 70B layout, and as many sequences as fit whole."""
    found = sized("llama-3.1-70b", sequence_tokens=1000)
    assert found.tier_tokens == 13_107 * 16
    assert found.bytes_per_token == 320 << 10
    assert found.sequence_bytes == 63 * (5 << 20)
    assert found.tier_sequences == 13_107 // 63


@pytest.mark.parametrize("tp", [2, 4, 8])
def test_ranks_share_what_they_have_between_them(tp: int) -> None:
    """Over ranks that divide the heads a token costs what it cost on one; each rank holds its part."""
    assert sized("llama-3.1-70b", tp=tp).bytes_per_token == sized("llama-3.1-70b").bytes_per_token
    assert sized("llama-3.1-70b", tp=tp).rank_block_bytes * tp == sized("llama-3.1-70b").rank_block_bytes


def test_more_ranks_than_heads() -> None:
    """Beyond one head a rank, ranks hold copies of a head, and each copy costs its bytes."""
    assert sized("llama-3.1-8b", tp=16).bytes_per_token == 2 * sized("llama-3.1-8b", tp=8).bytes_per_token


def test_a_latent_is_stored_once_for_all_ranks() -> None:
    """Eight ranks of an MLA model cost what one costs."""
    eight, one = sized("deepseek-v3", tp=8), sized("deepseek-v3")
    assert eight.bytes_per_token == one.bytes_per_token and eight.tier_tokens == one.tier_tokens


def test_a_window_ends_what_a_sequence_needs() -> None:
    """Of layers with a window a sequence needs the last window, which may begin inside a block, not all tokens."""
    half = 18 * 2 * 16 * 8 * 64 * 2
    assert sized("gpt-oss-120b", sequence_tokens=16_000).sequence_bytes == (1000 + 128 // 16 + 1) * half
    assert sized("gpt-oss-120b", sequence_tokens=32).sequence_bytes == (2 + 2) * half


def test_small_blocks_take_whole_pages() -> None:
    """A slot is rounded up to 4 KiB, as the arena does."""
    tiny = geometry_of("tiny", LLAMA)
    assert size_of(tiny, "bfloat16", 1, 1, 1 << 20, 10).tier_tokens == (1 << 20) // 4096


def test_heads_that_cannot_be_divided() -> None:
    """Three heads over two ranks are refused by name; over six they are copied."""
    with pytest.raises(InvalidInput, match=r"tp: 3 KV heads .* 2 ranks"):
        sized("smollm2-135m", tp=2)
    assert sized("smollm2-135m", tp=6).rank_block_bytes == 120 << 10


# --- configurations -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("missing", "field"),
    [("num_hidden_layers", "num_hidden_layers"), ("num_attention_heads", "num_attention_heads"),
     ("hidden_size", "hidden_size")],
)
def test_a_missing_field_is_named(missing: str, field: str) -> None:
    """A configuration without a field that the bytes depend on is refused by that field's name."""
    config = {name: value for name, value in LLAMA.items() if name != missing}
    with pytest.raises(InvalidInput, match=field):
        geometry_of("m", config)


def test_states_are_refused() -> None:
    """Layers that keep a state are not counted as if they kept keys and values."""
    with pytest.raises(InvalidInput, match="linear_attention"):
        geometry_of("m", LLAMA | {"layer_types": ["full_attention", "linear_attention"]})


def test_heads_default_to_all() -> None:
    """Without num_key_value_heads each head has its own keys and values."""
    config = {name: value for name, value in LLAMA.items() if name != "num_key_value_heads"}
    assert geometry_of("m", config).attention[0].kv_heads == 8


def test_language_part_of_a_larger_configuration(tmp_path: Path) -> None:
    """The part for text is found where a model takes other input as well, and the folder names the model."""
    folder = tmp_path / "some-model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"text_config": LLAMA, "vision_config": {}}))
    found = read_config(folder / "config.json")
    assert found.name == "some-model" and found.attention[0].head_dim == 8


@pytest.mark.parametrize("text", ["", "[]", "{", '{"num_hidden_layers": true}', '{"num_hidden_layers": "2"}'])
def test_what_is_no_configuration(tmp_path: Path, text: str) -> None:
    """A file that is not a configuration is refused, not guessed at."""
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(InvalidInput):
        read_config(tmp_path / "config.json")


FAMILIES: list[tuple[str, dict[str, Any]]] = [
    ("llama", {"num_hidden_layers": 2}),
    ("mistral", {"num_hidden_layers": 2, "sliding_window": 4}),
    ("qwen3", {"num_hidden_layers": 4, "head_dim": 8, "use_sliding_window": True, "sliding_window": 4,
               "max_window_layers": 1}),
    ("gemma2", {"num_hidden_layers": 5, "head_dim": 8, "sliding_window": 4}),
    ("gemma3_text", {"num_hidden_layers": 7, "head_dim": 8, "sliding_window": 4}),
    ("gpt_oss", {"num_hidden_layers": 4, "head_dim": 8, "sliding_window": 4, "num_local_experts": 2,
                 "num_experts_per_tok": 1}),
]


@pytest.mark.parametrize("with_layer_types", [True, False])
@pytest.mark.parametrize(("family", "fields"), FAMILIES, ids=[name for name, _ in FAMILIES])
def test_against_the_caches_of_transformers(family: str, fields: dict[str, Any], with_layer_types: bool) -> None:
    """Layers, heads, widths and windows are those of the cache that transformers builds for the model, also from
    older configurations that do not list the kinds of layers."""
    transformers = pytest.importorskip("transformers")
    config = transformers.AutoConfig.for_model(family, **(TINY | fields))
    written = config.to_dict()
    if not with_layer_types:
        written.pop("layer_types", None)
    found = geometry_of(family, written)
    cache = transformers.DynamicCache(config=config)
    windows = sorted(getattr(layer, "sliding_window", 0) for layer in cache.layers)
    assert sorted(one.window_tokens for one in found.attention for _ in range(one.layers)) == windows
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    assert {(one.kv_heads, one.head_dim) for one in found.attention} == {(config.num_key_value_heads, head_dim)}


def test_against_the_bytes_of_a_real_cache() -> None:
    """The keys and values that a model leaves behind for 16 tokens have the bytes of one block."""
    transformers, torch = pytest.importorskip("transformers"), pytest.importorskip("torch")
    config = transformers.AutoConfig.for_model("llama", **(TINY | {"num_hidden_layers": 2}))
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    with torch.no_grad():
        cache = model(torch.arange(16)[None], use_cache=True).past_key_values
    held = sum(one.nbytes for layer in cache.layers for one in (layer.keys, layer.values))
    assert size_of(geometry_of("m", config.to_dict()), "bfloat16", 1, 16, GIB, 16).rank_block_bytes == held


# --- the command ----------------------------------------------------------------------------------------


class SizeCommand:
    """`tierd size` through the real entry point, in this process."""

    def __init__(self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
        self._capsys = capsys
        self._monkeypatch = monkeypatch

    def __call__(self, *words: str, status: int = 0) -> tuple[str, str]:
        """Standard output and error; fails when the exit status is another one."""
        self._monkeypatch.setattr(sys, "argv", ["tierd", "size", *words])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        said = self._capsys.readouterr()
        assert ended.value.code == status, said.err
        return said.out, said.err


@pytest.fixture
def size_command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> SizeCommand:
    return SizeCommand(capsys, monkeypatch)


def test_the_table_is_whole_on_a_pipe(size_command: SizeCommand) -> None:
    """Without a terminal nothing is cut off, and every model that the ranks can hold has its line."""
    table, left_out = size_command("--tp", "8", "--dtype", "fp8")
    assert "…" not in table
    named = {line.split()[0] for line in table.splitlines()[3:]}
    assert named | set(re.findall(r"left out: ([^ ]+):", left_out)) == set(MODELS)


def test_as_json(size_command: SizeCommand) -> None:
    """JSON has the numbers of the table."""
    (found,) = json.loads(size_command("llama-3.1-70b", "--host-bytes", "64GiB", "--json")[0])
    assert (found["rank_block_bytes"], found["tier_tokens"]) == (5 << 20, 209_712)
    assert found["groups"][0]["layers"] == 80


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["llama"], "llama-3.1-8b"), (["--dtype", "bf17"], "--dtype"), (["--host-bytes", "1"], "--host-bytes"),
        (["smollm2-135m", "--tp", "2"], "3 KV heads"), (["--config", "/nowhere/config.json"], "No such file"),
        (["llama-3.1-8b", "--block-tokens", "1048576"], "block_bytes"), (["--tp", "0"], "--tp"),
    ],
)
def test_wrong_usage(size_command: SizeCommand, words: list[str], said: str) -> None:
    """What cannot be sized is wrong usage, and named."""
    assert said in size_command(*words, status=2)[1]
