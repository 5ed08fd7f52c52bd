"""The data plane over gRPC: each handler checks, calls, translates and returns."""

# ruff: noqa: N802, ARG002 - names and parameters of handlers are those of the generated base class

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import aclosing, suppress
from typing import Any

import grpc
import structlog

from tierd.app import sessions, streams
from tierd.app.service import Service
from tierd.app.stocks import Stocks
from tierd.app.verify import verify
from tierd.core import messages as m
from tierd.core.errors import InvalidInput, LimitReached, NotFound, Refused, Unavailable
from tierd.rpc import convert, shadow
from tierd.rpc.deadline import SHORT_CALL_MS, deadline_of, send
from tierd.rpc.status import answers_errors
from tierd_client.format import IDENTITY_BYTES, U8Array
from tierd_client.framing import Framer
from tierd_client.layout import CANONICAL_BYTES_MAX
from tierd_client.v1 import blocks_pb2 as pb
from tierd_client.v1 import blocks_pb2_grpc

log = structlog.get_logger(__name__)

PROTOCOL_VERSION = 1
SERVICE = pb.DESCRIPTOR.services_by_name["Blocks"].full_name


class BlocksServicer(blocks_pb2_grpc.BlocksServicer):  # type: ignore[misc]
    """The service `tierd.v1.Blocks` on a Service."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._stocks = Stocks(service)

    @answers_errors
    async def RegisterNamespace(self, request: Any, context: Any) -> Any:
        if request.domain not in ("", "default"):
            raise NotFound(f"domain {request.domain!r} is not served; only 'default' is so far")
        if len(request.fingerprint) != IDENTITY_BYTES:
            raise InvalidInput("fingerprint", f"{len(request.fingerprint)} bytes, not {IDENTITY_BYTES}")
        if len(request.canonical) > CANONICAL_BYTES_MAX:
            raise InvalidInput("canonical", f"{len(request.canonical)} bytes, more than {CANONICAL_BYTES_MAX}")
        namespace = await self._service.register(
            request.canonical, request.fingerprint, request.schema_version, convert.text(request.name, "name"),
            deadline_of(context, SHORT_CALL_MS),
        )
        return pb.RegisterNamespaceResponse(
            namespace=namespace.number, block_bytes=namespace.block_bytes(), boot_id=self._service.about.boot_id
        )

    @answers_errors
    async def Session(self, request: Any, context: Any) -> None:
        if request.protocol_version != PROTOCOL_VERSION:
            raise Refused(f"protocol_version {request.protocol_version} is not the daemon's, {PROTOCOL_VERSION}")
        session = self._service.open_session(convert.text(request.client_name, "client_name"), request.pid)
        try:
            await context.write(self._session_info(session))
            while not await _hangs_up(session, self._service.about.heartbeat_ms / 1000):
                asked_back, session.asked_back = session.asked_back, False
                await context.write(pb.SessionInfo(session=session.number, return_stock=asked_back))
            raise Refused("the session has ended") if session.ending else Unavailable("the daemon is stopping")
        finally:
            self._service.end_session(session.number)

    @answers_errors
    async def Detach(self, request: Any, context: Any) -> Any:
        deadline = deadline_of(context, SHORT_CALL_MS)
        session, token = convert.session(request.session), convert.token(request.token)
        return pb.DetachResponse(released_blocks=await self._service.detach(session, token, deadline))

    @answers_errors
    async def GiveUp(self, request: Any, context: Any) -> Any:
        if not request.call:
            raise InvalidInput("call", "0 is no number of a call")
        released = self._service.give_up(convert.session(request.session), request.call)
        return pb.GiveUpResponse(released_blocks=released)

    @answers_errors
    async def Lookup(self, request: Any, context: Any) -> Any:
        reply = await self._service.lookup(self._ids(request), deadline_of(context, SHORT_CALL_MS))
        return convert.lookup_response(reply, self._service.ready_in_ms(reply.below_bytes))

    @answers_errors
    async def LookupChains(self, request: Any, context: Any) -> Any:
        chains = convert.chains(request.chains, self._service.about.max_ids)
        reply = await self._service.lookup_chains(chains, deadline_of(context, SHORT_CALL_MS))
        return convert.lookup_chains_response(reply, self._service.ready_in_ms(reply.below_bytes))

    @answers_errors
    async def Reserve(self, request: Any, context: Any) -> Any:
        tier = convert.arena_tier(request.tier, "tier")
        reply = await self._service.reserve(
            convert.session(request.session), self._ids(request), tier,
            convert.text(request.sequence, "sequence"), deadline_of(context, request.timeout_ms), request.call,
            convert.priority(request.priority),
        )
        return convert.reserve_response(reply, request, tier)

    @answers_errors
    async def Commit(self, request: Any, context: Any) -> Any:
        ids = convert.identities(request.ids, "ids", self._service.about.max_ids)
        session = convert.session(request.session)
        reply = self._service.commit(
            session, ids, convert.words(request.generations, "generations", len(ids)),
            convert.words(request.checksums, "checksums", len(ids)), convert.arena_tier(request.tier, "tier"),
            convert.text(request.sequence, "sequence"),
        )
        self._stocks.put_ended(session)
        return pb.CommitResponse(outcomes=reply.outcomes.tolist())

    @answers_errors
    async def Abort(self, request: Any, context: Any) -> Any:
        ids = convert.identities(request.ids, "ids", self._service.about.max_ids)
        generations = convert.words(request.generations, "generations", len(ids))
        tier = convert.arena_tier(request.tier, "tier")
        reply = self._service.abort(convert.session(request.session), ids, generations, tier)
        return pb.AbortResponse(outcomes=reply.outcomes.tolist())

    @answers_errors
    async def Store(self, request: Any, context: Any) -> Any:
        order = convert.store_order(request, self._service.about.max_ids)
        result = await self._stocks.store(order, deadline_of(context, request.timeout_ms))
        return convert.store_response(result, request, order.tier)

    @answers_errors
    async def Acquire(self, request: Any, context: Any) -> Any:
        reply = await self._service.acquire(
            convert.session(request.session), self._ids(request), convert.text(request.sequence, "sequence"),
            deadline_of(context, request.timeout_ms), request.call, request.device_memory,
        )
        return convert.acquire_response(reply)

    @answers_errors
    async def ReportDamage(self, request: Any, context: Any) -> Any:
        self._service.sessions.require(convert.session(request.session))
        deadline = deadline_of(context, request.timeout_ms)
        blocks = self._ids(request)
        self._service.namespaces.place(blocks.namespace, blocks.group)
        found = await verify(self._service, blocks.ids, m.BlockFilter(), True, deadline)
        counts = {"damaged_blocks": len(found.damaged), "intact_blocks": found.verified_blocks}
        log.warning("damage_reported", session=request.session, **counts)
        return pb.ReportDamageResponse(**counts)

    @answers_errors
    async def Release(self, request: Any, context: Any) -> Any:
        leases = convert.leases(request.leases, self._service.about.max_ids)
        released = self._service.release(convert.session(request.session), leases)
        return pb.ReleaseResponse(released_blocks=released)

    @answers_errors
    async def OpenSequence(self, request: Any, context: Any) -> Any:
        name = convert.text(request.sequence, "sequence", needed=True)
        session, deadline = convert.session(request.session), deadline_of(context, SHORT_CALL_MS)
        blocks = self._ids(request)
        others = convert.chains(request.others, self._service.about.max_ids - len(blocks), "others", least=0)
        reply = await self._service.open_sequence(
            session, name, blocks, deadline, convert.priority(request.priority), others
        )
        return pb.OpenSequenceResponse(
            step=reply.step, tiers=reply.tiers.tobytes(), hit_blocks=reply.hit_blocks
        )

    @answers_errors
    async def CloseSequence(self, request: Any, context: Any) -> Any:
        self._service.close_sequence(convert.close_sequence(request))
        return pb.CloseSequenceResponse()

    @answers_errors
    async def Observe(self, request: Any, context: Any) -> Any:
        reply = self._service.observe(convert.observation(request))
        return pb.ObserveResponse(step=reply.step, updated_blocks=reply.updated)

    @answers_errors
    async def SetBudget(self, request: Any, context: Any) -> Any:
        deadline = deadline_of(context, request.timeout_ms)
        return convert.set_budget_response(await self._service.set_budget(convert.set_budget(request), deadline))

    @answers_errors
    async def Evict(self, request: Any, context: Any) -> Any:
        to = convert.optional_tier(request.to, "to", convert.LOWER_TIERS)
        if to is None and not request.allow_drop:
            raise InvalidInput("allow_drop", "false, but without a tier in `to` all copies would be dropped")
        deadline = deadline_of(context, request.timeout_ms)
        reply = await self._service.evict(self._ids(request), to, request.allow_drop, deadline)
        return pb.EvictResponse(outcomes=reply.outcomes.tolist())

    @answers_errors
    async def Readmit(self, request: Any, context: Any) -> Any:
        to = convert.arena_tier(request.to, "to")
        reply = await self._service.readmit(self._ids(request), to, deadline_of(context, request.timeout_ms))
        return pb.ReadmitResponse(outcomes=reply.outcomes.tolist())

    @answers_errors
    async def Pin(self, request: Any, context: Any) -> Any:
        return convert.pin_response(self._service.pin(m.Pin(self._ids(request), request.ttl_ms / 1000)))

    @answers_errors
    async def Unpin(self, request: Any, context: Any) -> Any:
        return pb.UnpinResponse(unpinned_blocks=self._service.unpin(m.Unpin(self._ids(request))))

    @answers_errors
    async def Touch(self, request: Any, context: Any) -> Any:
        reply = self._service.touch(convert.touch(request, self._service.about.max_ids))
        return pb.TouchResponse(step=reply.step, touched_blocks=reply.blocks, touched_ghosts=reply.ghosts)

    @answers_errors
    async def Prefetch(self, request: Any, context: Any) -> Any:
        command = convert.prefetch(request, self._service.about.max_ids)
        reply = await self._service.prefetch(command, deadline_of(context, SHORT_CALL_MS))
        return convert.prefetch_response(reply)

    @answers_errors
    async def PrefetchStatus(self, request: Any, context: Any) -> Any:
        command = m.PrefetchStatus(convert.session(request.session), convert.ticket(request.ticket))
        deadline = deadline_of(context, request.timeout_ms)
        return convert.prefetch_response(await self._service.prefetch_status(command, deadline))

    @answers_errors
    async def CancelPrefetch(self, request: Any, context: Any) -> Any:
        command = m.CancelPrefetch(convert.session(request.session), convert.ticket(request.ticket))
        return convert.prefetch_response(self._service.cancel_prefetch(command))

    @answers_errors
    async def Shadow(self, request: Any, context: Any) -> Any:
        session, blocks = convert.session(request.session), self._ids(request)
        shadowed = shadow.shadowed(request, len(blocks))
        self._service.shadow_request(
            session, blocks, shadowed, begins=not request.continued, ends=request.ended)
        return pb.ShadowResponse()

    # Put takes and Get gives messages as bytes: see add_to_server.

    @answers_errors
    async def Put(self, requests: Any, context: Any) -> Any:
        header = await _first(requests)
        order = convert.put_order(header, self._service.about.max_ids)
        deadline = deadline_of(context, header.timeout_ms)
        outcomes = await streams.put(self._service, order, _data(requests), deadline)
        return pb.PutResponse(outcomes=convert.told(outcomes, header).tolist())

    @answers_errors
    async def Get(self, request: Any, context: Any) -> None:
        parts = streams.get(
            self._service, convert.session(request.session), self._ids(request),
            convert.text(request.sequence, "sequence"), deadline_of(context, request.timeout_ms),
        )
        framer = Framer()
        async with aclosing(parts):
            async for part in parts:
                for message in _get_messages(part, framer):
                    await send(context, message)
            for message in framer.end():
                await send(context, message)

    def _ids(self, request: Any) -> Any:
        return convert.block_ids(request.blocks, self._service.about.max_ids)

    def _session_info(self, session: sessions.Session) -> Any:
        about = self._service.about
        return pb.SessionInfo(
            session=session.number, token=session.token, boot_id=about.boot_id, instance_id=about.instance_id,
            attach_path=about.attach_path, heartbeat_ms=about.heartbeat_ms, max_ids=about.max_ids,
            max_held=about.max_held, policy_epoch=self._service.policy_epoch, server_version=about.version,
            stock_bytes=about.stock_bytes, commits_later=True,
        )


def add_to_server(servicer: BlocksServicer, server: Any) -> None:
    """Serves it. Messages with payload are not decoded or encoded by grpc: framing.py."""
    of_payload = {
        "Put": grpc.stream_unary_rpc_method_handler(
            servicer.Put, response_serializer=pb.PutResponse.SerializeToString),
        "Get": grpc.unary_stream_rpc_method_handler(
            servicer.Get, request_deserializer=pb.GetRequest.FromString),
    }
    # What was added first is found first.
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, of_payload),))
    blocks_pb2_grpc.add_BlocksServicer_to_server(servicer, server)


async def _hangs_up(session: sessions.Session, within_s: float) -> bool:
    """Waits for something to say to a session; True when its stream should close."""
    with suppress(TimeoutError):
        async with asyncio.timeout(within_s):
            await session.news.wait()
    session.news.clear()
    return session.hang_up.is_set()


async def _first(requests: AsyncIterator[bytes]) -> Any:
    try:
        async with asyncio.timeout(streams.STREAM_IDLE_S):
            return convert.put_header(await anext(requests, None))
    except TimeoutError as error:
        raise LimitReached(f"no header came for {streams.STREAM_IDLE_S:.0f} s") from error


async def _data(requests: AsyncIterator[bytes]) -> AsyncIterator[U8Array]:
    async for message in requests:
        yield convert.put_data(message)


def _get_messages(part: streams.GetHead | U8Array, framer: Framer) -> Iterable[bytes]:
    if isinstance(part, streams.GetHead):
        return [convert.get_header(part.reply, part.block_bytes).SerializeToString()]
    return framer.add(part)
