"""What a hit is: how much of a prompt can be reused, given which blocks of its chains are there.

A hit of n blocks needs the last min(n, tail) of them, and nothing before: all under rule `prefix`, those that
cover the window under `window`, the one state at its end under `boundary`. Chains of one prompt (the groups of
a layout, the ranks of a model) agree on tokens: the hit that all of them support. Pure: numpy only; the
daemon and the client compute with these same functions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tierd_client.format import BoolArray, I64Array

WHOLE = 2**32 - 1
"""A tail that reaches to the start of any chain."""


@dataclass(frozen=True, slots=True)
class HitRule:
    """`block_tokens`: tokens of a block. `tail`: blocks before its end that a hit needs, at least 1."""

    block_tokens: int = 1
    tail: int = WHOLE

    @property
    def whole(self) -> bool:
        """Whether a hit needs all blocks from the start of the chain."""
        return self.tail == WHOLE

    def needed(self, tokens: int) -> slice:
        """The blocks of a chain that a hit of `tokens` needs; `tokens` end at a block."""
        stop = tokens // self.block_tokens
        return slice(max(0, stop - self.tail), stop)


PREFIX = HitRule()


def possible_hits(present: BoolArray, tail: int) -> BoolArray:
    """Whether a hit of 0, 1, ... n blocks is possible; shape (n + 1,). `present`: (n,), from the chain's start."""
    lengths: I64Array = np.arange(len(present) + 1)
    start = np.zeros(len(lengths), np.int64)
    start[1:] = np.maximum.accumulate(np.where(present, 0, lengths[1:]))
    possible: BoolArray = lengths - start >= np.minimum(lengths, tail)
    return possible


def hit_blocks(present: BoolArray, tail: int = WHOLE) -> int:
    """Blocks of the longest hit of one chain."""
    if tail >= len(present):  # the usual case: the leading run
        return len(present) if present.all() else int(present.argmin())
    return int(np.flatnonzero(possible_hits(present, tail))[-1])


def hit_tokens(chains: Sequence[tuple[BoolArray, HitRule]]) -> int:
    """Tokens of the longest hit that every one of these chains of one prompt supports.

    It ends at the end of a block in each of them: a multiple of the least common multiple of their block_tokens.
    """
    step = math.lcm(*(rule.block_tokens for _, rule in chains))
    most = min(len(present) * rule.block_tokens for present, rule in chains) // step
    possible = np.ones(most + 1, bool)
    for present, rule in chains:
        stride = step // rule.block_tokens
        possible &= possible_hits(present, rule.tail)[: most * stride + 1 : stride]
    return int(np.flatnonzero(possible)[-1]) * step
