"""Random: any token outside the newest `recent` goes, by a seed. What a policy must beat to be worth its state."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from tierd_client.tokens.policy import TOKENS_MAX, Slots, TokenPolicy, count, within_budget

_ODD = (-7046029254386353131, -4658895280553007687, -7723592293110705685)
"""Multipliers of splitmix64, as signed 64 bit numbers (Steele et al., OOPSLA 2014)."""


@dataclass(frozen=True)
class Random(TokenPolicy):
    """The choice is a function of `seed`, head, position, and how many tokens came before: it is the same on every
    device and needs no state."""

    name: ClassVar[str] = "random"
    needs_attention: ClassVar[bool] = False
    recent: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        within_budget("recent", self.recent, self.budget)
        count("seed", self.seed, 0, TOKENS_MAX)

    def keys(self, slots: Slots) -> Tensor:
        positions = slots.positions.long()
        batch, heads, _ = positions.shape
        rows = torch.arange(batch * heads, device=positions.device).reshape(batch, heads, 1)
        newest = positions[..., -1:]
        return _mixed(_mixed(_mixed(rows + self.seed * _ODD[0]) + newest) + positions)


def _mixed(numbers: Tensor) -> Tensor:
    """splitmix64's finaliser: a bijection of 64 bits whose values look random."""
    mixed = numbers * _ODD[0]
    for shift, odd in ((30, _ODD[1]), (27, _ODD[2])):
        mixed = (mixed ^ _shifted(mixed, shift)) * odd
    return mixed ^ _shifted(mixed, 31)


def _shifted(numbers: Tensor, bits: int) -> Tensor:
    """Right by so many bits, zeros coming in."""
    return (numbers >> bits) & ((1 << (64 - bits)) - 1)
