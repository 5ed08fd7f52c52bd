"""The cache of the H2O guide: two pools in fixed slots, in which the newest token takes an evicted one's place.

Its decisions are those of `H2O(budget, recent=recent + 1)`: the token that leaves the window is taken into the
heavy pool without being compared with it, in the slot of the heavy one with the least score.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tierd_client.errors import InvalidArgument
from tierd_client.tokens.heads import group_heads
from tierd_client.tokens.policy import PADDING, TOKENS_MAX, count, share


class GuideCache:
    """Keys and values of one layer, of at most `max_budget` tokens. Not thread-safe.

    `recent_ratio`: the share of the budget for the newest tokens. All heads of a sequence hold the same tokens, by
    the sum of their attention; sequences of a batch decide on their own. Raises InvalidArgument naming the
    parameter where a pool would be empty.
    """

    def __init__(
        self, batch: int, heads: int, head_dim: int, max_budget: int = 1024, recent_ratio: float = 0.5, *,
        dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu",
    ) -> None:
        self.budget = count("max_budget", max_budget, 2, TOKENS_MAX)
        self.recent = int(self.budget * share("recent_ratio", recent_ratio, 0.0, 1.0))
        self.heavy = self.budget - self.recent
        if not self.recent or not self.heavy:
            raise InvalidArgument(
                f"recent_ratio: {recent_ratio!r} of {max_budget} leaves {self.recent} recent and {self.heavy} "
                "heavy tokens; each pool needs one"
            )
        self.shape = count("batch", batch, 1, TOKENS_MAX), count("heads", heads, 1, TOKENS_MAX)
        slots = (*self.shape, self.budget, count("head_dim", head_dim, 1, TOKENS_MAX))
        self._keys = torch.zeros(slots, dtype=dtype, device=device)
        self._values = torch.zeros_like(self._keys)
        self._scores = torch.zeros(self.shape[0], self.budget, dtype=torch.float64, device=device)
        self._positions = torch.full_like(self._scores, PADDING, dtype=torch.int64)
        self._appended = 0

    @property
    def size(self) -> int:
        """Tokens held."""
        return min(self._appended, self.budget)

    @property
    def keys(self) -> Tensor:
        """[batch, heads, size, head_dim]: the heavy pool in any order, then the newest in order of position."""
        return self._keys[:, :, : self.size]

    @property
    def values(self) -> Tensor:
        """As `keys`."""
        return self._values[:, :, : self.size]

    @property
    def positions(self) -> Tensor:
        """Position in its sequence of each slot's token, int64 [batch, size]."""
        return self._positions[:, : self.size]

    @property
    def scores(self) -> Tensor:
        """Attention that each slot's token was given so far, float64 [batch, size]."""
        return self._scores[:, : self.size]

    def update(self, key: Tensor, value: Tensor, attention: Tensor | None) -> None:
        """Takes in the attention on the held tokens, [batch, query heads, size], then the next token.

        `key`, `value`: [batch, heads, head_dim]. Without attention the cache fills; once it is full, it is needed.
        """
        for name, tensor in (("key", key), ("value", value)):
            _expect(name, tensor, (*self.shape, self._keys.shape[-1]))
        if attention is not None and self.size:
            _expect("attention", attention, (self.shape[0], None, self.size))
            self._scores[:, : self.size] += group_heads(attention.double(), 1, "sum")[:, 0]
        if self._appended >= self.budget:
            if attention is None:
                raise InvalidArgument("attention: None, but the cache is full: which token goes is decided by it")
            self._make_room()
        self._write(key, value)

    def _make_room(self) -> None:
        """The oldest of the window takes the slot of the heavy token with the least score; the window moves up."""
        hole = self._scores[:, : self.heavy].argmin(-1, keepdim=True)
        in_heads = hole[:, None, :, None].expand(*self.shape, 1, self._keys.shape[-1])
        places = ((self._scores, hole), (self._positions, hole), (self._keys, in_heads), (self._values, in_heads))
        for tensor, index in places:
            axis = min(2, tensor.ndim - 1)
            window = tensor.narrow(axis, self.heavy, self.recent).clone()
            tensor.scatter_(axis, index, window.narrow(axis, 0, 1))
            tensor.narrow(axis, self.heavy, self.recent - 1).copy_(window.narrow(axis, 1, self.recent - 1))

    def _write(self, key: Tensor, value: Tensor) -> None:
        slot = min(self._appended, self.budget - 1)
        self._keys[:, :, slot], self._values[:, :, slot] = key, value
        self._scores[:, slot], self._positions[:, slot] = 0, self._appended
        self._appended += 1


def _expect(name: str, tensor: Any, shape: tuple[int | None, ...]) -> None:
    got = tuple(getattr(tensor, "shape", ()))
    if len(got) != len(shape) or any(want not in (None, have) for have, want in zip(got, shape, strict=True)):
        raise InvalidArgument(f"{name}: shape {got} is not {shape}")
