"""Lending over gRPC: each handler checks, calls, translates and returns."""

# ruff: noqa: N802 - names of handlers are those of the generated base class

from __future__ import annotations

from typing import Any

import numpy as np

from tierd.app.service import Service
from tierd.core.errors import InvalidInput
from tierd.core.loans import FIRST_POOL, HANDLE_BYTES, CudaRegion, Piece, PoolPlan
from tierd.rpc import convert
from tierd.rpc.deadline import deadline_of
from tierd.rpc.status import answers_errors
from tierd_client.v1 import lending_pb2 as pb
from tierd_client.v1 import lending_pb2_grpc

LEND_MS = 30_000
"""Bound of Lend: the first memory on a GPU makes a CUDA context there, which takes seconds."""

REGIONS_MAX, PIECES_MAX, PAGES_MAX = 1024, 4096, 1 << 24


class LendingServicer(lending_pb2_grpc.LendingServicer):  # type: ignore[misc]
    """The service `tierd.v1.Lending` on a Service."""

    def __init__(self, service: Service) -> None:
        self._service = service

    @answers_errors
    async def Lend(self, request: Any, context: Any) -> Any:
        session = convert.session(request.session)
        pool = await self._service.lend(session, _plan(request), deadline_of(context, LEND_MS))
        return pb.LendResponse(pool=pool)

    @answers_errors
    async def Adopt(self, request: Any, context: Any) -> Any:
        del context
        blocks = convert.block_ids(request.blocks, self._service.about.max_ids)
        fences = convert.words(request.fences or [0] * len(blocks), "fences", len(blocks))
        reply = self._service.adopt(
            convert.session(request.session), blocks, _pool(request.pool),
            convert.words(request.pages, "pages", len(blocks)), fences, convert.text(request.sequence, "sequence"),
        )
        return pb.AdoptResponse(outcomes=reply.outcomes.tolist())

    @answers_errors
    async def Withdraw(self, request: Any, context: Any) -> Any:
        if len(request.pages) > self._service.about.max_ids:
            raise InvalidInput("pages", f"{len(request.pages)}, more than {self._service.about.max_ids}")
        pages = np.array(request.pages, np.uint64) if request.pages else None
        reply = await self._service.withdraw(
            convert.session(request.session), _pool(request.pool), pages, request.save,
            deadline_of(context, request.timeout_ms),
        )
        return pb.WithdrawResponse(outcomes=reply.outcomes.tolist(), pages=reply.pages.tolist())


def _pool(number: int) -> int:
    if number < FIRST_POOL:
        raise InvalidInput("pool", f"{number} is no number of a pool")
    return number


def _plan(request: pb.LendRequest) -> PoolPlan:
    """What a session wants to lend; whether it fits the memory is found out when that is opened."""
    for field, most in (("regions", REGIONS_MAX), ("pieces", PIECES_MAX)):
        if not 1 <= len(getattr(request, field)) <= most:
            raise InvalidInput(field, f"{len(getattr(request, field))}: 1 to {most} are possible")
    if not 1 <= request.pages <= PAGES_MAX:
        raise InvalidInput("pages", f"{request.pages}: 1 to {PAGES_MAX} are possible")
    pieces = tuple(Piece(one.region, one.offset, one.stride, one.bytes) for one in request.pieces)
    for index, piece in enumerate(pieces):
        if not piece.bytes:
            raise InvalidInput(f"pieces[{index}].bytes", "0: a piece has bytes")
    regions = tuple(_region(one, f"regions[{index}]") for index, one in enumerate(request.regions))
    return PoolPlan(regions, pieces, request.pages, request.fence_region or None)


def _region(region: pb.LentRegion, field: str) -> int | CudaRegion:
    if region.WhichOneof("memory") == "shared":
        return int(region.shared)
    if region.WhichOneof("memory") != "cuda":
        raise InvalidInput(field, "neither shared nor cuda is set")
    cuda = region.cuda
    if len(cuda.handle) != HANDLE_BYTES:
        raise InvalidInput(f"{field}.cuda.handle", f"{len(cuda.handle)} bytes, not {HANDLE_BYTES}")
    device = convert.text(cuda.device, f"{field}.cuda.device", needed=True)
    if not cuda.bytes:
        raise InvalidInput(f"{field}.cuda.bytes", "0: a region has bytes")
    return CudaRegion(device, bytes(cuda.handle), cuda.offset, cuda.bytes)
