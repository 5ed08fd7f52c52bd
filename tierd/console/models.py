"""Geometries of the caches of public models, and how to read one from a Hugging Face `config.json`.

A geometry is what the bytes of a block depend on: for each kind of attention the number of its layers, key-value
heads and their width. Numbers are those of the models' own configurations.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tierd.core.errors import InvalidInput
from tierd_client.layout import Group, Layout, Part

STATEFUL = ("linear_attention", "mamba", "recurrent", "conv")
"""Kinds of layers that keep a state instead of keys and values."""

SLIDING_EVERY = {"gemma2": 2, "gemma3_text": 6, "gpt_oss": 2, "cohere2": 4}
"""Families whose older configurations leave out which layers slide: all but every n-th do."""


@dataclass(frozen=True, slots=True)
class Attention:
    """Layers of one kind.

    `window_tokens`: how far back they look, 0 for all the way. `latent`: one vector of `head_dim` a token that
    stands for keys and values of all heads (MLA); every rank of tensor parallelism holds the same.
    """

    layers: int
    kv_heads: int
    head_dim: int
    window_tokens: int = 0
    latent: bool = False

    @property
    def name(self) -> str:
        return "latent" if self.latent else f"window {self.window_tokens}" if self.window_tokens else "full"

    def heads_of_rank(self, tp: int) -> int:
        """KV heads that one of `tp` ranks holds; where there are more ranks than heads, ranks share one."""
        if self.latent:
            return 1
        if max(self.kv_heads, tp) % min(self.kv_heads, tp):
            raise InvalidInput("tp", f"{self.kv_heads} KV heads cannot be divided over {tp} ranks")
        return max(1, self.kv_heads // tp)

    def group(self, dtype: str, block_tokens: int, tp: int) -> Group:
        """The group of one rank's blocks."""
        shape = (self.layers, block_tokens, self.heads_of_rank(tp), self.head_dim)
        names = ("latent",) if self.latent else ("k", "v")
        return Group(
            self.name.replace(" ", "_"), block_tokens, tuple(Part(name, dtype, shape) for name in names),
            rule="window" if self.window_tokens else "prefix", window_tokens=self.window_tokens,
            replicated=self.latent,
        )


@dataclass(frozen=True, slots=True)
class Geometry:
    """The cache of one model."""

    name: str
    attention: tuple[Attention, ...]

    def layout(self, dtype: str, block_tokens: int, tp: int) -> Layout:
        """Of rank 0 of `tp`. Raises InvalidInput (`tp`), ValueError."""
        groups = [one.group(dtype, block_tokens, tp) for one in self.attention]
        return Layout.of_groups(groups, model=self.name, dtype=dtype, tp_size=tp)


def _full(name: str, layers: int, kv_heads: int, head_dim: int) -> Geometry:
    return Geometry(name, (Attention(layers, kv_heads, head_dim),))


def _sliding(name: str, full: int, sliding: int, kv_heads: int, head_dim: int, window_tokens: int) -> Geometry:
    both = Attention(full, kv_heads, head_dim), Attention(sliding, kv_heads, head_dim, window_tokens)
    return Geometry(name, both)


def _latent(name: str, layers: int) -> Geometry:
    """DeepSeek's MLA: a latent of 512 and 64 that carry the position."""
    return Geometry(name, (Attention(layers, 1, 512 + 64, latent=True),))


