"""Reading the blocks of one namespace, in calls of what the daemon takes at once, and in rounds."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from tierd_client.deadline import Deadline
from tierd_client.format import U8Array
from tierd_client.hazards import Looked
from tierd_client.identity import Identities, batches, some
from tierd_client.lease import Pinned, PrivateSlots, SharedSlots
from tierd_client.outcomes import AcquireOutcome
from tierd_client.payload import is_plain_room
from tierd_client.routine import Routine, Work
from tierd_client.sequence import entered
from tierd_client.session import Session
from tierd_client.shared_memory import SharedMemory
from tierd_client.staging import HostSink, Part, Sink

if TYPE_CHECKING:
    from tierd_client.direct import Lane
    from tierd_client.namespace import NamespaceRoutines

_NOT_NOW = (AcquireOutcome.FULL, AcquireOutcome.PENDING)


class Reading:
    """One call's blocks on their way into a sink: first those that can be read without asking, then the rest."""

    __slots__ = ("_ids", "_namespace", "_sequence", "_sink", "_timeout_s", "_wait", "outcomes")

    def __init__(
        self, namespace: NamespaceRoutines, ids: Identities, sink: Sink, sequence: str, timeout_s: float,
    ) -> None:
        self._namespace, self._ids, self._sink, self._sequence = namespace, ids, sink, sequence
        self._timeout_s = timeout_s
        self._wait = Deadline.of(timeout_s)
        self.outcomes = [AcquireOutcome.PENDING] * len(ids)

    def begin(self) -> bool:
        """Reads what the catalog in shared memory has ready. Whether nothing is left to be done."""
        lane = self._namespace.lanes.of(self._ids.group)
        return lane is not None and self._read_by(lane)

    async def read(self) -> list[AcquireOutcome]:
        """Does both."""
        lane = self._namespace.lanes.of(self._ids.group)  # not on a thread: a forked child has none
        try:
            done = lane is not None and await Work(lambda: self._read_by(lane))
        except BaseException:
            await self._settle()
            raise
        return self.outcomes if done else await self.finish()

    async def finish(self) -> list[AcquireOutcome]:
        """Reads the rest by RPC; the outcomes of all."""
        namespace = self._namespace
        try:
            if not self._is_done():
                await self._tell_damaged()
                await namespace.make(lambda session: in_rounds(
                    self.outcomes, self._wait, lambda left: self._round(session, left)), self._timeout_s)
            if namespace.client.reports is not None and namespace.client.reports.full:
                await namespace.client.reports.flush()
            return self.outcomes
        finally:
            await self._settle()

    async def _settle(self) -> None:
        """Whatever comes: no copy of this call goes on after it."""
        if self._sink.pending:
            await Work(self._sink.finish)

    def _read_by(self, lane: Lane) -> bool:
        namespace, ids = self._namespace, self._ids
        try:
            self.outcomes = lane.read(ids.packed(), namespace.block_bytes(ids), self._sink, self._sequence)
        except BaseException:
            self._sink.finish()
            raise
        return self._is_done() and not lane.reports.full and not self._sink.pending

    def _is_done(self) -> bool:
        return self.outcomes.count(AcquireOutcome.LEASED) == len(self._ids)

    async def _tell_damaged(self) -> None:
        """Tells the daemon of what was found damaged, if a session knows the namespace still."""
        namespace, lane = self._namespace, self._namespace.lanes.of(self._ids.group)
        damaged = [i for i, outcome in enumerate(self.outcomes) if outcome is AcquireOutcome.LOST]
        if lane is not None and damaged:
            blocks = await namespace.block_ids(lane.session, self._ids)
            await namespace.client.checks.report(lane.session, blocks, damaged)

    async def _round(self, session: Session, left: list[int]) -> list[AcquireOutcome]:
        return await _round(
            self._namespace, session, some(self._ids, left), Part(self._sink, left), self._sequence, self._wait)


def read_at_once(namespace: NamespaceRoutines, ids: Any, buffers: Any) -> list[AcquireOutcome] | None:
    """The shortest way of blocks into a plain array, outside of any sequence: what `Reading.begin` would have read.
    None: it is to be done so."""
    if type(ids) is not Identities or entered() or not namespace.is_own(ids):
        return None
    count, size = len(ids.array), namespace.block_bytes(ids)
    out = buffers[0] if count == 1 and type(buffers) is list and len(buffers) == 1 else buffers
    if not is_plain_room(out, (count, size)) and not (count == 1 and is_plain_room(out, (size,))):
        return None
    lane = namespace.lanes.of(ids.group)
    if lane is None or lane.reports.full:
        return None
    packed = ids.array.tobytes()
    if count > 1:
        return lane.read(packed, size, HostSink(out.__getitem__), "")
    return [lane.read_one(packed, out)]


