"""Compares stored bytes with their checksums, while the daemon works on.

Nothing is leased, so that verifying is no access and promotes nothing. Instead each copy is read first and
looked up again afterwards: only if it is still the same copy (its generation moves when its slot is freed
and when it is handed out) does what was read count.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import numpy as np

from tierd.app.carrier import Check
from tierd.app.service import Service
from tierd.core import messages as m
from tierd.core.terms import pack
from tierd_client.format import U8Array

PAGE_BLOCKS = 1000
BATCH_BLOCKS = 64


@dataclass(slots=True)
class Verified:
    """What was found. A block is verified when each copy of it that could be read was intact; `skipped` is
    at least 1 when the time ran out, and then only a lower bound."""

    verified_blocks: int = 0
    verified_bytes: int = 0
    damaged: list[bytes] = field(default_factory=list)
    skipped_blocks: int = 0


async def verify(
    service: Service, ids: U8Array | None, where: m.BlockFilter, repair: bool, deadline: float
) -> Verified:
    """Verifies the ids, or all blocks of the filter. With `repair` damaged copies are dropped."""
    found = Verified()
    async for batch in _batches(service, ids, where):
        if asyncio.get_running_loop().time() >= deadline:
            found.skipped_blocks += len(batch)
            break
        for view in service.describe(batch).blocks:
            if view is not None and not view.ghost:
                await _verify_block(service, view, repair, deadline, found)
    return found


async def _batches(service: Service, ids: U8Array | None, where: m.BlockFilter) -> AsyncIterator[U8Array]:
    if ids is not None:
        for start in range(0, len(ids), BATCH_BLOCKS):
            yield ids[start : start + BATCH_BLOCKS]
        return
    after = b""
    while True:
        page = service.list_blocks(m.ListBlocks(where, PAGE_BLOCKS, after))
        for start in range(0, len(page.blocks), BATCH_BLOCKS):
            yield pack([v.identity for v in page.blocks[start : start + BATCH_BLOCKS] if v is not None])
        if not page.next:
            return
        after = page.next


async def _verify_block(
    service: Service, view: m.BlockView, repair: bool, deadline: float, found: Verified
) -> None:
    checks = []
    for copy in view.copies:
        if copy.ready and not copy.lent:  # nobody knows a checksum of an engine's page
            check = await _check_copy(service, view, copy, deadline)
            checks.append(check)
            found.verified_bytes += view.size if check is Check.INTACT else 0
            if check is Check.DAMAGED and repair:
                generation = np.array([copy.generation], np.uint64)
                service.drop_damaged(copy.tier, pack([view.identity]), generation)
    if Check.DAMAGED in checks:
        found.damaged.append(view.identity)
    elif Check.INTACT in checks:
        found.verified_blocks += 1
    else:
        found.skipped_blocks += 1


async def _check_copy(service: Service, view: m.BlockView, copy: m.CopyView, deadline: float) -> Check:
    left_s = deadline - asyncio.get_running_loop().time()
    if left_s <= 0:
        return Check.UNREADABLE
    check = await service.mover.check(view, copy, left_s)
    return check if _still_there(service, view, copy) else Check.UNREADABLE


def _still_there(service: Service, view: m.BlockView, copy: m.CopyView) -> bool:
    now = service.describe(pack([view.identity])).blocks[0]
    if now is None or now.checksum != view.checksum:
        return False
    return any(c.ready and (c.tier, c.generation) == (copy.tier, copy.generation) for c in now.copies)
