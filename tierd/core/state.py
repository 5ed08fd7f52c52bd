"""All that the engine knows, and the few ways in which it changes.

Commands (placing.py, reading.py, moving.py, ...) are functions over this state. It keeps, together: the
catalog and ghosts, the copies of each tier, the order of victims, the links of chains, and what is pinned."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from tierd.core import fallback, statistics
from tierd.core.allowance import Allowance
from tierd.core.arena import slot_bytes
from tierd.core.arrays import constant, every, some
from tierd.core.catalog import Catalog
from tierd.core.clock import Clock
from tierd.core.copies import FOUND, TierCopies
from tierd.core.counters import Counters
from tierd.core.deadlines import Deadlines
from tierd.core.engine_settings import EngineSettings
from tierd.core.errors import InvalidInput
from tierd.core.gaps import Gaps, never_seen
from tierd.core.ghosts import Ghosts
from tierd.core.hashindex import NO_ROW, UNKNOWN
from tierd.core.hazards import Hazards
from tierd.core.messages import Effect, Ids, Tier, Unlink
from tierd.core.outage import Outage
from tierd.core.policy.base import Moment, Policy
from tierd.core.policy.registry import parse
from tierd.core.protection import Barred, Protection
from tierd.core.sessions import Sessions
from tierd.core.standing import forget_next_use
from tierd.core.tables import Tables
from tierd.core.underway import STORED_FROM, MoveInFlight, Report, Sequence, Storing, Ticket
from tierd.core.victim_rows import Lets, Victims
from tierd.core.victims import make_victims
from tierd_client.format import STATE_ABSENT, WORD_POLICY_EPOCH, I64Array, U8Array, U64Array

_ONE, _NOBODY = constant(1, np.int32), constant(0, np.int32)
_NEVER, _ABSENT = constant(0, np.uint32), constant(STATE_ABSENT, np.uint8)
FIRST_AGE = 50.0
"""Characteristic age of a tier before it evicted anything, in steps."""
AGE_WEIGHT = 0.02
"""Weight of one request that evicts in the mean of the ages."""
WORD_AGES = 8
"""Header words of the catalog from here: the characteristic age of each tier (f64)."""
ARENA_TIERS = (Tier.HBM, Tier.HOST)


class TierState:
    """One tier that is on."""

    def __init__(
        self, copies: TierCopies, age: NDArray[np.float64], pins: NDArray[np.int32], *, lends: bool = False
    ) -> None:
        """`age`: where the characteristic age is kept, one number; 0 before the tier's first start."""
        self.lends = lends
        self._age = age
        if not age[0]:
            age[0] = FIRST_AGE
        self.copies = copies
        self.tier = copies.tier
        self.barred = Barred(pins, copies.leases, copies.moves)
        self.children = np.zeros(copies.catalog.capacity, np.int32)
        """Children of each row with a copy here, those chosen to leave not counted."""
        self.leaving: set[int] = set()
        """Rows whose copy here goes as soon as a move down has ended."""
        self.victims: Victims
        self.evicted_idle: list[int] = []
        """Idle ages of what the command in hand evicted."""
        self.counters = Counters()

    @property
    def age(self) -> float:
        """The characteristic age T: mean idle age of what the tier evicts, in steps. Survives restarts."""
        return float(self._age.item(0))

    @age.setter
    def age(self, steps: float) -> None:
        self._age[0] = steps


