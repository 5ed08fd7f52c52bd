"""The control plane: what an operator asks of the daemon."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import grpc
import numpy as np
import pytest
from rpc_daemon import BLOCK, DEADLINE_S, Daemon, block_ids, identity, ids_of, run, until

from tierd.core.messages import Tier
from tierd.testing.faulty import Fault, Operation, Scripted
from tierd_client.v1 import admin_pb2 as apb
from tierd_client.v1 import blocks_pb2 as pb


async def describe(d: Daemon, *seeds: int) -> list[apb.BlockRecord]:
    reply = await d.admin.DescribeBlock(apb.DescribeBlockRequest(ids=ids_of(*seeds)), timeout=DEADLINE_S)
    return list(reply.blocks)


async def verify(d: Daemon, **fields: object) -> apb.VerifyResponse:
    return await d.admin.Verify(apb.VerifyRequest(**fields), timeout=DEADLINE_S)


def test_occupancy(tmp_path: Path) -> None:
    """The bytes of each tier add up to its capacity, and the totals count what happened."""

    async def body(d: Daemon) -> None:
        await d.namespace()
        session = (await d.session()).number
        await d.store_blocks(session, block_ids(1, 2, 3))
        await d.evict(block_ids(3))
        await d.acquire(session, block_ids(1, 9))
        await d.reserve(session, block_ids(5))
        reply = await d.admin.Occupancy(apb.OccupancyRequest(), timeout=DEADLINE_S)
        hbm, host, spill = reply.tiers
        assert [tier.tier for tier in reply.tiers] == [pb.TIER_HBM, pb.TIER_HOST, pb.TIER_SPILL]
        assert (host.capacity_bytes, host.requested_bytes, host.used_bytes) == (64 * BLOCK, 64 * BLOCK, 2 * BLOCK)
        assert (host.reserved_bytes, host.quarantined_bytes, host.blocks) == (BLOCK, 0, 2)
        assert (host.leased_blocks, host.evictable_blocks, host.stored_total) == (1, 1, 3)
        assert (host.serving, host.state, host.demoted_total, host.hits_total) == (True, "serving", 1, 1)
        assert (hbm.blocks, spill.blocks, reply.misses_total) == (0, 1, 1)
        assert (reply.identities, reply.sessions, reply.leases) == (4, 1, 1)
        assert (reply.boot_id, reply.instance_id) == (bytes([1] * 16), bytes([2] * 16))
        assert reply.uptime_s > 0 and reply.policy.startswith("lru") and reply.step > 0
        await d.check_balance()

    run(body, tmp_path)


def test_describe(tmp_path: Path) -> None:
    """A record shows its namespace's name, its place in the chain, its copies and its statistics; an unknown
    identity is an empty record, a ghost has no copies."""

    async def body(d: Daemon) -> None:
        await d.namespace(name="llama")
        session = (await d.session()).number
        await d.store_blocks(session, block_ids(1, 2, chain=True))
        lease = (await d.acquire(session, block_ids(2))).lease
        await d.evict(block_ids(1))
        first, second, unknown = await describe(d, 1, 2, 9)
        assert (first.identity, first.namespace, first.namespace_name, first.group) == (identity(1), 1, "llama", 0)
        assert [(c.tier, c.state) for c in first.copies] == [(pb.TIER_SPILL, "READY")]
        assert (second.position, second.parent, second.block_bytes) == (1, identity(1), BLOCK)
        assert (second.touches, second.copies[0].leases, second.copies[0].address >> 48) == (2, 1, 1)
        assert second.checksum and second.last_wall_s > 0 and second.copies[0].generation
        assert unknown == apb.BlockRecord()
        await d.release(session, lease)
        await d.evict(block_ids(2), None, allow_drop=True)
        ghost = (await describe(d, 2))[0]
        assert ghost.ghost and not ghost.copies and ghost.touches == 2

    run(body, tmp_path)


def test_filling_copies_are_shown(tmp_path: Path) -> None:
    """A block that is being written is described as FILLING."""

    async def body(d: Daemon) -> None:
        await d.namespace()
        session = (await d.session()).number
        await d.reserve(session, block_ids(1))
        assert [(c.tier, c.state) for c in (await describe(d, 1))[0].copies] == [(pb.TIER_HOST, "FILLING")]

    run(body, tmp_path)


def test_list_pages(tmp_path: Path) -> None:
    """Pages by identity hold each block once, in order, and the last has no token."""

    async def body(d: Daemon) -> None:
        await d.namespace()
        session = (await d.session()).number
        await d.store_blocks(session, block_ids(*range(1, 11)))
        found, token, pages = [], b"", 0
        while token or not pages:
            request = apb.ListBlocksRequest(page_size=4, page_token=token)
            page = await d.admin.ListBlocks(request, timeout=DEADLINE_S)
            found += [block.identity for block in page.blocks]
            token, pages = page.next_page_token, pages + 1
        assert found == sorted(identity(seed) for seed in range(1, 11)) and pages == 3

    run(body, tmp_path)


def test_list_filters(tmp_path: Path) -> None:
    """Filters by tier, prefix, namespace and use select those blocks alone; by rank the next victim is first."""

    async def body(d: Daemon) -> None:
        await d.namespace()
        session = (await d.session()).number
        for seed in (1, 2, 3):
            await d.store_blocks(session, block_ids(seed))
        await d.evict(block_ids(3))
        await d.acquire(session, block_ids(1))

        async def listed(sort: int = 0, **fields: object) -> list[bytes]:
            request = apb.ListBlocksRequest(filter=apb.BlockFilter(**fields), sort=sort)
            reply = await d.admin.ListBlocks(request, timeout=DEADLINE_S)
            return [block.identity for block in reply.blocks]

        assert await listed(tier=pb.TIER_SPILL) == [identity(3)]
        assert await listed(in_use=True) == [identity(1)]
        assert set(await listed(in_use=False)) == {identity(2), identity(3)}
        assert await listed(identity_prefix=identity(2)[:5]) == [identity(2)]
        assert await listed(namespace=2) == []
        assert await listed(apb.BLOCK_SORT_RANK, tier=pb.TIER_HOST) == [identity(2), identity(1)]

    run(body, tmp_path)


def test_explain_and_plan(tmp_path: Path) -> None:
    """The plan's first victim is the block that explain ranks highest and nothing protects, and is what goes."""

    async def body(d: Daemon) -> None:
        await d.namespace()
        session = (await d.session()).number
        for seed in (1, 2, 3):
            await d.store_blocks(session, block_ids(seed))
        await d.acquire(session, block_ids(1))
        explained = await d.admin.Explain(
            apb.ExplainRequest(ids=ids_of(1, 2, 3, 9), tier=pb.TIER_HOST), timeout=DEADLINE_S
        )
        one, two, three, unknown = explained.blocks
        assert "lease" in one.protected_by and not two.protected_by and two.rank > three.rank
        assert two.destination == "spill" and two.rule and len(two.terms) and not unknown.rule
        assert explained.policy.startswith("lru") and explained.step > 0
        plan = await d.admin.Plan(apb.PlanRequest(tier=pb.TIER_HOST, bytes=2 * BLOCK), timeout=DEADLINE_S)
        assert [victim.identity for victim in plan.victims] == [identity(2)]
        assert (plan.enough, plan.free_bytes, plan.victim_bytes, plan.victim_blocks) == (True, BLOCK, BLOCK, 1)
        too_much = await d.admin.Plan(
            apb.PlanRequest(tier=pb.TIER_HOST, bytes=100 * BLOCK, limit=1), timeout=DEADLINE_S
        )
        assert (too_much.enough, len(too_much.victims), too_much.victim_blocks) == (False, 1, 2)
        assert await d.tiers_of(block_ids(1, 2, 3)) == [2, 2, 2]

    run(body, tmp_path, host_blocks=4, hbm_blocks=0)


