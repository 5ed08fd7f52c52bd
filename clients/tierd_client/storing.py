"""Put by slots that the session holds ahead: blocks are written, and one Store says afterwards which and where.

The reply to a Store names slots of which nobody else knows. It is filed whoever waits for it; where it cannot come
any more the session is given up, with all its slots.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import numpy as np

from tierd_client import direct
from tierd_client.committing import Committer
from tierd_client.deadline import Deadline
from tierd_client.errors import BrokenPeer, FailedPrecondition, InvalidArgument, LimitReached, NotFound
from tierd_client.format import IDENTITY_BYTES
from tierd_client.holding import Batch
from tierd_client.magazine import Magazine, Slot, SlotClass, give_back
from tierd_client.outcomes import PutOutcome, Tier, Tiers, tier_number
from tierd_client.routine import Work
from tierd_client.session import Session
from tierd_client.shared_memory import SharedMemory
from tierd_client.staging import Source
from tierd_client.v1 import blocks_pb2

ROUND_BYTES = 128 << 20
"""Most that is written before the daemon hears of it."""

ABSENT, STALE = 5, 7
"""Outcomes of a Store that no put has: what is absent is written next, what is stale was not published."""
_OUTCOMES: dict[int, PutOutcome] = {
    **{int(one): one for one in (PutOutcome.STORED, PutOutcome.EXISTS, PutOutcome.BUSY, PutOutcome.FULL)},
    **{int(one): one for one in (PutOutcome.DUPLICATE, PutOutcome.DECLINED)}, STALE: PutOutcome.PENDING,
}

_NOTHING_DONE = (InvalidArgument, NotFound, FailedPrecondition, LimitReached)
"""How a daemon refuses a Store as a whole."""


class StockedPut:
    """One put of a batch."""

    def __init__(
        self, session: Session, memory: SharedMemory, magazine: Magazine, batch: Batch, source: Source,
        tier: Tier | None,
    ) -> None:
        self._session = session
        self._memory = memory
        self._magazine = magazine
        self._batch = batch
        self._source = source
        self._kind = SlotClass.of(tier, batch.block_bytes)
        self._most = max(1, min(session.batch_ids, ROUND_BYTES // self._kind.slot_bytes))
        self._slots: list[Slot] = []
        self._outcomes = [PutOutcome.PENDING] * len(batch)
        self._left = list(range(len(batch)))
        self._used = 0
        self._queued: dict[int, tuple[Slot, int]] = {}

    async def run(self, wait: Deadline) -> list[PutOutcome]:
        """In rounds of the slots that there are; what gets none in time is PENDING."""
        known = self._known()
        first = True
        try:
            while self._left:
                places = [place for place in self._left if place not in known]
                if not self._slots:
                    self._slots = self._magazine.take(self._kind, min(len(places), self._most))
                written = await self._write(places)
                reply = await self._store(written, wait, further=not first)
                if not written and not known and not reply.addresses:
                    break
                known, first = frozenset(), False
            return self._outcomes
        finally:
            self._magazine.add(self._kind, self._slots)

    async def queue(self, committer: Committer) -> list[PutOutcome] | None:
        """Writes without telling the daemon, which the committer does; None, and nothing is done, where there are
        not slots for all. What the catalog has is EXISTS, and its access is told of as well."""
        known = self._known()
        places = [place for place in self._left if place not in known]
        self._slots = self._magazine.take(self._kind, len(places)) if len(places) <= self._most else []
        try:
            if len(self._slots) < len(places):
                return None
            self._queued = await self._write(places)
        finally:
            self._magazine.add(self._kind, self._slots)
            self._slots = []
        self._session.take_hold()
        committer.add(self)
        return [PutOutcome.EXISTS if place in known else PutOutcome.QUEUED for place in self._left]

    def identities(self) -> list[bytes]:
        return [self._batch.id(place) for place in range(len(self._batch))]

    async def commit(self) -> list[PutOutcome]:
        """What was queued; a block that was there, and has gone since, is PENDING."""
        try:
            await self._store(self._queued, Deadline(0.0), further=False)
            return self._outcomes
        finally:
            self._magazine.add(self._kind, self._slots)
            self._session.drop_hold()

    def _known(self) -> frozenset[int]:
        """Places of blocks that the catalog has: they are not written, and the daemon hears of the access."""
        reader = direct.reader_of(self._session)
        if reader is None:
            return frozenset()
        ids = np.frombuffer(self._batch.blocks.ids, np.uint8).reshape(-1, IDENTITY_BYTES)
        return frozenset((reader.lookup(ids) & Tiers.HOST).nonzero()[0].tolist())

    async def _write(self, places: Sequence[int]) -> dict[int, tuple[Slot, int]]:
        """Writes as many as there are slots: place -> slot, checksum."""
        places = places[: len(self._slots)]
        if not places:
            return {}
        slots = self._slots[: len(places)]
        checksums: list[int] = await Work(lambda: self._fill(places, slots))
        self._slots = self._slots[len(places) :]
        self._used += len(places)
        return dict(zip(places, zip(slots, checksums, strict=True), strict=True))

    def _fill(self, places: Sequence[int], slots: Sequence[Slot]) -> list[int]:
        deadline, size = Deadline(self._session.rpc_timeout_s), self._batch.block_bytes
        return self._source.fill(places, [self._memory.writable(slot.address, size, deadline) for slot in slots])

    async def _store(self, written: dict[int, tuple[Slot, int]], wait: Deadline, *, further: bool) -> Any:
        nothing = Slot(0, 0), 0
        each = [written.get(place, nothing) for place in self._left]
        slots = [slot for slot, _ in each]
        request = blocks_pb2.StoreRequest(
            session=self._session.id, blocks=self._batch.blocks, places=self._places(),
            generations=[slot.generation for slot in slots], checksums=[checksum for _, checksum in each],
            tier=tier_number(self._kind.tier), sequence=self._batch.sequence, priority=self._batch.priority,
            further=further, slots_max=self._most, spare_slots=min(self._used, self._session.info.max_ids),
            timeout_ms=wait.left_ms(), knows_declined=True)
        filed = _Filed(self._magazine, self._kind, slots)
        reply = await filed.send(self._session, request, wait.left_s())
        self._settle(reply)
        self._slots = self._magazine.take(self._kind, min(len(self._left), self._most))
        if not self._left:
            await give_back(self._session, self._kind, self._magazine.take_above(self._kind, reply.spare_max))
        return reply

    def _places(self) -> list[int]:
        return [] if len(self._left) == len(self._batch) else self._left

    def _settle(self, reply: Any) -> None:
        """Outcomes of what the reply is about; what is absent is left."""
        left = []
        for place, outcome in zip(self._left, reply.outcomes, strict=True):
            if outcome == ABSENT:
                left.append(place)
            elif outcome in _OUTCOMES:
                self._outcomes[place] = _OUTCOMES[outcome]
            else:
                raise BrokenPeer(f"Store: {outcome} is no StoreOutcome")
        self._left = left


class _Filed:
    """One Store whose reply finds its way into the magazine, also when nobody waits for it any more."""

    def __init__(self, magazine: Magazine, kind: SlotClass, slots: Sequence[Slot]) -> None:
        self._magazine = magazine
        self._kind = kind
        self._slots = slots

    async def send(self, session: Session, request: Any, wait_s: float) -> Any:
        try:
            reply = await session.call(
                "Store", request, wait_s, unheard=session.give_up, late=lambda reply: self._file(session, reply))
        except _NOTHING_DONE:
            self._magazine.add(self._kind, [slot for slot in self._slots if slot.generation])
            raise
        except BaseException as error:
            if not isinstance(error, asyncio.CancelledError):
                session.give_up()  # whether it was done, and which slots are whose, is not known
            raise
        self._file(session, reply)
        return reply

    def _file(self, session: Session, reply: Any) -> None:
        """Slots that were not used, and new ones."""
        if len(reply.outcomes) != len(self._slots) or len(reply.addresses) != len(reply.generations):
            session.give_up()
            raise BrokenPeer("Store: the reply is not parallel to the places")
        unused = [
            slot for slot, outcome in zip(self._slots, reply.outcomes, strict=True)
            if slot.generation and outcome not in (PutOutcome.STORED, STALE)
        ]
        fresh = [Slot(*pair) for pair in zip(reply.addresses, reply.generations, strict=True)]
        self._magazine.add(self._kind, unused + fresh[::-1])
