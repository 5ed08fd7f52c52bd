"""Does the cost of choosing victims stay flat as identities grow?

The daemon's own engine, host tier only, in private tables; blocks of one page, so that no bytes exist. A tier is
filled, its blocks are touched unevenly, then rounds of 1,024 touches and 1,024 new blocks go by: each Reserve
on the full tier chooses as many victims, drops them, makes their ghosts and hands their slots out. Two tiers,
one of 16,384 and one of 1,048,576 blocks, take their rounds in turn, so that a slow moment hits both; what is
compared are medians of process time.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tierd.core import messages as m
from tierd.core.engine import Engine, EngineSettings, Tables, TierSpec
from tierd_client.format import PAGE_BYTES, U8Array

FEW, MANY = 16_384, 1_048_576
BATCH = 1_024
ROUNDS, WARM_UP = 40, 8
LIMIT = 2.5
"""Most that choosing among MANY may cost, in choices among FEW."""
SPECS = ("lru", "lrfu", "lrfu(ranking=composite)", "lrfu(ranking=decayed)")
CHAIN = 64
SESSION = 1


@dataclass
class Costs:
    """Seconds of process time of each round."""

    touch: list[float] = field(default_factory=list)
    evict: list[float] = field(default_factory=list)
    choose: list[float] = field(default_factory=list)

    def per_block_us(self, name: str) -> float:
        return statistics.median(getattr(self, name)[WARM_UP:]) / BATCH * 1e6


class Tier:
    """A full host tier of so many blocks, in chains of CHAIN."""

    def __init__(self, policy: str, blocks: int, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.costs = Costs()
        host = TierSpec(m.Tier.HOST, ((1, blocks * PAGE_BYTES),))
        self.engine = Engine(
            EngineSettings((host,), policy, max_held=2 * BATCH), Tables.private(blocks, holds=4 * BATCH)
        )
        self.engine.step(m.OpenSession(SESSION), 0.0)
        self.chains = [chain for _ in range(blocks // BATCH) for chain in self._store_batch()]
        self._touch_unevenly(blocks)
        self._time_choices()

    def round(self) -> None:
        """Touches a batch of blocks, then stores one, each timed."""
        for chain in self._pick(BATCH // CHAIN):
            self.costs.touch.append(self._timed(lambda chain=chain: self._touch(chain)))  # type: ignore[misc]
        recent = self.costs.touch[-(BATCH // CHAIN) :]
        self.costs.touch[-(BATCH // CHAIN) :] = [sum(recent)]
        ids = self._fresh(BATCH)
        reserve = m.Reserve(SESSION, m.Ids(1, 0, ids, chain=True), PAGE_BYTES)
        self.costs.choose.append(0.0)
        replies: list[Any] = []
        self.costs.evict.append(self._timed(lambda: replies.append(self._step(reserve))))
        self._commit(ids, replies[0])
        self.chains[int(self.rng.integers(len(self.chains)))] = ids[:CHAIN]

    def _store_batch(self) -> list[U8Array]:
        ids = self._fresh(BATCH)
        chains = [ids[start : start + CHAIN] for start in range(0, BATCH, CHAIN)]
        for chain in chains:
            self._commit(chain, self._step(m.Reserve(SESSION, m.Ids(1, 0, chain, chain=True), PAGE_BYTES)))
        return chains

    def _commit(self, ids: U8Array, reserved: m.ReserveReply) -> None:
        granted = reserved.outcomes == m.Reserved.GRANTED
        assert granted.all(), "a full tier makes room for every new block"
        self._step(m.Commit(SESSION, ids, reserved.generations, np.zeros(len(ids), np.uint64)))

    def _touch_unevenly(self, blocks: int) -> None:
        """As many touches as there are blocks; a chain's own share is drawn once (Pareto)."""
        share = self.rng.pareto(1.2, len(self.chains))
        drawn = self.rng.choice(len(self.chains), size=blocks // CHAIN, p=share / share.sum())
        for at in drawn.tolist():
            self._touch(self.chains[at])

    def _touch(self, chain: U8Array) -> None:
        reply = self._step(m.Acquire(SESSION, m.Ids(1, 0, chain, chain=True)))
        if reply.lease:
            self._step(m.Release(SESSION, (reply.lease,)))

    def _pick(self, count: int) -> list[U8Array]:
        return [self.chains[at] for at in self.rng.integers(len(self.chains), size=count).tolist()]

    def _fresh(self, count: int) -> U8Array:
        return self.rng.integers(0, 256, (count, 32), dtype=np.uint8)

    def _step(self, command: m.Command) -> Any:
        return self.engine.step(command, 0.0).reply

    def _time_choices(self) -> None:
        """From now on the choice itself, which is a part of a Reserve, is timed too."""
        state = self.engine.state
        choose = state.choose

        def timed(*arguments: Any) -> Any:
            start = time.process_time()
            chosen = choose(*arguments)
            self.costs.choose[-1] += time.process_time() - start
            return chosen

        state.choose = timed  # type: ignore[method-assign]

    @staticmethod
    def _timed(call: Callable[[], object]) -> float:
        start = time.process_time()
        call()
        return time.process_time() - start


def measure(policy: str, sizes: Sequence[int] = (FEW, MANY), seed: int = 1) -> dict[str, Any]:
    """Costs of one policy in tiers of these sizes, microseconds of CPU per block."""
    tiers = [Tier(policy, size, seed) for size in sizes]
    for _ in range(ROUNDS):
        for tier in tiers:
            tier.round()
    row: dict[str, Any] = {"policy": policy, "identities": list(sizes), "batch": BATCH, "rounds": ROUNDS - WARM_UP}
    for name in ("choose", "evict", "touch"):
        row[f"{name}_us_per_block"] = [round(tier.costs.per_block_us(name), 3) for tier in tiers]
        few, many = (tier.costs.per_block_us(name) for tier in (tiers[0], tiers[-1]))
        row[f"{name}_ratio"] = round(many / few, 2)
    row["limit"] = LIMIT
    row["flat"] = row["evict_ratio"] <= LIMIT and row["choose_ratio"] <= LIMIT
    return row


def run() -> list[dict[str, Any]]:
    return [measure(policy) for policy in SPECS]
