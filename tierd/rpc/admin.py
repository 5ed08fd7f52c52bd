"""The control plane over gRPC: each handler checks, calls, translates and returns."""

# ruff: noqa: N802, ARG002 - names and parameters of handlers are those of the generated base class

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import Any

from tierd.app.drain import drain
from tierd.app.service import Service
from tierd.app.shares import by_tenant
from tierd.app.verify import verify
from tierd.core import messages as m
from tierd.core.errors import InvalidInput
from tierd.rpc import convert, shadow
from tierd.rpc.access import is_local
from tierd.rpc.deadline import SHORT_CALL_MS, deadline_of, deadline_within, send
from tierd.rpc.status import answers_errors
from tierd_client.v1 import admin_pb2 as pb
from tierd_client.v1 import admin_pb2_grpc


class AdminServicer(admin_pb2_grpc.AdminServicer):  # type: ignore[misc]
    """The service `tierd.v1.Admin` on a Service."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._began = asyncio.get_running_loop().time()

    @answers_errors
    async def Occupancy(self, request: Any, context: Any) -> Any:
        reply = self._service.occupancy()
        names = [name for name in m.OccupancyReply.__slots__ if name != "tiers"]
        return pb.OccupancyResponse(
            tiers=self._tiers(reply), boot_id=self._service.about.boot_id,
            instance_id=self._service.about.instance_id,
            uptime_s=asyncio.get_running_loop().time() - self._began,
            **{name: getattr(reply, name) for name in names},
        )

    @answers_errors
    async def ListNamespaces(self, request: Any, context: Any) -> Any:
        shares = self._service.shares()
        found = by_tenant(shares) if request.by_tenant else shares
        return convert.namespaces_response(found, request.offset, convert.count(request.page_size, "page_size"))

    @answers_errors
    async def ListSequences(self, request: Any, context: Any) -> Any:
        page = self._service.list_sequences(convert.count(request.page_size, "page_size"), request.offset)
        return convert.sequences_response(page, request.offset)

    @answers_errors
    async def ListBlocks(self, request: Any, context: Any) -> Any:
        page = self._service.list_blocks(convert.list_blocks(request, self._service.namespaces))
        return pb.ListBlocksResponse(blocks=self._records(page), next_page_token=page.next)

    @answers_errors
    async def DescribeBlock(self, request: Any, context: Any) -> Any:
        return pb.DescribeBlockResponse(blocks=self._records(self._service.describe(self._ids(request))))

    @answers_errors
    async def Explain(self, request: Any, context: Any) -> Any:
        reply = self._service.explain(self._ids(request), convert.needed_tier(request.tier, "tier"))
        blocks = [convert.explanation(one) for one in reply.blocks]
        return pb.ExplainResponse(blocks=blocks, policy=reply.policy, step=reply.step)

    @answers_errors
    async def Plan(self, request: Any, context: Any) -> Any:
        tier = convert.needed_tier(request.tier, "tier")
        return convert.plan_response(self._service.plan(tier, request.bytes, convert.count(request.limit, "limit")))

    @answers_errors
    async def GetConfig(self, request: Any, context: Any) -> Any:
        return pb.GetConfigResponse(json=self._service.about.config_json)

    @answers_errors
    async def SetPolicy(self, request: Any, context: Any) -> Any:
        spec = convert.text(request.policy, "policy", needed=True, most=convert.POLICY_BYTES_MAX)
        reply = self._service.set_policy(spec)
        return pb.SetPolicyResponse(policy=reply.spec, policy_epoch=reply.epoch)

    @answers_errors
    async def Clear(self, request: Any, context: Any) -> Any:
        command = convert.clear(request, self._service.namespaces)
        return convert.clear_response(*await self._service.clear(command, deadline_of(context, SHORT_CALL_MS)))

    @answers_errors
    async def SwitchEpoch(self, request: Any, context: Any) -> Any:
        name = convert.text(request.name, "name", needed=True)
        deadline = deadline_of(context, SHORT_CALL_MS)
        before, now = await self._service.switch_epoch(name, request.weights_epoch, deadline)
        return pb.SwitchEpochResponse(
            namespace=now.number, namespace_before=before.number, weights_epoch_before=before.layout.weights_epoch
        )

    @answers_errors
    async def Drain(self, request: Any, context: Any) -> None:
        where = convert.block_filter(request.filter, self._service.namespaces)
        deadline = deadline_within(context, convert.drain_timeout_s(request.timeout_s))
        async with aclosing(drain(self._service, where, request.bytes_per_s, deadline)) as parts:
            async for progress in parts:
                await send(context, convert.drain_progress(progress))

    @answers_errors
    async def Verify(self, request: Any, context: Any) -> Any:
        where = convert.block_filter(request.filter, self._service.namespaces)
        if request.ids and request.HasField("filter"):
            raise InvalidInput("filter", "given together with ids: verify takes one or the other")
        # Verifying is work, not waiting: without a timeout of its own only the RPC's deadline bounds it.
        deadline = deadline_of(context, request.timeout_ms or convert.TIMEOUT_MS_MAX)
        ids = self._ids(request) if request.ids else None
        found = await verify(self._service, ids, where, request.repair, deadline)
        return pb.VerifyResponse(
            verified_blocks=found.verified_blocks, verified_bytes=found.verified_bytes, damaged=found.damaged,
            skipped_blocks=found.skipped_blocks,
        )

    @answers_errors
    async def ShadowStats(self, request: Any, context: Any) -> Any:
        mode, namespaces = self._service.shadow, self._service.namespaces
        return pb.ShadowStatsResponse(
            namespaces=[shadow.namespace_figures(one, namespaces.get(one.namespace)) for one in mode.figures()],
            left_out_calls_total=mode.left_out_total,
        )

    @answers_errors
    async def AttachSpill(self, request: Any, context: Any) -> Any:
        url = convert.text(request.url, "url", needed=True, most=convert.URL_BYTES_MAX)
        deadline = deadline_of(context, request.timeout_ms or SHORT_CALL_MS)
        forgotten = await self._service.attach_spill(url, request.replace, deadline, files=is_local(context))
        return pb.AttachSpillResponse(forgotten_blocks=forgotten)

    @answers_errors
    async def DetachSpill(self, request: Any, context: Any) -> Any:
        deadline = deadline_of(context, SHORT_CALL_MS)
        return pb.DetachSpillResponse(forgotten_blocks=await self._service.detach_spill(deadline))

    def _ids(self, request: Any) -> Any:
        return convert.identities(
            request.ids, "ids", min(self._service.about.max_ids, convert.RECORD_IDS_MAX)
        )

    def _records(self, page: m.BlockPage) -> list[Any]:
        name_of = self._service.namespaces.name_of
        return [convert.block_record(view, name_of(view.namespace) if view else "") for view in page.blocks]

    def _tiers(self, reply: m.OccupancyReply) -> list[Any]:
        """Each tier, those that are off with their state alone."""
        on, service = {one.tier: one for one in reply.tiers}, self._service
        return [
            convert.tier_occupancy(tier, on.get(tier), service.requested_bytes(tier), service.tier_state(tier))
            for tier in m.Tier
        ]