MODELS = {one.name: one for one in (
    _full("llama-3.1-8b", 32, 8, 128),
    _full("llama-3.1-70b", 80, 8, 128),
    _full("llama-3.1-405b", 126, 8, 128),
    _full("llama-3.2-1b", 16, 8, 64),
    _full("llama-3.2-3b", 28, 8, 128),
    _full("qwen2.5-7b", 28, 4, 128),
    _full("qwen2.5-14b", 48, 8, 128),
    _full("qwen2.5-32b", 64, 8, 128),
    _full("qwen2.5-72b", 80, 8, 128),
    _full("qwen3-8b", 36, 8, 128),
    _full("qwen3-14b", 40, 8, 128),
    _full("qwen3-32b", 64, 8, 128),
    _full("qwen3-30b-a3b", 48, 4, 128),
    _full("qwen3-235b-a22b", 94, 4, 128),
    _full("mistral-7b-v0.3", 32, 8, 128),
    _full("mistral-small-24b", 40, 8, 128),
    _full("mixtral-8x7b", 32, 8, 128),
    _full("mixtral-8x22b", 56, 8, 128),
    _sliding("gemma-2-9b", 21, 21, 8, 256, 4096),
    _sliding("gemma-2-27b", 23, 23, 16, 128, 4096),
    _sliding("gemma-3-1b", 4, 22, 1, 256, 512),
    _sliding("gemma-3-4b", 5, 29, 4, 256, 1024),
    _sliding("gemma-3-12b", 8, 40, 8, 256, 1024),
    _sliding("gemma-3-27b", 10, 52, 16, 128, 1024),
    _latent("deepseek-v2-lite", 27),
    _latent("deepseek-v3", 61),
    _sliding("gpt-oss-20b", 12, 12, 8, 64, 128),
    _sliding("gpt-oss-120b", 18, 18, 8, 64, 128),
    _full("smollm2-135m", 30, 3, 64),
    _full("smollm2-360m", 32, 5, 64),
    _full("smollm2-1.7b", 24, 32, 64),
)}


def read_config(path: Path) -> Geometry:
    """The geometry of a `config.json`. Raises InvalidInput naming the field that is missing or not understood."""
    try:
        config = json.loads(path.read_text())
    except OSError as error:
        raise InvalidInput("config", f"{path}: {error.strerror}") from error
    except ValueError as error:
        raise InvalidInput("config", f"{path}: {error}") from error
    if not isinstance(config, dict):
        raise InvalidInput("config", f"{path}: not a JSON object")
    # Models of several kinds of input keep the language model's part under a name of its own.
    inner = config.get("text_config", config)
    name = str(config.get("_name_or_path") or path.resolve().parent.name or path.name)
    return geometry_of(name, inner)


def geometry_of(name: str, config: Mapping[str, Any]) -> Geometry:
    """The geometry that a configuration of `transformers` describes. Raises InvalidInput."""
    layers = _count(config, "num_hidden_layers")
    if config.get("kv_lora_rank"):
        width = _count(config, "kv_lora_rank") + _count(config, "qk_rope_head_dim")
        return Geometry(name, (Attention(layers, 1, width, latent=True),))
    heads = _count(config, "num_attention_heads")
    kv_heads = _count(config, "num_key_value_heads") if config.get("num_key_value_heads") else heads
    head_dim = _count(config, "head_dim") if config.get("head_dim") else _count(config, "hidden_size") // heads
    windows = Counter(_windows(config, layers))
    kinds = (Attention(count, kv_heads, head_dim, window) for window, count in sorted(windows.items()))
    return Geometry(name, tuple(kinds))


def _windows(config: Mapping[str, Any], layers: int) -> list[int]:
    """The window of each layer in tokens, 0 for none."""
    window = config.get("sliding_window") or 0
    kinds = config.get("layer_types")
    if kinds is not None:
        return [_window_of(kind, window) for kind in kinds]
    if not window or config.get("use_sliding_window") is False:
        return [0] * layers
    first = config.get("max_window_layers", 0) if "use_sliding_window" in config else 0
    every = config.get("sliding_window_pattern") or SLIDING_EVERY.get(str(config.get("model_type")), layers + 1)
    return [window if layer >= first and (layer + 1) % every else 0 for layer in range(layers)]


def _window_of(kind: str, window: int) -> int:
    if kind == "full_attention":
        return 0
    if kind == "sliding_attention" and window:
        return window
    why = "keeps a state" if any(word in kind for word in STATEFUL) else "is of a kind that is not known here"
    raise InvalidInput("layer_types", f"a layer {kind!r} {why}: its bytes are not in the configuration")


def _count(config: Mapping[str, Any], field: str) -> int:
    value = config.get(field)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InvalidInput(field, f"{value!r} in the configuration is not a count")
    return value
