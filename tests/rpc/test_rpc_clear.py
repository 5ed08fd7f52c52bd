"""Clearing by filter, and what each namespace and tenant has: many layouts in one daemon."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import grpc
import numpy as np
import pytest
from rpc_daemon import BLOCK, DEADLINE_S, Daemon, block_ids, identity, run, until

from tierd.app import unlinks
from tierd.testing.faulty import Fault, Operation, Scripted
from tierd_client.layout import Group, Layout, Part
from tierd_client.v1 import admin_pb2 as apb
from tierd_client.v1 import blocks_pb2 as pb

GROUPS = [Group(name, 1, (Part("k", "uint8", (BLOCK,)),)) for name in ("one", "two")]
LAYOUTS = {
    1: Layout.opaque(block_bytes=BLOCK, model="a", weights_epoch=1, tenant_salt=b"acme"),
    2: Layout.opaque(block_bytes=BLOCK, model="a", weights_epoch=2, tenant_salt=b"acme"),
    3: Layout.opaque(block_bytes=BLOCK, model="a", revision="r", weights_epoch=3),
    4: Layout.of_groups(GROUPS, model="b", tenant_salt=b"other"),
}
"""By number; namespace n holds block n, and number 4 block 5 as well, in its second group."""


async def fill(d: Daemon) -> int:
    for number, layout in LAYOUTS.items():
        assert await d.namespace(layout) == number
    session = (await d.session()).number
    for number in LAYOUTS:
        await d.store_blocks(session, block_ids(number, namespace=number))
    await d.store_blocks(session, block_ids(5, namespace=4, group=1))
    await d.evict(block_ids(1, namespace=1))
    return session


def filled(body: Callable[[Daemon, int], Awaitable[None]], directory: Path) -> None:
    async def main(d: Daemon) -> None:
        await body(d, await fill(d))

    run(main, directory)


async def would_go(d: Daemon, **fields: object) -> set[int]:
    """Numbers of the blocks that a filter takes, after a dry run that must announce as many."""
    where = apb.BlockFilter(**fields)
    listed = await d.admin.ListBlocks(apb.ListBlocksRequest(filter=where), timeout=DEADLINE_S)
    dry = await d.admin.Clear(apb.ClearRequest(filter=where, dry_run=True), timeout=DEADLINE_S)
    numbers = {identity(number): number for number in range(1, 6)}
    found = {numbers[block.identity] for block in listed.blocks}
    assert dry.host_blocks + dry.spill_blocks + dry.in_use_blocks == len(found)
    return found


def test_filters_by_layout(tmp_path: Path) -> None:
    """Model, revision, epoch, tenant, group and age each take exactly the blocks of which they are true; together
    they take what all of them take."""

    async def body(d: Daemon, session: int) -> None:
        acme, other = LAYOUTS[1].tenant, LAYOUTS[4].tenant
        assert await would_go(d) == {1, 2, 3, 4, 5}
        assert await would_go(d, model="a") == {1, 2, 3}
        assert await would_go(d, model="c") == set()
        assert await would_go(d, revision="r") == {3}
        assert await would_go(d, revision="") == {1, 2, 4, 5}
        assert await would_go(d, weights_epoch=2) == {2}
        assert await would_go(d, weights_epoch_below=2) == {1, 4, 5}
        assert await would_go(d, tenant=acme) == {1, 2}
        assert await would_go(d, tenant="") == {3}
        assert await would_go(d, group=1) == {5}
        assert await would_go(d, tenant=other, group=0) == {4}
        assert await would_go(d, model="a", weights_epoch_below=3, tier=pb.TIER_HOST) == {2}
        assert await would_go(d, namespace=1, tenant=other) == set()
        row = d.engine.state.catalog.find(np.frombuffer(identity(3), np.uint8)[None])
        d.engine.state.catalog.wall[row] -= 100
        assert await would_go(d, older_than_s=90) == {3}
        assert await would_go(d, older_than_s=1e9) == set()

    filled(body, tmp_path)


def test_clear_skips_what_is_in_use_and_names_it(tmp_path: Path) -> None:
    """A clear of a tenant removes its blocks in every tier and nobody else's; one under lease stays and is named;
    the answer has the bytes of slots per tier."""

    async def body(d: Daemon, session: int) -> None:
        lease = (await d.acquire(session, block_ids(2, namespace=2))).lease
        where = apb.BlockFilter(tenant=LAYOUTS[1].tenant)
        dry = await d.admin.Clear(apb.ClearRequest(filter=where, dry_run=True), timeout=DEADLINE_S)
        done = await d.admin.Clear(apb.ClearRequest(filter=where), timeout=DEADLINE_S)
        assert done == dry
        went = {tier.tier: (tier.blocks, tier.bytes) for tier in done.tiers}
        assert went == {pb.TIER_HBM: (0, 0), pb.TIER_HOST: (0, 0), pb.TIER_SPILL: (1, BLOCK)}
        assert (done.in_use_blocks, done.in_use_ids) == (1, identity(2))
        assert await would_go(d) == {2, 3, 4, 5}
        await d.release(session, lease)
        await d.admin.Clear(apb.ClearRequest(filter=where), timeout=DEADLINE_S)
        assert await would_go(d) == {3, 4, 5}
        await d.check_balance()

    filled(body, tmp_path)


def test_clear_of_one_tier_leaves_the_others(tmp_path: Path) -> None:
    """With a tier in the filter only the copies there go, and only they are counted."""

    async def body(d: Daemon, session: int) -> None:
        await d.readmit(block_ids(1, namespace=1))
        done = await d.admin.Clear(apb.ClearRequest(filter=apb.BlockFilter(tier=pb.TIER_HOST)), timeout=DEADLINE_S)
        assert [(tier.tier, tier.blocks) for tier in done.tiers] == [(pb.TIER_HOST, 5)]
        assert await d.tiers_of(block_ids(1, namespace=1)) == [4]

    filled(body, tmp_path)


@pytest.mark.parametrize("by_tenant", [False, True])
def test_shares_add_up(tmp_path: Path, by_tenant: bool) -> None:
    """The shares of all namespaces, and of all tenants, add up to each tier's used and reserved bytes, with blocks
    in spill and slots that are being written."""

    async def body(d: Daemon, session: int) -> None:
        await d.reserve(session, block_ids(7, 8, namespace=3))
        request = apb.ListNamespacesRequest(by_tenant=by_tenant)
        shares = (await d.admin.ListNamespaces(request, timeout=DEADLINE_S)).namespaces
        tiers = (await d.admin.Occupancy(apb.OccupancyRequest(), timeout=DEADLINE_S)).tiers
        for tier in tiers:
            mine = [one for share in shares for one in share.tiers if one.tier == tier.tier]
            assert sum(one.blocks for one in mine) == tier.blocks
            assert sum(one.used_bytes for one in mine) == tier.used_bytes
            assert sum(one.reserved_bytes for one in mine) == tier.reserved_bytes

    filled(body, tmp_path)


def test_namespaces_and_tenants_are_listed(tmp_path: Path) -> None:
    """A namespace shows its layout and a hash in place of the salt; a tenant is the sum of its namespaces; pages
    hold each once."""

    async def body(d: Daemon, session: int) -> None:
        found, offset = [], 0
        while offset or not found:
            request = apb.ListNamespacesRequest(page_size=3, offset=offset)
            page = await d.admin.ListNamespaces(request, timeout=DEADLINE_S)
            found += page.namespaces
            offset = page.next_offset
        assert [one.namespace for one in found] == [1, 2, 3, 4]
        assert (found[2].model, found[2].revision, found[2].weights_epoch, found[2].tenant) == ("a", "r", 3, "")
        assert found[0].tenant == LAYOUTS[1].tenant and len(found[0].tenant) == 16
        assert b"acme" not in found[0].SerializeToString()
        assert list(found[3].block_bytes) == [BLOCK, BLOCK] and found[3].fingerprint == LAYOUTS[4].fingerprint
        assert [one.blocks for one in found[3].tiers] == [0, 2, 0]
        request = apb.ListNamespacesRequest(by_tenant=True)
        tenants = (await d.admin.ListNamespaces(request, timeout=DEADLINE_S)).namespaces
        assert {one.tenant: sum(tier.used_bytes for tier in one.tiers) for one in tenants} == {
            LAYOUTS[1].tenant: 2 * BLOCK, LAYOUTS[4].tenant: 2 * BLOCK, "": BLOCK,
        }
        assert {one.domain for one in tenants} == {"default"} and not any(one.namespace for one in tenants)

    filled(body, tmp_path)


def test_filters_where_a_tier_is_off(tmp_path: Path) -> None:
    """Without a spill tier a listing and a clear of any tier find what there is; the tier itself is named."""

    async def body(d: Daemon) -> None:
        await d.namespace()
        await d.store_blocks((await d.session()).number, block_ids(1, 2))
        listed = await d.admin.ListBlocks(apb.ListBlocksRequest(), timeout=DEADLINE_S)
        assert {block.identity for block in listed.blocks} == {identity(1), identity(2)}
        with pytest.raises(grpc.aio.AioRpcError, match=r"filter.tier: the spill tier is off"):
            await d.admin.Clear(apb.ClearRequest(filter=apb.BlockFilter(tier=pb.TIER_SPILL)), timeout=DEADLINE_S)
        cleared = await d.admin.Clear(apb.ClearRequest(), timeout=DEADLINE_S)
        assert (cleared.host_blocks, cleared.spill_blocks) == (2, 0)

    run(body, tmp_path, spill=False)


async def spilled(d: Daemon, count: int) -> pb.BlockIds:
    """So many blocks in the spill tier alone."""
    await d.namespace()
    ids = block_ids(*range(count))
    await d.store_blocks((await d.session()).number, ids)
    assert set(await d.evict(ids)) == {pb.EVICT_OUTCOME_MOVED}
    return ids


def test_clear_answers_when_what_was_stored_is_deleted(tmp_path: Path) -> None:
    """When a Clear is answered no value of its blocks is in the store; where deletes take longer than the call may,
    it says how many are still to come, and the next one that they are done."""
    script = Scripted([Fault.DELAY], [Operation.UNLINK])

    async def body(d: Daemon) -> None:
        await spilled(d, 5)
        first = await d.admin.Clear(apb.ClearRequest(), timeout=1.5)
        assert (first.spill_blocks, first.left_blocks, first.deletes_waiting) == (5, 0, 5)
        d.faulty.resume.set()
        second = await d.admin.Clear(apb.ClearRequest(), timeout=DEADLINE_S)
        assert (second.spill_blocks, second.deletes_waiting) == (0, 0)
        assert not d.store.values

    run(body, tmp_path, script=script, op_timeout_s=10.0)


def test_clear_while_the_spill_tier_is_down(tmp_path: Path) -> None:
    """A Clear does not wait for a server that is away: it says that deletes are to come, and they are made
    later."""
    script = Switchable()

    async def body(d: Daemon) -> None:
        ids = await spilled(d, 5)
        script.fault = Fault.DOWN
        await until(lambda: not d.watch.is_up)
        began = asyncio.get_running_loop().time()
        cleared = await d.admin.Clear(apb.ClearRequest(), timeout=DEADLINE_S)
        assert asyncio.get_running_loop().time() - began < 1.0
        assert (cleared.spill_blocks, cleared.deletes_waiting) == (5, 5)
        assert await d.tiers_of(ids) == [0] * 5
        script.fault = Fault.NONE
        await until(lambda: not d.store.values)
        assert (await d.admin.Clear(apb.ClearRequest(), timeout=DEADLINE_S)).deletes_waiting == 0

    run(body, tmp_path, script=script)


def test_more_deletes_than_may_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks for whose delete there is no room are left and counted, the others go; cleared again and again,
    all are gone in the end, and no value is left behind in the store."""
    monkeypatch.setattr(unlinks, "IDENTITIES_WAITING_MAX", 2)

    async def body(d: Daemon) -> None:
        await spilled(d, 5)
        await d.store_blocks((await d.session()).number, block_ids(10))
        seen = []
        for _ in range(3):
            cleared = await d.admin.Clear(apb.ClearRequest(), timeout=DEADLINE_S)
            seen.append((cleared.host_blocks, cleared.spill_blocks, cleared.left_blocks))
        assert seen == [(1, 2, 3), (0, 2, 1), (0, 1, 0)]
        assert not d.store.values

    run(body, tmp_path)


class Switchable:
    """A script whose one fault a test changes."""

    def __init__(self) -> None:
        self.fault = Fault.NONE

    def next(self, operation: Operation) -> Fault:
        del operation
        return self.fault
