"""A drain: blocks that lie in arenas alone are stored in the spill tier as well, at a bounded rate.

It goes once through what was there when it began, the blocks worth most first, and says how far it is after each
batch. It ends when all is stored, at its deadline, when the spill tier is down or takes no more, or when its
reader goes away; what it stored by then is stored.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator
from dataclasses import dataclass, replace
from enum import IntEnum

import numpy as np

from tierd.app.service import Service
from tierd.core.errors import Refused
from tierd.core.messages import BlockFilter, Drainable, Drained, ListDrainable, Tier
from tierd_client.format import U8Array

BATCH_BLOCKS = 64
BATCH_S = 0.5
"""At a bounded rate a batch has at most the bytes of so long."""


class DrainState(IntEnum):
    """Numbers of the wire."""

    RUNNING = 1
    DONE = 2
    DEADLINE = 3
    FULL = 4
    """The spill tier has no room left that is worth less."""
    DOWN = 5


@dataclass(frozen=True, slots=True)
class Progress:
    """`total`: what was to be stored; `held_blocks`: lay in the spill tier before. `gone_blocks` were dropped
    meanwhile, `failed_blocks` could not be stored; the rest is left."""

    state: DrainState
    held_blocks: int
    total_blocks: int
    total_bytes: int
    stored_blocks: int = 0
    stored_bytes: int = 0
    gone_blocks: int = 0
    failed_blocks: int = 0


async def drain(
    service: Service, where: BlockFilter, bytes_per_s: int, deadline: float
) -> AsyncGenerator[Progress, None]:
    """Drains what a filter takes. `bytes_per_s`: 0 for no bound. `deadline` in the loop's time.

    InvalidInput when the spill tier is off; Refused while another drain is under way, or when it is down.
    """
    spill = service.tier_state(Tier.SPILL)
    if service.is_on(Tier.SPILL) and not spill.serving:
        raise Refused(f"the spill tier is {spill.text}")
    with service.draining():
        work = service.writer.ask(ListDrainable(where), Drainable)
        sizes = work.sizes.astype(np.int64)
        progress = Progress(DrainState.RUNNING, work.held, len(sizes), int(sizes.sum()))
        pace = _Pace(bytes_per_s)
        for first, last in _batches(sizes.tolist(), bytes_per_s):
            yield progress
            await pace.begin(int(sizes[first:last].sum()), deadline)
            progress = await _store(service, work.ids[first:last], sizes[first:last], deadline, progress)
            if progress.state is not DrainState.RUNNING:
                break
        yield progress if progress.state is not DrainState.RUNNING else replace(progress, state=DrainState.DONE)


async def _store(
    service: Service, ids: U8Array, sizes: np.ndarray[tuple[int], np.dtype[np.int64]], deadline: float,
    progress: Progress,
) -> Progress:
    loop = asyncio.get_running_loop()
    if loop.time() >= deadline:
        return replace(progress, state=DrainState.DEADLINE)
    found = (await service.store_below(ids, deadline)).outcomes
    stored = found == Drained.STORED
    state = DrainState.RUNNING
    if not service.tier_state(Tier.SPILL).serving:
        state = DrainState.DOWN
    elif (found == Drained.FULL).any():
        state = DrainState.FULL
    elif (found == Drained.PENDING).any():
        state = DrainState.DEADLINE
    return replace(
        progress, state=state, stored_blocks=progress.stored_blocks + int(stored.sum()),
        stored_bytes=progress.stored_bytes + int(sizes[stored].sum()),
        gone_blocks=progress.gone_blocks + int((found == Drained.MISS).sum()),
        failed_blocks=progress.failed_blocks + int((found == Drained.FAILED).sum()),
    )


def _batches(sizes: list[int], bytes_per_s: int) -> Iterator[tuple[int, int]]:
    """(first, last) of runs of blocks, of at least one each."""
    most = max(1, int(bytes_per_s * BATCH_S)) if bytes_per_s else sum(sizes)
    first, taken = 0, 0
    for place, size in enumerate(sizes):
        if place > first and (taken + size > most or place - first == BATCH_BLOCKS):
            yield first, place
            first, taken = place, 0
        taken += size
    if sizes:
        yield first, len(sizes)


class _Pace:
    """Lets so many bytes pass in a second; what a batch has not used of its time is lost."""

    def __init__(self, bytes_per_s: int) -> None:
        self._bytes_per_s = bytes_per_s
        self._next_at = 0.0

    async def begin(self, size: int, deadline: float) -> None:
        """Waits for the turn of a batch of so many bytes, or for the deadline."""
        loop = asyncio.get_running_loop()
        await asyncio.sleep(max(0.0, min(self._next_at, deadline) - loop.time()))
        if self._bytes_per_s:
            self._next_at = loop.time() + size / self._bytes_per_s
