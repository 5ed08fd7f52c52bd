"""Keys and values of a cache of transformers as blocks, and back.

A cache has [1, kv_heads, tokens, head_dim] per layer; blocks are [blocks, 2, layers, block_tokens, kv_heads,
head_dim], as the usual Layout says.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from tierd_client.errors import InvalidArgument
from tierd_client.format import U8Array
from tierd_client.layout import Layout


def empty(layout: Layout, blocks: int) -> Tensor:
    """Room for so many blocks, on the CPU."""
    shape = layout.groups[0].parts[0].shape
    return torch.empty((blocks, 2, *shape), dtype=getattr(torch, layout.dtype))


def raw(blocks: Tensor) -> U8Array:
    """Their bytes, in place: uint8 [blocks, block_bytes]."""
    flat: U8Array = blocks.view(torch.uint8).numpy().reshape(len(blocks), -1)
    return flat


def pack(layers: Any, layout: Layout, first: int, end: int) -> Tensor:
    """Blocks `first` to `end` - 1 of a cache's layers, on the CPU. Raises InvalidArgument naming the layer whose
    keys or values are not of the layout."""
    packed = empty(layout, max(0, end - first))
    _, _, count, tokens, heads, width = packed.shape
    if len(layers) != count:
        raise InvalidArgument(f"cache: {len(layers)} layers, the model has {count}")
    for index, layer in enumerate(layers):
        for part, held in enumerate((layer.keys, layer.values)):
            _check(held, index, (1, heads, held.shape[-2], width), packed.dtype)
            span = held[0, :, first * tokens : end * tokens].reshape(heads, len(packed), tokens, width)
            packed[:, part, index].copy_(span.permute(1, 2, 0, 3))
    return packed


def unpack(blocks: Tensor, device: Any) -> list[tuple[Tensor, Tensor]]:
    """Keys and values of each layer, [1, kv_heads, tokens, head_dim] each, of blocks that follow each other."""
    count, _, layers, tokens, heads, width = blocks.shape
    joined = blocks.to(device).permute(2, 1, 4, 0, 3, 5).reshape(layers, 2, 1, heads, count * tokens, width)
    return [(joined[layer, 0], joined[layer, 1]) for layer in range(layers)]


def tokens_of(token_ids: Any) -> Any:
    """The ids of one prompt: a list, an array or a tensor, [tokens] or [1, tokens]."""
    ids = token_ids.detach().cpu() if isinstance(token_ids, Tensor) else np.asarray(token_ids)
    if ids.ndim == 2 and ids.shape[0] == 1:
        ids = ids[0]
    if ids.ndim != 1:
        raise InvalidArgument(f"token_ids: shape {tuple(ids.shape)}, one prompt is [tokens] or [1, tokens]")
    return ids


def _check(held: Tensor, layer: int, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    if tuple(held.shape) != shape or held.dtype != dtype:
        raise InvalidArgument(
            f"cache: layer {layer} holds {tuple(held.shape)} {held.dtype}, not {shape} {dtype} of one sequence")
