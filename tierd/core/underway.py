"""What is under way: running requests, moves, prefetches, stores ahead, reports of the step in hand."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from tierd.core.allowance import Allowance
from tierd.core.ledger import Ledger
from tierd.core.terms import Ids, OutcomeArray, Priority, Tier
from tierd_client.format import I64Array, U8Array

NEVER = 2**32
STORED_FROM = {"on_evict": NEVER, "on_worth": NEVER, "on_reuse": 2, "through": 1}
"""Accesses from which on a block is stored ahead of its eviction, by `spill_write`."""


@dataclass(slots=True)
class Sequence:
    """A running request. `blocks`: its first chain, that of attention. `found`: those of them that had a copy when
    it began. `held`: identities of all its chains."""

    blocks: Ids
    found: NDArray[np.bool_]
    held: U8Array
    start_step: int
    touched: set[bytes] = field(default_factory=set)
    """Identities whose access is counted."""
    steps: int = 0
    priority: Priority = Priority.UNSPECIFIED
    new_class: int = 0
    """By the tokens that it brings (gaps.py)."""
    ledger: Ledger | None = None
    """Of its budget, if it has one."""


@dataclass(slots=True)
class MoveInFlight:
    """A copy on its way. `leave`: tiers whose copy goes when it has arrived. `chosen`: as a victim of the
    source tier. `allow_drop`: those copies go even if it cannot arrive. `touches`: accesses when it began.
    `void`: the spill store that it goes to or comes from was given up meanwhile. `ahead`: nobody waits for it."""

    row: int
    source: Tier
    target: Tier
    leave: tuple[Tier, ...] = ()
    chosen: bool = False
    allow_drop: bool = False
    touches: int = 0
    void: bool = False
    ahead: bool = False


@dataclass(slots=True)
class Ticket:
    """A prefetch. `active`: places of the ids that were asked for and are not there yet; behind `begun` none was
    looked at. Once it is done, `blocks` is None."""

    blocks: Ids | None
    to: Tier
    until: float
    outcomes: OutcomeArray
    active: I64Array
    begun: int = 0


@dataclass(slots=True)
class Ahead:
    """Blocks that were brought up, or are, before anybody asked for them. `unread`: rows that nobody has read,
    `unread_blocks` in all. Since this boot: `used` of them were read, `wasted` left memory unread."""

    unread: NDArray[np.bool_]
    unread_blocks: int = 0
    used: int = 0
    wasted: int = 0

    def begin(self, rows: I64Array) -> None:
        """Distinct rows, none of them unread, are brought up."""
        self.unread[rows] = True
        self.unread_blocks += len(rows)

    def read(self, rows: I64Array) -> None:
        """Distinct rows are accessed."""
        self.used += self._end(rows)

    def left(self, rows: I64Array) -> None:
        """Copies of distinct rows have left memory, or did not come."""
        self.wasted += self._end(rows)

    def _end(self, rows: I64Array) -> int:
        if not self.unread_blocks:
            return 0
        ended = rows[self.unread[rows]]
        self.unread[ended] = False
        self.unread_blocks -= len(ended)
        return len(ended)


@dataclass(slots=True)
class Report:
    """Statistics of a row before the report of this step, and the weight that was applied. Void once the
    row has another `birth`, or met another access (`touches` is the number after the report)."""

    birth: int
    touches: int
    ema: float
    crf: float
    last: int
    wall: float
    unit: int
    weight: float


@dataclass(slots=True)
class Storing:
    """What the spill store is to get beside victims. `stored_from`: accesses from which on a block is stored ahead
    of its eviction. `unstated`: rows whose statistics changed since the store was told. `trimming`: from the high
    watermark down to the low one. `look_at`: how many are to have been evicted before the next victims
    are looked at again."""

    stored_from: int
    allowance: Allowance
    unstated: NDArray[np.bool_]
    trimming: bool = False
    look_at: int = 0
    touched: list[I64Array] = field(default_factory=list)
    """Rows that the command in hand committed or accessed, where that may have them stored."""

    def changed(self, rows: I64Array) -> None:
        """Statistics of rows have changed."""
        self.unstated[rows] = True
        if self.stored_from != NEVER:
            self.touched.append(rows)
