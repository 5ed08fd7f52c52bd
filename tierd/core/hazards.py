"""Hazards: slots that clients look at in place without having asked, as their pages of shared memory say.

A client publishes a slot in its page and then looks whether the record still has it (docs/format.md, section 8).
The engine first changes the record and then reads the pages, with a full barrier between, as there is one in the
client: one of the two sees the other. A slot that was named when its copy ended stays aside until no page names it
any more.

What pages name is also read before each command, and counts as leased then: what is looked at is no victim. That
is for the sake of the cache; that no slot is handed out under a reader rests on the look after the change alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from tierd.core.arena import Arena, overlaps, slot_bytes
from tierd.core.messages import Tier
from tierd_client.format import HAZARD_ROW_BITS, HAZARDS_MAX, BoolArray, I64Array, U64Array

if TYPE_CHECKING:
    from tierd.core.state import State, TierState

NOTHING = np.empty((0, 2), np.uint64)
_SIZE_MASK = (1 << HAZARD_ROW_BITS) - 1
_NO_ROWS = np.empty(0, np.int64)


def no_barrier() -> None:
    """For pages that no other thread or process writes to."""


class Hazards:
    """The pages of all sessions that have one. Whatever is written there costs bounded work."""

    def __init__(
        self, pages: Mapping[int, U64Array] | None = None, barrier: Callable[[], None] = no_barrier
    ) -> None:
        """`pages`: those of sessions of an earlier boot, (n, 2) each. `barrier`: a full one, between what this
        thread has stored and what it then reads."""
        self._pages: dict[int, tuple[U64Array, memoryview]] = {}
        for session, page in (pages or {}).items():
            self.open(session, page)
        self.seen = NOTHING
        """What pages named before the command in hand."""
        self.leased: dict[Tier, I64Array] = {}
        """Rows that count as leased because of it, a row as often as it was named."""
        self._barrier = barrier

    def __len__(self) -> int:
        """Sessions with a page."""
        return len(self._pages)

    def __contains__(self, session: int) -> bool:
        return session in self._pages

    def open(self, session: int, page: U64Array) -> None:
        """The session writes into this page from now on."""
        self._pages[session] = page, page.reshape(-1).data  # whose first word is read several times as fast

    def close(self, session: int) -> bool:
        """Nothing is written any more. False: the session had no page."""
        return self._pages.pop(session, None) is not None

    def read(self) -> U64Array:
        """All that pages name now: address, and row and size, of each entry (n, 2). `NOTHING`, where that is all,
        costs no more than a look at the first word of each page."""
        if not self._pages:
            return NOTHING
        self._barrier()
        named = [page[1 : 1 + min(used, HAZARDS_MAX)] for page, words in self._pages.values() if (used := words[0])]
        if not named:
            return NOTHING
        entries: U64Array = np.concatenate(named)
        named_now: U64Array = entries[entries[:, 0] != 0]
        return named_now

    def unowned(self, arena: Arena, owned: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
        """Ranges `(address, bytes)` that pages of an earlier boot name and that `owned`, sorted, does not touch.
        What overlaps is one range: some of it may be what a reader named before it found it gone."""
        found: list[tuple[int, int]] = []
        for address, detail in sorted(self.read().tolist()):
            size = slot_bytes(detail & _SIZE_MASK)
            if not arena.contains(address, size) or overlaps(owned, address, size):
                continue
            if found and address < (end := sum(found[-1])):
                found[-1] = (found[-1][0], max(end, address + size) - found[-1][0])
            else:
                found.append((address, size))
        return found


def covered(entries: U64Array, starts: U64Array, sizes: int | U64Array) -> BoolArray:
    """Which of these slots hold the address of some entry."""
    named = np.sort(entries[:, 0])
    first = named.searchsorted(starts)
    found: BoolArray = named.searchsorted(starts + np.asarray(sizes, np.uint64)) > first
    return found


def look(state: State) -> None:
    """Reads the pages: copies that they name count as leased until they no longer do, and slots aside that none
    names are free."""
    if len(state.hazards):
        _look(state, state.hazards)


def _look(state: State, hazards: Hazards) -> None:
    entries = hazards.read()
    if entries is not hazards.seen and not np.array_equal(entries, hazards.seen):
        hazards.seen = entries
        for tier in state.tiers.values():
            if tier.copies.arena is not None:
                _lease(hazards, tier, _rows_named(tier, entries))
    for tier in state.tiers.values():
        tier.copies.sweep(entries)


def forget_page(state: State, session: int) -> None:
    """The process looks at nothing any more."""
    if state.hazards.close(session):
        _look(state, state.hazards)


def _rows_named(tier: TierState, entries: U64Array) -> I64Array:
    """Rows whose copy in the tier an entry names; who wrote the entry said which row it is."""
    rows = (entries[:, 1] >> np.uint64(HAZARD_ROW_BITS)).astype(np.int64)
    known = rows < len(tier.copies.state)
    rows, addresses = rows[known], entries[known, 0]
    named: I64Array = rows[tier.copies.own(rows) & (tier.copies.address[rows] == addresses)]
    return named


def _lease(hazards: Hazards, tier: TierState, rows: I64Array) -> None:
    before, leases = hazards.leased.get(tier.tier, _NO_ROWS), tier.copies.leases
    hazards.leased[tier.tier] = rows
    np.add.at(leases, rows, 1)
    np.subtract.at(leases, before, 1)
    if len(freed := np.unique(before[leases[before] == 0])):
        tier.victims.put_back(freed)
