"""Reading the blocks of one namespace, in calls of what the daemon takes at once, and in rounds."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from tierd_client.deadline import Deadline
from tierd_client.format import U8Array
from tierd_client.identity import Identities, batches, some
from tierd_client.lease import Pinned, PrivateSlots, SharedSlots
from tierd_client.outcomes import AcquireOutcome
from tierd_client.payload import is_flat_room
from tierd_client.routine import Routine, Work
from tierd_client.sequence import entered
from tierd_client.session import Session
from tierd_client.shared_memory import SharedMemory
from tierd_client.staging import HostSink, Part, Sink

if TYPE_CHECKING:
    from tierd_client.namespace import NamespaceRoutines

_NOT_NOW = (AcquireOutcome.FULL, AcquireOutcome.PENDING)


async def read(
    namespace: NamespaceRoutines, ids: Identities, sink: Sink, sequence: str, timeout_s: float,
) -> list[AcquireOutcome]:
    """Reads without asking what can be read so, and the rest by RPC."""
    wait = Deadline.of(timeout_s)
    try:
        outcomes = await _read_directly(namespace, ids, sink, sequence)
        if outcomes.count(AcquireOutcome.LEASED) < len(ids):
            await namespace.make(lambda session: in_rounds(outcomes, wait, lambda left: _round(
                namespace, session, some(ids, left), Part(sink, left), sequence, wait)), timeout_s)
        return outcomes
    finally:
        if sink.pending:
            await Work(sink.finish)


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


def read_one(namespace: NamespaceRoutines, ids: Any, buffers: Any) -> AcquireOutcome | None:
    """The shortest way of one block into a plain array, outside of any sequence, for who need not await anything.
    None: it is to be read as any other; LOST: `tell_damaged` is left to be done."""
    if type(ids) is not Identities or len(ids.array) != 1 or type(buffers) is not list or len(buffers) != 1:
        return None
    out = buffers[0]
    if entered() or not namespace.is_own(ids) or not is_flat_room(out, namespace.block_bytes(ids)):
        return None
    lane = namespace.lanes.of(ids.group)
    if lane is None or lane.reports.full:
        return None
    return lane.read_one(ids.array.tobytes(), out)


async def _read_directly(
    namespace: NamespaceRoutines, ids: Identities, sink: Sink, sequence: str,
) -> list[AcquireOutcome]:
    """What the catalog in shared memory has ready; the rest is PENDING."""
    lane = namespace.lanes.of(ids.group)
    if lane is None:
        return [AcquireOutcome.PENDING] * len(ids)
    packed, size = ids.packed(), namespace.block_bytes(ids)
    outcomes: list[AcquireOutcome] = await Work(lambda: lane.read(packed, size, sink, sequence))
    if AcquireOutcome.LOST in outcomes:
        await tell_damaged(namespace, ids, outcomes)
    if lane.reports.full:
        await lane.reports.flush()
    return outcomes


async def tell_damaged(namespace: NamespaceRoutines, ids: Identities, outcomes: list[AcquireOutcome]) -> None:
    """Tells the daemon of what was read without it and found damaged, if a session knows the namespace still."""
    lane = namespace.lanes.of(ids.group)
    damaged = [i for i, outcome in enumerate(outcomes) if outcome is AcquireOutcome.LOST]
    if lane is not None and damaged:
        blocks = await namespace.block_ids(lane.session, ids)
        await namespace.client.checks.report(lane.session, blocks, damaged)


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
        session, memory, namespace.block_bytes(ids), client.checks, client.connection.sweep, device)
    outcomes: list[AcquireOutcome] = []
    try:
        for _, part in batches(ids, session.batch_ids):
            outcomes += await slots.acquire(await namespace.batch(session, part, sequence), wait)
    except BaseException:
        await slots.release()
        raise
    return Pinned(ids, outcomes, namespace.form(ids), slots)


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
