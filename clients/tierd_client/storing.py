"""Put by slots that the session holds ahead: blocks are written, and one Store says afterwards which and where. Of
some MiB it says so before, so that the daemon does its part meanwhile, and a Commit follows.

The reply to a Store names slots of which nobody else knows. It is filed whoever waits for it; where it cannot come
any more the session is given up, with all its slots.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from tierd_client import direct, granting
from tierd_client.committing import Committer
from tierd_client.deadline import Deadline
from tierd_client.errors import BrokenPeer, FailedPrecondition, InvalidArgument, LimitReached, NotFound
from tierd_client.format import IDENTITY_BYTES
from tierd_client.holding import Batch
from tierd_client.lane import Begun
from tierd_client.magazine import Magazine, Slot, SlotClass, give_back
from tierd_client.outcomes import PutOutcome, Tier, Tiers, tier_number
from tierd_client.routine import Step, Work
from tierd_client.session import Session
from tierd_client.shared_memory import SharedMemory
from tierd_client.staging import Source
from tierd_client.v1 import blocks_pb2

ROUND_BYTES = 128 << 20
"""Most that is written before the daemon hears of it."""

CLAIM_BYTES = 4 << 20
"""From so many bytes on the daemon hears of a put first: they take longer to write than the Commit costs."""

CLAIM_BYTES_MAX = 8 << 20
"""Of more it hears afterwards: the lane would wait too long for its answer to be read, and there was no gain."""

ABSENT, STALE, GRANTED = 5, 7, 10
"""Outcomes of a Store that no put has: what is absent is written next, what is stale was not published, what is
granted is to be committed."""
_OUTCOMES: dict[int, PutOutcome] = {
    **{int(one): one for one in (PutOutcome.STORED, PutOutcome.EXISTS, PutOutcome.BUSY, PutOutcome.FULL)},
    **{int(one): one for one in (PutOutcome.DUPLICATE, PutOutcome.DECLINED)}, STALE: PutOutcome.PENDING,
}

_USED_UP = (PutOutcome.STORED, STALE, GRANTED)
"""Outcomes after which a slot is not to be written for another block."""

_NO_SLOT = Slot(0, 0)

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
        self._queued: dict[int, Slot] = {}
        self._checksums: dict[int, int] = {}
        """Of the blocks that are written, by place."""

    async def run(self, wait: Deadline) -> list[PutOutcome]:
        """In rounds of the slots that there are; what gets none in time is PENDING."""
        known = frozenset() if self._is_to_be_claimed(len(self._batch)) and self._seems_new() else self._known()
        first = True
        try:
            while self._left:
                places = [place for place in self._left if place not in known]
                if not self._slots:
                    self._slots = self._magazine.take(self._kind, min(len(places), self._most))
                named = dict(zip(places, self._slots, strict=False))
                reply = await self._claim(named, further=not first)
                if reply is None:
                    await self._write(named)
                    self._use(named)
                    reply = await self._store(named, wait, further=not first)
                if not named and not known and not reply.addresses:
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
            self._queued = dict(zip(places, self._slots, strict=True))
            await self._write(self._queued)
            self._use(self._queued)
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

    def _is_to_be_claimed(self, blocks: int) -> bool:
        """Whether the daemon is to hear of so many blocks before they are written."""
        worth_it = CLAIM_BYTES <= blocks * self._batch.block_bytes <= CLAIM_BYTES_MAX
        return worth_it and bool(self._session.info.commits_later)

    def _seems_new(self) -> bool:
        """Whether the catalog has neither the first block nor the last: then all are taken to be new, as of a chain
        they are. One between them that is not is written in vain, and is EXISTS by the daemon's word."""
        reader, ends = direct.reader_of(self._session), (0, len(self._batch) - 1)
        return reader is None or all(reader.find(self._batch.id(place))[0] < 0 for place in ends)

    def _known(self) -> frozenset[int]:
        """Places of blocks that the catalog has: they are not written, and the daemon hears of the access."""
        reader = direct.reader_of(self._session)
        if reader is None:
            return frozenset()
        ids = np.frombuffer(self._batch.blocks.ids, np.uint8).reshape(-1, IDENTITY_BYTES)
        return frozenset((reader.lookup(ids) & Tiers.HOST).nonzero()[0].tolist())

    async def _write(self, named: Mapping[int, Slot]) -> None:
        """Writes blocks into slots, by place."""
        if named:
            checksums: list[int] = await Work(lambda: self._fill(list(named), named.values()))
            self._checksums.update(zip(named, checksums, strict=True))

    def _use(self, named: Mapping[int, Slot]) -> None:
        """These slots, the first in hand, are the daemon's to speak of."""
        self._slots = self._slots[len(named) :]
        self._used += len(named)

    def _fill(self, places: Sequence[int], slots: Collection[Slot]) -> list[int]:
        deadline, size = Deadline(self._session.rpc_timeout_s), self._batch.block_bytes
        return self._source.fill(places, self._memory.writable([slot.address for slot in slots], size, deadline))

    async def _store(self, named: Mapping[int, Slot], wait: Deadline, *, further: bool) -> Any:
        """Tells of blocks that are written; the reply brings slots for others."""
        filed, request = self._request(named, wait, further=further)
        request.checksums.extend([self._checksums[place] if place in named else 0 for place in self._left])
        call = self._session.call(
            "Store", request, wait.left_s(), unheard=self._session.give_up, late=filed.late)
        reply = await filed.answer(call)
        filed.file()
        self._settle(reply)
        await self._restock(reply)
        return reply

    async def _claim(self, named: Mapping[int, Slot], *, further: bool) -> Any:
        """Tells of blocks, writes and commits them; the reply to the first. None, and nothing is done, where that
        is not worth it, or cannot be."""
        if not self._is_to_be_claimed(len(named)):
            return None
        filed, request = self._request(named, Deadline(0.0), further=further)
        request.commit_later = True
        begun = await self._session.begin("Store", request)
        if begun is None:
            return None
        self._use(named)
        reply = await self._write_claimed(named, begun, filed)
        await self._restock(reply)
        return reply

    async def _write_claimed(self, named: Mapping[int, Slot], begun: Begun, filed: _Filed) -> Any:
        generations: dict[int, int] = {}
        session, tier = self._session, tier_number(self._kind.tier)
        try:
            try:
                await self._write(named)
            finally:
                reply = await filed.answer(Work(begun.answer))
                granted = self._settle(reply)
                generations = {place: named[place].generation for place in granted}
            checksums = [self._checksums[place] for place in granted]
            revoked = await granting.commit(session, self._batch, generations, checksums, tier, filed.file)
        except BaseException:
            filed.file()
            await granting.abort(session, self._batch, generations, tier)
            raise
        for place in generations.keys() - set(revoked):
            self._outcomes[place] = PutOutcome.STORED
        return reply

    def _request(self, named: Mapping[int, Slot], wait: Deadline, *, further: bool) -> tuple[_Filed, Any]:
        """A Store of all that is left, in these slots or in none, and where its reply goes."""
        slots, used = [named.get(place, _NO_SLOT) for place in self._left], max(self._used, len(named))
        request = blocks_pb2.StoreRequest(
            session=self._session.id, blocks=self._batch.blocks, places=self._places(),
            generations=[slot.generation for slot in slots], tier=tier_number(self._kind.tier),
            sequence=self._batch.sequence, priority=self._batch.priority, further=further, slots_max=self._most,
            spare_slots=min(used, self._session.info.max_ids), timeout_ms=wait.left_ms(), knows_declined=True)
        return _Filed(self._session, self._magazine, self._kind, slots), request

    def _places(self) -> list[int]:
        return [] if len(self._left) == len(self._batch) else self._left

    def _settle(self, reply: Any) -> list[int]:
        """Takes the outcomes of what the reply is about; what is absent is left. Returns what is granted."""
        left, granted = [], []
        for place, outcome in zip(self._left, reply.outcomes, strict=True):
            if outcome == ABSENT:
                left.append(place)
            elif outcome == GRANTED:
                granted.append(place)
            elif outcome in _OUTCOMES:
                self._outcomes[place] = _OUTCOMES[outcome]
            else:
                raise BrokenPeer(f"Store: {outcome} is no StoreOutcome")
        self._left = left
        return granted

    async def _restock(self, reply: Any) -> None:
        """Takes slots for what is left; where that is nothing, those above the limits go back."""
        self._slots = self._magazine.take(self._kind, min(len(self._left), self._most))
        if not self._left:
            await give_back(self._session, self._kind, self._magazine.take_above(self._kind, reply.spare_max))


