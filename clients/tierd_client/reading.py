"""Reading the blocks of one namespace, in calls of what the daemon takes at once, and in rounds."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from tierd_client import direct
from tierd_client.deadline import Deadline
from tierd_client.format import U8Array
from tierd_client.identity import Identities, batches, some
from tierd_client.lease import Pinned, PrivateSlots, SharedSlots
from tierd_client.outcomes import AcquireOutcome
from tierd_client.routine import Routine, Work
from tierd_client.session import Session
from tierd_client.shared_memory import SharedMemory
from tierd_client.staging import HostSink, Part, Sink

if TYPE_CHECKING:
    from tierd_client.namespace import NamespaceRoutines

_NOT_NOW = (AcquireOutcome.FULL, AcquireOutcome.PENDING)


async def read(
    namespace: NamespaceRoutines, session: Session, ids: Identities, sink: Sink, sequence: str, wait: Deadline,
) -> list[AcquireOutcome]:
    """Reads in rounds: what found no room to be promoted is asked for again when others were read."""
    outcomes = [AcquireOutcome.PENDING] * len(ids)
    try:
        await _read_directly(namespace, session, ids, sink, sequence, outcomes)
        await in_rounds(outcomes, wait, lambda left: _round(
            namespace, session, some(ids, left), Part(sink, left), sequence, wait))
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


async def _read_directly(
    namespace: NamespaceRoutines, session: Session, ids: Identities, sink: Sink, sequence: str,
    outcomes: list[AcquireOutcome],
) -> None:
    """What can be read without asking, where the client wants that. A block that all TP ranks share is of another
    namespace than this one: it is asked for."""
    client = namespace.client
    if client.reports is None or namespace.layout.groups[ids.group].replicated or not len(ids):
        return
    number = (await namespace.registered(session)).number
    with session.hold():
        found: direct.Found = await Work(lambda: direct.read(session, number, ids, sink, client.checks))
    done, damaged = found
    for index in done:
        outcomes[index] = AcquireOutcome.LEASED
    for index in damaged:
        outcomes[index] = AcquireOutcome.LOST
    if done:
        client.reports.note(namespace, ids.group, sequence, [ids[index] for index in done])
    if damaged:
        await client.checks.report(session, await namespace.block_ids(session, ids), damaged)


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