async def in_rounds(
    outcomes: list[AcquireOutcome], wait: Deadline,
    once: Callable[[list[int]], Routine[list[AcquireOutcome]]],
) -> None:
    """Reads what is PENDING or FULL, and again what is so still, until a round brings nothing. `once` reads those
    at some indices."""
    left = [i for i, outcome in enumerate(outcomes) if outcome in _NOT_NOW]
    while left:
        got = await once(left)
        for index, outcome in zip(left, got, strict=True):
            outcomes[index] = outcome
        if wait.passed() or all(outcome in _NOT_NOW for outcome in got):
            break
        left = [i for i in left if outcomes[i] in _NOT_NOW]


async def _round(
    namespace: NamespaceRoutines, session: Session, ids: Identities, sink: Sink, sequence: str, wait: Deadline,
) -> list[AcquireOutcome]:
    transfer = namespace.transfer(session)
    outcomes: list[AcquireOutcome] = []
    for start, part in batches(ids, transfer.batch_ids(namespace.block_bytes(ids))):
        batch = await namespace.batch(session, part, sequence)
        outcomes += await transfer.read(batch, Part(sink, range(start, start + len(part))), wait)
    return outcomes


async def in_place(
    namespace: NamespaceRoutines, session: Session, ids: Identities, sequence: str, wait: Deadline,
    device: bool = False,
) -> Pinned:
    """Blocks where they can be looked at until they are released: leased, or copied where nothing can be mapped."""
    if session.memory is None:
        return await _copy(namespace, session, ids, sequence, wait)
    return await _pin(namespace, session, session.memory, ids, sequence, wait, device)


async def _pin(
    namespace: NamespaceRoutines, session: Session, memory: SharedMemory, ids: Identities, sequence: str,
    wait: Deadline, device: bool,
) -> Pinned:
    """Leases blocks where they are, also on a `device`."""
    client = namespace.client
    slots = SharedSlots(
        session, memory, len(ids), namespace.block_bytes(ids), client.checks, client.connection.sweep, device)
    try:
        outcomes, looked = await _look_at(namespace, session, memory, ids, slots)
        left = [index for index, outcome in enumerate(outcomes) if outcome is AcquireOutcome.PENDING]
        for start, part in batches(some(ids, left), session.batch_ids) if left else ():
            indices = left[start : start + len(part)]
            batch = await namespace.batch(session, part, sequence)
            for index, outcome in zip(indices, await slots.acquire(batch, indices, wait), strict=True):
                outcomes[index] = outcome
        if looked is not None:
            await _report(namespace, ids, outcomes, sequence, looked)
    except BaseException:
        await slots.release()
        raise
    return Pinned(ids, outcomes, namespace.form(ids), slots)


async def _look_at(
    namespace: NamespaceRoutines, session: Session, memory: SharedMemory, ids: Identities, slots: SharedSlots,
) -> tuple[list[AcquireOutcome], Looked | None]:
    """Takes those blocks that the session's hazard page can protect; the rest is PENDING."""
    outcomes = [AcquireOutcome.PENDING] * len(ids)
    lane = namespace.lanes.of(ids.group)
    if lane is None or lane.session is not session:
        return outcomes, None
    page = memory.page or await Work(lambda: memory.hazards(Deadline(session.rpc_timeout_s)))
    if page is None:
        return outcomes, None
    looked = Looked(page)
    outcomes = await slots.look_at(lane, looked, ids)
    damaged = [index for index, outcome in enumerate(outcomes) if outcome is AcquireOutcome.LOST]
    if damaged:
        slots.tell_damaged(await namespace.block_ids(session, ids), damaged)
    return outcomes, looked


async def _report(
    namespace: NamespaceRoutines, ids: Identities, outcomes: list[AcquireOutcome], sequence: str, looked: Looked,
) -> None:
    """Of what was taken without a call the daemon is told as of other reads."""
    reports = namespace.client.reports
    taken = sorted(index for index in looked.addresses if outcomes[index] is AcquireOutcome.LEASED)
    if reports is None or not taken:
        return
    in_hbm = len(looked.in_hbm.intersection(taken))
    reports.note((namespace, ids.group, sequence), some(ids, taken).packed(), in_hbm)
    if reports.full:
        await reports.flush()


async def _copy(
    namespace: NamespaceRoutines, session: Session, ids: Identities, sequence: str, wait: Deadline,
) -> Pinned:
    """What stands for a lease where nothing can be mapped."""
    blocks: dict[int, U8Array] = {}

    def memory(index: int) -> U8Array:
        blocks[index] = np.empty(namespace.block_bytes(ids), np.uint8)
        return blocks[index]

    outcomes = await _round(namespace, session, ids, HostSink(memory), sequence, wait)
    return Pinned(ids, outcomes, namespace.form(ids), PrivateSlots(blocks))
