"""Sessions: their stream, their process, their end, and what is given back then."""

from __future__ import annotations

import asyncio
from pathlib import Path

import grpc
import pytest
from rpc_daemon import DEADLINE_S, Daemon, block_ids, identity, ids_of, run, until

from tierd.core import messages as m
from tierd.core.errors import NotFound, Refused
from tierd.core.terms import pack
from tierd_client.layout import Layout
from tierd_client.v1 import blocks_pb2 as pb


def holds(d: Daemon, session: int) -> int:
    """Slots that the engine counts as held by a session; -1 when it knows none."""
    found = d.engine.state.sessions.by_number.get(session)
    return -1 if found is None else found.held


async def hold_some(d: Daemon) -> tuple[object, int]:
    """A session with two leases and two reservations."""
    opened = await d.session()
    await d.store_blocks(opened.number, block_ids(1, 2))
    await d.acquire(opened.number, block_ids(1, 2))
    await d.reserve(opened.number, block_ids(3, 4))
    assert holds(d, opened.number) == 4
    return opened, opened.number


def test_what_a_session_is_told(tmp_path: Path) -> None:
    """The first message has everything a client needs; signs of life follow with the number alone."""

    async def body(d: Daemon) -> None:
        opened = await d.session()
        info = opened.info
        assert 0 < info.session < 2**63 and len(info.token) == 16
        assert (info.boot_id, info.instance_id) == (bytes([1] * 16), bytes([2] * 16))
        assert info.attach_path.endswith("attach.sock") and info.server_version == "0.0-test"
        assert (info.heartbeat_ms, info.max_ids, info.max_held) == (20, 1000, 2000)
        beat = await opened.call.read()
        assert beat == pb.SessionInfo(session=info.session)
        other = await d.session()
        assert other.number != opened.number and other.info.token != info.token

    run(body, tmp_path, heartbeat_ms=20)


def test_stream_end_ends_a_session_that_never_attached(tmp_path: Path) -> None:
    """When the stream of a session that mapped nothing closes, all it held is free."""

    async def body(d: Daemon) -> None:
        await d.namespace()
        opened, number = await hold_some(d)
        opened.call.cancel()  # type: ignore[attr-defined]
        await until(lambda: holds(d, number) == -1)
        await d.check_balance()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await d.reserve(number, block_ids(9))
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND

    run(body, tmp_path)


def test_attached_session_outlives_its_stream(tmp_path: Path) -> None:
    """The slots of an attached session stay until its process is dead, whatever becomes of its stream."""

    async def body(d: Daemon) -> None:
        await d.namespace()
        opened, number = await hold_some(d)
        d.service.bind_process(number, opened.info.token, 4242, 77)  # type: ignore[attr-defined]
        opened.call.cancel()  # type: ignore[attr-defined]
        await d.session()
        assert holds(d, number) == 4
        d.service.process_ended(number)
        assert holds(d, number) == -1
        d.service.process_ended(number)
        await d.check_balance()

    run(body, tmp_path)


def test_bind_needs_the_token(tmp_path: Path) -> None:
    """A process is bound only with the session's token, only to one session's process, and once."""

    async def body(d: Daemon) -> None:
        opened = await d.session()
        with pytest.raises(Refused, match="token"):
            d.service.bind_process(opened.number, bytes(16), 1, 1)
        with pytest.raises(Refused, match="token"):
            d.service.bind_process(opened.number, b"", 1, 1)
        with pytest.raises(NotFound):
            d.service.bind_process(opened.number + 1, opened.info.token, 1, 1)
        d.service.bind_process(opened.number, opened.info.token, 5, 6)
        d.service.bind_process(opened.number, opened.info.token, 5, 6)
        with pytest.raises(Refused, match="attached to process 5"):
            d.service.bind_process(opened.number, opened.info.token, 7, 8)

    run(body, tmp_path)


def test_detach(tmp_path: Path) -> None:
    """A detach frees what the session held, says how much, and closes its stream."""

    async def body(d: Daemon) -> None:
        await d.namespace()
        opened, number = await hold_some(d)
        token = opened.info.token  # type: ignore[attr-defined]
        d.service.bind_process(number, token, 4242, 77)
        reply = await d.blocks.Detach(pb.DetachRequest(session=number, token=token), timeout=DEADLINE_S)
        assert reply.released_blocks == 4 and holds(d, number) == -1
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await opened.call.read()  # type: ignore[attr-defined]
        assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await d.blocks.Detach(pb.DetachRequest(session=number, token=token), timeout=DEADLINE_S)
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND
        await d.check_balance()

    run(body, tmp_path)


