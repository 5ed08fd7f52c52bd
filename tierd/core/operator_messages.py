"""Commands and replies of operators: shares, canaries, drains. Part of the vocabulary of messages.py."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tierd.core.terms import Tier
from tierd_client.format import U8Array


@dataclass(frozen=True, slots=True)
class BlockFilter:
    """Which blocks with a READY copy. `namespaces`: one of these numbers, where `namespace` is one alone.
    `older_than_s`: the last access lies so many seconds back."""

    namespace: int = 0
    tier: Tier | None = None
    identity_prefix: bytes = b""
    in_use: bool | None = None
    namespaces: frozenset[int] | None = None
    group: int | None = None
    older_than_s: float = 0.0
    pinned: bool | None = None


@dataclass(frozen=True, slots=True)
class Shares:
    """What each namespace has in each tier."""


@dataclass(frozen=True, slots=True)
class BorrowSlot:
    """Borrows a free slot for `size` bytes of an arena, to see whether it can be written and read."""

    tier: Tier
    size: int


@dataclass(frozen=True, slots=True)
class ReturnSlot:
    """Nobody writes or reads the borrowed slot any more."""

    tier: Tier
    address: int


@dataclass(frozen=True, slots=True)
class ListDrainable:
    """What a filter takes and the spill tier does not hold, the blocks worth most first."""

    where: BlockFilter


@dataclass(frozen=True, slots=True)
class StoreBelow:
    """Copies blocks into the spill tier, the first as long as there is room; those above stay. `ids`: distinct, of
    any namespaces. `retry`: the rest of an
    earlier call that was PENDING; moves that failed are FAILED, not begun anew."""

    ids: U8Array
    retry: bool = False


OperatorCommand = Shares | BorrowSlot | ReturnSlot | ListDrainable | StoreBelow


@dataclass(slots=True)
class TierShares:
    """Of one tier, by the number of a namespace: arrays of one length, int64. Bytes are those of slots."""

    blocks: NDArray[np.int64]
    used_bytes: NDArray[np.int64]
    reserved_bytes: NDArray[np.int64]


@dataclass(slots=True)
class SharesReply:
    tiers: dict[Tier, TierShares]


@dataclass(slots=True)
class BorrowedSlot:
    """`address`: None when no slot is free. `room`: one is, or could be made. `sample`: a READY block of the
    tier, empty where there is none."""

    address: int | None
    room: bool
    sample: bytes


@dataclass(slots=True)
class Drainable:
    """`sizes`: bytes of each block. `held`: blocks of the filter that the spill tier has already."""

    ids: U8Array
    sizes: NDArray[np.uint32]
    held: int


OperatorReply = SharesReply | BorrowedSlot | Drainable
