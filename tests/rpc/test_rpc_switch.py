"""Weights of another epoch: a switch, and the sweep that follows it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import grpc
import pytest
from rpc_daemon import BLOCK, DEADLINE_S, Daemon, block_ids, register_request, run, until

from tierd.app import sweep
from tierd.core.messages import Tier
from tierd_client.layout import Layout
from tierd_client.v1 import admin_pb2 as apb
from tierd_client.v1 import blocks_pb2 as pb

OLD = Layout.opaque(block_bytes=BLOCK)
NEW = OLD.replace(weights_epoch=1)


@pytest.fixture(autouse=True)
def small_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweep, "SLICE_BLOCKS", 4)
    monkeypatch.setattr(sweep, "IN_USE_PAUSE_S", 0.01)


async def switch(d: Daemon, epoch: int, name: str = "policy") -> Any:
    request = apb.SwitchEpochRequest(name=name, weights_epoch=epoch)
    return await d.admin.SwitchEpoch(request, timeout=DEADLINE_S)


def blocks_of(d: Daemon, namespace: int) -> int:
    """Identities with a copy, from the catalog itself."""
    catalog = d.engine.state.catalog
    return int((catalog.namespace[catalog.used] == namespace).sum())


def test_the_old_weights_are_swept(tmp_path: Path) -> None:
    """After a switch all blocks of before go, slice by slice and from every tier, those in use when they are free
    again; other namespaces keep theirs, and stored values are deleted."""

    async def body(d: Daemon) -> None:
        old, other = await d.namespace(OLD, "policy"), await d.namespace(Layout.opaque(block_bytes=64), "other")
        session = (await d.session()).number
        mine = block_ids(*range(10), namespace=old)
        await d.store_blocks(session, mine)
        await d.evict(block_ids(0, 1, 2, namespace=old), Tier.SPILL)
        kept = await d.reserve(session, block_ids(100, 101, namespace=other))
        assert list(kept.outcomes) == [pb.RESERVE_OUTCOME_GRANTED] * 2
        lease = (await d.acquire(session, block_ids(5, namespace=old))).lease
        reply = await switch(d, 1)
        assert (reply.namespace_before, reply.weights_epoch_before) == (old, 0)
        await until(lambda: blocks_of(d, old) == 1)
        await until(lambda: d.service.mover.unlinks_waiting == 0 and not d.store.values)
        assert blocks_of(d, other) == 2
        await d.release(session, lease)
        await until(lambda: blocks_of(d, old) == 0)
        assert await d.namespace(NEW, "policy") == reply.namespace
        await d.check_balance()

    run(body, tmp_path)


def test_weights_never_read_each_other(tmp_path: Path) -> None:
    """A block of the old weights is a miss under the new ones' number, and is refused as theirs."""

    async def body(d: Daemon) -> None:
        old = await d.namespace(OLD)
        session = (await d.session()).number
        await d.store_blocks(session, block_ids(1, namespace=old))
        new = await d.namespace(NEW)
        acquired = await d.acquire(session, block_ids(1, namespace=new))
        assert list(acquired.outcomes) == [pb.ACQUIRE_OUTCOME_MISS]
        with pytest.raises(grpc.aio.AioRpcError, match="is a block of namespace 1"):
            await d.reserve(session, block_ids(1, namespace=new))

    run(body, tmp_path)


def test_the_sweep_stops_for_who_wants_the_blocks(tmp_path: Path) -> None:
    """A switch back keeps what is not swept yet, and a straggler that registers the old layout under the name is
    refused with the field in which it differs."""

    async def body(d: Daemon) -> None:
        old = await d.namespace(OLD, "policy")
        session = (await d.session()).number
        await d.store_blocks(session, block_ids(*range(8), namespace=old))
        lease = (await d.acquire(session, block_ids(*range(8), namespace=old))).lease
        await switch(d, 1)
        with pytest.raises(grpc.aio.AioRpcError, match="differs in weights_epoch") as caught:
            await d.blocks.RegisterNamespace(register_request(OLD, "policy"), timeout=DEADLINE_S)
        assert caught.value.code() == grpc.StatusCode.FAILED_PRECONDITION
        assert (await switch(d, 0)).namespace == old
        await d.release(session, lease)
        await switch(d, 0)
        assert await d.tiers_of(block_ids(*range(8), namespace=old)) == [2] * 8

    run(body, tmp_path)


def test_a_sweep_waits_for_deletes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While more deletes wait than may, nothing is swept, so that none is given up as garbage."""
    waiting = [sweep.UNLINKS_WAITING_MAX + 1]
    monkeypatch.setattr("tierd.app.mover.Mover.unlinks_waiting", property(lambda _: waiting[0]))

    async def body(d: Daemon) -> None:
        old = await d.namespace(OLD, "policy")
        session = (await d.session()).number
        await d.store_blocks(session, block_ids(*range(8), namespace=old))
        await switch(d, 1)
        looked = [0]
        clear = d.service.sweep._clear
        monkeypatch.setattr(d.service.sweep, "_clear", lambda of: (looked.append(0), clear(of))[1])
        await until(lambda: len(looked) > 3)
        assert blocks_of(d, old) == 8
        waiting[0] = 0
        await until(lambda: blocks_of(d, old) == 0)

    run(body, tmp_path)
