"""What stays here of keys that lie in the daemon, to tell which blocks a query needs.

`keys`: the keys as int8, with one scale a block and head, so that the largest product is nearly as it is; an
eighth of the bytes of float32 keys and values. `bounds`: the lowest and the highest key of each dimension (Tang
et al., "Quest", 2024, arXiv 2406.10774), of which no key has a larger product than the sum of the larger of
both in each dimension; with 16 tokens a block a sixteenth.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from tierd_client.errors import InvalidArgument

STEPS = 127
"""Of int8 on either side of zero."""


class Index(Protocol):
    """Of one layer."""

    def add(self, keys: Tensor) -> None:
        """The keys of the next blocks, [kv_heads, blocks, block_tokens, head_dim]."""
        ...

    def products(self, queries: Tensor) -> Tensor:
        """About the largest product of each query with a key of each block, float32 [kv_heads, queries, blocks].

        `queries`: [kv_heads, queries, head_dim].
        """
        ...

    @property
    def nbytes(self) -> int: ...


class Keys:
    """Keys in steps of a 127th of the largest of their block and head."""

    def __init__(self) -> None:
        self._codes: Tensor | None = None
        self._steps: Tensor | None = None

    def add(self, keys: Tensor) -> None:
        steps = keys.float().abs().amax((2, 3), keepdim=True).clamp(min=torch.finfo(torch.float32).tiny) / STEPS
        codes = (keys.float() / steps).round().to(torch.int8)
        self._codes, self._steps = _joined(self._codes, codes), _joined(self._steps, steps[..., 0, 0])

    def products(self, queries: Tensor) -> Tensor:
        assert self._codes is not None and self._steps is not None
        heads, blocks, tokens, width = self._codes.shape
        keys = self._codes.view(heads, blocks * tokens, width).float()
        largest = torch.matmul(queries.float(), keys.transpose(1, 2)).view(heads, -1, blocks, tokens).amax(-1)
        return largest * self._steps[:, None]

    @property
    def nbytes(self) -> int:
        return _nbytes(self._codes, self._steps)


class Bounds:
    """Lowest and highest keys."""

    def __init__(self) -> None:
        self._low: Tensor | None = None
        self._high: Tensor | None = None

    def add(self, keys: Tensor) -> None:
        self._low, self._high = _joined(self._low, keys.amin(2)), _joined(self._high, keys.amax(2))

    def products(self, queries: Tensor) -> Tensor:
        assert self._low is not None and self._high is not None
        rows = queries[:, :, None]
        return torch.maximum(rows * self._low[:, None], rows * self._high[:, None]).sum(-1).float()

    @property
    def nbytes(self) -> int:
        return _nbytes(self._low, self._high)


INDEXES: dict[str, type[Keys] | type[Bounds]] = {"keys": Keys, "bounds": Bounds}


def index_named(name: str) -> Index:
    """A new one. Raises InvalidArgument for another name."""
    if name not in INDEXES:
        raise InvalidArgument(f"index: {name!r} is none of {', '.join(INDEXES)}")
    return INDEXES[name]()


def _joined(old: Tensor | None, new: Tensor) -> Tensor:
    return new if old is None else torch.cat((old, new), 1)


def _nbytes(*tensors: Tensor | None) -> int:
    return sum(tensor.nbytes for tensor in tensors if tensor is not None)
