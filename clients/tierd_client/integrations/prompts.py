"""The blocks of one running request, as an engine's scheduler asks for them: which can be loaded, which to store.

Made for schedulers that ask block by block and often: all blocks of a request are searched at once, when the first
one is asked for, and what was found stays leased until it is loaded or given up. For one thread.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import TypeVar

import numpy as np

from tierd_client.format import BoolArray
from tierd_client.handover import Places
from tierd_client.integrations.keys import Run
from tierd_client.integrations.link import Link
from tierd_client.integrations.rates import Rates, Way
from tierd_client.integrations.search import Patience, Search
from tierd_client.layout import Layout

MISS_S = 1.0
"""How long it counts that nothing was found, for a request that is asked about again."""

T = TypeVar("T")


class Answer(Enum):
    """LEASED can be loaded until the request ends; PENDING is being searched for; MISS is to be computed."""

    LEASED = auto()
    PENDING = auto()
    MISS = auto()


@dataclass(frozen=True, slots=True)
class _Searched:
    """A search of one group, from block `start` of the request on."""

    search: Search
    start: int
    began_at: float

    def is_stale(self, index: int) -> bool:
        """Whether it says nothing of this block, or what it says is old."""
        if index < self.start:
            return True
        aged = time.monotonic() - self.began_at > MISS_S
        return aged and self.search.ended() and not self.search.leased.any()


@dataclass(frozen=True, slots=True)
class Shadow:
    """What `Namespace.shadow` is told of a request."""

    run: Run
    asked: int
    served: int
    block_bytes: int
    prefill_tokens_per_s: float


class Prompt:
    """The blocks of one request. `keys`: of each group, in the order of the prompt."""

    def __init__(
        self, link: Link, layouts: Sequence[Layout], groups: int, rates: Rates, patience: Patience,
    ) -> None:
        """`layouts`: of all ranks. `rates`: of the engine; what loads take is noted there. `patience`: of its
        thread."""
        self.keys: list[list[bytes]] = [[] for _ in range(groups)]
        self.loading = False
        self.cut_blocks = 0
        """Blocks of its searches that are not loaded, because computing them is faster."""
        self.asked: list[int] = []
        """Of each group, blocks that the request began with; what comes later is of its answer."""

        self._rates = rates
        self._patience = patience
        self._loads_since = 0.0
        self._loads_blocks = 0
        self._link = link
        self._layouts = layouts
        self._place: dict[bytes, tuple[int, int]] = {}
        self._searched: list[_Searched | None] = [None] * groups
        self._moved: set[bytes] = set()

    def __len__(self) -> int:
        """Blocks of all groups."""
        return len(self._place)

    def extend(self, keys: Iterable[tuple[int, bytes]]) -> None:
        """More blocks, each with its group."""
        for group, key in keys:
            if key not in self._place:
                self._place[key] = group, len(self.keys[group])
                self.keys[group].append(key)
        self.asked = self.asked or [len(keys) for keys in self.keys]

    def answer(self, key: bytes) -> Answer:
        """Whether a block can be loaded. The first question begins a search of all from that block on."""
        place = self._place.get(key)
        if place is None or self._link.options.shadow:
            return Answer.MISS
        group, index = place
        searched = self._searched[group]
        if searched is None or searched.is_stale(index):
            if not self._link.is_up:
                return Answer.MISS
            searched = self._search(group, index)
            self._patience.wait_for(searched.search)
        if not searched.search.ended():
            return Answer.PENDING
        offset = index - searched.start
        leased = offset < len(searched.search.leased) and searched.search.leased[offset]
        return Answer.LEASED if leased else Answer.MISS

    def in_order(self, keys: Collection[bytes]) -> list[bytes]:
        """These blocks by group, and within it in the order of the prompt: as `load` gives their places."""
        return sorted(keys, key=self._place.__getitem__)

    def load(self, keys: Collection[bytes]) -> list[list[tuple[int, Places]]]:
        """Of each rank, the groups of these blocks and where they lie; all were LEASED. They stay leased until
        `release`."""
        self.loading = True
        self._loads_since, self._loads_blocks = time.monotonic(), len(keys)
        self._moved.update(keys)
        ranks: list[list[tuple[int, Places]]] = [[] for _ in self._layouts]
        for group, indices in self._by_group(keys):
            searched = self._searched[group]
            assert searched is not None, "a block is loaded that nobody has asked for"
            places = searched.search.places([index - searched.start for index in indices])
            for rank, of_rank in enumerate(places):
                ranks[rank].append((group, of_rank))
        return ranks

    def missing(self, keys: Collection[bytes], stored_soon: Collection[bytes]) -> list[Run]:
        """Those of these blocks that are to be stored, in runs: the catalog has them not of all ranks, and they are
        not on their way. None while the daemon is away, or in shadow mode."""
        self._moved.update(keys)
        if not self._link.is_up or self._link.options.shadow:
            return []
        runs: list[Run] = []
        for group, indices in self._by_group(keys):
            run = self._run(group, indices[0], indices[-1] + 1)
            chosen: BoolArray = np.zeros(len(run), bool)
            chosen[np.array(indices) - indices[0]] = True
            chosen &= np.array([key not in stored_soon for key in run.keys])
            runs += run.parts(chosen & ~self._is_stored(run))
        return runs

    def stored(self, keys: Collection[bytes]) -> list[bytes]:
        """Those of these blocks that the catalog has now, in their order. None while the daemon is away."""
        found: list[bytes] = []
        for group, indices in self._by_group(keys):
            run = self._run(group, indices[0], indices[-1] + 1)
            there = self._is_stored(run)
            found += [run.keys[index - indices[0]] for index in indices if there[index - indices[0]]]
        return found

    def loaded(self) -> None:
        """The load has ended: as `release`."""
        self._rates.note(Way.HOST, self._loads_blocks, time.monotonic() - self._loads_since)
        self.release()

    def release(self) -> None:
        """Gives back what is leased, and forgets what was found."""
        self.loading = False
        for searched in self._searched:
            if searched is not None:
                self.cut_blocks += searched.search.cut_blocks
                searched.search.release()
        self._searched = [None] * len(self._searched)

    def served_elsewhere(self) -> list[Run]:
        """Blocks before the first that was loaded or offered for storing: the engine had them in its own cache."""
        counts = [self._served(group) for group in range(len(self.keys))]
        return [self._run(group, 0, count) for group, count in enumerate(counts) if count]

    def whole(self) -> list[Run]:
        """All blocks, a run per group."""
        return [self._run(group, 0, len(keys)) for group, keys in enumerate(self.keys) if keys]

    def as_shadow(self) -> Shadow:
        """The request as shadow mode tells of it. Where there are several groups the first stands for all."""
        tokens = [group.block_tokens for group in self._layouts[0].groups]
        groups = [group for layout in self._layouts for group in layout.groups]
        block_bytes = sum(group.block_bytes * tokens[0] / group.block_tokens for group in groups)
        block_s = self._rates.block_seconds(Way.COMPUTED)
        asked = self.asked[0] if self.asked else 0
        return Shadow(
            Run(tuple(self.keys[0])), asked, min(asked, self._served(0)), round(block_bytes),
            tokens[0] / (len(tokens) * block_s) if block_s else 0.0)

    def _served(self, group: int) -> int:
        keys = self.keys[group]
        return next((index for index, key in enumerate(keys) if key in self._moved), len(keys))

    def _is_stored(self, run: Run) -> BoolArray:
        """Which blocks the catalog has of all ranks; none while the daemon is away."""
        there: BoolArray = np.ones(len(run), bool)
        for layout in self._layouts:
            namespace = self._link.known(layout)
            there &= False if namespace is None else namespace.peek(run.identities(layout)) != 0
        return there

    def _search(self, group: int, index: int) -> _Searched:
        before, alone = self._searched[group], len(self.keys) == 1
        if before is not None:
            before.search.release()
        start = index if alone else 0
        run = self._run(group, start, len(self.keys[group]))
        search = Search(self._link, self._layouts, run, self._rates, leading=alone)
        searched = _Searched(search, start, time.monotonic())
        self._searched[group] = searched
        return searched

    def _run(self, group: int, start: int, stop: int) -> Run:
        keys = self.keys[group]
        chained = len(self.keys) == 1
        return Run(tuple(keys[start:stop]), group, start, keys[start - 1] if start else None, chained)

    def _by_group(self, keys: Collection[bytes]) -> list[tuple[int, list[int]]]:
        """Numbers of blocks, ascending, by group."""
        found: dict[int, list[int]] = {}
        for group, index in map(self._place.__getitem__, self.in_order(keys)):
            found.setdefault(group, []).append(index)
        return list(found.items())
