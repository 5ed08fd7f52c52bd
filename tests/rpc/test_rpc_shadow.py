"""Shadow and ShadowStats on the wire."""

from __future__ import annotations

import asyncio
from pathlib import Path

from rpc_daemon import BLOCK, DEADLINE_S, Daemon, block_ids, run

from tierd.core.messages import Tier
from tierd_client.layout import Group, Layout, Part
from tierd_client.v1 import admin_pb2 as apb
from tierd_client.v1 import blocks_pb2 as pb


async def figures(d: Daemon, requests: int) -> apb.ShadowNamespace:
    """Of the one namespace, once so many requests are played."""
    async with asyncio.timeout(DEADLINE_S):
        while True:
            found = (await d.admin.ShadowStats(apb.ShadowStatsRequest(), timeout=DEADLINE_S)).namespaces
            if found and found[0].requests == requests:
                return found[0]
            await asyncio.sleep(0.05)


async def shadow(d: Daemon, session: int, blocks: pb.BlockIds, **fields: object) -> None:
    asked = len(blocks.ids) // 32
    request = pb.ShadowRequest(**{
        "session": session, "blocks": blocks, "asked_blocks": asked, "ended": True, **fields})
    await d.blocks.Shadow(request, timeout=DEADLINE_S)


def test_reports_become_figures(tmp_path: Path) -> None:
    """Two requests alike are hits of the second in memory that holds them, in that of one block only of its first;
    nothing is stored, and no access counted."""

    async def body(d: Daemon) -> None:
        await d.namespace(Layout.opaque(block_bytes=BLOCK, model="m"), "chat")
        session = (await d.session()).number
        before = d.service.occupancy()
        for _ in range(2):
            await shadow(d, session, block_ids(1, 2, 3, 4), served_blocks=1, prefill_tokens_per_s=10.0)
        found = await figures(d, 2)
        small, large = found.sizes
        assert [one.capacity_blocks for one in (small, large)] == [1, 256]
        assert [one.prefix_hits.blocks for one in (small, large)] == [1, 4]
        assert [one.saved.blocks for one in (small, large)] == [0, 3]
        assert (found.name, found.model, found.prefill_tokens_per_s) == ("chat", "m", 10.0)
        assert (found.asked_blocks, found.served_blocks, large.sampled_share) == (8, 2, 1.0)
        assert d.service.occupancy() == before
        assert await d.tiers_of(block_ids(1, 2, 3, 4)) == [0, 0, 0, 0]

    run(body, tmp_path)


def test_bytes_are_those_of_the_group_unless_more_is_said(tmp_path: Path) -> None:
    """A block takes what its group's layout says, or what the caller says that it takes in all."""

    async def body(d: Daemon) -> None:
        groups = [Group(name, 1, (Part("k", "uint8", (size,)),)) for name, size in (("a", BLOCK), ("b", 2 * BLOCK))]
        await d.namespace(Layout.of_groups(groups))
        session = (await d.session()).number
        blocks = block_ids(1, 2)
        blocks.group = 1
        await shadow(d, session, blocks)
        found = await figures(d, 1)
        assert (found.block_bytes, found.sizes[1].capacity_blocks) == (2 * BLOCK, 128)
        await shadow(d, session, block_ids(1, 2), block_bytes=8 * BLOCK)
        async with asyncio.timeout(DEADLINE_S):
            while (await figures(d, 1)).block_bytes != 8 * BLOCK:
                await asyncio.sleep(0.05)

    run(body, tmp_path)


def test_a_session_that_stores_may_report_as_well(tmp_path: Path) -> None:
    """Blocks that are stored are none of the figures, and reports evict nothing that is stored."""

    async def body(d: Daemon) -> None:
        await d.namespace()
        session = (await d.session()).number
        reply = await d.reserve(session, block_ids(9))
        commit = pb.CommitRequest(
            session=session, ids=block_ids(9).ids, generations=reply.generations, checksums=[0],
            tier=int(Tier.HOST))
        await d.blocks.Commit(commit, timeout=DEADLINE_S)
        for number in range(3):
            await shadow(d, session, block_ids(*range(1_000 * number + 10, 1_000 * number + 310)))
        found = await figures(d, 3)
        assert (found.asked_blocks, found.sizes[1].held_blocks) == (900, 256)
        assert await d.tiers_of(block_ids(9)) != [0]

    run(body, tmp_path)
