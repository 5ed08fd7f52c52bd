"""Slots that a session holds ahead of its puts, so that a put writes first and makes one call afterwards.

They are kept by tier and size. What is not used for IDLE_S, or is asked back by the daemon because others want for
room, goes back to it; with the session all do.
"""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from tierd_client.errors import TierdClientError
from tierd_client.format import PAGE_BYTES
from tierd_client.holding import giving_back
from tierd_client.outcomes import Tier, tier_number
from tierd_client.routine import run
from tierd_client.v1 import blocks_pb2

if TYPE_CHECKING:
    from tierd_client.session import Session

IDLE_S = 5.0
"""After so long without a put of their size slots go back."""


class Slot(NamedTuple):
    """A plain tuple: puts make many."""

    address: int
    generation: int


@dataclass(frozen=True, slots=True)
class SlotClass:
    """Slots of one tier and size are for any blocks of that tier and size."""

    tier: Tier
    slot_bytes: int

    @classmethod
    def of(cls, tier: Tier | None, block_bytes: int) -> SlotClass:
        """That of blocks; host where no tier is said."""
        return cls(tier or Tier.HOST, -(-block_bytes // PAGE_BYTES) * PAGE_BYTES)


class Magazine:
    """The slots of one session. Thread-safe; a slot that was taken out is the taker's alone."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._slots: dict[SlotClass, list[Slot]] = {}
        self._used_at: dict[SlotClass, float] = {}
        self._lock = threading.Lock()
        self._asked_back = threading.Event()
        self._keeper: threading.Thread | None = None

    def take(self, kind: SlotClass, most: int) -> list[Slot]:
        """Up to `most` slots, those written last first: their pages are in the caches and mapped."""
        with self._lock:
            self._used_at[kind] = time.monotonic()
            kept = self._slots.get(kind, [])
            first = max(0, len(kept) - most)
            taken = kept[first:]
            del kept[first:]
            return taken

    def add(self, kind: SlotClass, slots: list[Slot]) -> None:
        """Slots that may be written for any block of their kind."""
        if not slots:
            return
        with self._lock:
            self._slots.setdefault(kind, []).extend(slots)
            if self._keeper is None:
                self._keeper = threading.Thread(target=self._keep, name="tierd-magazine", daemon=True)
                self._keeper.start()

    def take_above(self, kind: SlotClass, most: int) -> list[Slot]:
        """Takes out what is more than `most`."""
        with self._lock:
            kept = self._slots.get(kind, [])
            over = kept[most:]
            del kept[most:]
            return over

    def ask_back(self) -> None:
        """Others want for room: all that lies here goes back soon."""
        self._asked_back.set()

    def give_back_all(self, idle_s: float = 0.0) -> None:
        """Gives back what was not used for so long. Raises errors of this library."""
        with self._lock:
            due = [kind for kind in self._slots if time.monotonic() - self._used_at.get(kind, 0.0) >= idle_s]
            given = {kind: self._slots.pop(kind) for kind in due}
        for kind, slots in given.items():
            run(give_back(self._session, kind, slots))

    def _keep(self) -> None:
        """Returns what is idle or asked back, until nothing is left to be kept; a thread."""
        while not self._session.ended.is_set():
            asked = self._asked_back.wait(IDLE_S / 4)
            self._asked_back.clear()
            with suppress(TierdClientError):
                self.give_back_all(0.0 if asked else IDLE_S)
            with self._lock:
                if not any(self._slots.values()):
                    self._keeper = None
                    return


async def give_back(session: Session, kind: SlotClass, slots: list[Slot]) -> None:
    """Tells the daemon that these are not written any more."""
    if slots:
        await giving_back(session, "Store", blocks_pb2.StoreRequest(
            session=session.id, tier=tier_number(kind.tier), returned=[slot.generation for slot in slots]))
