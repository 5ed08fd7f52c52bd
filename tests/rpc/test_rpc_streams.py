"""Payload by stream: the same blocks, for a client that can map nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import numpy as np
import pytest
from rpc_daemon import BLOCK, DEADLINE_S, Daemon, block_ids, identity, ids_of, payload, run, until

from tierd.app import streams
from tierd.app.carrier import checksum_of
from tierd.core.messages import Tier
from tierd.testing.faulty import Fault, Operation, Scripted
from tierd_client.framing import MESSAGE_BYTES
from tierd_client.layout import Layout
from tierd_client.v1 import blocks_pb2 as pb

BIG = 3 * 1024 * 1024 + 4096


def header(session: int, blocks: pb.BlockIds, data: list[bytes], **fields: object) -> pb.PutRequest:
    checksums = [checksum_of(np.frombuffer(one, np.uint8)) for one in data]
    return pb.PutRequest(header=pb.PutHeader(session=session, blocks=blocks, checksums=checksums, **fields))


def cut(data: list[bytes], size: int) -> list[pb.PutRequest]:
    """The blocks' bytes in messages of `size` bytes."""
    whole = b"".join(data)
    return [pb.PutRequest(data=whole[i : i + size]) for i in range(0, len(whole), size)]


async def put(
    d: Daemon, session: int, blocks: pb.BlockIds, data: list[bytes], chunk: int, **fields: object
) -> list[int]:
    messages = [header(session, blocks, data, **fields), *cut(data, chunk)]
    return list((await d.blocks.Put(iter(messages), timeout=DEADLINE_S)).outcomes)


async def get(d: Daemon, session: int, blocks: pb.BlockIds, **fields: object) -> tuple[pb.GetHeader, bytes]:
    head, data = pb.GetHeader(), b""
    request = pb.GetRequest(session=session, blocks=blocks, **fields)
    async for part in d.blocks.Get(request, timeout=DEADLINE_S):
        if part.WhichOneof("part") == "header":
            head = part.header
        else:
            assert len(part.data) <= 1024 * 1024
            data += part.data
    return head, data


def bytes_of(*seeds: int) -> list[bytes]:
    return [payload(identity(seed)).tobytes() for seed in seeds]


@pytest.mark.parametrize("chunk", [1000, BLOCK, 3 * BLOCK, 5000])
@pytest.mark.parametrize("tier", [Tier.HOST, Tier.HBM])
def test_put_then_get(chunk: int, tier: Tier, tmp_path: Path) -> None:
    """Blocks that came in messages cut anywhere are read back whole, wherever they lie."""

    async def body(d: Daemon) -> None:
        await d.namespace()
        session = (await d.session()).number
        blocks, data = block_ids(1, 2, 3, chain=True), bytes_of(1, 2, 3)
        assert await put(d, session, blocks, data, chunk, tier=int(tier)) == [pb.PUT_OUTCOME_STORED] * 3
        head, found = await get(d, session, blocks)
        assert found == b"".join(data) and head.block_bytes == BLOCK
        assert list(head.outcomes) == [pb.ACQUIRE_OUTCOME_LEASED] * 3 and head.tiers == bytes([tier] * 3)
        assert head.checksums[1] == checksum_of(np.frombuffer(data[1], np.uint8))
        assert d.service.occupancy().leases == 0
        await d.check_balance()

    run(body, tmp_path)


def test_large_blocks(tmp_path: Path) -> None:
    """Blocks larger than a message pass in several, and do not pass through the loop's thread in one piece."""

    async def body(d: Daemon) -> None:
        await d.namespace(Layout.opaque(block_bytes=BIG))
        session = (await d.session()).number
        data = [np.random.default_rng(i).bytes(BIG) for i in (1, 2)]
        stored = await put(d, session, block_ids(1, 2), data, 1024 * 1024)
        assert stored == [pb.PUT_OUTCOME_STORED] * 2
        head, found = await get(d, session, block_ids(2, 1))
        assert found == data[1] + data[0] and head.block_bytes == BIG

    run(body, tmp_path, host_blocks=2000)


