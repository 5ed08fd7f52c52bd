"""The closed sets of expected outcomes, with the numbers of the wire, and the names of tiers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum, IntFlag
from typing import Any, TypeVar

import numpy as np

from tierd_client.errors import BrokenPeer, InvalidArgument
from tierd_client.format import U8Array


class Tier(IntEnum):
    """Where bytes live; a lower number is faster."""

    HBM = 1
    HOST = 2
    SPILL = 3


class Tiers(IntFlag):
    """The tiers that hold a READY copy of a block."""

    NONE = 0
    HBM = 1
    HOST = 2
    SPILL = 4


TIER_BITS_MAX = 7
"""All tiers at once."""


class Presence(IntEnum):
    """READY can be acquired at once; BELOW is known, but not now; MISS is unknown."""

    READY = 1
    BELOW = 2
    MISS = 3


class PutOutcome(IntEnum):
    """STORED is new, EXISTS was there; neither BUSY (another writes it), FULL (no room), PENDING (no room
    in the time given), DUPLICATE (twice in the call), CORRUPT (changed on the way) nor DECLINED (what would have
    to go for it is worth more) stored anything. QUEUED is written, and `flush` says what became of it."""

    STORED = 1
    EXISTS = 2
    BUSY = 3
    FULL = 4
    PENDING = 5
    DUPLICATE = 6
    CORRUPT = 7
    QUEUED = 8
    DECLINED = 9


class AcquireOutcome(IntEnum):
    """LEASED can be read; MISS is unknown; PENDING is known, not readable in the time given; LOST was found
    damaged or vanished; FULL could not be promoted for want of room."""

    LEASED = 1
    MISS = 2
    PENDING = 3
    LOST = 4
    FULL = 5


class EvictOutcome(IntEnum):
    """MOVED left no copy above the target; DROPPED none at all; IN_USE and FAILED changed nothing."""

    MOVED = 1
    DROPPED = 2
    MISS = 3
    IN_USE = 4
    FAILED = 5
    PENDING = 6


class ReadmitOutcome(IntEnum):
    """READY is in the tier asked for; the others as in AcquireOutcome."""

    READY = 1
    MISS = 2
    PENDING = 3
    FULL = 4
    LOST = 5


class AdoptOutcome(IntEnum):
    """ADOPTED is lent; the page is not where hbm has the block (EXISTS), it is being written there (BUSY), or the
    catalog has no row left (FULL)."""

    ADOPTED = 1
    EXISTS = 2
    BUSY = 3
    FULL = 4


class WithdrawOutcome(IntEnum):
    """WITHDRAWN and UNSAVED pages are the worker's own, the block of an UNSAVED one is gone; a PENDING one may
    still be read."""

    WITHDRAWN = 1
    UNSAVED = 2
    PENDING = 3


class PinOutcome(IntEnum):
    """PINNED is protected; MISS is nowhere, so that nothing could be."""

    PINNED = 1
    MISS = 2


class PrefetchOutcome(IntEnum):
    """READY is in the tier asked for; PENDING is on its way or waits for its turn; EXPIRED did not come in time;
    the others as in AcquireOutcome."""

    READY = 1
    MISS = 2
    PENDING = 3
    FULL = 4
    LOST = 5
    EXPIRED = 6


class Priority(IntEnum):
    """Which blocks go first, before their ranks are compared."""

    LOW = 1
    NORMAL = 2
    HIGH = 3


class NextUse(IntEnum):
    """What is known of the next use of blocks when their sequence closes: a tool call runs, a human is to answer,
    the session is over."""

    TOOL_CALL = 1
    HUMAN = 2
    CLOSED = 3


@dataclass(frozen=True, slots=True, eq=False)
class LookupResult:
    """Where blocks are. `prefix`: blocks of the hit by the group's rule, in any tier; `ready_in_ms`: estimate
    until all of the hit can be acquired. `presence_codes`, `tier_bits`: numbers of Presence and of Tiers, uint8,
    shape (n,); `presence` and `tiers` are lists of them, made when they are asked for."""

    prefix: int
    presence_codes: U8Array
    tier_bits: U8Array
    ready_in_ms: int = 0

    @property
    def presence(self) -> list[Presence]:
        return outcomes_of(Presence, self.presence_codes.tolist())

    @property
    def tiers(self) -> list[Tiers]:
        return tiers_of(self.tier_bits.tobytes())


def looked_up(presence: Sequence[int], tiers: bytes, count: int) -> tuple[U8Array, U8Array]:
    """What a Lookup of `count` identities answered. BrokenPeer when that is not what can be."""
    codes, bits = np.array(presence, np.int64), np.frombuffer(tiers, np.uint8)
    if not len(codes) == len(bits) == count:
        raise BrokenPeer("Lookup: the reply is not parallel to the ids")
    if not np.isin(codes, list(Presence)).all() or bits.max(initial=0) > TIER_BITS_MAX:
        raise BrokenPeer("Lookup: the reply names a presence or a tier that does not exist")
    return codes.astype(np.uint8), bits


Outcome = TypeVar("Outcome", bound=IntEnum)


def outcomes_of(kind: type[Outcome], values: Iterable[int]) -> list[Outcome]:
    """The wire's numbers as outcomes. BrokenPeer for one that does not exist."""
    table = {int(member): member for member in kind}
    try:
        return [table[value] for value in values]
    except KeyError as error:
        raise BrokenPeer(f"{error.args[0]} is no {kind.__name__}") from error


def said(kind: type[Outcome], value: Outcome | str | None, field: str) -> Any:
    """A member, or its name as callers may write it, as the wire has it; None is 0, for "not said"."""
    if value is None or isinstance(value, kind):
        return int(value or 0)
    try:
        return int(kind[str(value).upper()])
    except KeyError as error:
        names = ", ".join(member.name.lower() for member in kind)
        raise InvalidArgument(f"{field}: {value!r} is none of {names}") from error


def tiers_of(bits: bytes) -> list[Tiers]:
    """A bit per tier, per identity, as on the wire."""
    table = [Tiers(value) for value in range(8)]
    if bits and max(bits) >= len(table):
        raise BrokenPeer(f"{max(bits)} is no set of tiers")
    return [table[value] for value in bits]


def tier_number(tier: Tier | str | None) -> Any:
    """A tier as the wire has it; None is 0, for "not said"."""
    return said(Tier, tier, "tier")


def tier_of(tier: Tier | str | None) -> Tier | None:
    """A tier by name, as callers may write it. None stays None."""
    return None if tier is None else Tier(said(Tier, tier, "tier"))
