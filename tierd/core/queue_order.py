"""Choosing victims by queues that the policy keeps (tierd/core/policy/queues.py), in one tier.

Each queue is a heap of (standing, key, joined, row, token). Whoever joins a queue is the last of its standing and
key; of several that join in one step, the deeper come first, so that of a request the tail goes before the head.
A block that may not go now keeps its place while it is out. A choice whose rows are all put back was none:
whoever was passed over stands where it stood.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush

import numpy as np
from numpy.typing import NDArray

from tierd.core.catalog import Catalog
from tierd.core.hashindex import NO_ROW
from tierd.core.policy.base import Moment
from tierd.core.policy.queues import ByQueues, Counts, Spot
from tierd.core.protection import Protection
from tierd.core.standing import standings
from tierd.core.victim_rows import NONE, Lets, VictimRows, Victims
from tierd_client.format import I64Array, U8Array

COMPACT_ABOVE = 4096
NO_STANDING = 1 << 20
"""Of a queue in which nothing may go now."""

Joined = tuple[int, int, int]
"""(step, -position, number): when a block joined its queue. Who is passed over joins before all that come."""
Entry = tuple[int, float, Joined, int, int]
"""(standing, key, joined, row, token)."""
_BEFORE_ALL = -(1 << 40)


@dataclass(slots=True)
class _Choice:
    """Rows chosen at once and the newcomers that they make room for; who was passed over, and stood where."""

    turn: int
    rows: dict[int, bytes] = field(default_factory=dict)
    passed: list[tuple[int, Spot, Joined]] = field(default_factory=list)


class QueueOrder(Victims):
    def __init__(self, catalog: Catalog, policy: ByQueues, children: NDArray[np.int32]) -> None:
        self._rows = VictimRows(catalog, children, leaf_only=policy.common.leaf_only)
        self.out = self._rows.out
        self._catalog, self._queues = catalog, policy.queues()
        self._heaps: list[list[Entry]] = [[] for _ in range(self._queues.count)]
        self._counts = Counts([0] * self._queues.count)
        self._inside: dict[int, tuple[Spot, Joined]] = {}
        """Row in the tier -> where it stands, and since when."""
        self._met = np.zeros(catalog.capacity, np.uint32)
        """Accesses of each row when it was last looked at."""
        self._chosen: dict[int, bytes] = {}
        """Row chosen and not dropped yet -> the newcomer that it makes room for."""
        self._choices: list[_Choice] = []
        """Those that can be taken back, the latest last."""
        self._expected: dict[bytes, None] = {}
        self._step = self._next = 0
        """The latest step of an access or a choice; the next number."""

    def load(self, rows: I64Array) -> None:
        for row in sorted(rows.tolist(), key=self._rows.place):
            self._step = int(self._catalog.last[row])
            self._join(row, self._queues.enter_at_start(self._identity(row), int(self._catalog.touches[row])))
        self._counts.most = len(self._inside)
        self._look(rows)

    def expect(self, ids: U8Array, places: I64Array) -> None:
        packed = ids.take(places, axis=0).tobytes()
        width = self._catalog.identity.shape[1]
        self._expected = dict.fromkeys(packed[at : at + width] for at in range(0, len(packed), width))
        for identity in self._expected:
            self._queues.expect(identity, self._counts)

    def insert(self, rows: I64Array) -> None:
        self._choices.clear()
        touches = self._catalog.touches
        self._step = max(self._step, int(self._catalog.last[rows].max(initial=0)))
        for row in sorted(rows.tolist(), key=self._rows.place):
            if row not in self._inside:
                identity = self._identity(row)
                self._expected.pop(identity, None)
                self._join(row, self._queues.enter(identity, self._counts))
            elif touches[row] != self._met[row]:
                self._access(row)
        self._counts.most = max(self._counts.most, len(self._inside))
        self._look(rows)

    def discard(self, rows: I64Array) -> None:
        for row in rows.tolist():
            if row not in self._inside:
                continue
            self._choices.clear()
            spot, _ = self._inside[row]
            if row in self._chosen:
                self._queues.left(self._identity(row), spot, self._counts, self._chosen.pop(row))
            else:
                self._counts.lengths[spot.queue] -= 1
            del self._inside[row]
        self._rows.discard(rows)

    def put_back(self, rows: I64Array) -> None:
        for row in rows[self.out[rows]].tolist():
            if self._chosen.pop(row, None) is not None:
                self._counts.lengths[self._inside[row][0].queue] += 1
        while self._choices and self._chosen.keys().isdisjoint(self._choices[-1].rows):
            self._take_back(self._choices.pop())
        self._push(self._rows.returning(rows))

    def choose(self, count: int, now: Moment, protection: Protection, lets: Lets | None = None) -> I64Array:
        del lets  # such a policy stores all
        self._step = max(self._step, now.step)
        choice = _Choice(self._queues.turn)
        while len(choice.rows) < count and (row := self._next_victim(choice, protection)) != NONE:
            parent = self._catalog.parent_of(row)
            if parent != NO_ROW and self._rows.child_goes(parent):
                self.put_back(np.array([parent]))
        self._choices.append(choice)
        return self._rows.take(np.array(list(choice.rows), np.int64))

    def terms(self, row: int) -> dict[str, float]:
        return self._queues.terms(self._inside[row][0]) if row in self._inside else {}

    def _next_victim(self, choice: _Choice, protection: Protection) -> int:
        newcomer = next(iter(self._expected), b"")
        while (queue := self._queue_to_look_in(protection, newcomer)) != NONE:
            *_, row, _ = heappop(self._heaps[queue])
            spot, joined = self._inside[row]
            self._counts.lengths[queue] -= 1
            onward = self._queues.pass_over(spot)
            if onward is None:
                self._expected.pop(newcomer, None)
                choice.rows[row] = self._chosen[row] = newcomer
                return row
            choice.passed.append((row, spot, joined))
            self._join(row, onward, _BEFORE_ALL)
            self._push(np.array([row]))
        return NONE

    def _queue_to_look_in(self, protection: Protection, newcomer: bytes) -> int:
        """The queue of the next candidate: of those whose first has the lowest standing, the one the policy names
        first."""
        standing = [self._settle(heap, protection) for heap in self._heaps]
        lowest = min(standing)
        if lowest == NO_STANDING:
            return NONE
        order = self._queues.look_in(self._counts, newcomer)
        return next(queue for queue in order if standing[queue] == lowest)

    def _settle(self, heap: list[Entry], protection: Protection) -> int:
        """Drops from the front what may not go now; the standing of the first that may."""
        while heap:
            standing, *_, row, token = heap[0]
            if self._rows.valid(row, token):
                if not (protection.one(row) or self._rows.stays(row)):
                    return standing
                self.out[row] = True
            heappop(heap)
        return NO_STANDING

    def _access(self, row: int) -> None:
        spot, joined = self._inside[row]
        after = self._queues.accessed(spot)
        if self._queues.moves_when_accessed:
            self._counts.lengths[spot.queue] -= 1
            self._join(row, after)
        else:
            self._inside[row] = after, joined

    def _join(self, row: int, spot: Spot, depth: int | None = None) -> None:
        """A row joins a queue, as the last but for those that are less deep and join in this step."""
        depth = -int(self._catalog.position[row]) if depth is None else depth
        self._inside[row] = spot, (self._step, depth, self._next)
        self._counts.lengths[spot.queue] += 1
        self._next += 1

    def _look(self, rows: I64Array) -> None:
        self._met[rows] = self._catalog.touches[rows]
        self._push(rows)

    def _push(self, rows: I64Array) -> None:
        """Entries for rows where they stand."""
        if not len(rows):
            return
        tokens = self._rows.renew(rows).tolist()
        standing = standings(self._catalog, rows).tolist()
        for first, row, token in zip(standing, rows.tolist(), tokens, strict=True):
            spot, joined = self._inside[row]
            heap = self._heaps[spot.queue]
            heappush(heap, (first, spot.key, joined, row, token))
            if len(heap) > 2 * self._rows.members + COMPACT_ABOVE:
                heap[:] = [entry for entry in heap if self._rows.valid(entry[3], entry[4])]
                heapify(heap)

    def _take_back(self, choice: _Choice) -> None:
        self._queues.turn = choice.turn
        newcomers = filter(None, choice.rows.values())
        self._expected = dict.fromkeys([*newcomers, *self._expected])
        for row, spot, joined in reversed(choice.passed):
            self._counts.lengths[self._inside[row][0].queue] -= 1
            self._counts.lengths[spot.queue] += 1
            self._inside[row] = spot, joined
        self._push(np.array([row for row, _, _ in choice.passed if not self.out[row]], np.int64))

    def _identity(self, row: int) -> bytes:
        identity: bytes = self._catalog.identity[row].tobytes()
        return identity
