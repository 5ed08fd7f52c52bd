"""What it is worth that records survive eviction: per policy and capacity, and under which assumptions.

By the heap of `tierd.sim.keyed` for policies whose order does not change while records are idle: pinned and
unpinned, each with records that are forgotten, age or stand still, and without a bound on their number. By the
engine for all others: pinned, forgotten or ageing, with the ghosts that the policy keeps.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tierd.core.policy.registry import parse
from tierd.sim.keyed import MEMORIES, Memory, has_static_order
from tierd.sim.played import Played
from tierd.sim.rows import Row, row_of
from tierd.sim.study import Task
from tierd.sim.traces import Trace

Place = tuple[bool, Memory]
"""Pinned or not, and what becomes of records."""
PLACES: tuple[Place, ...] = tuple((pinned, memory) for pinned in (True, False) for memory in MEMORIES)


def moving_average(alpha: float) -> str:
    """The policy that sorts by a moving average of accesses, which fades with every step."""
    return f"lrfu(ranking=decayed,lambda={-math.log2(1 - alpha):.8g})"


POLICIES = ("lfu", *(moving_average(alpha) for alpha in (0.15, 0.05, 0.01, 0.001)),
            "lrfu(ranking=composite)", "lrfu")


@dataclass(frozen=True, slots=True)
class Worth:
    """Hit rates of a policy at a capacity, in percent, by assumption; those that cannot be had are left out."""

    policy: str
    capacity: int
    rows: dict[Place, Row]

    def gain(self, pinned: bool, memory: Memory, *, blocks: bool) -> float | None:
        """Points that surviving records are worth, of prefix hits or of block hits."""
        here, reset = self.rows.get((pinned, memory)), self.rows.get((pinned, "reset"))
        if here is None or reset is None:
            return None
        return here.block_percent - reset.block_percent if blocks else here.prefix_percent - reset.prefix_percent


def plan(policies: Sequence[str], capacities: Sequence[int]) -> list[tuple[Place, str, Task]]:
    """Each replay, with the assumption and the policy that it stands for."""
    made: list[tuple[Place, str, Task]] = []
    for policy in policies:
        for capacity in capacities:
            if has_static_order(parse(policy)):
                made += [(place, policy, Task(policy, capacity, *place)) for place in PLACES]
                continue
            for memory, persist in (("reset", "false"), ("ageing", "true")):
                place = True, MEMORIES[MEMORIES.index(memory)]
                made.append((place, policy, Task(_with_persist(policy, persist), capacity)))
    return made


def worths(
    trace: Trace, planned: Sequence[tuple[Place, str, Task]], played: Sequence[Played], first: int
) -> list[Worth]:
    """What was planned, with what its replays counted from the request `first` on."""
    found: dict[tuple[str, int], Worth] = {}
    for (place, policy, task), counted in zip(planned, played, strict=True):
        worth = found.setdefault((policy, task.capacity), Worth(policy, task.capacity, {}))
        worth.rows[place] = row_of(trace, policy, task.capacity, counted, first)
    return list(found.values())


def _with_persist(policy: str, persist: str) -> str:
    other = "true" if persist == "false" else "false"
    return parse(policy).spec.replace(f"persist={other}", f"persist={persist}")
