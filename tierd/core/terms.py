"""Tiers, outcomes and identities: what commands and replies of the engine are made of.

Numbers of the enums are those of the wire.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tierd_client.format import U8Array
from tierd_client.hits import PREFIX, HitRule

OutcomeArray = NDArray[np.int8]


class Tier(IntEnum):
    HBM = 1
    HOST = 2
    SPILL = 3


class Presence(IntEnum):
    READY = 1
    BELOW = 2
    MISS = 3


class Reserved(IntEnum):
    """DECLINED: what would have gone for it is worth more (core/admission.py)."""

    GRANTED = 1
    EXISTS = 2
    BUSY = 3
    FULL = 4
    PENDING = 5
    DUPLICATE = 6
    DECLINED = 9


class Committed(IntEnum):
    COMMITTED = 1
    STALE = 2


class Stored(IntEnum):
    """BUSY: reserved by another session, or a copy with other bytes is in use. ABSENT: it is not there, and came
    without a slot. STALE: the slot is not in the session's stock. DECLINED: as of Reserved. GRANTED: the same, in
    the slot that it came with. Of all others but STORED the slot stays where it was."""

    STORED = 1
    EXISTS = 2
    BUSY = 3
    FULL = 4
    ABSENT = 5
    DUPLICATE = 6
    STALE = 7
    DECLINED = 9
    GRANTED = 10


class Aborted(IntEnum):
    ABORTED = 1
    STALE = 2


class Acquired(IntEnum):
    LEASED = 1
    MISS = 2
    PENDING = 3
    LOST = 4
    FULL = 5


class Evicted(IntEnum):
    MOVED = 1
    DROPPED = 2
    MISS = 3
    IN_USE = 4
    FAILED = 5
    PENDING = 6


class Drained(IntEnum):
    STORED = 1
    MISS = 2
    PENDING = 3
    FULL = 4
    FAILED = 5


class Readmitted(IntEnum):
    READY = 1
    MISS = 2
    PENDING = 3
    FULL = 4
    LOST = 5


class Priority(IntEnum):
    """What a request says its blocks are worth; UNSPECIFIED says nothing."""

    UNSPECIFIED = 0
    LOW = 1
    NORMAL = 2
    HIGH = 3


class NextUse(IntEnum):
    """What is known of the next use of blocks when their sequence closes. SOON: a tool call runs, or they were
    prefetched; HUMAN: somebody is to type; CLOSED: there will be none."""

    NONE = 0
    SOON = 1
    HUMAN = 2
    CLOSED = 3


class Pinned(IntEnum):
    PINNED = 1
    MISS = 2


class Prefetched(IntEnum):
    READY = 1
    MISS = 2
    PENDING = 3
    FULL = 4
    LOST = 5
    EXPIRED = 6


class Adopted(IntEnum):
    ADOPTED = 1
    EXISTS = 2
    BUSY = 3
    FULL = 4


class Withdrawn(IntEnum):
    WITHDRAWN = 1
    UNSAVED = 2
    PENDING = 3


@dataclass(frozen=True, slots=True)
class Ids:
    """Identities of one command and their place in a chain.

    In a chain, ids[0] has `position` and `parent`, and each id is the parent of the next. `some`: these are
    only some of a chain, with the offsets of each from `position`, and the identity before each (zeros: none).
    `whole`: all that the request named of which these are the rest. `rule`: what a hit of the group is.
    """

    namespace: int
    group: int
    ids: U8Array
    chain: bool = False
    position: int = 0
    parent: bytes | None = None
    some: tuple[NDArray[np.int64], U8Array] | None = None
    whole: U8Array | None = None
    rule: HitRule = PREFIX

    def __len__(self) -> int:
        return len(self.ids)

    def positions(self) -> NDArray[np.int64]:
        """Position of each id in its chain; outside a chain all are at `position`."""
        if not self.chain:
            return np.full(len(self.ids), self.position, np.int64)
        return self.position + (np.arange(len(self.ids)) if self.some is None else self.some[0])

    def before(self) -> U8Array:
        """Identity before each id of a chain; zeros where it is unknown."""
        if self.some is not None:
            return self.some[1]
        before = np.zeros_like(self.ids)
        before[1:] = self.ids[:-1]
        if self.parent is not None:
            before[0] = np.frombuffer(self.parent, np.uint8)
        return before

    def take(self, indices: NDArray[np.int64]) -> Ids:
        """Some of them, each still at its place."""
        ids = np.ascontiguousarray(self.ids[indices])
        whole = self.ids if self.whole is None else self.whole
        if not self.chain:
            return replace(self, ids=ids, whole=whole)
        some = (self.positions()[indices] - self.position, np.ascontiguousarray(self.before()[indices]))
        return replace(self, ids=ids, parent=None, some=some, whole=whole)


class Record(NamedTuple):
    """Statistics of an identity, as they travel with it. `weighted`: some access had another weight than 1.
    `learnt`: class at the last access, and followers (gaps.py)."""

    touches: int = 0
    last: int = 0
    wall: float = 0.0
    ema: float = 0.0
    crf: float = 0.0
    weighted: bool = False
    learnt: int = 0


def pack(identities: Iterable[bytes]) -> U8Array:
    """Identities as one array of shape (n, 32)."""
    return np.frombuffer(b"".join(identities), np.uint8).reshape(-1, 32)
