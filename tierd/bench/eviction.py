"""What a victim and a touch cost, and whether that stays flat as identities grow.

The daemon's own engine, host tier only, in private tables; blocks of one page, so that no bytes exist. A tier is
filled and its blocks are touched unevenly. Then rounds go by: accesses are reported, and new blocks stored, for
which the full tier chooses as many victims and drops them. Tiers take their rounds in turn, and so do policies, so
that a slow moment hits all and a slow second none alone. Times are CPU time of the thread.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import numpy as np

from tierd.bench.measuring import Measured, Result, Scale, Timed, alternate, ratio
from tierd.core import messages as m
from tierd.core.engine import Engine, EngineSettings, Tables, TierSpec
from tierd.core.hint_messages import Touch
from tierd_client.format import IDENTITY_BYTES, PAGE_BYTES, U8Array

FEW = 16_384
"""Identities of the tier that a large one is compared with."""

LARGE_BATCH, SMALL_BATCH = 1_024, 64
GATED = {"lru": "lru", "lrfu": "lrfu(admission=none)", "gab": "gab(admission=none)", "gittins": "gittins"}
"""Policies whose costs in microseconds have a gate. All store whatever comes: each new block needs a victim."""
RANKINGS = {name: f"lrfu(ranking={name})" for name in ("composite", "decayed")}

PASSES = 4
"""Over all policies: what is slow for some seconds is the smaller part of each one's repetitions."""

CHAIN = 64
SESSION = 1


def victims(scale: Scale) -> Measured:
    """CPU per victim among many / among few identities; microseconds per victim and per touch among many. Of each
    the policy where it is largest counts, and those with a gate are told one by one as well."""
    worst: dict[str, list[Result]] = {}
    told: dict[str, Result] = {}
    for name, seconds in _taken(scale).items():
        worst.setdefault("evict_flat", []).append(ratio(seconds["many"], seconds["few"]))
        for figure, of in (("evict_64_us", "small"), ("touch_us", "touch")) if name in GATED else ():
            told[f"{figure}_{name}"] = Result.of(1e6 * each for each in seconds[of])
            worst.setdefault(figure, []).append(told[f"{figure}_{name}"])
    return told | {figure: max(results, key=lambda one: one.value) for figure, results in worst.items()}


def _taken(scale: Scale) -> dict[str, dict[str, list[float]]]:
    """What each repetition of each thing took, for each policy."""
    specs, blocks = GATED | RANKINGS, max(2 * FEW, scale.identities)
    tiers = {name: (Tier(spec, FEW), Tier(spec, blocks)) for name, spec in specs.items()}
    taken: dict[str, dict[str, list[float]]] = {name: defaultdict(list) for name in tiers}
    for _ in range(PASSES):
        for name, (few, many) in tiers.items():
            for thing, seconds in alternate({
                "few": few.evictions(LARGE_BATCH), "many": many.evictions(LARGE_BATCH),
                "small": many.evictions(SMALL_BATCH), "touch": many.touches(LARGE_BATCH),
            }, max(1, 2 * scale.repetitions // PASSES)).items():
                taken[name][thing] += seconds
    return taken


class Tier:
    """A full host tier of so many blocks, in chains of CHAIN."""

    def __init__(self, policy: str, blocks: int, seed: int = 1) -> None:
        self._rng = np.random.default_rng(seed)
        self._spent_s = 0.0
        host = TierSpec(m.Tier.HOST, ((1, blocks * PAGE_BYTES),))
        self._engine = Engine(
            EngineSettings((host,), policy, max_held=2 * LARGE_BATCH), Tables.private(blocks, holds=4 * LARGE_BATCH)
        )
        self._step(m.OpenSession(SESSION))
        self._chains = [self._store(CHAIN) for _ in range(blocks // CHAIN)]
        self._touch_unevenly(blocks)
        self._time_victims()

    def evictions(self, batch: int) -> Timed:
        """Stores so many new blocks; seconds per victim of choosing victims and of what dropping them changes."""

        def repeat() -> float:
            self._touch(self._drawn(LARGE_BATCH // CHAIN))
            self._spent_s = 0.0
            stored = self._store(batch)
            self._chains[int(self._rng.integers(len(self._chains)))] = stored[:CHAIN]
            return self._spent_s / batch

        return repeat

    def touches(self, batch: int) -> Timed:
        """Reports accesses to so many blocks; seconds per block."""

        def repeat() -> float:
            touch = self._drawn(batch // CHAIN)
            began = time.thread_time()
            self._touch(touch)
            return (time.thread_time() - began) / batch

        return repeat

    def _store(self, count: int) -> U8Array:
        """A chain of new blocks."""
        ids = self._rng.integers(0, 256, (count, IDENTITY_BYTES), np.uint8)
        reserved = self._step(m.Reserve(SESSION, m.Ids(1, 0, ids, chain=True), PAGE_BYTES))
        assert (reserved.outcomes == m.Reserved.GRANTED).all(), "a full tier makes room for every new block"
        self._step(m.Commit(SESSION, ids, reserved.generations, np.zeros(count, np.uint64)))
        return ids

    def _touch_unevenly(self, blocks: int) -> None:
        """As many touches as there are blocks; a chain's own share is drawn once (Pareto)."""
        share = self._rng.pareto(1.2, len(self._chains))
        drawn = self._rng.choice(len(self._chains), size=blocks // CHAIN, p=share / share.sum())
        for start in range(0, len(drawn), LARGE_BATCH // CHAIN):
            self._touch(np.concatenate([self._chains[at] for at in drawn[start : start + LARGE_BATCH // CHAIN]]))

    def _drawn(self, count: int) -> U8Array:
        """Identities of so many chains, those that are gone among them."""
        return np.concatenate([self._chains[at] for at in self._rng.integers(len(self._chains), size=count)])

    def _touch(self, ids: U8Array) -> None:
        self._step(Touch(SESSION, m.Ids(1, 0, ids), np.ones(len(ids), np.int64)))

    def _step(self, command: m.Command) -> Any:
        return self._engine.step(command, 0.0).reply

    def _time_victims(self) -> None:
        """From now on what is spent on victims, a part of each Reserve, is added up."""
        state = self._engine.state
        state.choose = self._counted(state.choose)  # type: ignore[method-assign]
        state.drop = self._counted(state.drop)  # type: ignore[method-assign]

    def _counted(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*arguments: Any, **options: Any) -> Any:
            began = time.thread_time()
            try:
                return call(*arguments, **options)
            finally:
                self._spent_s += time.thread_time() - began

        return counted
