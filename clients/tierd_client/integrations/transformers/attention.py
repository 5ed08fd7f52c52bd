"""Attention of transformers that tells a cache's layers what they were attended to with, and keeps no weights.

`use_attention(model)` switches a model to it. A layer of this package that gave the keys is called with the query
and answers with the output; keys of any other cache are attended to as "eager" does.
"""

from __future__ import annotations

import math
from typing import Any, Protocol

import torch
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import eager_mask

from tierd_client.errors import FailedPrecondition, InvalidArgument

ATTENTION = "tierd"
ROWS = 256
"""Of a prompt that are attended with at a time: heads * ROWS * tokens weights are in memory."""

_LAYER = "_tierd_layer"


class Attended(Protocol):
    """A layer of a cache that answers queries itself."""

    def attend(self, query: Tensor, scaling: float) -> Tensor:
        """Output [1, query heads, rows, head_dim] for the queries of the newest tokens, of the same shape."""
        ...


def use_attention(model: Any) -> None:
    """Switches a model to this attention. FailedPrecondition where the model has one of its own that is fixed."""
    model.set_attn_implementation(ATTENTION)
    if model.config._attn_implementation != ATTENTION:
        raise FailedPrecondition(f"model: {type(model).__name__} does not let its attention be chosen")


def full_attention_only(model: Any) -> Any:
    """The configuration of a decoder. InvalidArgument where a layer looks at a window of its own."""
    config = model.config.get_text_config(decoder=True)
    strange = set(getattr(config, "layer_types", None) or ()) - {"full_attention"}
    if strange:
        raise InvalidArgument(f"model: layers of {', '.join(sorted(strange))}; all must attend to all tokens")
    return config


def given_by(keys: Tensor, layer: Attended) -> Tensor:
    """The same keys, which say whose they are."""
    setattr(keys, _LAYER, layer)
    return keys


def weights_of(query: Tensor, keys: Tensor, scaling: float, hidden: Tensor | None = None) -> Tensor:
    """Softmax of the queries of the newest tokens, float32 [1, query heads, rows, tokens]. `hidden`: slots that are
    none, bool [1, kv heads, tokens]."""
    groups = query.shape[1] // keys.shape[1]
    scores = torch.matmul(query, _each(keys, groups).transpose(2, 3)).float() * scaling
    rows, tokens = scores.shape[-2:]
    if rows > 1:
        later = torch.ones(rows, rows, dtype=torch.bool, device=scores.device).triu(1)
        scores[..., tokens - rows :].masked_fill_(later, -math.inf)
    if hidden is not None:
        scores.masked_fill_(_each(hidden, groups)[:, :, None], -math.inf)
    return scores.softmax(-1)


def output_of(weights: Tensor, values: Tensor) -> Tensor:
    """[1, query heads, rows, head_dim]."""
    return torch.matmul(weights.to(values.dtype), _each(values, weights.shape[1] // values.shape[1]))


def _each(tensor: Tensor, groups: int) -> Tensor:
    """That of a KV head for each query head of its group."""
    return tensor if groups == 1 else tensor.repeat_interleave(groups, 1)


def _attention(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, scaling: float,
    dropout: float = 0.0, **_: Any,
) -> tuple[Tensor, Tensor | None]:
    layer: Attended | None = getattr(key, _LAYER, None)
    if layer is not None:
        return layer.attend(query, scaling).transpose(1, 2).contiguous(), None
    groups = query.shape[1] // key.shape[1]
    scores = torch.matmul(query, _each(key, groups).transpose(2, 3)) * scaling
    if attention_mask is not None:
        scores = scores + attention_mask
    weights = torch.nn.functional.dropout(scores.softmax(-1, torch.float32), dropout, module.training)
    return output_of(weights, value).transpose(1, 2).contiguous(), weights


AttentionInterface.register(ATTENTION, _attention)
AttentionMaskInterface.register(ATTENTION, eager_mask)  # without it no mask is made under this name