class State:
    def __init__(self, settings: EngineSettings, tables: Tables, hazards: Hazards) -> None:
        self.settings, self.tables, self.hazards = settings, tables, hazards
        self.catalog = Catalog(tables.catalog)
        self.ghosts = Ghosts(tables.ghosts, tables.learnt["ghosts"], self.catalog.index.salt)
        self.gaps = Gaps(tables.learnt["gaps"])
        self.new_class = 0
        """Of the request in hand, by the tokens that it brings (gaps.py)."""
        self.sessions = Sessions(tables.sessions, settings.max_held)
        self.clock = Clock(settings.clock, settings.steps_per_second)
        self.policy: Policy = parse(settings.policy)
        self.pins: NDArray[np.int32] = np.zeros(self.catalog.capacity, np.int32)
        """Open sequences (and the command in hand) that hold each row."""
        self.tiers: dict[Tier, TierState] = {}
        for spec in sorted(settings.tiers, key=lambda spec: spec.tier):
            copies = TierCopies(spec.tier, self.catalog, spec.segments, spec.capacity_bytes, spec.readable, hazards)
            copies.footprints.learn(spec.footprints, 0.0)
            age = tables.catalog.words[WORD_AGES + spec.tier - 1 :][:1].view(np.float64)
            self.tiers[spec.tier] = TierState(copies, age, self.pins, lends=spec.lends)
        self.sequences: dict[tuple[int, str], Sequence] = {}
        self.budgeted: dict[tuple[int, str], Sequence] = {}
        """Those of them that have a budget."""
        self.held_ids = 0
        """Identities that open sequences name."""
        self.recent: OrderedDict[tuple[int, str], Sequence] = OrderedDict()
        """Sequences that closed a short while ago, the latest last."""
        self.awaited: dict[bytes, int] = {}
        """Identities of open sequences that have no row yet -> how many hold them."""
        self.kept = Deadlines(self.catalog.pinned_until)
        """Pinned rows. Not to be dropped while they have no other copy."""
        self.kept_bytes = 0
        self.expected = Deadlines(np.zeros(self.catalog.capacity))
        """Rows that are soon to be read."""
        self.prefetches: dict[tuple[int, int], Ticket] = {}
        """(session, ticket) -> prefetch, the oldest first."""
        self.tickets = 0
        self.moves: dict[int, MoveInFlight] = {}
        self.failed: dict[tuple[int, int], Tier] = {}
        """(row, birth) whose last asked-for move failed -> where it was to go. The latest only."""
        self.reports: dict[int, Report] = {}
        self.reports_step = -1
        self.effects: list[Effect] = []
        self.outage = Outage(settings.spill_grace_s, tables.catalog.words)
        self.spill_attached = settings.spill_attached
        self.storing = Storing(
            STORED_FROM[settings.spill_write], Allowance(settings.spill_bytes_per_s),
            np.zeros(self.catalog.capacity, bool),
        )
        self.misses = self.most_identities = 0
        self._next_move, self._generation = 1, 0
        self.make_victims()

    # --- numbers ------------------------------------------------------------------------------------

    @property
    def policy_epoch(self) -> int:
        return int(self.tables.catalog.words[WORD_POLICY_EPOCH])

    def generations(self, count: int) -> U64Array:
        """Numbers that no slot ever had."""
        first = self._generation + 1
        self._generation += count
        return np.arange(first, first + count, dtype=np.uint64)

    def start_generations(self, above: int) -> None:
        self._generation = above

    def next_move(self) -> int:
        self._next_move += 1
        return self._next_move - 1

    def moment(self, tier: TierState) -> Moment:
        return Moment(self.clock.step, self.clock.wall_s, tier.age, self.gaps.index, fallback.active(self.fallback))

    # --- tiers --------------------------------------------------------------------------------------

    def tier(self, tier: Tier, field_name: str = "tier") -> TierState:
        """InvalidInput when the tier is off."""
        found = self.tiers.get(tier)
        if found is None or not self.is_on(tier):
            raise InvalidInput(field_name, f"the {tier.name.lower()} tier is off")
        return found

    def is_on(self, tier: Tier) -> bool:
        """Whether a tier that was planned for is there now."""
        return tier in self.tiers and (tier != Tier.SPILL or self.spill_attached)

    def readable(self, *, device: bool = False) -> list[TierState]:
        """Tiers whose copies a client can read, fastest first; `device`: one that reads memory of a device too."""
        return [tier for tier in self.tiers.values() if tier.copies.arena and (tier.copies.readable or device)]

    def at_or_below(self, tier: Tier) -> TierState:
        """The tier, or the fastest arena below it that is on: where "as high as that" leads."""
        numbers = [number for number in ARENA_TIERS if number >= tier and number in self.tiers]
        arenas = [found for number in numbers if (found := self.tiers[number]).copies.arena]
        return arenas[0] if arenas else self.tier(tier, "to")

    def below(self, tier: Tier) -> TierState | None:
        """The next tier down that is on."""
        return next((found for number, found in self.tiers.items() if number > tier and self.is_on(number)), None)

    def destination(self, tier: TierState) -> TierState | None:
        """The tier that takes this one's victims; None where they are dropped."""
        below = self.below(tier.tier)
        return None if below is None or self._given_up(below) else below

    def _given_up(self, target: TierState) -> bool:
        """Whether the spill tier has been down for so long that its newcomers are dropped instead."""
        return target.tier == Tier.SPILL and not self.spill_up and self.outage.is_too_long(self.clock.wall_s)

    @property
    def spill_up(self) -> bool:
        return self.outage.up

    def ready_tiers(self, rows: I64Array) -> U8Array:
        """Bit per tier with a READY copy, for rows of which some may be `NO_ROW`."""
        bits = np.zeros(len(rows), np.uint8)
        for number, tier in self.tiers.items():
            bits |= tier.copies.ready(rows).view(np.uint8) << np.uint8(number - 1)
        bits[rows == NO_ROW] = 0
        return bits

    def reach(self) -> np.uint8:
        """Bits of the tiers that can be reached: what only a spill tier that is down has is known, but no hit."""
        return self.outage.reach

    # --- pins ---------------------------------------------------------------------------------------

    def pin(self, rows: I64Array, count: int = 1) -> None:
        """`rows` may hold a row several times."""
        np.add.at(self.pins, rows, np.int32(count))  # a number of another type takes eight times as long

    def unpin(self, rows: I64Array) -> None:
        np.subtract.at(self.pins, rows, _ONE)
        self._put_back(rows[self.pins[rows] == 0])

    def guard(self, rows: I64Array) -> None:
        """These are no victims until `unguard`. `rows` may hold a row several times: it is pinned once."""
        self.pins[rows] += 1

    def unguard(self, rows: I64Array) -> None:
        self.pins[rows] -= 1
        self._put_back(rows[self.pins[rows] == 0])

    def _put_back(self, rows: I64Array) -> None:
        for tier in self.tiers.values():
            if some(tier.victims.out[rows]):
                tier.victims.put_back(np.array(sorted(set(rows.tolist())), np.int64))

    def keep(self, rows: I64Array, until: float) -> None:
        """Distinct rows are pinned until then, or longer if they were."""
        self.kept_bytes += self.slot_bytes_of(self.kept.extend(rows, until))

    def unkeep(self, rows: I64Array) -> I64Array:
        """Distinct rows are not pinned any more; returns those that were."""
        if len(had := self.kept.end(rows)):
            self.kept_bytes -= self.slot_bytes_of(had)
            self._put_back(had)
        return had

    def lapse(self) -> None:
        """Pins end whose time has come."""
        if not self.kept.passed(self.clock.wall_s):
            return
        late = self.kept.due(self.clock.wall_s)
        self.kept_bytes -= self.slot_bytes_of(late)
        self._put_back(late)

    def release_pinned(self) -> None:
        """Pinned rows that could only have been dropped can be demoted again."""
        self._put_back(self.kept.rows())

    def slot_bytes_of(self, rows: I64Array) -> int:
        """Bytes of one slot for each row."""
        return sum(slot_bytes(size) for size in self.catalog.size[rows].tolist())

    def protection(self, tier: TierState) -> Protection:
        """Which rows may not leave this tier now."""
        if len(self.kept) and self.destination(tier) is None:
            return replace(tier.barred, kept=self.kept.until)
        return tier.barred

    def protected(self, tier: TierState, rows: I64Array) -> NDArray[np.bool_]:
        return self.protection(tier).many(rows)

    # --- rows ---------------------------------------------------------------------------------------

    def find(self, blocks: Ids) -> I64Array:
        """Row of each id, `NO_ROW` where it has none as a block of this namespace and group."""
        rows = self.catalog.find(blocks.ids)
        rows[self.foreign(blocks, rows)] = NO_ROW
        return rows

    def named(self, blocks: Ids, rows: I64Array) -> I64Array:
        """Rows of all that a request names, which make no room for one another: also for the rest of it, or what
        was said to be done would be undone. `rows`: those of `blocks`."""
        if blocks.whole is not None:
            rows = self.catalog.find(blocks.whole)
        known: I64Array = rows[rows != UNKNOWN]
        return known

    def foreign(self, blocks: Ids, rows: I64Array) -> NDArray[np.bool_]:
        """Which of these rows hold the id as a block of another namespace or group: with other bytes, and of
        another size, so that whoever took them for its own would read into the next slot."""
        catalog = self.catalog
        mine = (catalog.namespace[rows] == blocks.namespace) & (catalog.group[rows] == blocks.group)
        others: NDArray[np.bool_] = (rows != UNKNOWN) & ~mine
        return others

    def create_rows(self, blocks: Ids, places: I64Array, ghosts: I64Array, size: int) -> I64Array:
        """Rows for the ids at `places`, with the records of their ghosts, which stood at `ghosts` of all ids.
        LimitReached when rows run out."""
        ids = blocks.ids.take(places, axis=0)
        rows = self.catalog.insert(ids)
        catalog = self.catalog
        catalog.namespace[rows], catalog.group[rows] = blocks.namespace, blocks.group
        catalog.position[rows] = blocks.positions()[places]
        catalog.size[rows] = size
        catalog.learnt[rows] = never_seen(len(blocks), blocks.chain)[places]
        found, records = self.ghosts.take(ids, ghosts[places])
        if self.policy.common.persist and len(found):
            statistics.restore(catalog, rows[found], records)
        if self.awaited:
            for row, identity in zip(rows.tolist(), split(ids), strict=True):
                self.pins[row] = self.awaited.pop(identity, 0)
        self.storing.unstated[rows] = False
        self.most_identities = max(self.most_identities, len(catalog))
        return rows

    def _destroy_rows(self, rows: I64Array, left: TierState) -> None:
        """Forgets those of these rows whose last copy is the one that left a tier; the record becomes a ghost."""
        gone = rows
        for tier in self.tiers.values():
            if tier is not left:
                gone = gone[tier.copies.state[gone] == _ABSENT]
        if not len(gone):
            return
        catalog = self.catalog
        if some(pinned := self.pins[gone] != _NOBODY):
            held = gone[pinned]
            for row in held.tolist():
                self.awaited[catalog.identity[row].tobytes()] = int(self.pins[row])
            self.pins[held] = 0
        self.unkeep(gone)
        self.expected.end(gone)
        for tier in self.tiers.values():
            tier.children[gone] = 0
        if self.policy.common.persist:
            self._remember(gone)
        catalog.remove(gone)

    def _remember(self, rows: I64Array) -> None:
        """The records of rows that are about to go become ghosts, where there was an access."""
        records = statistics.records_of(self.catalog, rows)
        if not every(accessed := records.touches != _NEVER):
            rows = rows[accessed]
            records = statistics.records_of(self.catalog, rows)
        if len(rows):
            limit = self.policy.common.ghosts_for(self.most_identities)
            ids, hashed = self.catalog.identity.take(rows, axis=0), self.catalog.hashes[rows]
            self.ghosts.add(ids, records, limit, hashed)

    # --- copies -------------------------------------------------------------------------------------

    def reserve(
        self, tier: TierState, rows: I64Array, addresses: list[int], writer: int | list[int],
        told: U64Array | None = None,
    ) -> U64Array:
        """Hands out slots to one writer, or one to each; returns their generations. `told`: those that their writer
        knows them by already."""
        generations = self.generations(len(rows)) if told is None else told
        tier.copies.reserve(rows, addresses, generations, writer)
        self._count_children(tier, self.catalog.parents(tier.copies.placed(rows)), 1)
        return generations

    def adopt(
        self, tier: TierState, rows: I64Array, addresses: list[int], lender: int, fences: U64Array
    ) -> None:
        """Copies in an engine's memory are READY."""
        tier.copies.adopt(rows, addresses, self.generations(len(rows)), lender, fences)
        self._count_children(tier, self.catalog.parents(rows), 1)

    def appear(self, tier: TierState, rows: I64Array, addresses: list[int]) -> None:
        """Copies are READY in slots in which nothing is to be written; once they are reordered, which the caller
        sees to, they may be chosen."""
        tier.copies.appear(rows, addresses, self.generations(len(rows)))
        self._count_children(tier, self.catalog.parents(rows), 1)

    def publish(self, tier: TierState, rows: I64Array, *, ordered: bool = True) -> None:
        """FILLING copies become READY and may be chosen from now on. Not `ordered`: once they are reordered,
        which the caller sees to."""
        tier.copies.commit(rows)
        if ordered:
            tier.victims.insert(tier.copies.placed(rows))

    def disown(self, tier: TierState, rows: I64Array) -> None:
        """FILLING copies turn out to be of another's making."""
        self._count_children(tier, self.catalog.parents(rows), -1)
        tier.copies.disown(rows)

    def abandon(self, tier: TierState, rows: I64Array) -> None:
        """FILLING copies end, their slots are free."""
        if not len(rows):
            return
        with self.catalog.writing(rows):
            tier.copies.abort(rows)
            self._left(tier, rows)

    def drop(self, tier: TierState, rows: I64Array, *, chosen: bool = False, unlink: bool = True) -> None:
        """READY copies end, and in the spill tier what this daemon stored is deleted, unless not `unlink`.
        `chosen`: as victims, so that their parents have been told."""
        if not len(rows):
            return
        with self.catalog.writing(rows):
            tier.copies.drop(rows)
            tier.victims.discard(rows)
            if tier.tier == Tier.SPILL and unlink:
                self.unlink(tier.copies.placed(rows))
            self._left(tier, rows, counted=chosen)

    def vacate(self, tier: TierState, rows: I64Array) -> list[int]:
        """READY copies of blocks of one size end; slots that the caller borrows (TierCopies.vacate)."""
        with self.catalog.writing(rows):
            addresses = tier.copies.vacate(rows)
            tier.victims.discard(rows)
            self._left(tier, rows)
        return addresses

    def quarantine(self, tier: TierState, rows: I64Array) -> None:
        """Copies end, their slots stay out of use."""
        with self.catalog.writing(rows):
            tier.copies.quarantine(rows)
            tier.victims.discard(rows)
            self._left(tier, rows)

    def _left(self, tier: TierState, rows: I64Array, *, counted: bool = False) -> None:
        if not counted:
            self._count_children(tier, self.catalog.parents(tier.copies.placed(rows)), -1)
        self._destroy_rows(rows, tier)

    def unlink(self, rows: I64Array) -> None:
        """What the spill store holds of these rows is deleted."""
        for namespace in np.unique(self.catalog.namespace[rows]).tolist():
            of = rows[self.catalog.namespace[rows] == namespace]
            self.effects.append(Unlink(namespace, tuple(split(self.catalog.identity[of]))))

    # --- chains -------------------------------------------------------------------------------------

    def link(self, blocks: Ids, rows: I64Array) -> None:
        """Sets the parents of those ids of a chain that have rows. Where a hit can do without the start of the
        chain no block needs the one before it, and none is kept for its sake."""
        if not blocks.chain or not blocks.rule.whole:
            return
        before = self._rows_before(blocks, rows)
        known = (rows != UNKNOWN) & (before != UNKNOWN)
        # A parent lies before its child, whatever a client says: no block is kept by a ring of links.
        known &= self.catalog.position[before] < self.catalog.position[rows]
        if some(known):
            self.catalog.followers[before[known]] = rows[known]
            self._set_parents(rows[known], before[known])

    def _rows_before(self, blocks: Ids, rows: I64Array) -> I64Array:
        if blocks.some is not None:
            return self.catalog.find(blocks.before())
        before = np.empty_like(rows)
        before[1:] = rows[:-1]
        before[0] = NO_ROW if blocks.parent is None else self.catalog.find(blocks.before()[:1])[0]
        return before

    def ancestors(self, blocks: Ids) -> I64Array:
        """Rows of the chain before ids[0], the nearest first, as far as they are known and linked."""
        if not blocks.chain or not blocks.rule.whole or (blocks.parent is None and blocks.some is None):
            return np.empty(0, np.int64)
        row = int(self.catalog.find(blocks.before()[:1])[0])
        rows: list[int] = []
        while row != NO_ROW and len(rows) < self.catalog.capacity:
            rows.append(row)
            row = self.catalog.parent_of(row)
        return np.array(rows, np.int64)

    def _set_parents(self, rows: I64Array, parents: I64Array) -> None:
        catalog = self.catalog
        old = catalog.parents(rows)
        changed = old != parents
        if not some(changed):
            return
        rows, parents, old = rows[changed], parents[changed], old[changed]
        for tier in self.tiers.values():
            here = (tier.copies.state[rows] != STATE_ABSENT) & (tier.copies.address[rows] != FOUND)
            if tier.leaving:
                here &= ~np.isin(rows, list(tier.leaving))
            self._count_children(tier, old[here], -1)
            self._count_children(tier, parents[here], 1)
        with catalog.writing(rows):
            catalog.parent[rows], catalog.parent_birth[rows] = parents, catalog.birth[parents]

    def _count_children(self, tier: TierState, parents: I64Array, change: int) -> None:
        parents = parents[parents != UNKNOWN]
        if not len(parents):
            return
        np.add.at(tier.children, parents, np.int32(change))
        if change < 0 and self.policy.common.leaf_only:
            bare = parents[tier.children[parents] == 0]
            if some(tier.victims.out[bare]):
                tier.victims.put_back(np.unique(bare))

    # --- victims ------------------------------------------------------------------------------------

    def make_victims(self) -> None:
        """Orders all READY copies anew: at the start, and when the policy changes."""
        self.fallback = fallback.fallback_of(self.policy.common.fallback, self.clock.step)
        for tier in self.tiers.values():
            tier.victims = make_victims(self.catalog, self.policy, tier.children)
            tier.victims.load(tier.copies.ordered(np.arange(self.catalog.capacity)))

    def choose(self, tier: TierState, count: int, lets: Lets | None = None) -> I64Array:
        """The next victims. Each is dropped, moved, or given back by `spare`. `lets`: see Victims.choose."""
        return tier.victims.choose(count, self.moment(tier), self.protection(tier), lets)

    def spare(self, tier: TierState, rows: I64Array) -> None:
        """Chosen victims stay after all."""
        self._count_children(tier, self.catalog.parents(rows), 1)
        tier.victims.put_back(rows)

    def note_evicted(self, tier: TierState, rows: I64Array) -> None:
        """Counts what went to make room, for the tier's characteristic age."""
        tier.counters.evicted += len(rows)
        tier.evicted_idle.extend((self.clock.step - self.catalog.last[rows]).tolist())

    def settle_ages(self) -> None:
        """At the end of a command: T moves by the mean idle age of what the command evicted."""
        for tier in self.tiers.values():
            if tier.evicted_idle:
                mean = max(1.0, sum(tier.evicted_idle) / len(tier.evicted_idle))
                tier.age += AGE_WEIGHT * (mean - tier.age)
                tier.evicted_idle.clear()

    # --- accesses -----------------------------------------------------------------------------------

    def touch(self, rows: I64Array, counts: I64Array | None = None, *, hit: bool | None) -> None:
        """Accesses of weight 1 to each of these distinct rows; `counts`: how many, else one; `hit`: see Access."""
        if not len(rows):
            return
        for done in range(1 if counts is None else int(counts.max())):
            again = rows if counts is None else rows[counts > done]
            statistics.access(self.catalog, again, self.accessing(hit))
        forget_next_use(self.catalog, rows)
        self.expected.end(rows)
        self.catalog.ahead.read(rows)
        self.reorder(rows)

    def accessing(self, hit: bool | None) -> statistics.Access:
        """What accesses of now have in common. `hit`: as Fallback.access has it."""
        clock, common = self.clock, self.policy.common
        return statistics.Access(clock.step, clock.wall_s, common, self.gaps, self.new_class, self.fallback, hit)

    def reorder(self, rows: I64Array) -> None:
        """Statistics of rows have changed."""
        self.storing.changed(rows)
        for tier in self.tiers.values():
            ready = tier.copies.ordered(rows)
            if tier.leaving:
                ready = ready[~np.isin(ready, list(tier.leaving))]
            tier.victims.insert(ready)


def split(ids: U8Array) -> list[bytes]:
    """Packed identities, one by one."""
    packed = np.ascontiguousarray(ids).tobytes()
    return [packed[i : i + 32] for i in range(0, len(packed), 32)]
