"""Replay through several tiers of the engine: HBM, host and spill, with moves that take no time.

A request is a sequence: what it asks for is looked up and pinned, what lies lower is brought to the uppermost tier
as far as there is room, everything found is accessed, what is missing is stored in the uppermost tier. Blocks go
down and out by the engine's own rules, watermarks and limits of the spill tier with them. With a prefetch of n
requests, each request's blocks are asked for when the request n places before it comes.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tierd.core import messages as m
from tierd.core.arrays import every
from tierd.core.engine import Engine
from tierd.core.engine_settings import EngineSettings, TierSpec
from tierd.core.errors import InvalidInput
from tierd.core.policy.registry import parse
from tierd.core.shadow import BLOCK_BYTES
from tierd.core.tables import Tables
from tierd.core.underway import STORED_FROM
from tierd.sim.played import Advance, Played
from tierd.sim.traces import Trace, identities_of
from tierd_client.format import IDENTITY_BYTES, U8Array
from tierd_client.hits import HitRule

NAMES = {m.Tier.HBM: "hbm", m.Tier.HOST: "host", m.Tier.SPILL: "spill"}
SETTABLE: dict[str, tuple[str, ...] | tuple[float, float]] = {
    "clock": ("request", "wall"), "steps_per_second": (1e-3, 1e6), "spill_write": tuple(STORED_FROM),
    "spill_bytes_per_s": (0.0, 1e15), "spill_high": (0.0, 1.0), "spill_low": (0.0, 1.0),
    "spill_ahead": (0, 1 << 20), "max_moves": (1, 1 << 20), "max_prefetch_moves": (1, 1 << 20),
}
"""Settings of the engine that a replay can be given, each with its choices or its range."""
MOST_ROUNDS = 1_000
"""In which a request gets its room; each ends moves, of which there are finitely many."""
_SESSION, _SEQUENCE = 1, "request"
_NO_IDS = np.empty((0, IDENTITY_BYTES), np.uint8)


@dataclass(frozen=True, slots=True)
class Tiers:
    """Capacities in blocks beside that of the host tier, 0 for a tier that is off; settings by name, as text."""

    hbm: int = 0
    spill: int = 0
    prefetch: int = 0
    """Requests ahead."""
    settings: tuple[tuple[str, str], ...] = ()

    def engine_settings(self) -> dict[str, Any]:
        """InvalidInput names the setting that is unknown or has no such value."""
        made = dict(_setting(name, text) for name, text in self.settings)
        if made.get("spill_low", 0.0) > made.get("spill_high", 1.0):
            raise InvalidInput("--setting spill_low", "is above spill_high")
        return made


ONE_TIER = Tiers()


def _setting(name: str, text: str) -> tuple[str, Any]:
    if name not in SETTABLE:
        raise InvalidInput("--setting", f"{name!r} is not one of {', '.join(SETTABLE)}")
    allowed = SETTABLE[name]
    if isinstance(allowed[0], str):
        if text not in allowed:
            raise InvalidInput(f"--setting {name}", f"{text!r} is not one of {', '.join(map(str, allowed))}")
        return name, text
    low, high = allowed
    try:
        value = type(low)(text)
    except ValueError:
        value = None
    if value is None or not low <= value <= high:
        raise InvalidInput(f"--setting {name}", f"{text!r} is no {type(low).__name__} in [{low:g}, {high:g}]")
    return name, value


def replay_tiers(trace: Trace, policy: str, capacity: int, tiers: Tiers, advance: Advance) -> Played:
    """What tiers make of a trace, that of host with `capacity` blocks; hits of each beside those of all."""
    requests, played = TieredRequests(policy, capacity, trace, tiers), Played.of(trace)
    played.tiers = {name: Played.of(trace) for name in requests.names}
    identities, asked = identities_of(trace.distinct), trace.asked.tolist()
    bounds, times_s = list(itertools.pairwise(trace.offsets.tolist())), trace.times_s.tolist()

    def ids_of(number: int) -> U8Array:
        start, end = bounds[number]
        return identities.take(trace.blocks[start:end], axis=0)

    for number, (start, end) in enumerate(bounds):
        requests.now = times_s[number]
        ahead = number + tiers.prefetch
        if tiers.prefetch and ahead < trace.requests:
            requests.prefetch(ids_of(ahead)[: asked[ahead]])
        if end > start:
            found = requests.serve(ids_of(number), asked[number])
            _count(played, number, found)
            advance(asked[number])
    played.evictions, played.moved = requests.evictions(), dict(requests.moved)
    played.self_evictions = requests.self_evictions
    return played


def _count(played: Played, request: int, found: U8Array) -> None:
    """`found`: the uppermost tier of each block that was asked for, 0 for none."""
    played.count(request, found != 0)
    run = found[: played.prefix_hits[request]]
    for tier, name in NAMES.items():
        if name in played.tiers:
            of = played.tiers[name]
            of.block_hits[request] = np.count_nonzero(found == tier.value)
            of.prefix_hits[request] = np.count_nonzero(run == tier.value)


class TieredRequests:
    """Plays requests into an engine of several tiers, one at a time. `now`: time of the request (s)."""

    def __init__(self, policy: str, capacity: int, trace: Trace, tiers: Tiers) -> None:
        self.now = 0.0
        self.moved: Counter[str] = Counter()
        self.self_evictions = 0
        self._engine = tiered_engine(policy, capacity, trace.distinct, tiers)
        self._like = m.Ids(0, 0, _NO_IDS, trace.chained, rule=HitRule(trace.block_tokens))
        self._under_way: list[m.Move] = []
        self._top = m.Tier.HBM if tiers.hbm else m.Tier.HOST
        self.names = [NAMES[tier] for tier, on in zip(NAMES, (tiers.hbm, capacity, tiers.spill), strict=True) if on]
        self._step(m.OpenSession(_SESSION))

    def serve(self, ids: U8Array, asked: int) -> U8Array:
        """Stores what is missing of a request, and says of each block that it asked for in which tier it was."""
        blocks, wanted = replace(self._like, ids=ids), replace(self._like, ids=ids[:asked])
        opened = self._step(m.OpenSequence(_SESSION, _SEQUENCE, blocks))
        assert isinstance(opened, m.SequenceOpened)
        found = uppermost(opened.tiers[:asked])
        if not every((found == self._top.value) | (found == 0)):
            self._bring_up(wanted)
        hits = wanted.take(np.flatnonzero(found))
        self._step(m.Touch(_SESSION, hits, np.ones(len(hits), np.int64), _SEQUENCE))
        self._store(blocks)
        here = self._step(m.Lookup(hits))
        assert isinstance(here, m.LookedUp)
        self.self_evictions += int(np.count_nonzero(here.tiers == 0))
        self._step(m.CloseSequence(_SESSION, _SEQUENCE))
        return found

    def prefetch(self, ids: U8Array) -> None:
        """Asks for the blocks of a request to come."""
        self._step(m.Prefetch(_SESSION, replace(self._like, ids=ids), self._top, 600.0))
        while self._settle():
            pass

    def evictions(self) -> int:
        """Also counts what was dropped: victims that did not go down."""
        reply = self._step(m.Occupancy())
        assert isinstance(reply, m.OccupancyReply)
        for tier in reply.tiers:
            if dropped := tier.evicted_total - tier.demoted_total:
                self.moved[f"{NAMES[tier.tier]}>out"] = dropped
        return sum(tier.evicted_total for tier in reply.tiers)

    def _bring_up(self, wanted: m.Ids) -> None:
        for _ in range(MOST_ROUNDS):
            brought = self._step(m.Readmit(wanted, self._top))
            assert isinstance(brought, m.Outcomes)
            if not self._settle() or not np.any(brought.outcomes == m.Readmitted.PENDING.value):
                return

    def _store(self, blocks: m.Ids) -> None:
        retry = False
        for _ in range(MOST_ROUNDS):
            granted = self._step(m.Reserve(_SESSION, blocks, BLOCK_BYTES, self._top, _SEQUENCE, retry))
            assert isinstance(granted, m.ReserveReply)
            mine = granted.outcomes == m.Reserved.GRANTED.value
            if np.any(mine):
                generations = granted.generations[mine]
                checksums = np.zeros_like(generations)
                self._step(m.Commit(_SESSION, blocks.ids[mine], generations, checksums, self._top, _SEQUENCE))
                self.moved[f"engine>{NAMES[self._top]}"] += len(generations)
            if not self._settle() or not np.any(granted.outcomes == m.Reserved.PENDING.value):
                return
            retry = True

    def _settle(self) -> bool:
        """Ends the moves that are under way; False when there were none."""
        moves, self._under_way = self._under_way, []
        if moves:
            self.moved.update(f"{NAMES[move.source]}>{NAMES[move.target]}" for move in moves)
            self._step(m.Finish(tuple(m.MoveResult(move.op, ok=True) for move in moves)))
        return bool(moves)

    def _step(self, command: m.Command) -> m.Reply:
        done = self._engine.step(command, self.now)
        self._under_way += [effect for effect in done.effects if isinstance(effect, m.Move)]
        return done.reply


def uppermost(tiers: U8Array) -> U8Array:
    """Of bits by tier, the number of the lowest one, which is the fastest tier; 0 without any."""
    found = np.zeros(len(tiers), np.uint8)
    for tier in reversed(NAMES):
        found[(tiers >> np.uint8(tier - 1)) & 1 == 1] = tier.value
    return found


def tiered_engine(policy: str, capacity: int, distinct: int, tiers: Tiers) -> Engine:
    """An engine of tiers with exactly so many slots, for a trace of `distinct` blocks."""
    specs: list[TierSpec] = []
    for tier, blocks in ((m.Tier.HBM, tiers.hbm), (m.Tier.HOST, capacity)):
        if blocks:
            specs.append(TierSpec(tier, ((tier.value, blocks * BLOCK_BYTES),)))
    if tiers.spill:
        specs.append(TierSpec(m.Tier.SPILL, capacity_bytes=tiers.spill * BLOCK_BYTES))
    rows = min(tiers.hbm + capacity + tiers.spill, distinct)
    ghosts = 2 * min(distinct, parse(policy).common.ghosts_for(rows))
    settings = {"max_moves": distinct, "max_prefetch_moves": distinct} | tiers.engine_settings()
    return Engine(
        EngineSettings(tuple(specs), policy, max_held=2 * distinct, **settings),
        Tables.private(rows, ghosts, sessions=1, holds=2 * distinct),
    )


def parse_settings(texts: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """`name=value` of each; InvalidInput for what is not of that form."""
    made: list[tuple[str, str]] = []
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals:
            raise InvalidInput("--setting", f"{text!r} is not of the form name=value")
        if name.strip() in (before for before, _ in made):
            raise InvalidInput(f"--setting {name.strip()}", "given twice")
        made.append((name.strip(), value.strip()))
    return tuple(made)
