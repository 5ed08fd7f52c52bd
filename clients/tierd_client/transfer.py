"""Moving blocks between a caller's buffers and the daemon: by shared memory, or by streams.

Both do the same on one batch of at most `batch_ids` identities. By shared memory the RPCs carry identities
and addresses only: copy, Store (storing.py), or Reserve, copy, Commit where the daemon knows no Store or wants no
slots to be held ahead; Acquire, copy, Release. By streams the bytes go through Put and
Get, for clients on another host or without the right to map.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from google.protobuf.message import DecodeError

from tierd_client import granting
from tierd_client.checks import Checks, RunningChecksum, checksum_of
from tierd_client.committing import Committer
from tierd_client.deadline import Deadline
from tierd_client.errors import BrokenPeer
from tierd_client.format import U8Array
from tierd_client.framing import data_messages, data_of
from tierd_client.heap import keep_freed_memory
from tierd_client.holding import Batch, acquire, release, taking
from tierd_client.magazine import Magazine
from tierd_client.outcomes import AcquireOutcome, PutOutcome, Tier, outcomes_of, tier_number
from tierd_client.routine import Work
from tierd_client.session import Session
from tierd_client.shared_memory import SharedMemory
from tierd_client.staging import Sink, Source
from tierd_client.storing import StockedPut
from tierd_client.v1 import blocks_pb2

STREAM_BATCH_BYTES = 64 << 20
"""Most payload of one stream, so that the deadline of an RPC bounds a known amount of work."""

GRANTED = 1


class Transfer(Protocol):
    """Caller: passes blocks of exactly `block_bytes`, and batches of at most `batch_ids` identities."""

    def batch_ids(self, block_bytes: int) -> int:
        """Most identities of one batch."""

    async def put(
        self, batch: Batch, source: Source, tier: Tier | None, wait: Deadline,
    ) -> list[PutOutcome]:
        """Stores blocks; what it calls STORED is committed."""

    async def queue(
        self, batch: Batch, source: Source, tier: Tier | None, committer: Committer,
    ) -> list[PutOutcome] | None:
        """Takes blocks that are committed later; None where this cannot be done now."""

    async def read(self, batch: Batch, sink: Sink, wait: Deadline) -> list[AcquireOutcome]:
        """Reads the blocks that can be read in time; LEASED means that it was read."""


@dataclass(slots=True)
class Grant:
    """One reserved slot: index in the batch, address, generation."""

    index: int
    address: int
    generation: int


class SharedTransfer:
    """By shared memory."""

    def __init__(self, session: Session, memory: SharedMemory, checks: Checks) -> None:
        self._session = session
        self._memory = memory
        self._checks = checks

    def batch_ids(self, block_bytes: int) -> int:
        del block_bytes  # no bytes of theirs pass through a call
        return self._session.batch_ids

    async def put(
        self, batch: Batch, source: Source, tier: Tier | None, wait: Deadline,
    ) -> list[PutOutcome]:
        magazine = self._magazine(batch, tier)
        with self._session.hold():
            if magazine is not None:
                return await StockedPut(self._session, self._memory, magazine, batch, source, tier).run(wait)
            reply = await self._reserve(batch, tier, wait)
            outcomes = outcomes_of(PutOutcome, reply.outcomes)
            addresses, generations = reply.addresses, reply.generations
            grants = [
                Grant(i, addresses[i], generations[i])
                for i, outcome in enumerate(reply.outcomes) if outcome == GRANTED
            ]
            if grants:
                await self._write(batch, source, grants, reply.tier, outcomes)
            return outcomes

    async def queue(
        self, batch: Batch, source: Source, tier: Tier | None, committer: Committer,
    ) -> list[PutOutcome] | None:
        """Writes blocks that are committed later; None where this cannot be done now."""
        magazine = self._magazine(batch, tier)
        if magazine is None:
            return None
        with self._session.hold():
            return await StockedPut(self._session, self._memory, magazine, batch, source, tier).queue(committer)

    def _magazine(self, batch: Batch, tier: Tier | None) -> Magazine | None:
        """Where slots are held ahead for these blocks; None where they come by Reserve."""
        return None if batch.budgeted and tier is Tier.HBM else self._session.magazine

    async def _reserve(self, batch: Batch, tier: Tier | None, wait: Deadline) -> Any:
        request = blocks_pb2.ReserveRequest(
            session=self._session.id, blocks=batch.blocks, tier=tier_number(tier), sequence=batch.sequence,
            timeout_ms=wait.left_ms(), priority=batch.priority, knows_declined=True)
        reply = await taking(self._session, "Reserve", request, wait.left_s())
        if not len(reply.outcomes) == len(reply.addresses) == len(reply.generations) == len(batch):
            raise BrokenPeer("Reserve: the reply is not parallel to the ids")
        return reply

    async def _write(
        self, batch: Batch, source: Source, grants: list[Grant], tier: Any,
        outcomes: list[PutOutcome],
    ) -> None:
        """Fills and commits slots. On an error all are given back; those that were committed stay so."""
        generations = {grant.index: grant.generation for grant in grants}
        try:
            checksums = await Work(lambda: self._fill(batch.block_bytes, source, grants))
            revoked = await granting.commit(self._session, batch, generations, checksums, tier)
        except BaseException:
            await granting.abort(self._session, batch, generations, tier)
            raise
        for index in revoked:
            outcomes[index] = PutOutcome.PENDING

    def _fill(self, block_bytes: int, source: Source, grants: list[Grant]) -> list[int]:
        deadline = Deadline(self._session.rpc_timeout_s)
        slots = self._memory.writable([grant.address for grant in grants], block_bytes, deadline)
        return source.fill([grant.index for grant in grants], slots)

    async def read(self, batch: Batch, sink: Sink, wait: Deadline) -> list[AcquireOutcome]:
        with self._session.hold():
            reply = await acquire(self._session, batch, wait)
            outcomes = outcomes_of(AcquireOutcome, reply.outcomes)
            try:
                damaged = await Work(lambda: self._copy_all_out(batch, reply, outcomes, sink))
            finally:
                if reply.lease:
                    await release(self._session, [reply.lease])
            await self._checks.report(self._session, batch.blocks, damaged)
            return outcomes

    def _copy_all_out(
        self, batch: Batch, reply: Any, outcomes: list[AcquireOutcome], sink: Sink,
    ) -> list[int]:
        """Copies what is leased; what is found damaged becomes LOST, and is told."""
        damaged = []
        for index, outcome in enumerate(outcomes):
            if outcome is AcquireOutcome.LEASED and not self._copy_out(batch, reply, index, sink):
                outcomes[index] = AcquireOutcome.LOST
                damaged.append(index)
        return damaged

    def _copy_out(self, batch: Batch, reply: Any, index: int, sink: Sink) -> bool:
        out = sink.begin(index)
        deadline = Deadline(self._session.rpc_timeout_s)
        np.copyto(out, self._memory.view(reply.addresses[index], batch.block_bytes, deadline))
        passes = self._checks.passes(out, reply.checksums[index])
        if passes:
            sink.ready()
        return passes


class StreamTransfer:
    """By Put and Get streams. Every block read is checked against its checksum."""

    def __init__(self, session: Session, checks: Checks) -> None:
        keep_freed_memory()
        self._session = session
        self._checks = checks

    def batch_ids(self, block_bytes: int) -> int:
        return max(1, min(self._session.batch_ids, STREAM_BATCH_BYTES // block_bytes))

    async def queue(
        self, batch: Batch, source: Source, tier: Tier | None, committer: Committer,
    ) -> list[PutOutcome] | None:
        del batch, source, tier, committer  # the bytes are on their way for as long as the call lasts
        return None

    async def put(
        self, batch: Batch, source: Source, tier: Tier | None, wait: Deadline,
    ) -> list[PutOutcome]:
        host = await Work(source.host)
        checksums = await Work(lambda: [checksum_of(block) for block in host])
        header = blocks_pb2.PutHeader(
            session=self._session.id, blocks=batch.blocks, tier=tier_number(tier), sequence=batch.sequence,
            timeout_ms=wait.left_ms(), priority=batch.priority, checksums=checksums,
            knows_declined=True)
        reply = await self._session.call("Put", _messages(header, host), wait.left_s())
        if len(reply.outcomes) != len(batch):
            raise BrokenPeer("Put: the reply is not parallel to the ids")
        return outcomes_of(PutOutcome, reply.outcomes)

    async def read(self, batch: Batch, sink: Sink, wait: Deadline) -> list[AcquireOutcome]:
        request = blocks_pb2.GetRequest(
            session=self._session.id, blocks=batch.blocks, sequence=batch.sequence,
            timeout_ms=wait.left_ms())
        stream = self._session.stream("Get", request, wait.left_s())
        try:
            read: _Read = await Work(lambda: _receive(batch, iter(stream), sink), stream.cancel)
        finally:
            stream.cancel()
        await self._checks.report(self._session, batch.blocks, read[1])
        return read[0]


_Read = tuple[list[AcquireOutcome], list[int]]


def _receive(batch: Batch, messages: Iterator[bytes], sink: Sink) -> _Read:
    """Reads the stream of a Get to its end; outcomes, and the indices of what arrived damaged and is LOST."""
    header = _header(next(messages, None))
    if len(header.outcomes) != len(batch) or header.block_bytes not in (0, batch.block_bytes):
        raise BrokenPeer("Get: the header does not fit the request")
    outcomes = outcomes_of(AcquireOutcome, header.outcomes)
    data = _Data(messages)
    damaged = []
    for index, outcome in enumerate(outcomes):
        if outcome is AcquireOutcome.LEASED:
            if data.fill(sink.begin(index)) == header.checksums[index]:
                sink.ready()
            else:
                damaged.append(index)
                outcomes[index] = AcquireOutcome.LOST
    data.end()
    return outcomes, damaged


def _header(message: bytes | None) -> Any:
    part = None if message is None else _get_response(message)
    if part is None or part.WhichOneof("part") != "header":
        raise BrokenPeer("Get: the stream does not start with a header")
    return part.header


def _get_response(message: bytes) -> Any:
    try:
        return blocks_pb2.GetResponse.FromString(message)
    except DecodeError as error:
        raise BrokenPeer("Get: a message is no GetResponse") from error


def _messages(header: Any, blocks: Sequence[U8Array]) -> Iterator[bytes]:
    """The messages of a Put. An error in here would leave grpc's thread silent and the call hanging to its
    deadline: nothing in it may raise."""
    yield blocks_pb2.PutRequest(header=header).SerializeToString()
    yield from data_messages(blocks)


class _Data:
    """The bytes of a stream, cut anew."""

    def __init__(self, messages: Iterator[bytes]) -> None:
        self._messages = messages
        self._left = np.empty(0, np.uint8)

    def fill(self, out: U8Array) -> int:
        """The next bytes, as many as there is room for; their checksum, made while they are in the cache."""
        filled = 0
        checksum = RunningChecksum()
        while filled < out.size:
            if not self._left.size:
                self._left = self._next()
            piece = out[filled : filled + self._left.size]
            np.copyto(piece, self._left[: piece.size])
            checksum.update(piece.data)
            self._left, filled = self._left[piece.size :], filled + piece.size
        return checksum.intdigest()

    def _next(self) -> U8Array:
        message = next(self._messages, None)
        if message is None:
            raise BrokenPeer("Get: the stream ended inside a block")
        return _payload(message)

    def end(self) -> None:
        """Reads to the end, where no byte may be left."""
        if self._left.size or any(_payload(message).size for message in self._messages):
            raise BrokenPeer("Get: more bytes than blocks")


def _payload(message: bytes) -> U8Array:
    data = data_of(message)
    return np.frombuffer(_get_response(message).data, np.uint8) if data is None else data
