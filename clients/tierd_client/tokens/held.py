"""The tokens that a layer's cache holds under a policy: what is appended, what is seen of it, what goes.

Heads evict on their own, and may be given budgets of their own. A slot of a head that holds fewer tokens than
another is padding; padding comes first, tokens follow in order of position.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from tierd_client.errors import FailedPrecondition, InvalidArgument
from tierd_client.tokens.heads import GROUPINGS, group_heads
from tierd_client.tokens.policy import PADDING, POSITION, TOKENS_MAX, Column, Slots, TokenPolicy, choice, count

SUM_TOLERANCE = 1e-3
"""By how much the weights of a row may exceed 1 in sum, beside the rounding of their dtype."""


class HeldTokens:
    """State of one layer. Not thread-safe.

    `heads`: heads that evict on their own, 1 for one set of tokens for all; query heads are grouped to them by
    `grouping` (heads.py). `checked`: refuse weights that no softmax gives, which waits for the device.
    """

    def __init__(
        self, policy: TokenPolicy, batch: int, heads: int, *, grouping: str = "mean",
        device: torch.device | str | None = None, checked: bool = True,
    ) -> None:
        self.policy = policy
        self.grouping = choice("grouping", grouping, GROUPINGS)
        self.shape = count("batch", batch, 1, TOKENS_MAX), count("heads", heads, 1, TOKENS_MAX)
        self.appended = 0
        """Tokens so far, held or gone: the position of the next."""
        self._device = torch.device(device or "cpu")
        self._checked = checked
        self._uneven = False
        self._slots = Slots({column.name: self._fresh(column, 0) for column in (POSITION, *policy.columns)})

    @property
    def slots(self) -> int:
        """Slots per head, padding included: the length of the cache."""
        return self.positions.shape[-1]

    @property
    def excess(self) -> int:
        """Slots beyond the policy's budget."""
        return max(0, self.slots - self.policy.budget)

    @property
    def positions(self) -> Tensor:
        """Position in the sequence of each slot's token, int32 [batch, heads, slots]; -1 is padding."""
        return self._slots.positions

    def append(self, tokens: int = 1) -> None:
        """The cache has grown by so many tokens, of which nothing is known yet."""
        tokens = count("tokens", tokens, 1, TOKENS_MAX - self.appended)
        added = {column.name: self._fresh(column, tokens) for column in self.policy.columns}
        added[POSITION.name] = torch.arange(
            self.appended, self.appended + tokens, dtype=POSITION.dtype, device=self._device
        ).expand(*self.shape, tokens)
        columns = self._slots.columns
        self._slots.columns = {name: torch.cat((column, added[name]), 2) for name, column in columns.items()}
        self.appended += tokens

    def observe(self, weights: Tensor | None) -> None:
        """Takes in attention on the slots, [batch, query heads, slots] or [batch, query heads, rows, slots].

        Weights are as softmax gives them, not normalised anew, 0 on padding; of several rows the last is that of
        the newest token, and each sees one token more than the one before it. None changes nothing. Raises
        InvalidArgument for another shape, for weights below 0 or not finite, and for rows of a sum above 1.
        """
        if weights is None or not self.policy.needs_attention:
            return
        rows = self._rows(weights)
        if self._checked:
            _check(rows)
        self.policy.observe(self._slots, group_heads(rows.float(), self.shape[1], self.grouping))
        self._slots.rows += rows.shape[2]

    def keys(self) -> Tensor:
        """What decides, float64 [batch, heads, slots]: the lowest goes first, infinity never, padding leads."""
        keys = self.policy.keys(self._slots).to(torch.float64, copy=True)
        keys[..., max(0, self.slots - self.policy.recent) :] = math.inf
        if self.policy.sinks:
            keys.masked_fill_(self.positions < self.policy.sinks, math.inf)
        if self._uneven:
            keys.masked_fill_(self.positions == PADDING, -math.inf)
        return keys

    def evict(self, target: int | Tensor | None = None) -> Tensor:
        """Shrinks to `target` tokens per head, the policy's budget by default; an int64 tensor [batch, heads] gives
        each head its own. Returns which slots stay, int64 [batch, heads, kept], ascending; -1 is padding.

        Fewer go than should where the rest may not be chosen: it is recent, a sink, or (TOVA) not seen yet. Raises
        InvalidArgument for another target, FailedPrecondition where nothing is held.
        """
        surplus = self.slots - self._target(target)
        keep = _kept(_victims(self.keys(), surplus))
        self._uneven = self._uneven or isinstance(target, Tensor)
        if self._uneven:
            keep = torch.where(kept_of(self.positions, keep) == PADDING, PADDING, keep)
        self._slots.columns = {name: kept_of(column, keep) for name, column in self._slots.columns.items()}
        if self._uneven:
            self.positions.masked_fill_(keep == PADDING, PADDING)
        return keep

    def step(self, weights: Tensor | None) -> Tensor:
        """One step of decoding in the guide's order: what the new token's attention says of the slots, the new
        token, and what then stays. Returns as `evict`; the new token is the last slot."""
        self.observe(weights)
        self.append()
        return self.evict()

    def _rows(self, weights: Tensor) -> Tensor:
        """The weights with the axis of rows, if they are of the right shape."""
        rows = weights.unsqueeze(2) if weights.ndim == 3 else weights
        fits = rows.ndim == 4 and rows.shape[0] == self.shape[0] and rows.shape[-1] == self.slots
        if not fits or not 0 < rows.shape[2] <= self.slots or not rows.is_floating_point():
            raise InvalidArgument(
                f"weights: {tuple(weights.shape)} {weights.dtype} is not floating point of "
                f"(batch {self.shape[0]}, query heads, [rows,] slots {self.slots})"
            )
        return rows

    def _target(self, target: int | Tensor | None) -> Tensor:
        if not self.slots:
            raise FailedPrecondition("evict: nothing is held")
        if isinstance(target, Tensor):
            if target.shape != self.shape or target.dtype != torch.int64:
                raise InvalidArgument(f"target: {tuple(target.shape)} {target.dtype} is not int64 {self.shape}")
            return target.clamp(0, self.slots)
        wanted = self.policy.budget if target is None else count("target", target, 1, TOKENS_MAX)
        return torch.full(self.shape, min(wanted, self.slots), device=self._device)

    def _fresh(self, column: Column, tokens: int) -> Tensor:
        shape = (*self.shape, tokens, *column.shape)
        return torch.full(shape, column.fresh, dtype=column.dtype, device=self._device)


