"""Which layout the blocks of a model have, made so that two models share it only where their KV is the same."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tierd_client.errors import InvalidArgument
from tierd_client.layout import Layout

ENGINE = "transformers"
SAMPLES = 64
"""Elements of each tensor of weights that its digest looks at, spread evenly."""

LAYER_TYPES = ("full_attention", "sliding_attention")
"""Layers whose whole KV can be kept; of sliding ones more is kept than they look at."""

NO_FIELDS = ("_name_or_path", "transformers_version", "dtype", "use_cache", "output_attentions", "return_dict")
"""Of a configuration: what does not change KV, or is in the layout already."""


def layout_of(model: Any, block_tokens: int, revision: str = "") -> Layout:
    """The layout of a decoder's blocks: parts k and v of (layers, block_tokens, kv_heads, head_dim), keys after the
    rotary embedding.

    `revision`: what tells these weights from others of the same name; by default `revision_of`. Raises
    InvalidArgument for a model whose layers do not all keep keys and values of one shape.
    """
    config = model.config.get_text_config(decoder=True)
    strange = set(getattr(config, "layer_types", None) or ()) - set(LAYER_TYPES)
    if strange:
        raise InvalidArgument(f"model: layers of {', '.join(sorted(strange))}, whose keys and values are not kept")
    heads = config.num_attention_heads
    return Layout(
        model=name_of(model), dtype=str(model.dtype).removeprefix("torch."), layers=config.num_hidden_layers,
        kv_heads=getattr(config, "num_key_value_heads", None) or heads,
        head_dim=getattr(config, "head_dim", None) or config.hidden_size // heads, block_tokens=block_tokens,
        engine=ENGINE, revision=revision or revision_of(model),
    )


def revision_of(model: Any) -> str:
    """32 hex digits of a model's configuration and of samples of all its weights, adapters included.

    Two models of one name and other weights must not read each other's blocks; a name, or a path, does not say.
    Raises InvalidArgument where weights are not in memory.
    """
    digest = hashlib.blake2b(digest_size=16, person=b"tierd-hf-v1")
    digest.update(json.dumps(_fields(model.config.to_dict()), sort_keys=True, default=str).encode())
    for name, tensor in model.state_dict().items():
        if tensor.is_meta:
            raise InvalidArgument(f"revision: needed, for the weights {name} are not in memory")
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(_sampled(tensor))
    return digest.hexdigest()


def name_of(model: Any) -> str:
    """What operators shall call it: the last part of a directory's path, else the whole name."""
    name = str(model.config.name_or_path)
    return Path(name).name if Path(name).is_absolute() else name or type(model).__name__


def _fields(config: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in config.items() if name not in NO_FIELDS}


def _sampled(tensor: Tensor) -> bytes:
    flat = tensor.detach().reshape(-1)
    some = flat[:: max(1, len(flat) // SAMPLES)][: SAMPLES + 1].contiguous().cpu()
    return some.view(torch.uint8).numpy().tobytes()