class _Filed:
    """One Store whose reply finds its way into the magazine, also when nobody waits for it any more."""

    def __init__(self, session: Session, magazine: Magazine, kind: SlotClass, slots: Sequence[Slot]) -> None:
        self._session = session
        self._magazine = magazine
        self._kind = kind
        self._slots = slots
        self._reply: Any = None

    async def answer(self, step: Step[Any]) -> Any:
        """The reply, which the step waits for. `file` is to follow, whatever happens."""
        try:
            reply = await step
        except _NOTHING_DONE:
            self._magazine.add(self._kind, [slot for slot in self._slots if slot.generation])
            raise
        except BaseException as error:
            if not isinstance(error, asyncio.CancelledError):
                self._session.give_up()  # whether it was done, and which slots are whose, is not known
            raise
        self._take(reply)
        return reply

    def late(self, reply: Any) -> None:
        """The reply to a call whose caller has turned away."""
        self._take(reply)
        self.file()

    def _take(self, reply: Any) -> None:
        if len(reply.outcomes) != len(self._slots) or len(reply.addresses) != len(reply.generations):
            self._session.give_up()
            raise BrokenPeer("Store: the reply is not parallel to the places")
        self._reply = reply

    def file(self) -> None:
        """Slots that were not used, and new ones, go into the magazine; once."""
        reply, self._reply = self._reply, None
        if reply is None:
            return
        unused = [
            slot for slot, outcome in zip(self._slots, reply.outcomes, strict=True)
            if slot.generation and outcome not in _USED_UP
        ]
        fresh = list(map(Slot._make, zip(reply.addresses, reply.generations, strict=True)))
        self._magazine.add(self._kind, unused + fresh[::-1])