def kept_of(values: Tensor, keep: Tensor) -> Tensor:
    """What stays of keys, values or other things per slot: [batch, heads, slots, ...] to [batch, heads, kept, ...].

    `keep` is what `evict` returned, with one head for all or as many as `values` has; padding (-1) takes the first
    slot's values, so mask it from attention.
    """
    batch, heads, slots = values.shape[:3]
    index = keep.clamp(min=0).expand(batch, heads, keep.shape[-1])
    rows = torch.arange(batch * heads, device=values.device).reshape(batch, heads, 1) * slots
    return values.reshape(batch * heads * slots, *values.shape[3:])[rows + index]


def _victims(keys: Tensor, surplus: Tensor) -> Tensor:
    """Which slots go, bool [batch, heads, slots]: of each head the `surplus` lowest keys below infinity."""
    most = int(surplus.max())
    goes = torch.zeros_like(keys, dtype=torch.bool)
    if most <= 0:
        return goes
    first = most == 1  # argmin, too, takes the first of equal ones, and is much cheaper
    lowest = keys.argmin(-1, keepdim=True) if first else keys.argsort(dim=-1, stable=True)[..., :most]
    chosen = torch.arange(most, device=keys.device) < surplus[..., None]
    return goes.scatter_(-1, lowest, chosen & (keys.gather(-1, lowest) < math.inf))


def _kept(goes: Tensor) -> Tensor:
    """Indices of the slots that stay, ascending, padded in front where heads keep different numbers."""
    stays = ~goes
    rank = stays.cumsum(-1)
    kept = rank[..., -1:]
    width = int(kept.max())
    place = torch.where(stays, rank - 1 + width - kept, width)
    keep = torch.full((*goes.shape[:2], width + 1), PADDING, device=goes.device)
    return keep.scatter_(-1, place, torch.arange(goes.shape[-1], device=goes.device).expand_as(place))[..., :width]


def _check(weights: Tensor) -> None:
    most = 1.0 + SUM_TOLERANCE + torch.finfo(weights.dtype).eps
    sums = weights.sum(-1, dtype=torch.float32)
    if not bool(weights.amin() >= 0):  # nor is NaN
        raise InvalidArgument("weights: negative, or not a number")
    if not bool(sums.amax() <= most):
        raise InvalidArgument(f"weights: a row's sum is {float(sums.amax()):g}, above 1")
