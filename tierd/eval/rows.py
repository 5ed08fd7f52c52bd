"""Many caches of one text in one batch: the model runs once for all of them, each row under a budget of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin

from tierd_client.integrations.transformers.attention import ROWS, given_by, output_of, weights_of


class RowsCache(Cache):
    """A prompt is given as one row, and is every cache's; then tokens are given as a row for each cache."""

    def __init__(self, caches: Sequence[Any]) -> None:
        layers = zip(*(cache.layers for cache in caches), strict=True)
        super().__init__(layers=[RowsLayer(members) for members in layers])


class RowsLayer(CacheLayerMixin):
    """One layer of all caches; the first says how many tokens there were."""

    is_sliding = False
    keys: Tensor
    values: Tensor

    def __init__(self, members: Sequence[Any]) -> None:
        super().__init__()
        self._members = members

    def lazy_initialization(self, *_: Any) -> None:
        self.is_initialized = True

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        for row, member in enumerate(self._members):
            own = slice(None) if len(key_states) == 1 else slice(row, row + 1)
            member.update(key_states[own], value_states[own])
        self.keys, self.values = key_states, value_states
        return given_by(key_states, self), value_states

    def attend(self, query: Tensor, scaling: float) -> Tensor:
        if len(query) > 1 or len(self._members) == 1:
            rows = [member.attend(query[row : row + 1], scaling) for row, member in enumerate(self._members)]
            return torch.cat(rows)
        outputs = []
        for start in range(0, query.shape[2], ROWS):
            rows_of = query[:, :, start : start + ROWS]
            seen = start + rows_of.shape[2]
            weights = weights_of(rows_of, self.keys[:, :, :seen], scaling)
            outputs.append(output_of(weights, self.values[:, :, :seen]))
            for member in self._members:
                member.saw(weights)
        for member in self._members:
            member.settle()
        return torch.cat(outputs, 2)

    def get_seq_length(self) -> int:
        return int(self._members[0].get_seq_length())

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.get_seq_length() + query_length, 0

    def get_max_length(self) -> int:
        return -1
