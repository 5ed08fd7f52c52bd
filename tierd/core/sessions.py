"""Sessions, and the holds that say which slots a client may still touch.

The table lies in shared memory (docs/format.md, section 4), because what a client may touch outlives the
daemon that allowed it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import repeat
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tierd.core.errors import LimitReached, NotFound, Refused
from tierd.core.messages import Tier
from tierd_client.format import HOLD_FREE, HOLD_LEASE, HOLD_QUARANTINE, HOLD_RESERVATION, I64Array, Table, U64Array


@dataclass(slots=True)
class Lease:
    """Pins of one Acquire: rows with their tiers, and the holds that say so to a later boot."""

    rows: list[int] = field(default_factory=list)
    tiers: list[int] = field(default_factory=list)
    holds: list[int] = field(default_factory=list)


class StockedSlot(NamedTuple):
    """A slot that a session may write before it says for which block."""

    tier: Tier
    address: int
    bytes: int
    hold: int

    @property
    def kind(self) -> tuple[Tier, int]:
        return self.tier, self.bytes


class Reservation(NamedTuple):
    """A FILLING slot. `new_class`: what its request brought that was new (gaps.py)."""

    tier: Tier
    row: int
    hold: int
    new_class: int


@dataclass(slots=True)
class Session:
    """One client process. `ended`: it can ask for nothing more, but may still touch what it held."""

    number: int
    row: int
    token: bytes
    leases: dict[int, Lease] = field(default_factory=dict)
    reservations: dict[int, Reservation] = field(default_factory=dict)
    """By the generation of each FILLING slot that it may write."""
    stock: dict[int, StockedSlot] = field(default_factory=dict)
    """Generation of each slot that it holds without a block -> the slot."""
    stocked: dict[tuple[Tier, int], int] = field(default_factory=dict)
    """Tier and bytes of a slot -> how many of these the stock has."""
    quarantined: list[int] = field(default_factory=list)
    """Holds of slots that no record knows any more."""
    held: int = 0
    ended: bool = False


class Sessions:
    def __init__(self, table: Table, max_held: int) -> None:
        column = table.columns
        self.number: U64Array = column["session"]
        self.pid: NDArray[np.uint32] = column["pid"]
        self.start_time: U64Array = column["start_time"]
        self.token = column["token"]
        self.hold_session: U64Array = column["hold_session"]
        self.hold_kind: NDArray[np.uint8] = column["hold_kind"]
        self.hold_tier: NDArray[np.uint8] = column["hold_tier"]
        self.hold_address: U64Array = column["hold_address"]
        self.hold_generation: U64Array = column["hold_generation"]
        self.hold_bytes: NDArray[np.uint32] = column["hold_bytes"]
        self.max_held = max_held
        self.by_number: dict[int, Session] = {}
        self.stocked_bytes = 0
        """Of the stocks of all sessions."""
        self._next_lease = 1
        self._find_free()

    def _find_free(self) -> None:
        free = np.flatnonzero(self.hold_session == 0)[::-1]
        self._free_holds = np.zeros(len(self.hold_session), np.int64)
        self._free_holds[: len(free)] = free
        self.free_holds = len(free)
        self._free_rows = np.flatnonzero(self.number == 0)[::-1].tolist()

    def __len__(self) -> int:
        return sum(not session.ended for session in self.by_number.values())

    def open(self, number: int, token: bytes) -> Session:
        """A new session. LimitReached when the table is full."""
        if number in self.by_number:
            raise Refused(f"session {number} is open already")
        if not self._free_rows:
            raise LimitReached(f"sessions: all {len(self.number)} are in use")
        row = self._free_rows.pop()
        self.pid[row] = self.start_time[row] = 0
        self.token[row] = np.frombuffer(token.ljust(16, b"\0"), np.uint8)
        self.number[row] = number
        session = self.by_number[number] = Session(number, row, token)
        return session

    def revive(self, number: int) -> Session:
        """A session of an earlier boot whose process may still touch its slots."""
        row = int(np.flatnonzero(self.number == number)[0])
        session = Session(number, row, self.token[row].tobytes(), ended=True)
        self.by_number[number] = session
        return session

    def get(self, number: int) -> Session:
        """NotFound when there is none, Refused when it has ended."""
        session = self.by_number.get(number)
        if session is None:
            raise NotFound(f"session {number} is unknown: it ended, or the daemon was restarted")
        if session.ended:
            raise Refused(f"session {number} has ended")
        return session

    def bind(self, session: Session, pid: int, start_time: int) -> None:
        self.pid[session.row], self.start_time[session.row] = pid, start_time

    def close(self, session: Session) -> None:
        """Forgets a session that holds nothing."""
        assert session.held == 0, "a session that is forgotten holds nothing"
        self.number[session.row] = 0
        self._free_rows.append(session.row)
        del self.by_number[session.number]

    def new_lease(self) -> int:
        self._next_lease += 1
        return self._next_lease - 1

    def room_to_hold(self, session: Session, count: int) -> None:
        """LimitReached unless the session may hold so many slots more; its stock has limits of its own."""
        self.within_max_held(session, count)
        if count > self.free_holds:
            raise LimitReached(f"holds: {count} wanted, {self.free_holds} of {len(self.hold_session)} free")

    def within_max_held(self, session: Session, count: int) -> None:
        """LimitReached unless so many slots more, which may be of its stock, are within a session's limit."""
        held = session.held - len(session.stock)
        if held + count > self.max_held:
            raise LimitReached(f"max_held: {held} slots held, {count} more are over {self.max_held}")

    def hold(
        self, session: Session, kind: int, tier: int, addresses: U64Array, generations: U64Array,
        sizes: NDArray[np.uint32],
    ) -> I64Array:
        """Writes down that the session may touch these slots, before anyone is told their addresses."""
        count = len(addresses)
        self.free_holds -= count
        holds = self._free_holds[self.free_holds : self.free_holds + count].copy()
        self.hold_kind[holds], self.hold_tier[holds] = kind, tier
        self.hold_address[holds], self.hold_generation[holds] = addresses, generations
        self.hold_bytes[holds] = sizes
        self.hold_session[holds] = session.number
        session.held += count
        return holds

    def add_to_stock(
        self, session: Session, tier: Tier, slot: int, addresses: U64Array, generations: U64Array
    ) -> None:
        """Slots of `slot` bytes that the session may write for any block of that size."""
        count = len(addresses)
        sizes = np.full(count, slot, np.uint32)
        holds = self.hold(session, HOLD_RESERVATION, tier, addresses, generations, sizes)
        each = zip(repeat(tier, count), addresses.tolist(), repeat(slot), holds.tolist(), strict=False)
        session.stock.update(zip(generations.tolist(), map(StockedSlot._make, each), strict=True))
        session.stocked[tier, slot] = session.stocked.get((tier, slot), 0) + count
        self.stocked_bytes += slot * count

    def take_of_stock(self, session: Session, generations: list[int]) -> list[StockedSlot]:
        """Slots of one tier and size, in that order. Their holds go on, and are the caller's to end."""
        slots = [session.stock.pop(generation) for generation in generations]
        if slots:
            session.stocked[slots[0].tier, slots[0].bytes] -= len(slots)
            self.stocked_bytes -= slots[0].bytes * len(slots)
        return slots

    def unhold(self, session: Session, holds: Sequence[int] | I64Array) -> None:
        freed = np.asarray(holds, np.int64)
        self.hold_session[freed] = 0
        self.hold_kind[freed] = HOLD_FREE
        self._free_holds[self.free_holds : self.free_holds + len(freed)] = freed
        self.free_holds += len(freed)
        session.held -= len(freed)

    def quarantine(self, session: Session, hold: int) -> None:
        """The slot of this hold no longer belongs to a record."""
        self.hold_kind[hold] = HOLD_QUARANTINE
        session.quarantined.append(hold)

    def holds_of(self, number: int) -> I64Array:
        """Rows of the hold table that belong to a session."""
        return np.flatnonzero(self.hold_session == number)

    def forget_others(self, survivors: frozenset[int]) -> None:
        """Clears what a session table of an earlier boot says of processes that are dead."""
        dead = ~np.isin(self.number, np.array(sorted(survivors), np.uint64))
        self.number[dead] = 0
        stale = ~np.isin(self.hold_session, self.number[self.number != 0])
        self.hold_session[stale] = 0
        self.hold_kind[stale] = HOLD_FREE
        self._find_free()


__all__ = ["HOLD_LEASE", "HOLD_RESERVATION", "Lease", "Reservation", "Session", "Sessions", "StockedSlot"]
