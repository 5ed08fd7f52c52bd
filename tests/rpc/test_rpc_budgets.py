"""SetBudget over gRPC: fields, defaults and limits, and copies down that it waits for."""

from __future__ import annotations

from pathlib import Path

import grpc
import numpy as np
import pytest
from rpc_daemon import Daemon, Tier, block_ids, run

from tierd_client.v1 import blocks_pb2 as pb

KEPT, AWAY, LEAVING = pb.BLOCK_RESIDENCY_KEPT, pb.BLOCK_RESIDENCY_AWAY, pb.BLOCK_RESIDENCY_LEAVING


async def _opened(d: Daemon, blocks: pb.BlockIds) -> int:
    await d.namespace()
    session = (await d.session()).number
    await d.blocks.OpenSequence(pb.OpenSequenceRequest(session=session, sequence="r", blocks=blocks))
    return session


async def _set(d: Daemon, session: int, **fields: object) -> pb.SetBudgetResponse:
    request = pb.SetBudgetRequest(session=session, sequence="r", **{"timeout_ms": 5000, **fields})
    return await d.blocks.SetBudget(request)


def test_what_is_over_is_copied_down_before_the_answer(tmp_path: Path) -> None:
    """Of eight blocks the three of the budget are in hbm when the call returns, its other fields at their defaults;
    those that went are in host, are leased from there, and not re-admitted."""

    async def body(d: Daemon) -> None:
        blocks = block_ids(*range(8), chain=True)
        session = await _opened(d, blocks)
        await d.store_blocks(session, blocks, Tier.HBM)
        mass = np.array([0, 0, 0.5, 0, 0, 0.25, 0, 0], "<f4").tobytes()
        reply = await _set(d, session, budget=pb.SequenceBudget(blocks=3), attention=mass, steps=32)
        assert list(reply.residency) == [AWAY, AWAY, KEPT, AWAY, AWAY, AWAY, KEPT, KEPT]
        assert (reply.budget.recent_blocks, reply.budget.policy) == (2, "h2o")
        assert await d.tiers_of(blocks) == [2, 2, 1, 2, 2, 2, 1, 1]
        assert await d.readmit(block_ids(0), Tier.HBM) == [pb.READMIT_OUTCOME_FULL]
        lease = await d.acquire(session, blocks)
        assert list(lease.outcomes) == [pb.ACQUIRE_OUTCOME_LEASED] * 8
        again = await _set(d, session, timeout_ms=0)
        assert list(again.residency) == list(reply.residency)

    run(body, tmp_path)


@pytest.mark.parametrize(("fields", "field"), [
    ({"budget": pb.SequenceBudget()}, "budget.blocks"),
    ({"budget": pb.SequenceBudget(blocks=2**18 + 1)}, "budget.blocks"),
    ({"budget": pb.SequenceBudget(blocks=4, recent_blocks=4, sink_blocks=1)}, "budget.blocks"),
    ({"budget": pb.SequenceBudget(blocks=4, policy="x" * 1025)}, "budget.policy"),
    ({"budget": pb.SequenceBudget(blocks=4, policy="lru")}, "budget.policy"),
    ({"budget": pb.SequenceBudget(blocks=4), "attention": b"123"}, "attention"),
    ({"budget": pb.SequenceBudget(blocks=4), "attention": bytes(12)}, "attention"),
    ({"budget": pb.SequenceBudget(blocks=4), "steps": 1_000_001}, "steps"),
    ({"budget": pb.SequenceBudget(blocks=4), "timeout_ms": 600_001}, "timeout_ms"),
])
def test_what_is_wrong_is_named(tmp_path: Path, fields: dict[str, object], field: str) -> None:
    """INVALID_ARGUMENT names the field, and no budget is set."""

    async def body(d: Daemon) -> None:
        session = await _opened(d, block_ids(1, 2, chain=True))
        with pytest.raises(grpc.aio.AioRpcError, match=field) as refused:
            await _set(d, session, **fields)
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        with pytest.raises(grpc.aio.AioRpcError) as none:
            await _set(d, session)
        assert none.value.code() is grpc.StatusCode.FAILED_PRECONDITION

    run(body, tmp_path)


def test_blocks_of_a_budget_come_by_reserve(tmp_path: Path) -> None:
    """A Store into hbm in a sequence with a budget is refused, and says what to do."""

    async def body(d: Daemon) -> None:
        session = await _opened(d, block_ids(1, chain=True))
        await _set(d, session, budget=pb.SequenceBudget(blocks=4))
        store = pb.StoreRequest(
            session=session, sequence="r", blocks=block_ids(1, chain=True), generations=[0], checksums=[0],
            tier=pb.TIER_HBM,
        )
        with pytest.raises(grpc.aio.AioRpcError, match="come to hbm by Reserve") as refused:
            await d.blocks.Store(store)
        assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION

    run(body, tmp_path)