def test_config_and_policy(tmp_path: Path) -> None:
    """The settings are a JSON object; a new policy is in force at once and loses no statistics."""

    async def body(d: Daemon) -> None:
        await d.namespace()
        session = (await d.session()).number
        await d.store_blocks(session, block_ids(1))
        assert json.loads((await d.admin.GetConfig(apb.GetConfigRequest())).json) == {"policy": "lru"}
        spec = "lrfu(ranking=composite,alpha=0.05,beta=0.001)"
        before = (await describe(d, 1))[0]
        reply = await d.admin.SetPolicy(apb.SetPolicyRequest(policy=spec), timeout=DEADLINE_S)
        assert reply.policy.startswith("lrfu") and reply.policy_epoch == 1
        after = (await describe(d, 1))[0]
        assert (after.touches, after.last_step) == (before.touches, before.last_step)
        occupancy = await d.admin.Occupancy(apb.OccupancyRequest())
        assert (occupancy.policy, occupancy.policy_epoch) == (reply.policy, 1)

    run(body, tmp_path)


def test_clear(tmp_path: Path) -> None:
    """A dry run says what a clear removes; blocks in use stay and are counted; ghosts go when asked for."""

    async def body(d: Daemon) -> None:
        await d.namespace()
        session = (await d.session()).number
        await d.store_blocks(session, block_ids(1, 2, 3))
        await d.evict(block_ids(3))
        await d.acquire(session, block_ids(1))
        dry = await d.admin.Clear(apb.ClearRequest(dry_run=True), timeout=DEADLINE_S)
        assert (dry.host_blocks, dry.spill_blocks, dry.in_use_blocks) == (1, 1, 1)
        assert await d.tiers_of(block_ids(1, 2, 3)) == [2, 2, 4]
        done = await d.admin.Clear(apb.ClearRequest(), timeout=DEADLINE_S)
        assert (done.hbm_blocks, done.host_blocks, done.spill_blocks, done.in_use_blocks) == (0, 1, 1, 1)
        assert await d.tiers_of(block_ids(1, 2, 3)) == [2, 0, 0]
        await until(lambda: not d.store.values)
        ghosts = await d.admin.Clear(apb.ClearRequest(ghosts=True), timeout=DEADLINE_S)
        assert ghosts.ghosts == 2 and not (await describe(d, 2))[0].ghost
        await d.check_balance()

    run(body, tmp_path)


