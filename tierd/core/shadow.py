"""What a host tier of some size would have held of requests, of which nothing but the identities is known.

An engine with slots and no bytes is told of each request at once, as `tierd sim` does. A tier of more blocks than
are to be simulated is simulated by a sample: a share 2^-k of all identities, chosen by a hash of theirs, in a tier
of that share of the blocks. Waldspurger, Park, Garthwaite, Ahmad, "Efficient MRC Construction with SHARDS", FAST
2015.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tierd.core import messages as m
from tierd.core.counters import Counters
from tierd.core.engine import Engine
from tierd.core.engine_settings import EngineSettings, TierSpec
from tierd.core.policy.registry import parse
from tierd.core.tables import Tables
from tierd_client.format import IDENTITY_BYTES, PAGE_BYTES, I64Array, U8Array, U64Array, words_of
from tierd_client.hits import HitRule

BLOCK_BYTES = PAGE_BYTES
"""Size of a simulated block: one slot of the smallest class. No bytes exist."""

DISTINCT_A_SLOT = 8
"""Identities that are counted on for each slot, where nobody knows how many there are: at least as many ghosts as
policies keep, but for those that would keep all."""

GROUPS = 32
"""Of sampled identities, by a hash: how much these differ is how far off the sample may be."""

_SESSION = 1


def host_engine(policy: str, capacity: int, distinct: int) -> Engine:
    """An engine whose host tier has exactly `capacity` slots, for a trace of `distinct` blocks."""
    rows = min(capacity, distinct)
    # Twice as many places as ghosts: holes are closed seldom, and none is forgotten for want of a place.
    ghosts = 2 * min(distinct, parse(policy).common.ghosts_for(rows))
    host = TierSpec(m.Tier.HOST, ((1, capacity * BLOCK_BYTES),))
    return Engine(
        EngineSettings((host,), policy, max_held=distinct), Tables.private(rows, ghosts, sessions=1, holds=distinct)
    )


class Requests:
    """Plays requests into an engine, one at a time."""

    def __init__(
        self, policy: str, capacity: int, distinct: int, block_tokens: int, look_again_every: int = 0
    ) -> None:
        """`look_again_every`: of so many requests one is looked up again when it has been served, for blocks that
        are gone then (`self_evictions`); 0 for none."""
        self.engine = host_engine(policy, capacity, distinct)
        self.engine.step(m.OpenSession(_SESSION), 0.0)
        self._rule = HitRule(block_tokens)
        self._look_again_every = look_again_every
        self.self_evictions = 0
        self._served = 0

    def serve(self, ids: U8Array, now: float, *, chain: bool = True) -> NDArray[np.bool_]:
        """Stores the blocks of a request that are missing, and says which were there.

        One Note of all ids is the request: it is a tick, finds what is there, protects it and accesses it, makes
        room among the others, and accesses what is new.
        """
        blocks = m.Ids(0, 0, ids, chain=chain, rule=self._rule)
        noted = self.engine.step(m.Note(_SESSION, blocks, BLOCK_BYTES), now).reply
        assert isinstance(noted, m.Outcomes)
        present: NDArray[np.bool_] = noted.outcomes == m.Reserved.EXISTS.value
        self._served += 1
        if self._look_again_every and self._served % self._look_again_every == 0:
            self._look_again(ids[noted.outcomes <= m.Reserved.EXISTS.value])
        return present

    def pass_by(self, now: float) -> None:
        """A request of which no block is of these: a tick."""
        self.engine.step(m.Touch(_SESSION, m.Ids(0, 0, _NO_IDS), np.empty(0, np.int64)), now)

    def _look_again(self, ids: U8Array) -> None:
        """Counts blocks of a request that are gone now that it has been served."""
        found = self.engine.step(m.Lookup(m.Ids(0, 0, ids)), 0.0).reply
        assert isinstance(found, m.LookedUp)
        self.self_evictions += int(np.count_nonzero(found.presence == m.Presence.MISS.value))

    @property
    def counters(self) -> Counters:
        """Of the one tier."""
        return self.engine.state.tiers[m.Tier.HOST].counters


_NO_IDS = np.empty((0, IDENTITY_BYTES), np.uint8)


@dataclass(frozen=True, slots=True)
class Estimate:
    """A number of blocks. `error`: the true one is within it in 19 of 20 cases; 0 when all identities are looked
    at."""

    blocks: int
    error: int


@dataclass(frozen=True, slots=True)
class Figures:
    """What a tier would have done so far.

    `prefix_hits`: of the leading run of each request. `saved`: of that run, those that the engine had not in a
    cache of its own. `held_blocks`: of the tier's blocks, those in use.
    """

    capacity_blocks: int
    held_blocks: int
    sampled_share: float
    block_hits: Estimate
    prefix_hits: Estimate
    saved: Estimate


class ShadowTier:
    """A host tier of `capacity_blocks` of one namespace, of which at most `blocks_max` are simulated.

    Of a sample it counts what missed, and takes the rest of all that was asked for as hits: a few identities may
    have a good part of all accesses, in the sample or out of it, and they are those that hit.
    """

    def __init__(self, policy: str, capacity_blocks: int, blocks_max: int, block_tokens: int) -> None:
        self.capacity_blocks = capacity_blocks
        self._bits = max(0, (-(-capacity_blocks // blocks_max) - 1).bit_length())
        slots = max(1, capacity_blocks >> self._bits)
        self._requests = Requests(policy, slots, DISTINCT_A_SLOT * slots, block_tokens)
        self._asked = self._served = 0
        self._missed: I64Array = np.zeros((3, GROUPS), np.int64)
        """Of each group of the sample, blocks that were asked for: that were not there, not in the leading run, and
        of these those that the engine had itself."""

    def serve(self, ids: U8Array, asked: int, served: int, now: float) -> None:
        """A request: the first `asked` of its blocks were asked for, others came new; the first `served` the engine
        had itself."""
        self._asked += asked
        self._served += served
        hashes = words_of(ids)[:, -1]
        mine = np.flatnonzero(hashes < np.uint64(1 << (64 - self._bits))) if self._bits else np.arange(len(ids))
        if not len(mine):
            self._requests.pass_by(now)
            return
        present = self._requests.serve(ids.take(mine, axis=0), now)
        asked, served = map(int, np.searchsorted(mine, (asked, served)))
        self._count(hashes[mine[:asked]], present[:asked], served)

    def figures(self) -> Figures:
        counters, (absent, cut, in_vain) = self._requests.counters, self._missed
        return Figures(
            self.capacity_blocks, (counters.stored - counters.evicted) << self._bits, 0.5**self._bits,
            self._rest_of(self._asked, absent), self._rest_of(self._asked, cut),
            self._rest_of(self._asked - self._served, cut - in_vain),
        )

    def _count(self, hashes: U64Array, present: NDArray[np.bool_], served: int) -> None:
        groups = ((hashes >> np.uint64(8)) % np.uint64(GROUPS)).astype(np.int64)
        end = len(present) if present.all() else int(present.argmin())
        for missed, of in zip(self._missed, (groups[~present], groups[end:], groups[end:served]), strict=True):
            missed += np.bincount(of, minlength=GROUPS)

    def _rest_of(self, blocks: int, missed: I64Array) -> Estimate:
        """Those of so many blocks that did not miss. The error is twice the standard error of a total over random
        groups of a finite population. Wolter, "Introduction to Variance Estimation", 2007, chapter 2."""
        spread = missed - missed.mean()
        variance = (1 - 0.5**self._bits) * GROUPS / (GROUPS - 1) * float(spread @ spread)
        hits = blocks - (int(missed.sum()) << self._bits)
        return Estimate(min(max(hits, 0), blocks), round(2 * math.sqrt(variance)) << self._bits)


def splitmix64(words: U64Array) -> U64Array:
    """Words mixed. Source: Steele, Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014."""
    mixed = words * np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed ^= mixed >> np.uint64(31)
    return mixed
