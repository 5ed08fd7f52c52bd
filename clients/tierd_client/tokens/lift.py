"""Attention per block of tokens, as a worker reports it to the daemon (`Sequence.observe`).

One number per block, of all layers and heads: a block of the daemon's holds every layer, so that it can only be
kept or dropped as a whole. How it is made changes which blocks go, so it has a name:

| over | of the layers and query heads | sums to |
|---|---|---|
| `mean` | the mean: query heads that share a key need no weights of their own | at most 1 |
| `max` | the largest: a block that one head alone needs stays | scaled down where it is above 1 |
| `per_token` | the mean, of a partial last block as if its other tokens had as much | as `max` |
"""

from __future__ import annotations

import torch
from torch import Tensor

from tierd_client.errors import InvalidArgument
from tierd_client.tokens.policy import TOKENS_MAX, choice, count

OVER = ("mean", "max", "per_token")


def block_mass(weights: Tensor, block_tokens: int, *, over: str = "mean") -> Tensor:
    """Mass of each block, float32 [blocks], of one row of attention [layers, query heads, tokens].

    Weights of a block's tokens are summed; the last block may be partial. Raises InvalidArgument for another shape.
    """
    if weights.ndim != 3 or not weights.numel():
        raise InvalidArgument(f"weights: {tuple(weights.shape)} is not (layers, query heads, tokens)")
    size = count("block_tokens", block_tokens, 1, TOKENS_MAX)
    choice("over", over, OVER)
    missing = -weights.shape[-1] % size
    padded = torch.nn.functional.pad(weights.float(), (0, missing))
    blocks = padded.reshape(*weights.shape[:2], -1, size).sum(-1)
    mass: Tensor = blocks.amax((0, 1)) if over == "max" else blocks.mean((0, 1))
    if over == "per_token":
        mass[-1] *= size / (size - missing)
    return mass / mass.sum().clamp(min=1.0)
