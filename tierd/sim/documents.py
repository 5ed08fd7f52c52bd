"""Made traffic that asks for documents: which one says no request before it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from tierd.core.errors import InvalidInput
from tierd.sim.draws import FreshIds, at_one_second, of_requests, of_runs, within, zipf
from tierd.sim.traces import Trace
from tierd_client.format import I64Array


@dataclass(frozen=True)
class ChainedZipf:
    """Prompts chosen by Zipf's law, each with a turn of its own behind it; the popularity of some is dealt anew
    from time to time. `once`: share of the requests whose prompt nobody asks for again."""

    name: ClassVar[str] = "chained-zipf"
    seed: int = within(1, 0, 1 << 32)
    requests: int = within(6_000, 1, 10_000_000)
    prompts: int = within(2_000, 1, 1_000_000)
    exponent: float = within(0.8, 0.0, 5.0)
    most_prompt_blocks: int = within(220, 1, 65_536)
    most_turn_blocks: int = within(44, 0, 65_536)
    drift: float = within(0.15, 0.0, 1.0)
    drift_every: int = within(800, 1, 10_000_000)
    once: float = within(0.0, 0.0, 1.0)

    def accesses(self) -> float:
        return self.requests * (self.most_prompt_blocks + self.most_turn_blocks) / 2

    def make(self) -> Trace:
        rng = np.random.default_rng(self.seed)
        chains = rng.integers(1, self.most_prompt_blocks + 1, self.prompts)
        popularity = rng.permutation(self.prompts)
        draws = rng.choice(self.prompts, self.requests, p=zipf(self.prompts, self.exponent))
        turns = rng.integers(0, self.most_turn_blocks + 1, self.requests)
        prompts = np.empty(self.requests, np.int64)
        for start in range(0, self.requests, self.drift_every):
            if start:
                _deal_anew(rng, popularity, self.drift)
            batch = slice(start, start + self.drift_every)
            prompts[batch] = popularity[draws[batch]]
        once = np.flatnonzero(rng.random(self.requests) < self.once)
        prompts[once] = self.prompts + np.arange(len(once))
        chains = np.concatenate([chains, rng.integers(1, self.most_prompt_blocks + 1, len(once))])
        heads = np.cumsum(chains) - chains
        own = int(chains.sum()) + np.cumsum(turns) - turns
        starts = np.stack([heads[prompts], own], axis=1).ravel()
        runs = np.stack([chains[prompts], turns], axis=1).ravel()
        return of_runs(starts, runs, runs.reshape(-1, 2).sum(axis=1))


@dataclass(frozen=True)
class ScanPolluted:
    """Each request asks for some blocks of a hot set that is renewed bit by bit, and for as many that nobody asks
    for again."""

    name: ClassVar[str] = "scan-polluted"
    seed: int = within(1, 0, 1 << 32)
    requests: int = within(400, 1, 1_000_000)
    hot_blocks: int = within(6_000, 1, 10_000_000)
    hot_asked: int = within(768, 1, 1_000_000)
    scanned: int = within(256, 0, 1_000_000)
    drift: float = within(0.25, 0.0, 1.0)
    drift_every: int = within(20, 1, 1_000_000)

    def accesses(self) -> float:
        return self.requests * (self.hot_asked + self.scanned)

    def make(self) -> Trace:
        if self.hot_asked > self.hot_blocks:
            raise InvalidInput("scan-polluted.hot_asked", f"{self.hot_asked} is more than hot_blocks")
        rng = np.random.default_rng(self.seed)
        hot = np.arange(self.hot_blocks)
        fresh = self.hot_blocks
        asked = np.empty((self.requests, self.hot_asked + self.scanned), np.int64)
        for request in range(self.requests):
            if request and request % self.drift_every == 0:
                gone = rng.choice(self.hot_blocks, int(self.drift * self.hot_blocks), replace=False)
                hot[gone] = np.arange(fresh, fresh + len(gone))
                fresh += len(gone)
            asked[request, : self.hot_asked] = rng.choice(hot, self.hot_asked, replace=False)
            asked[request, self.hot_asked :] = np.arange(fresh, fresh + self.scanned)
            fresh += self.scanned
        lengths = np.full(self.requests, asked.shape[1])
        return replace(at_one_second(asked.ravel(), lengths), chained=False)


@dataclass(frozen=True)
class HotSet:
    """Any document of a hot set, all of which are exchanged at once at the end of each phase."""

    name: ClassVar[str] = "hot-set"
    seed: int = within(1, 0, 1 << 32)
    requests: int = within(9_000, 1, 1_000_000)
    documents: int = within(150, 1, 100_000)
    most_blocks: int = within(23, 1, 65_536)
    phases: int = within(12, 1, 10_000)

    def accesses(self) -> float:
        return (self.requests + self.phases * self.documents) * (self.most_blocks + 1) / 2

    def make(self) -> Trace:
        rng = np.random.default_rng(self.seed)
        ids = FreshIds()
        requests: list[I64Array] = []
        for count in np.diff(np.linspace(0, self.requests, self.phases + 1).astype(np.int64)).tolist():
            hot = ids.chains(rng.integers(1, self.most_blocks + 1, self.documents))
            requests += [hot[number] for number in rng.integers(self.documents, size=count).tolist()]
        return of_requests(requests)


@dataclass(frozen=True)
class Recent:
    """A new document, by the share `new` of the requests, or any of those asked for last. `alive`: so many."""

    name: ClassVar[str] = "recent"
    seed: int = within(1, 0, 1 << 32)
    requests: int = within(9_000, 1, 1_000_000)
    alive: int = within(300, 1, 100_000)
    new: float = within(0.3, 0.0, 1.0)
    most_blocks: int = within(23, 1, 65_536)

    def accesses(self) -> float:
        return self.requests * (self.most_blocks + 1) / 2

    def make(self) -> Trace:
        rng = np.random.default_rng(self.seed)
        ids = FreshIds()
        alive: list[I64Array] = []
        requests: list[I64Array] = []
        for _ in range(self.requests):
            if not alive or rng.random() < self.new:
                asked = ids.take(int(rng.integers(1, self.most_blocks + 1)))
            else:
                asked = alive.pop(int(len(alive) * rng.random()))
            alive.append(asked)
            if len(alive) > self.alive:
                alive.pop(0)
            requests.append(asked)
        return of_requests(requests)


@dataclass(frozen=True)
class Loop:
    """Documents of one size in turn, over and over."""

    name: ClassVar[str] = "loop"
    requests: int = within(4_000, 1, 1_000_000)
    documents: int = within(120, 1, 1_000_000)
    blocks: int = within(30, 1, 65_536)

    def accesses(self) -> float:
        return self.requests * self.blocks

    def make(self) -> Trace:
        starts = np.arange(self.requests) % self.documents * self.blocks
        runs = np.full(self.requests, self.blocks)
        return of_runs(starts, runs, runs)


def _deal_anew(rng: np.random.Generator, popularity: I64Array, share: float) -> None:
    """Prompts at some of the ranks of popularity change places."""
    ranks = rng.choice(len(popularity), int(share * len(popularity)), replace=False)
    popularity[ranks] = popularity[rng.permutation(ranks)]