def test_put_each_outcome(tmp_path: Path) -> None:
    """EXISTS, BUSY, DUPLICATE and CORRUPT ids are told apart, their bytes passed over, the rest STORED."""

    async def body(d: Daemon) -> None:
        await d.namespace()
        session, other = (await d.session()).number, (await d.session()).number
        await d.store_blocks(session, block_ids(1))
        await d.reserve(other, block_ids(2))
        blocks, data = block_ids(1, 2, 3, 3, 4, 5), bytes_of(1, 2, 3, 3, 4, 5)
        wrong = header(session, blocks, data)
        wrong.header.checksums[4] ^= 1
        reply = await d.blocks.Put(iter([wrong, *cut(data, 10_000)]), timeout=DEADLINE_S)
        assert list(reply.outcomes) == [
            pb.PUT_OUTCOME_EXISTS, pb.PUT_OUTCOME_BUSY, pb.PUT_OUTCOME_STORED, pb.PUT_OUTCOME_DUPLICATE,
            pb.PUT_OUTCOME_CORRUPT, pb.PUT_OUTCOME_STORED,
        ]
        assert await d.tiers_of(block_ids(3, 4, 5)) == [2, 0, 2]
        _, found = await get(d, session, block_ids(3, 5))
        assert found == data[2] + data[5]
        await d.check_balance()

    run(body, tmp_path)


def test_put_full_and_pending(tmp_path: Path) -> None:
    """A Put for which there is no room is FULL, one for which room is being made PENDING: nothing is stored."""

    async def body(d: Daemon) -> None:
        await d.namespace()
        session = (await d.session()).number
        await d.store_blocks(session, block_ids(1, 2))
        assert await put(d, session, block_ids(3), bytes_of(3), BLOCK) == [pb.PUT_OUTCOME_PENDING]
        d.faulty.resume.set()
        stored = await put(d, session, block_ids(3), bytes_of(3), BLOCK, timeout_ms=5000)
        assert stored == [pb.PUT_OUTCOME_STORED]
        await d.acquire(session, block_ids(1, 2, 3))
        assert await put(d, session, block_ids(4), bytes_of(4), BLOCK) == [pb.PUT_OUTCOME_FULL]

    run(body, tmp_path, host_blocks=2, hbm_blocks=0, script=Scripted([Fault.DELAY], [Operation.PUT]))


def test_get_tells_misses_apart(tmp_path: Path) -> None:
    """Bytes come only for LEASED ids, in order; the header says what the others are."""

    async def body(d: Daemon) -> None:
        await d.namespace()
        session = (await d.session()).number
        await d.store_blocks(session, block_ids(1, 2, 3))
        await d.evict(block_ids(2, 3))
        d.store.values.pop(next(key for key in d.store.values if key[1] == identity(3)))
        head, found = await get(d, session, block_ids(9, 2, 3, 1), timeout_ms=5000)
        leased, miss, lost = pb.ACQUIRE_OUTCOME_LEASED, pb.ACQUIRE_OUTCOME_MISS, pb.ACQUIRE_OUTCOME_LOST
        assert list(head.outcomes) == [miss, leased, lost, leased]
        assert found == bytes_of(2)[0] + bytes_of(1)[0]
        assert list(head.tiers) == [0, 2, 0, 2]

    run(body, tmp_path)


@pytest.mark.parametrize(("block_bytes", "blocks"), [(4096, 300), (400_000, 5), (600_000, 3)])
def test_blocks_share_messages(block_bytes: int, blocks: int, tmp_path: Path) -> None:
    """A Get sends its blocks in order, in messages that are all full but the last."""

    async def body(d: Daemon) -> None:
        await d.namespace(Layout.opaque(block_bytes=block_bytes))
        session = (await d.session()).number
        data = [np.random.default_rng(i).bytes(block_bytes) for i in range(blocks)]
        await put(d, session, block_ids(*range(blocks)), data, 1024 * 1024)
        sizes, found = [], b""
        request = pb.GetRequest(session=session, blocks=block_ids(*range(blocks)))
        async for part in d.blocks.Get(request, timeout=DEADLINE_S):
            found += part.data
            sizes += [len(part.data)] if part.data else []
        assert found == b"".join(data)
        assert set(sizes[:-1]) == {MESSAGE_BYTES} and sizes[-1] <= MESSAGE_BYTES

    run(body, tmp_path, host_blocks=600)