def test_verify_finds_and_repairs(tmp_path: Path) -> None:
    """Damaged bytes are found in host and spill, named, and with repair dropped; verifying is no access."""

    async def body(d: Daemon) -> None:
        await d.namespace()
        session = (await d.session()).number
        await d.store_blocks(session, block_ids(1, 2, 3, 4))
        await d.evict(block_ids(3, 4))
        await _damage(d, 1)
        key = next(key for key in d.store.values if key[1] == identity(3))
        stored = d.store.values[key]
        d.store.values[key] = stored[:-1] + bytes([stored[-1] ^ 1])
        before = await describe(d, 1, 2, 3, 4)
        found = await verify(d)
        assert sorted(found.damaged) == sorted([identity(1), identity(3)])
        assert (found.verified_blocks, found.verified_bytes, found.skipped_blocks) == (2, 2 * BLOCK, 0)
        assert await describe(d, 1, 2, 3, 4) == before
        repaired = await verify(d, ids=ids_of(1, 3), repair=True)
        assert len(repaired.damaged) == 2
        assert await d.tiers_of(block_ids(1, 2, 3, 4)) == [0, 2, 0, 4]
        clean = await verify(d)
        assert not clean.damaged and clean.verified_blocks == 2
        await d.check_balance()

    run(body, tmp_path)


async def _damage(d: Daemon, seed: int) -> None:
    copy = (await describe(d, seed))[0].copies[0]
    d.view(copy.address)[0] ^= np.uint8(1)


def test_verify_by_filter_and_time(tmp_path: Path) -> None:
    """A filter limits what is read; unknown ids count as nothing; what cannot be read is skipped, not damaged."""

    async def body(d: Daemon) -> None:
        await d.namespace()
        session = (await d.session()).number
        await d.store_blocks(session, block_ids(*range(1, 81)), Tier.HOST)
        await d.evict(block_ids(1, 2))
        host = await verify(d, filter=apb.BlockFilter(tier=pb.TIER_HOST))
        assert (host.verified_blocks, host.skipped_blocks) == (78, 0)
        assert (await verify(d, ids=ids_of(500))).verified_blocks == 0
        d.service.mover.shut_spill()
        down = await verify(d)
        assert (down.verified_blocks, down.skipped_blocks, list(down.damaged)) == (78, 2, [])

    run(body, tmp_path, host_blocks=100)


def test_verify_of_a_block_that_goes(tmp_path: Path) -> None:
    """A block that is dropped while it is verified is neither damaged nor verified."""

    async def body(d: Daemon) -> None:
        await d.namespace()
        session = (await d.session()).number
        await d.store_blocks(session, block_ids(1))
        await d.evict(block_ids(1))
        verifying = asyncio.ensure_future(verify(d, timeout_ms=10_000))
        await until(lambda: bool(d.faulty.injected[Fault.DELAY]))
        await d.evict(block_ids(1), None, allow_drop=True)
        await until(lambda: not d.store.values)
        d.faulty.resume.set()
        found = await verifying
        assert (list(found.damaged), found.verified_blocks, found.skipped_blocks) == ([], 0, 1)

    run(body, tmp_path, script=Scripted([Fault.DELAY], [Operation.GET]))


def test_verify_ends_in_time(tmp_path: Path) -> None:
    """A verify whose time is over says that blocks were skipped, and ends."""

    async def body(d: Daemon) -> None:
        await d.namespace()
        session = (await d.session()).number
        await d.store_blocks(session, block_ids(1, 2))
        await d.evict(block_ids(1, 2))
        found = await verify(d, timeout_ms=100)
        assert found.skipped_blocks == 2 and not found.damaged

    run(body, tmp_path, script=Scripted([Fault.DELAY] * 2, [Operation.GET]))


def test_concurrent_rpcs_are_limited(tmp_path: Path) -> None:
    """Calls beyond the limit are RESOURCE_EXHAUSTED at once and do not queue."""

    async def body(d: Daemon) -> None:
        await d.session()
        await d.session()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await d.admin.GetConfig(apb.GetConfigRequest(), timeout=DEADLINE_S)
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED

    run(body, tmp_path, rpcs_max=2)
