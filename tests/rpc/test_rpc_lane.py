"""Calls of the data plane over a Unix stream: by the handlers of gRPC, and bounded as they are."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from rpc_daemon import DEADLINE_S, Daemon, block_ids, run, until

from tierd.rpc.deadline import deadline_of
from tierd.rpc.lane import LaneContext
from tierd_client.framing import LANE_ANSWER, LANE_BYTES_MAX, LANE_CALL, LANE_METHODS
from tierd_client.v1 import blocks_pb2 as pb

STORE, LOOKUP, ACQUIRE = (LANE_METHODS[name] for name in ("Store", "Lookup", "Acquire"))
STATUS = grpc.StatusCode
OK, UNIMPLEMENTED, INTERNAL = (one.value[0] for one in (STATUS.OK, STATUS.UNIMPLEMENTED, STATUS.INTERNAL))


class Peer:
    """The client's end of a lane."""

    def __init__(self, sock: socket.socket, serving: asyncio.Task[None]) -> None:
        self.sock = sock
        self.serving = serving

    async def send(self, number: int, message: bytes, timeout_ms: int = 5000) -> None:
        frame = LANE_CALL.pack(len(message), timeout_ms, number) + message
        await asyncio.get_running_loop().sock_sendall(self.sock, frame)

    async def answer(self) -> tuple[int, bytes]:
        size, code = LANE_ANSWER.unpack(await self._receive(LANE_ANSWER.size))
        return code, await self._receive(size)

    async def ask(self, number: int, message: bytes) -> tuple[int, bytes]:
        await self.send(number, message)
        return await self.answer()

    async def _receive(self, size: int) -> bytes:
        data = b""
        async with asyncio.timeout(DEADLINE_S):
            while len(data) < size:
                more = await asyncio.get_running_loop().sock_recv(self.sock, size - len(data))
                assert more, "the daemon hung up"
                data += more
        return data


@asynccontextmanager
async def lane(d: Daemon) -> AsyncIterator[Peer]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        theirs.setblocking(False)
        serving = asyncio.create_task(d.server.lane.serve(theirs))
        try:
            yield Peer(ours, serving)
        finally:
            serving.cancel()
            await asyncio.wait([serving])


def lookup(*seeds: int) -> bytes:
    return pb.LookupRequest(blocks=block_ids(*seeds)).SerializeToString()


def test_a_call_by_the_lane_is_the_one_by_grpc(tmp_path: Path) -> None:
    """Replies, statuses and texts of refusals are the same, byte by byte, and both ways are counted as one."""

    async def body(d: Daemon) -> None:
        await d.namespace()
        session = (await d.session()).number
        await d.store_blocks(session, block_ids(1, 2))
        async with lane(d) as peer:
            reply = await d.blocks.Lookup(pb.LookupRequest(blocks=block_ids(1, 9, 2)), timeout=DEADLINE_S)
            assert await peer.ask(LOOKUP, lookup(1, 9, 2)) == (OK, reply.SerializeToString())
            for number, name, wrong in _refused(session):
                with pytest.raises(grpc.aio.AioRpcError) as refused:
                    await getattr(d.blocks, name)(wrong, timeout=DEADLINE_S)
                same = refused.value.code().value[0], (refused.value.details() or "").encode()
                assert await peer.ask(number, wrong.SerializeToString()) == same
        counted = d.service.measures.rpc_codes
        assert counted["Lookup", "OK"] == 2
        assert counted["Store", "NOT_FOUND"] == 2

    run(body, tmp_path)


def _refused(session: int) -> list[tuple[int, str, Any]]:
    return [
        (STORE, "Store", pb.StoreRequest(
            session=session + 1, blocks=block_ids(1), generations=[0], checksums=[0])),
        (STORE, "Store", pb.StoreRequest(session=session, blocks=block_ids(1), slots_max=1 << 30)),
        (LOOKUP, "Lookup", pb.LookupRequest(blocks=pb.BlockIds(namespace=1, ids=b"short"))),
    ]


