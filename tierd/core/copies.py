"""The life of a copy, as one table, and the copies of one tier.

                      RESERVE              COMMIT
    ABSENT ───────────────────▶ FILLING ──────────▶ READY
       ▲                          │  │                │ │
       └──────── ABORT ───────────┘  │                │ │
       ▲                             └─ QUARANTINE ─┐ │ │
       └──────── DROP ──────────────────────────────┼─┘ │
                                                    ▼   ▼ QUARANTINE
                              the record forgets the slot; it stays out of use

Free, used (READY), reserved (FILLING) and quarantined bytes of slots add up to the capacity at any time.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from itertools import repeat

import numpy as np
from numpy.typing import NDArray

from tierd.core.arena import Arena, slot_bytes
from tierd.core.arrays import alike, constant, some
from tierd.core.catalog import Catalog
from tierd.core.errors import IllegalTransition
from tierd.core.footprints import Footprints
from tierd.core.hazards import Hazards, covered
from tierd.core.loans import Loans
from tierd.core.messages import Tier
from tierd_client.format import STATE_ABSENT, STATE_FILLING, STATE_READY, I64Array, U64Array

FOUND = 1
"""In the place of an address in the spill tier: stored by others, so it takes no room and is not to be deleted. Of
what this daemon stored the address is 0."""
_ILLEGAL = 255
_READY = constant(STATE_READY, np.uint8)
GROW_EVERY_S = 1.0


class Event(IntEnum):
    RESERVE = 0
    COMMIT = 1
    ABORT = 2
    DROP = 3
    QUARANTINE = 4


TRANSITIONS = {
    (STATE_ABSENT, Event.RESERVE): STATE_FILLING,
    (STATE_FILLING, Event.COMMIT): STATE_READY,
    (STATE_FILLING, Event.ABORT): STATE_ABSENT,
    (STATE_FILLING, Event.QUARANTINE): STATE_ABSENT,
    (STATE_READY, Event.DROP): STATE_ABSENT,
    (STATE_READY, Event.QUARANTINE): STATE_ABSENT,
}
"""All there is; any other pair is a bug."""

_NEXT = {event: bytes(TRANSITIONS.get((state, event), _ILLEGAL) for state in range(256)) for event in Event}


def advance(states: NDArray[np.uint8], event: Event) -> NDArray[np.uint8]:
    """States after an event. IllegalTransition, and nothing is returned, when one has no such event."""
    after = states.tobytes().translate(_NEXT[event])
    if (illegal := after.find(_ILLEGAL)) >= 0:
        raise IllegalTransition(f"{event.name} on a copy in state {states[illegal]}")
    return np.frombuffer(after, np.uint8)


class TierCopies:
    """Copies of one tier: their states and slots, who holds them, and the bytes that they take."""

    def __init__(
        self, tier: Tier, catalog: Catalog, segments: Sequence[tuple[int, int]], capacity_bytes: int,
        readable: bool, hazards: Hazards,
    ) -> None:
        self.tier, self.catalog, self.readable = tier, catalog, readable
        self._hazards = hazards
        plane = tier - 1
        self.state: NDArray[np.uint8] = catalog.state[plane]
        self.address: U64Array = catalog.address[plane]
        self.generation: U64Array = catalog.generation[plane]
        self.arena = Arena(segments) if segments else None
        self.loans = Loans(catalog.capacity)
        self.footprints = Footprints()
        """Nothing is learnt where there is an arena: a block takes its slot."""
        self.limit = self.capacity = self.arena.capacity if self.arena else capacity_bytes
        self._growth, self._grown_s = 0, 0.0
        self.used = self.reserved = self.quarantined = 0
        self._promised = 0
        """Bytes allocated and not yet reserved, where no arena knows of them."""
        self.blocks = 0
        self.found_blocks = 0
        """Of these, those that others stored."""
        self.leases = np.zeros(catalog.capacity, np.int32)
        self.moves = np.zeros(catalog.capacity, np.uint8)
        self.writer: dict[int, int] = {}
        """Row of each FILLING copy -> its one writer: a session, or minus the number of a move."""
        self.barred: dict[int, tuple[int, int]] = {}
        """Address of each slot in quarantine -> its bytes, and how many holds keep it there."""
        self.aside: dict[int, int] = {}
        """Address of each slot that no record owns and a client may look at -> its bytes."""
        self.borrowed: dict[int, int] = {}
        """Address of each slot that `borrow` gave out -> its bytes."""

    @property
    def free(self) -> int:
        """Free bytes of slots, from the allocator's own books where the tier has one."""
        return self.arena.free_bytes if self.arena else self.capacity - self.used - self.reserved - self._promised

    def fits(self, size: int) -> bool:
        """Whether a block of `size` bytes could ever fit."""
        return self.footprints.of(size) <= (self.arena.largest_slot() if self.arena else self.capacity)

    def believe_full(self, now_s: float) -> None:
        """The store has no room for more than it holds, whatever its limit says."""
        self.capacity = self.used + self.reserved
        self._growth, self._grown_s = 0, now_s

    def ask_again(self, size: int, now_s: float) -> None:
        """A store that was full may have room again: each GROW_EVERY_S a slot more may be tried, then two, four
        and so on up to the limit, so that one which stays full refuses one block in that time."""
        if self.capacity < self.limit and now_s - self._grown_s >= GROW_EVERY_S:
            self._growth = max(self.footprints.of(size), 2 * self._growth)
            self.capacity = min(self.limit, self.capacity + self._growth)
            self._grown_s = now_s

    def recount(self) -> None:
        """Footprints have changed. Where more is held than may be, the capacity is what is held, until
        `return_to_limit` has it smaller."""
        self.used = self.bytes_of(np.flatnonzero(self.state == STATE_READY))
        self.reserved = self.bytes_of(np.flatnonzero(self.state == STATE_FILLING))
        self.capacity = max(self.capacity, self.used + self.reserved)

    def return_to_limit(self) -> None:
        """A capacity above the limit shrinks as far as what is held lets it."""
        if self.capacity > self.limit:
            self.capacity = max(self.limit, self.used + self.reserved)

    def ready(self, rows: I64Array) -> NDArray[np.bool_]:
        found: NDArray[np.bool_] = self.state[rows] == _READY
        return found

    def on_loan(self, rows: I64Array) -> NDArray[np.bool_]:
        """Rows whose copy here lies in memory that an engine lends."""
        found: NDArray[np.bool_] = self.loans.lender[rows] > 0
        return found

    def own(self, rows: I64Array) -> NDArray[np.bool_]:
        """Rows with a READY copy in a slot of this tier."""
        ready = self.ready(rows)
        return ready & ~self.on_loan(rows) if self.loans else ready

    def placed(self, rows: I64Array) -> I64Array:
        """Those whose copy here is this daemon's or an engine's: all but the FOUND ones. An arena has none."""
        placed: I64Array = rows if self.arena else rows[self.address[rows] != FOUND]
        return placed

    def takes_room(self, rows: I64Array) -> NDArray[np.bool_]:
        """Rows whose copy here, if any, is neither lent nor FOUND: it has a place in the order of eviction."""
        found: NDArray[np.bool_] = (self.address[rows] != FOUND) & ~self.on_loan(rows)
        return found

    def _taking_room(self, rows: I64Array) -> I64Array:
        """Those of which `takes_room` is true. Of an arena that nobody lends pages to that is all."""
        return rows if self.arena and not self.loans else rows[self.takes_room(rows)]

    def ordered(self, rows: I64Array) -> I64Array:
        """Those of these rows with a READY copy that has a place in the order of eviction."""
        return self._taking_room(rows[self.ready(rows)])

    def bytes_of(self, rows: I64Array) -> int:
        """Bytes that copies of these rows take here; a lent page, and what others stored, take none."""
        return self.footprints.total(self.catalog.size[self._taking_room(rows)])

    def disown(self, rows: I64Array) -> None:
        """FILLING copies turn out to be FOUND ones."""
        self.reserved -= self.bytes_of(rows)
        with self.catalog.writing(rows):
            self.address[rows] = FOUND

    def allocate(self, size: int, count: int) -> list[int]:
        """Addresses of up to `count` slots for blocks of `size` bytes. A tier without an arena has address 0."""
        slot = self.footprints.of(size)
        if self.arena:
            return self.arena.allocate(slot, count)
        addresses = [0] * max(0, min(count, self.free // slot))
        self._promised += slot * len(addresses)
        return addresses

    def give_back(self, size: int, addresses: Sequence[int]) -> None:
        """Slots that were allocated and not reserved."""
        if self.arena:
            self._free(slot_bytes(size), addresses)
        else:
            self._promised -= self.footprints.of(size) * len(addresses)

    def reserve(
        self, rows: I64Array, addresses: Sequence[int], generations: U64Array, writer: int | Sequence[int]
    ) -> None:
        """Hands slots to rows, which are distinct. `writer`: of all, or of each."""
        after = advance(self.state[rows], Event.RESERVE)
        with self.catalog.writing(rows):
            self.state[rows], self.generation[rows] = after, generations
            self.address[rows] = np.array(addresses, np.uint64)
        writers = repeat(writer) if isinstance(writer, int) else writer
        self.writer.update(zip(rows.tolist(), writers, strict=False))
        size = self.bytes_of(rows)
        self.reserved += size
        self._promised -= 0 if self.arena else size

    def adopt(
        self, rows: I64Array, addresses: Sequence[int], generations: U64Array, lender: int, fences: U64Array
    ) -> None:
        """Copies become READY where an engine has them. Rows are distinct."""
        self.loans.begin(rows, addresses, lender, fences)
        self.appear(rows, addresses, generations)

    def appear(self, rows: I64Array, addresses: Sequence[int], generations: U64Array) -> None:
        """Copies become READY in slots or lent pages in which nothing is to be written. Rows are distinct."""
        after = advance(advance(self.state[rows], Event.RESERVE), Event.COMMIT)
        with self.catalog.writing(rows):
            self.address[rows], self.generation[rows] = np.array(addresses, np.uint64), generations
            self.state[rows] = after
        self.used += self.bytes_of(rows)
        self.blocks += len(rows)

    def commit(self, rows: I64Array) -> None:
        after = advance(self.state[rows], Event.COMMIT)
        with self.catalog.writing(rows):
            self.state[rows] = after
        self._forget_writers(rows)
        size = self.bytes_of(rows)
        self.reserved -= size
        self.used += size
        self.blocks += len(rows)
        self.found_blocks += self._found_of(rows)

    def abort(self, rows: I64Array) -> None:
        """FILLING slots become free. This and the other ends of copies are written within the caller's section."""
        self._leave(rows, Event.ABORT)
        self._leave_unread(rows)
        self._forget_writers(rows)
        self.reserved -= self._free_slots(rows)

    def drop(self, rows: I64Array) -> None:
        """READY slots become free; a lent page is its engine's again."""
        self._leave(rows, Event.DROP)
        self._leave_unread(rows)
        self.blocks -= len(rows)
        self.found_blocks -= self._found_of(rows)
        self.used -= self._free_slots(rows)

    def vacate(self, rows: I64Array) -> list[int]:
        """READY copies of blocks of one size end; the caller borrows those of their slots that are free then."""
        assert self.arena is not None, "slots are of an arena"
        slot = slot_bytes(int(self.catalog.size[rows[0]]))
        self.drop(rows)
        addresses = self.arena.take_back(slot, self.address[rows].tolist())
        self.borrow_slots(slot, addresses)
        return addresses

    def quarantine(self, rows: I64Array) -> None:
        """The record forgets the slots, which stay out of use until their holds end (`unbar`)."""
        filling = self.state[rows] == STATE_FILLING
        self._leave(rows, Event.QUARANTINE)
        self._forget_writers(rows[filling])
        self.reserved -= self.bytes_of(rows[filling])
        self.used -= self.bytes_of(rows[~filling])
        self.blocks -= int(np.count_nonzero(~filling))
        for row in rows.tolist():
            self.bar(int(self.address[row]), slot_bytes(int(self.catalog.size[row])))

    def bar(self, address: int, slot: int) -> None:
        """A hold keeps a slot, which no record owns, out of use; the slot is not free."""
        size, holds = self.barred.get(address, (slot, 0))
        self.quarantined += size if holds == 0 else 0
        self.barred[address] = (size, holds + 1)

    def unbar(self, address: int) -> None:
        """A hold on a barred slot ended; with the last the slot is free."""
        size, holds = self.barred.pop(address)
        if holds > 1:
            self.barred[address] = (size, holds - 1)
            return
        self.quarantined -= size
        self._free(size, [address])

    def borrow(self, size: int) -> int | None:
        """A free slot of the arena that no record owns, if there is one. Reserved until `give_back_borrowed`."""
        addresses = self.arena.allocate(slot_bytes(size), 1) if self.arena else []
        self.borrow_slots(slot_bytes(size), addresses)
        return addresses[0] if addresses else None

    def borrow_slots(self, slot: int, addresses: Sequence[int]) -> None:
        """Allocated slots of `slot` bytes are out without a record; they count as reserved until `end_borrow`."""
        self.borrowed.update(dict.fromkeys(addresses, slot))
        self.reserved += slot * len(addresses)

    def give_back_borrowed(self, slot: int, addresses: Sequence[int]) -> None:
        """Borrowed slots of `slot` bytes are free again."""
        self.end_borrow(slot, addresses)
        self._free(slot, addresses)

    def end_borrow(self, slot: int, addresses: Sequence[int]) -> None:
        """Borrowed slots of `slot` bytes are the caller's to hand on."""
        for address in addresses:
            del self.borrowed[address]
        self.reserved -= slot * len(addresses)

    def _leave(self, rows: I64Array, event: Event) -> None:
        self.state[rows] = advance(self.state[rows], event)

    def _leave_unread(self, rows: I64Array) -> None:
        """Of what was brought up ahead nothing is left in memory."""
        if self.arena:
            self.catalog.ahead.left(rows)

    def _forget_writers(self, rows: I64Array) -> None:
        for row in rows.tolist():
            del self.writer[row]

    def _found_of(self, rows: I64Array) -> int:
        """How many of these copies are FOUND."""
        return len(rows) - len(self.placed(rows))

    def _free_slots(self, rows: I64Array) -> int:
        """The slots of copies that have ended are free; returns their bytes (see `bytes_of`)."""
        if self.loans:
            lent = self.on_loan(rows)
            self.loans.end(rows, self.address[rows])
            rows = rows[~lent]
        if self.arena is None:
            return self.bytes_of(rows)
        sizes, addresses, freed = self.catalog.size[rows], self.address[rows], 0
        one_size = alike(sizes)
        for size in sizes[:1].tolist() if one_size else set(sizes.tolist()):
            mine = addresses if one_size else addresses[sizes == size]
            self._free(slot_bytes(size), mine.tolist())
            freed += slot_bytes(size) * len(mine)
        return freed

    def _free(self, slot: int, addresses: Sequence[int]) -> None:
        """The one way of slots of `slot` bytes back to the arena, after the records that had them have changed:
        what a client may look at stays aside."""
        assert self.arena is not None, "slots are of an arena"
        if addresses and len(entries := self._hazards.read()):
            named = covered(entries, np.array(addresses, np.uint64), slot)
            if some(named):
                self.set_aside([(one, slot) for one, is_named in zip(addresses, named, strict=True) if is_named])
                addresses = [one for one, is_named in zip(addresses, named, strict=True) if not is_named]
        self.arena.free(slot, addresses)

    def set_aside(self, slots: Sequence[tuple[int, int]]) -> None:
        """Slots `(address, bytes)` that are not free, and that no record owns, are out of use while a page names
        them."""
        self.aside.update(slots)
        self.quarantined += sum(size for _, size in slots)

    def sweep(self, entries: U64Array) -> None:
        """Slots aside that no entry names any more are free."""
        if not self.aside:
            return
        assert self.arena is not None, "slots are of an arena"
        addresses, sizes = list(self.aside), list(self.aside.values())
        named = covered(entries, np.array(addresses, np.uint64), np.array(sizes, np.uint64))
        for address, size, is_named in zip(addresses, sizes, named.tolist(), strict=True):
            if not is_named:
                del self.aside[address]
                self.quarantined -= size
                self.arena.free(size, [address])
