"""What caches under a budget have in common: a layer of one sequence, for the attention of this package."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import CacheLayerMixin

from tierd_client.errors import FailedPrecondition, InvalidArgument
from tierd_client.integrations.transformers.attention import given_by


class AttendedLayer(CacheLayerMixin):
    """`keys`, `values`: [1, kv_heads, tokens, head_dim], grown by each update; `attend` says what then becomes of
    them."""

    is_sliding = False
    keys: Tensor
    values: Tensor

    def __init__(self) -> None:
        super().__init__()
        self._unseen = 0
        """Tokens that were given and not attended with yet."""

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        if len(key_states) != 1:
            raise InvalidArgument(f"batch: {len(key_states)} sequences, this cache is of one")
        self.dtype, self.device = key_states.dtype, key_states.device
        self.keys, self.values = key_states[:, :, :0], value_states[:, :, :0]
        self.is_initialized = True

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        if self._unseen:
            raise FailedPrecondition("attention: call use_attention(model) before this cache is used")
        self._unseen = key_states.shape[2]
        self.keys = torch.cat((self.keys, key_states), 2)
        self.values = torch.cat((self.values, value_states), 2)
        return given_by(self.keys, self), self.values

    def attend(self, query: Tensor, scaling: float) -> Tensor:
        """As attention.py asks."""
        raise NotImplementedError

    def reset(self) -> None:
        """Refused: what was evicted, or lies in the daemon, is of the text before. FailedPrecondition."""
        raise FailedPrecondition(f"reset: a {type(self).__name__} is of one text; make a new cache")

    def get_max_length(self) -> int:
        return -1
