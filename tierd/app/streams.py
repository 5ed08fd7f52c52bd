"""Payload by stream, for clients that cannot map memory: the daemon writes and reads slots on their behalf.

While a stream runs its session cannot end in the engine (Sessions.streaming), so the slots that it works on
stay its own; a session that is ending stops its streams at their next block.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass
from enum import IntEnum
from typing import Self

import numpy as np

from tierd.app.filling import Filling
from tierd.app.mover import Mover, outlast
from tierd.app.service import Service
from tierd.app.sessions import Session
from tierd.core import messages as m
from tierd.core.errors import LimitReached, Refused
from tierd_client.format import U8Array, U64Array

CHUNK_BYTES_MAX = 1024 * 1024
"""Most payload of one message of a Put."""
STREAM_IDLE_S = 30.0
"""A stream on which its client neither sends nor takes anything for so long is ended."""


class Put(IntEnum):
    """Outcome of an id of a Put. Numbers of the wire, the first six and DECLINED also those of Reserved."""

    STORED = 1
    EXISTS = 2
    BUSY = 3
    FULL = 4
    PENDING = 5
    DUPLICATE = 6
    CORRUPT = 7
    DECLINED = 9


@dataclass(frozen=True, slots=True)
class PutOrder:
    """What a Put announces. `checksums`: xxh3_64 of each block."""

    session: int
    blocks: m.Ids
    tier: m.Tier
    sequence: str
    checksums: U64Array
    priority: m.Priority = m.Priority.UNSPECIFIED


async def put(
    service: Service, order: PutOrder, chunks: AsyncIterator[U8Array], deadline: float
) -> m.OutcomeArray:
    """Stores the blocks whose bytes come in `chunks`, in order; returns a Put outcome per id.

    `deadline` bounds the wait for room. InvalidInput when the stream has other than exactly the blocks'
    bytes; then, as after any error, nothing of it is stored.
    """
    size = service.block_bytes(order.blocks)
    with service.sessions.streaming(order.session) as session:
        reply = await service.reserve(
            order.session, order.blocks, order.tier, order.sequence, deadline, priority=order.priority
        )
        outcomes = reply.outcomes.copy()
        wanted = outcomes == m.Reserved.GRANTED.value
        granted = np.flatnonzero(wanted)
        try:
            if len(granted):
                arena = service.mover.carrier.arena(order.tier)
                filling = Filling(arena, size, wanted, reply.addresses, order.checksums)
                await _receive(service.mover, session, order.tier, filling, chunks)
                outcomes[filling.corrupt] = Put.CORRUPT
                _commit(service, order, reply, outcomes)
        finally:
            service.abort_reserved(
                order.session, order.blocks.ids[granted], reply.generations[granted], order.tier
            )
    return outcomes


async def _receive(
    mover: Mover, session: Session, tier: m.Tier, filling: Filling, chunks: AsyncIterator[U8Array]
) -> None:
    """One chunk is written while the next one comes. When this returns or raises, nothing is being written."""
    async with _OneBehind() as behind:
        while (chunk := await _next_chunk(chunks)) is not None:
            _go_on(session)
            write = functools.partial(filling.write, filling.take(chunk))
            await behind.finish()
            behind.doing = mover.begin_copy(tier, len(chunk), write)
    filling.end()


class _OneBehind:
    """What is done while its user goes on; left only when it has ended, however often the user is cancelled."""

    def __init__(self) -> None:
        self.doing: asyncio.Future[None] | None = None

    async def finish(self) -> None:
        """Raises what it raised."""
        if self.doing is not None:
            await asyncio.shield(self.doing)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                await self.finish()
        finally:
            if self.doing is not None:
                await outlast(self.doing)


def _commit(service: Service, order: PutOrder, reply: m.ReserveReply, outcomes: m.OutcomeArray) -> None:
    """Publishes what was written. A reservation that was revoked meanwhile leaves its id PENDING: not stored."""
    where = np.flatnonzero(outcomes == Put.STORED)
    done = service.commit_reserved(
        order.session, order.blocks.ids[where], reply.generations[where], order.checksums[where], order.tier,
        order.sequence,
    )
    outcomes[where[done.outcomes != m.Committed.COMMITTED]] = Put.PENDING


async def _next_chunk(chunks: AsyncIterator[U8Array]) -> U8Array | None:
    """None at the end. LimitReached when nothing comes for STREAM_IDLE_S."""
    try:
        async with asyncio.timeout(STREAM_IDLE_S):
            return await anext(chunks, None)
    except TimeoutError as error:
        raise LimitReached(f"no data came for {STREAM_IDLE_S:.0f} s, the most a stream may be idle") from error


@dataclass(frozen=True, slots=True)
class GetHead:
    """What a Get finds, before the bytes of the LEASED ids."""

    reply: m.AcquireReply
    block_bytes: int


async def get(
    service: Service, session: int, blocks: m.Ids, sequence: str, deadline: float
) -> AsyncGenerator[GetHead | U8Array, None]:
    """A head, then the bytes of the LEASED blocks in order, each valid until the iterator is closed.

    Close it (contextlib.aclosing): the lease lasts until then.
    """
    size = service.block_bytes(blocks)
    with service.sessions.streaming(session) as state:
        reply = await service.acquire(session, blocks, sequence, deadline)
        try:
            yield GetHead(reply, size)
            for index in np.flatnonzero(reply.outcomes == m.Acquired.LEASED.value):
                _go_on(state)
                tier, address = m.Tier(int(reply.tiers[index])), int(reply.addresses[index])
                yield await service.mover.read(tier, address, size)
        finally:
            if reply.lease:
                service.give_back_lease(session, reply.lease)


def _go_on(session: Session) -> None:
    if session.ending:
        raise Refused(f"session {session.number} is ending")
