"""The server itself: addresses, modes of its sockets, reflection, message sizes."""

from __future__ import annotations

import asyncio
import os
import socket
import stat
from pathlib import Path

import grpc
import pytest
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from rpc_daemon import DEADLINE_S, Daemon, block_ids, ids_of, run

from tierd.rpc.server import CannotListen, RpcServer
from tierd_client.v1 import admin_pb2 as apb
from tierd_client.v1 import admin_pb2_grpc
from tierd_client.v1 import blocks_pb2 as pb


def refused(d: Daemon, address: str) -> str:
    with pytest.raises(CannotListen) as caught:
        RpcServer(d.service, [address], concurrent_rpcs_max=10)
    return str(caught.value)


def test_socket_mode(tmp_path: Path) -> None:
    """The socket is for its owner alone from the moment it exists, whatever the umask was."""
    before = os.umask(0)
    try:

        async def body(d: Daemon) -> None:
            assert stat.S_IMODE((tmp_path / "tierd.sock").stat().st_mode) == 0o600
            assert os.umask(0) == 0

        run(body, tmp_path)
    finally:
        os.umask(before)


def test_taken_addresses(tmp_path: Path) -> None:
    """An address that somebody listens on is refused by name, and the one who listens keeps it."""

    async def body(d: Daemon) -> None:
        assert "taken" in refused(d, d.address) and str(tmp_path) in refused(d, d.address)
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            address = f"127.0.0.1:{taken.getsockname()[1]}"
            assert address in refused(d, address)
        await d.admin.GetConfig(apb.GetConfigRequest(), timeout=DEADLINE_S)

    run(body, tmp_path)


def test_impossible_addresses(tmp_path: Path) -> None:
    """An address that cannot be listened on is refused with its reason."""

    async def body(d: Daemon) -> None:
        (tmp_path / "file").write_text("precious")
        assert "not a socket" in refused(d, f"unix://{tmp_path}/file")
        assert (tmp_path / "file").read_text() == "precious"
        assert "absolute" in refused(d, "unix://relative.sock")
        assert "directory does not exist" in refused(d, f"unix://{tmp_path}/no/tierd.sock")
        assert "107 bytes" in refused(d, f"unix://{tmp_path}/{'x' * 110}")
        assert "neither" in refused(d, "7000")
        assert "neither" in refused(d, "localhost:http")

    run(body, tmp_path)


def test_socket_of_a_dead_daemon_is_taken_over(tmp_path: Path) -> None:
    """A socket file that nobody listens on does not keep a daemon from starting."""
    path = tmp_path / "tierd.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
        dead.listen()
    assert path.is_socket()

    async def body(d: Daemon) -> None:
        await d.admin.GetConfig(apb.GetConfigRequest(), timeout=DEADLINE_S)

    run(body, tmp_path)


def test_several_addresses(tmp_path: Path) -> None:
    """One server listens on a socket and on a port; port 0 is replaced by the one that was chosen."""

    async def body(d: Daemon) -> None:
        server = RpcServer(d.service, ["127.0.0.1:0", f"unix://{tmp_path}/two.sock"], concurrent_rpcs_max=10)
        port = int(server.addresses[0].rpartition(":")[2])
        assert port > 0
        await server.start()
        for address in server.addresses:
            async with grpc.aio.insecure_channel(address) as channel:
                stub = admin_pb2_grpc.AdminStub(channel)
                await stub.GetConfig(apb.GetConfigRequest(), timeout=DEADLINE_S)
        await server.stop(0)

    run(body, tmp_path)


def test_reflection(tmp_path: Path) -> None:
    """Tools that ask by reflection are told both services and health."""

    async def body(d: Daemon) -> None:
        stub = reflection_pb2_grpc.ServerReflectionStub(d.channel)
        call = stub.ServerReflectionInfo(timeout=DEADLINE_S)
        await call.write(reflection_pb2.ServerReflectionRequest(list_services=""))
        reply = await call.read()
        names = {service.name for service in reply.list_services_response.service}
        assert {"tierd.v1.Blocks", "tierd.v1.Admin", "grpc.health.v1.Health"} <= names
        await call.done_writing()

    run(body, tmp_path)


def test_large_messages(tmp_path: Path) -> None:
    """A message of more ids than gRPC's default size allows passes, up to the daemon's own limits."""

    async def body(d: Daemon) -> None:
        await d.namespace()
        many = pb.BlockIds(namespace=1, ids=ids_of(1) * 200_000)
        reply = await d.blocks.Lookup(pb.LookupRequest(blocks=many), timeout=DEADLINE_S)
        assert len(reply.presence) == 200_000
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await d.blocks.Lookup(
                pb.LookupRequest(blocks=pb.BlockIds(namespace=1, ids=bytes(15_000_000 // 32 * 32))),
                timeout=DEADLINE_S,
            )
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT

    run(body, tmp_path, max_ids=200_000)


def test_many_clients_at_once(tmp_path: Path) -> None:
    """Sessions that store and read at the same time each get their own blocks."""

    async def one(d: Daemon, start: int) -> None:
        session = (await d.session()).number
        for seed in range(start, start + 10):
            await d.store_blocks(session, block_ids(seed))
            reply = await d.acquire(session, block_ids(seed))
            assert list(reply.outcomes) == [pb.ACQUIRE_OUTCOME_LEASED]
            await d.release(session, reply.lease)

    async def body(d: Daemon) -> None:
        await d.namespace()
        async with asyncio.TaskGroup() as group:
            for client in range(4):
                group.create_task(one(d, 100 * (client + 1)))
        await d.check_balance()

    run(body, tmp_path, host_blocks=16)