def test_detach_of_an_earlier_boot(tmp_path: Path) -> None:
    """A session that an earlier daemon opened is given up with its token, and with no other."""

    async def body(d: Daemon) -> None:
        token = bytes(range(16))
        d.service.writer.step(m.OpenSession(99, token))
        await d.namespace()
        d.service.writer.step(m.Reserve(99, m.Ids(1, 0, pack([identity(1), identity(2)])), 4096))
        d.service.writer.step(m.EndSession(99, settled=False))
        assert [orphan[0] for orphan in d.engine.orphans()] == [99] and holds(d, 99) == 2
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await d.blocks.Detach(pb.DetachRequest(session=99, token=bytes(16)), timeout=DEADLINE_S)
        assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION
        reply = await d.blocks.Detach(pb.DetachRequest(session=99, token=token), timeout=DEADLINE_S)
        assert reply.released_blocks == 2 and not d.engine.orphans()
        await d.check_balance()

    run(body, tmp_path)


def test_dead_process_of_an_earlier_boot(tmp_path: Path) -> None:
    """When the process of a session of an earlier boot is found dead its quarantined slots are free."""

    async def body(d: Daemon) -> None:
        d.service.writer.step(m.OpenSession(99, bytes(16)))
        d.service.writer.step(m.Reserve(99, m.Ids(1, 0, pack([identity(1)])), 4096))
        d.service.writer.step(m.EndSession(99, settled=False))
        d.service.process_ended(99)
        assert not d.engine.orphans()
        await d.check_balance()

    run(body, tmp_path)


def test_session_table_full(tmp_path: Path) -> None:
    """A session more than the table has rows is RESOURCE_EXHAUSTED and names the limit."""

    async def body(d: Daemon) -> None:
        await d.session()
        await d.session()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await d.session()
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "sessions" in str(caught.value.details())

    run(body, tmp_path, sessions=2)


def test_registrations_at_once(tmp_path: Path) -> None:
    """Layouts registered at the same time get different numbers, and one layout always the same."""

    async def body(d: Daemon) -> None:
        layouts = [Layout.opaque(block_bytes=4096, model=str(i % 5)) for i in range(20)]
        numbers = await asyncio.gather(*(d.namespace(layout) for layout in layouts))
        assert sorted(set(numbers)) == [1, 2, 3, 4, 5]
        assert all(numbers[i] == numbers[i % 5] for i in range(20))

    run(body, tmp_path)


def test_held_blocks_are_limited(tmp_path: Path) -> None:
    """A session that would hold more than max_held blocks is RESOURCE_EXHAUSTED, and holds no more."""

    async def body(d: Daemon) -> None:
        await d.namespace()
        session = (await d.session()).number
        await d.reserve(session, block_ids(1, 2, 3))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await d.reserve(session, block_ids(4, 5))
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "max_held" in str(caught.value.details()) and holds(d, session) == 3

    run(body, tmp_path, max_held=4)


def test_reservations_by_segment(tmp_path: Path) -> None:
    """The attach socket is told the segments in which a session holds reservations, and no others."""

    async def body(d: Daemon) -> None:
        await d.namespace()
        session = (await d.session()).number
        assert d.service.segments_reserved(session) == frozenset()
        hbm = await d.reserve(session, block_ids(1), m.Tier.HBM)
        host = await d.reserve(session, block_ids(2))
        assert d.service.segments_reserved(session) == {0x4000, 1}
        await d.blocks.Abort(
            pb.AbortRequest(session=session, ids=ids_of(1), generations=hbm.generations, tier=pb.TIER_HBM)
        )
        assert d.service.segments_reserved(session) == {1}
        commit = pb.CommitRequest(session=session, ids=ids_of(2), generations=host.generations, checksums=[0])
        await d.blocks.Commit(commit)
        assert d.service.segments_reserved(session) == frozenset()
        assert d.service.segments_reserved(12345) == frozenset()

    run(body, tmp_path)


def test_stop_closes_the_streams_of_sessions(tmp_path: Path) -> None:
    """A stopping daemon says UNAVAILABLE on each session's stream at once and opens no session any more."""

    async def body(d: Daemon) -> None:
        opened = await d.session()
        began = asyncio.get_running_loop().time()
        await d.server.stop(10.0)
        assert asyncio.get_running_loop().time() - began < 5
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await opened.call.read()
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE

    run(body, tmp_path)


def test_attached_session_survives_the_stop(tmp_path: Path) -> None:
    """A stop leaves attached sessions and their holds in the table: the next daemon must know them."""

    async def body(d: Daemon) -> None:
        await d.namespace()
        opened, number = await hold_some(d)
        d.service.bind_process(number, opened.info.token, 4242, 77)  # type: ignore[attr-defined]
        await d.server.stop(1.0)
        assert holds(d, number) == 4

    run(body, tmp_path)
