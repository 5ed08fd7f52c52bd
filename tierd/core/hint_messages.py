"""Commands and replies of hints: pins, touches, prefetches. Part of the vocabulary of messages.py."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tierd.core.terms import Ids, OutcomeArray, Tier


@dataclass(frozen=True, slots=True)
class Pin:
    """`ttl_s`: seconds from now; 0 is the default of the settings."""

    blocks: Ids
    ttl_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Unpin:
    blocks: Ids


@dataclass(frozen=True, slots=True)
class Touch:
    """Accesses that were served elsewhere. `counts`: per id, by how many requests; in a sequence each counts
    once. `hbm_hits`, `host_hits`: blocks that the client read out of these tiers by the catalog."""

    session: int
    blocks: Ids
    counts: NDArray[np.int64]
    sequence: str = ""
    hbm_hits: int = 0
    host_hits: int = 0


@dataclass(frozen=True, slots=True)
class Prefetch:
    """`within_s`: seconds from now after which it is pointless."""

    session: int
    blocks: Ids
    to: Tier = Tier.HOST
    within_s: float = 30.0


@dataclass(frozen=True, slots=True)
class PrefetchStatus:
    session: int
    ticket: int


@dataclass(frozen=True, slots=True)
class CancelPrefetch:
    session: int
    ticket: int


HintCommand = Pin | Unpin | Touch | Prefetch | PrefetchStatus | CancelPrefetch


@dataclass(slots=True)
class PinReply:
    """`ttl_s`: how long the pins of this command last, in seconds."""

    outcomes: OutcomeArray
    ttl_s: float


@dataclass(slots=True)
class Touched:
    """`blocks` and `ghosts`: records of either kind that were updated."""

    step: int
    blocks: int
    ghosts: int


@dataclass(slots=True)
class PrefetchReply:
    """`waiting`: moves after which more may be known; none when it is done."""

    ticket: int
    outcomes: OutcomeArray
    waiting: tuple[int, ...]
    done: bool
    left_s: float


HintReply = PinReply | Touched | PrefetchReply