@pytest.mark.parametrize(("message", "field"), [
    (b"\x12\x05torn", "data: the message is no PutRequest"), (b"\x08\x01", "data: missing"), (b"", "data: missing"),
])
def test_a_message_that_is_none(message: bytes, field: str, tmp_path: Path) -> None:
    """Bytes that are no message of a Put end it, named, and nothing is stored."""

    async def body(d: Daemon) -> None:
        await d.namespace()
        session = (await d.session()).number
        first = header(session, block_ids(1), bytes_of(1)).SerializeToString()
        raw = d.channel.stream_unary("/tierd.v1.Blocks/Put")
        with pytest.raises(grpc.aio.AioRpcError, match=field) as caught:
            await raw(iter([first, message]), timeout=DEADLINE_S)
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        await until(lambda: d.engine.state.sessions.by_number[session].held == 0)

    run(body, tmp_path)


def test_get_of_nothing(tmp_path: Path) -> None:
    """A Get of unknown ids is a header and no bytes."""

    async def body(d: Daemon) -> None:
        await d.namespace()
        head, found = await get(d, (await d.session()).number, block_ids(1, 2))
        assert list(head.outcomes) == [pb.ACQUIRE_OUTCOME_MISS] * 2 and found == b""

    run(body, tmp_path)


def test_put_that_breaks_off_leaves_nothing(tmp_path: Path) -> None:
    """A Put whose client goes away in the middle has stored nothing and holds no slot."""

    async def body(d: Daemon) -> None:
        await d.namespace()
        session = (await d.session()).number
        blocks, data = block_ids(1, 2), bytes_of(1, 2)
        first_block_in = asyncio.Event()

        async def half() -> AsyncIterator[pb.PutRequest]:
            yield header(session, blocks, data)
            yield pb.PutRequest(data=data[0])
            first_block_in.set()
            await asyncio.Event().wait()

        call = d.blocks.Put(half(), timeout=DEADLINE_S)
        await first_block_in.wait()
        await until(lambda: d.service.segments_reserved(session) == {1})
        call.cancel()
        await until(lambda: d.service.segments_reserved(session) == frozenset())
        assert d.engine.state.sessions.by_number[session].held == 0
        assert await d.tiers_of(blocks) == [0, 0]
        await d.check_balance()

    run(body, tmp_path)


def test_idle_put_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Put on which nothing comes is ended by a named limit, and its slots are free."""
    monkeypatch.setattr(streams, "STREAM_IDLE_S", 0.1)

    async def body(d: Daemon) -> None:
        await d.namespace()
        session = (await d.session()).number

        async def silent(*messages: pb.PutRequest) -> AsyncIterator[pb.PutRequest]:
            for message in messages:
                yield message
            await asyncio.Event().wait()

        for messages in ((), (header(session, block_ids(1), bytes_of(1)),)):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await d.blocks.Put(silent(*messages), timeout=DEADLINE_S)
            assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert d.engine.state.sessions.by_number[session].held == 0

    run(body, tmp_path)


def test_slow_reader_is_ended_and_holds_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader that takes nothing does not stop other calls, and its leases end after the idle limit."""
    monkeypatch.setattr(streams, "STREAM_IDLE_S", 0.3)

    async def body(d: Daemon) -> None:
        await d.namespace(Layout.opaque(block_bytes=BIG))
        session = (await d.session()).number
        data = [np.random.default_rng(i).bytes(BIG) for i in range(6)]
        await put(d, session, block_ids(*range(6)), data, 1024 * 1024)
        reading = d.blocks.Get(pb.GetRequest(session=session, blocks=block_ids(*range(6))), timeout=DEADLINE_S)
        await reading.read()
        await until(lambda: d.service.occupancy().leases == 6)
        assert await d.tiers_of(block_ids(0)) == [2]
        await until(lambda: d.service.occupancy().leases == 0)
        reading.cancel()

    run(body, tmp_path, host_blocks=6000)


