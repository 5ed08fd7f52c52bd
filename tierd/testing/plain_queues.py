"""The order of victims of a policy that keeps queues, without heaps: for each victim all blocks are looked at."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tierd.core.catalog import Catalog
from tierd.core.hashindex import NO_ROW
from tierd.core.policy.base import Moment
from tierd.core.policy.queues import ByQueues, Counts, Spot
from tierd.core.protection import Protection
from tierd.core.standing import standing_of
from tierd.core.victim_rows import Lets, Victims
from tierd_client.format import I64Array, U8Array


@dataclass(slots=True)
class _Block:
    """`newcomer`: for which it was chosen to leave; None when it was not."""

    identity: bytes
    spot: Spot
    joined: tuple[int, int, int]
    met: int
    newcomer: bytes | None = None


class PlainQueues(Victims):
    """Holds its choices against those of `QueueOrder`: it shares the policy's queues with it, and nothing else."""

    def __init__(self, catalog: Catalog, policy: ByQueues, children: NDArray[np.int32]) -> None:
        self.out = np.zeros(catalog.capacity, bool)
        self._catalog, self._children, self._queues = catalog, children, policy.queues()
        self._leaf_only = policy.common.leaf_only
        self._blocks: dict[int, _Block] = {}
        self._most = self._next = self._step = 0
        self._expected: list[bytes] = []
        self._before: list[tuple[set[int], int, list[bytes], dict[int, tuple[Spot, tuple[int, int, int]]]]] = []
        """Before each choice that can be taken back: its rows, turn, who was expected, where each block stood."""

    def expect(self, ids: U8Array, places: I64Array) -> None:
        self._expected = list(dict.fromkeys(ids[place].tobytes() for place in places.tolist()))
        for identity in self._expected:
            self._queues.expect(identity, self._counts())

    def insert(self, rows: I64Array) -> None:
        self._before.clear()
        catalog = self._catalog
        self._step = max([self._step, *catalog.last[rows].tolist()])
        depth = -catalog.position[rows].astype(np.int64)
        names = [catalog.identity[row].tobytes() for row in rows.tolist()]
        for _, _, identity, row in sorted(zip(catalog.last[rows], depth, names, rows.tolist(), strict=True)):
            touches = int(catalog.touches[row])
            if row not in self._blocks:
                self._expected = [one for one in self._expected if one != identity]
                self._join(row, _Block(identity, self._queues.enter(identity, self._counts()), (0, 0, 0), touches))
            elif touches != self._blocks[row].met:
                self._access(row)
            self._blocks[row].met = touches
        self._most = max(self._most, len(self._blocks))

    def discard(self, rows: I64Array) -> None:
        for row in [row for row in rows.tolist() if row in self._blocks]:
            self._before.clear()
            block = self._blocks[row]
            if block.newcomer is not None:
                self._queues.left(block.identity, block.spot, self._counts(), block.newcomer)
            del self._blocks[row]

    def put_back(self, rows: I64Array) -> None:
        for row in rows.tolist():
            if row in self._blocks:
                self._blocks[row].newcomer = None
        while self._before and all(self._blocks[row].newcomer is None for row in self._before[-1][0]):
            _, self._queues.turn, self._expected, places = self._before.pop()
            for row, (spot, joined) in places.items():
                self._blocks[row].spot, self._blocks[row].joined = spot, joined

    def choose(self, count: int, now: Moment, protection: Protection, lets: Lets | None = None) -> I64Array:
        del lets
        self._step = max(self._step, now.step)
        places = {row: (block.spot, block.joined) for row, block in self._blocks.items()}
        before = self._queues.turn, list(self._expected), places
        chosen: list[int] = []
        while len(chosen) < count and (row := self._victim(protection)) is not None:
            chosen.append(row)
            self._blocks[row].newcomer = self._expected.pop(0) if self._expected else b""
            if (parent := self._catalog.parent_of(row)) != NO_ROW:
                self._children[parent] -= 1
        self._before.append((set(chosen), *before))
        return np.array(chosen, np.int64)

    def terms(self, row: int) -> dict[str, float]:
        return self._queues.terms(self._blocks[row].spot) if row in self._blocks else {}

    def _victim(self, protection: Protection) -> int | None:
        """The next victim; on the way blocks may be passed over."""
        while able := [row for row in self._blocks if self._may_go(row, protection)]:
            lowest = min(standing_of(self._catalog, row) for row in able)
            able = [row for row in able if standing_of(self._catalog, row) == lowest]
            order = self._queues.look_in(self._counts(), self._expected[0] if self._expected else b"")
            queue = next(q for q in order if any(self._blocks[row].spot.queue == q for row in able))
            row = min(
                (row for row in able if self._blocks[row].spot.queue == queue),
                key=lambda row: (self._blocks[row].spot.key, self._blocks[row].joined),
            )
            block = self._blocks.pop(row)
            onward = self._queues.pass_over(block.spot)
            if onward is None:
                self._blocks[row] = block
                return row
            block.spot = onward
            self._join(row, block, first=True)
        return None

    def _may_go(self, row: int, protection: Protection) -> bool:
        barred = protection.one(row) or (self._leaf_only and self._children[row] > 0)
        return self._blocks[row].newcomer is None and not barred

    def _access(self, row: int) -> None:
        block = self._blocks[row]
        block.spot = self._queues.accessed(block.spot)
        if self._queues.moves_when_accessed:
            self._join(row, block)

    def _join(self, row: int, block: _Block, *, first: bool = False) -> None:
        """`first`: before all that come in this step, the deeper of which stand before the others."""
        depth = -(1 << 50) if first else -int(self._catalog.position[row])
        block.joined, self._next = (self._step, depth, self._next), self._next + 1
        self._blocks[row] = block

    def _counts(self) -> Counts:
        lengths = [0] * self._queues.count
        for block in self._blocks.values():
            lengths[block.spot.queue] += block.newcomer is None
        return Counts(lengths, self._most)