def test_what_is_no_call_is_said_to_be_none(tmp_path: Path) -> None:
    """An unknown number and a garbled message are answered by a status, and the next call as ever."""

    async def body(d: Daemon) -> None:
        await d.namespace()
        async with lane(d) as peer:
            assert (await peer.ask(99, b""))[0] == UNIMPLEMENTED
            assert (await peer.ask(LOOKUP, b"\xff\xff\xff"))[0] == INTERNAL
            assert (await peer.ask(LOOKUP, lookup(1)))[0] == OK

    run(body, tmp_path)


def test_calls_are_answered_in_order(tmp_path: Path) -> None:
    """Two calls sent in pieces, before any answer, are answered one after the other."""

    async def body(d: Daemon) -> None:
        await d.namespace()
        async with lane(d) as peer:
            both = b"".join(LANE_CALL.pack(len(one), 5000, LOOKUP) + one for one in (lookup(1), lookup(1, 2)))
            for start in range(0, len(both), 16):
                await asyncio.get_running_loop().sock_sendall(peer.sock, both[start : start + 16])
                await asyncio.sleep(0)
            presence = [pb.LookupResponse.FromString((await peer.answer())[1]).presence for _ in range(2)]
            assert [len(each) for each in presence] == [1, 2]

    run(body, tmp_path)


@pytest.mark.parametrize(("waiting", "sent"), [
    (False, LANE_CALL.pack(LANE_BYTES_MAX + 1, 0, LOOKUP)), (True, bytes(LANE_BYTES_MAX + 2 * LANE_CALL.size)),
], ids=["a longer message", "calls ahead of an answer"])
def test_more_than_a_message_may_have_is_cut_off(tmp_path: Path, waiting: bool, sent: bytes) -> None:
    """Who sends more than is allowed is hung up on, and others are served."""

    async def body(d: Daemon) -> None:
        async with lane(d) as peer, lane(d) as other:
            call = await acquire_that_waits(d)
            if waiting:
                await peer.send(ACQUIRE, call)
            sending = asyncio.create_task(asyncio.get_running_loop().sock_sendall(peer.sock, sent))
            async with asyncio.timeout(DEADLINE_S):
                await peer.serving
            sending.cancel()
            await asyncio.wait([sending])
            assert (await other.ask(LOOKUP, lookup(1)))[0] == OK

    run(body, tmp_path)


def test_a_peer_that_hangs_up_cancels_its_call(tmp_path: Path) -> None:
    """An Acquire that waits for a block ends as CANCELLED when its caller has gone, and leases nothing."""

    async def body(d: Daemon) -> None:
        async with lane(d) as peer:
            await peer.send(ACQUIRE, await acquire_that_waits(d))
            await until(lambda: d.service.writer.calls_waiting == 1)
            peer.sock.close()
            async with asyncio.timeout(DEADLINE_S):
                await peer.serving
        assert d.service.writer.calls_waiting == 0
        assert d.service.measures.rpc_codes["Acquire", "CANCELLED"] == 1
        assert d.service.occupancy().leases == 0

    run(body, tmp_path)


async def acquire_that_waits(d: Daemon) -> bytes:
    """For a block that is being written."""
    await d.namespace()
    session = (await d.session()).number
    await d.reserve(session, block_ids(1))
    return pb.AcquireRequest(session=session, blocks=block_ids(1), timeout_ms=15_000).SerializeToString()


@pytest.mark.parametrize(("rpc_s", "way_s"), [(0.1, 0.02), (1.0, 0.1), (60.0, 0.25)])
def test_an_answer_has_time_for_its_way(monkeypatch: pytest.MonkeyPatch, rpc_s: float, way_s: float) -> None:
    """Whoever waits until the deadline of its RPC answers a tenth of that before, 20 ms at least, 250 at most."""

    async def left_s() -> float:
        monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: 0.0)
        return deadline_of(LaneContext(rpc_s), timeout_ms=100_000)

    assert asyncio.run(left_s()) == pytest.approx(rpc_s - way_s)