def test_reader_that_goes_away(tmp_path: Path) -> None:
    """The leases of a Get whose client went away are given back."""

    async def body(d: Daemon) -> None:
        await d.namespace(Layout.opaque(block_bytes=BIG))
        session = (await d.session()).number
        data = [np.random.default_rng(i).bytes(BIG) for i in range(6)]
        await put(d, session, block_ids(*range(6)), data, 1024 * 1024)
        reading = d.blocks.Get(pb.GetRequest(session=session, blocks=block_ids(*range(6))), timeout=DEADLINE_S)
        await reading.read()
        assert d.service.occupancy().leases == 6
        reading.cancel()
        await until(lambda: d.service.occupancy().leases == 0)

    run(body, tmp_path, host_blocks=6000)


def test_session_that_ends_under_a_put(tmp_path: Path) -> None:
    """A session that ends while a Put of it runs stays in the engine until the Put has stopped: its slots
    are not handed out while the daemon may still write into them."""

    async def body(d: Daemon) -> None:
        await d.namespace()
        opened = await d.session()
        blocks, data = block_ids(1, 2), bytes_of(1, 2)
        go_on = asyncio.Event()

        async def slow() -> AsyncIterator[pb.PutRequest]:
            yield header(opened.number, blocks, data)
            yield pb.PutRequest(data=data[0])
            await go_on.wait()
            yield pb.PutRequest(data=data[1])

        call = d.blocks.Put(slow(), timeout=DEADLINE_S)
        await until(lambda: d.service.segments_reserved(opened.number) == {1})
        opened.call.cancel()
        session = d.service.sessions._sessions[opened.number]
        await until(lambda: session.ending)
        assert d.engine.state.sessions.by_number[opened.number].held == 2
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await d.reserve(opened.number, block_ids(7))
        assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION
        go_on.set()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call
        assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION
        assert opened.number not in d.engine.state.sessions.by_number
        assert await d.tiers_of(blocks) == [0, 0]
        await d.check_balance()

    run(body, tmp_path)


def test_detach_waits_for_streams(tmp_path: Path) -> None:
    """A detach during a stream is refused when its time is over, and the session ends with the stream."""

    async def body(d: Daemon) -> None:
        await d.namespace()
        opened = await d.session()

        async def stuck() -> AsyncIterator[pb.PutRequest]:
            yield header(opened.number, block_ids(1), bytes_of(1))
            await asyncio.Event().wait()

        call = d.blocks.Put(stuck(), timeout=DEADLINE_S)
        await until(lambda: d.service.segments_reserved(opened.number) == {1})
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await d.blocks.Detach(pb.DetachRequest(session=opened.number, token=opened.info.token), timeout=1.5)
        assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION
        assert "1 stream" in str(caught.value.details())
        call.cancel()
        await until(lambda: opened.number not in d.engine.state.sessions.by_number)

    run(body, tmp_path)


def test_a_put_stops_reading_when_nothing_is_wanted(tmp_path: Path) -> None:
    """A Put of blocks that all exist is answered without their bytes."""

    async def body(d: Daemon) -> None:
        await d.namespace()
        session = (await d.session()).number
        await d.store_blocks(session, block_ids(1, 2))

        async def only_header() -> AsyncIterator[pb.PutRequest]:
            yield header(session, block_ids(1, 2), bytes_of(1, 2))
            await asyncio.Event().wait()

        reply = await d.blocks.Put(only_header(), timeout=DEADLINE_S)
        assert list(reply.outcomes) == [pb.PUT_OUTCOME_EXISTS] * 2
        assert len(ids_of(1, 2)) == 64

    run(body, tmp_path)
