"""What the tests of the app layer share: arenas in private memory, and moves between them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import numpy as np

from tierd.adapters.arena_host import HostArena
from tierd.app.carrier import checksum_of
from tierd.app.mover import Mover
from tierd.core.messages import Move, MoveResult, Record, Tier
from tierd.ports import LentStore, SpillStore
from tierd_client.format import U8Array

SIZE = 4096
SEGMENT = 1 << 48
FINGERPRINT = bytes(range(32))
DEADLINE_S = 10.0


class UnmappableArena(HostArena):
    """An arena that nobody can map, as a GPU's memory: its bytes move by read and write only."""

    @property
    def mappable(self) -> bool:
        return False

    def view(self, address: int, size: int) -> U8Array:
        raise AssertionError("view of an arena that is not mappable")

    def read(self, address: int, out: U8Array) -> None:
        np.copyto(out, super().view(address, out.size))

    def write(self, address: int, data: U8Array) -> None:
        np.copyto(super().view(address, data.size), data)


def arena(tier: Tier, blocks: int = 16, mappable: bool = True) -> HostArena:
    kind = HostArena if mappable else UnmappableArena
    return kind({1: np.zeros(blocks * SIZE, np.uint8)}, tier)


def slot(index: int) -> int:
    """Address of a slot in the one segment."""
    return SEGMENT + index * SIZE


def block(seed: int) -> U8Array:
    return np.random.default_rng(seed).integers(0, 256, SIZE, np.uint8)


def identity(seed: int) -> bytes:
    return seed.to_bytes(32, "big")


def move(
    op: int, source: Tier, target: Tier, *, data: U8Array, at: int = 0, to: int = 0, name: int | None = None
) -> Move:
    """A move of `data` from slot `at` to slot `to`; 0 in the spill tier."""
    return Move(
        op=op, identity=identity(op if name is None else name), namespace=1, group=0, position=0, parent=None,
        size=SIZE, checksum=checksum_of(data), source=source,
        source_address=0 if source is Tier.SPILL else slot(at), target=target,
        target_address=0 if target is Tier.SPILL else slot(to), record=Record(touches=1),
    )


class Results:
    """Collects what a mover answers, in batches as they came."""

    def __init__(self) -> None:
        self.batches: list[list[MoveResult]] = []
        self._arrived = asyncio.Event()

    def take(self, results: Sequence[MoveResult]) -> None:
        self.batches.append(list(results))
        self._arrived.set()

    def all(self) -> list[MoveResult]:
        return [result for batch in self.batches for result in batch]

    async def of(self, count: int) -> dict[int, MoveResult]:
        """Waits until `count` results are there; by number of their move."""
        async with asyncio.timeout(DEADLINE_S):
            while len(self.all()) < count:
                self._arrived.clear()
                await self._arrived.wait()
        return {result.op: result for result in self.all()}


def make_mover(
    results: Results, spill: SpillStore | None = None, *, host: HostArena | None = None,
    hbm: HostArena | None = None, threads: int = 2, op_timeout_s: float = 5.0, lent: LentStore | None = None,
    fence_timeout_s: float = 5.0,
) -> Mover:
    arenas = {a.tier: a for a in (host, hbm) if a is not None}
    return Mover(
        arenas, spill, fingerprint_of=lambda namespace: FINGERPRINT, threads=threads, op_timeout_s=op_timeout_s,
        on_results=results.take, lent=lent, fence_timeout_s=fence_timeout_s,
    )
