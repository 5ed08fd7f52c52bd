"""Payload by stream, for clients that cannot map memory: the daemon writes and reads slots on their behalf.

While a stream runs its session cannot end in the engine (Sessions.streaming), so the slots that it works on
stay its own; a session that is ending stops its streams at their next block.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from tierd.app.service import Service
from tierd.app.sessions import Session
from tierd.core import messages as m
from tierd.core.errors import InvalidInput, LimitReached, Refused
from tierd_client.format import U8Array, U64Array

CHUNK_BYTES_MAX = 1024 * 1024
STREAM_IDLE_S = 30.0
"""A stream on which its client neither sends nor takes anything for so long is ended."""


class Put(IntEnum):
    """Outcome of an id of a Put. Numbers of the wire, the first six also those of Reserved."""

    STORED = 1
    EXISTS = 2
    BUSY = 3
    FULL = 4
    PENDING = 5
    DUPLICATE = 6
    CORRUPT = 7


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
    service: Service, order: PutOrder, chunks: AsyncIterator[bytes], deadline: float
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
        granted = np.flatnonzero(outcomes == m.Reserved.GRANTED.value)
        try:
            if len(granted):
                await _receive(service, session, order, reply, outcomes, whole_blocks(chunks, len(outcomes), size))
                _commit(service, order, reply, outcomes)
        finally:
            service.abort_reserved(
                order.session, order.blocks.ids[granted], reply.generations[granted], order.tier
            )
    return outcomes


async def _receive(
    service: Service, session: Session, order: PutOrder, reply: m.ReserveReply, outcomes: m.OutcomeArray,
    blocks: AsyncIterator[U8Array],
) -> None:
    index = 0
    async for data in blocks:
        _go_on(session)
        if outcomes[index] == Put.STORED:
            address, checksum = int(reply.addresses[index]), int(order.checksums[index])
            if not await service.mover.write(order.tier, address, data, checksum):
                outcomes[index] = Put.CORRUPT
        index += 1


def _commit(service: Service, order: PutOrder, reply: m.ReserveReply, outcomes: m.OutcomeArray) -> None:
    """Publishes what was written. A reservation that was revoked meanwhile leaves its id PENDING: not stored."""
    where = np.flatnonzero(outcomes == Put.STORED)
    done = service.commit_reserved(
        order.session, order.blocks.ids[where], reply.generations[where], order.checksums[where], order.tier,
        order.sequence,
    )
    outcomes[where[done.outcomes != m.Committed.COMMITTED]] = Put.PENDING


async def whole_blocks(chunks: AsyncIterator[bytes], count: int, size: int) -> AsyncIterator[U8Array]:
    """Cuts a stream into `count` blocks of `size` bytes. A block is valid until the next one is asked for.

    InvalidInput when the stream is longer or shorter, LimitReached when nothing comes for STREAM_IDLE_S.
    """
    buffer = np.empty(size, np.uint8)
    filled = done = 0
    while (chunk := await _next_chunk(chunks)) is not None:
        data = np.frombuffer(chunk, np.uint8)
        if done * size + filled + len(data) > count * size:
            raise InvalidInput("data", f"more bytes than the {count} blocks of {size} that were announced")
        while len(data):
            taken = min(size - filled, len(data))
            buffer[filled : filled + taken] = data[:taken]
            filled, data = filled + taken, data[taken:]
            if filled == size:
                yield buffer
                filled, done = 0, done + 1
    if done < count:
        raise InvalidInput("data", f"ended after {done * size + filled} bytes of {count * size}")


async def _next_chunk(chunks: AsyncIterator[bytes]) -> bytes | None:
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
) -> AsyncGenerator[GetHead | bytes, None]:
    """A head, then the bytes of the LEASED blocks in order, in chunks of at most CHUNK_BYTES_MAX.

    Close the iterator (contextlib.aclosing): the lease lasts until then.
    """
    size = service.block_bytes(blocks)
    with service.sessions.streaming(session) as state:
        reply = await service.acquire(session, blocks, sequence, deadline)
        try:
            yield GetHead(reply, size)
            together: list[bytes] = []
            for index in np.flatnonzero(reply.outcomes == m.Acquired.LEASED.value):
                _go_on(state)
                tier, address = m.Tier(int(reply.tiers[index])), int(reply.addresses[index])
                data = await service.mover.read(tier, address, size)
                for chunk in _chunks(data, together):
                    yield chunk
            if together:
                yield b"".join(together)
        finally:
            if reply.lease:
                service.give_back_lease(session, reply.lease)


def _chunks(data: U8Array, together: list[bytes]) -> Iterator[bytes]:
    """A block in messages; small ones are put `together` until no further one fits into a message."""
    size = len(data)
    if (len(together) + 1) * size > CHUNK_BYTES_MAX and together:
        yield b"".join(together)
        together.clear()
    if size <= CHUNK_BYTES_MAX // 2:
        together.append(data.tobytes())
        return
    for start in range(0, size, CHUNK_BYTES_MAX):
        yield data[start : start + CHUNK_BYTES_MAX].tobytes()


def _go_on(session: Session) -> None:
    if session.ending:
        raise Refused(f"session {session.number} is ending")
