"""What the engine should do, said again: one host tier, plain dictionaries, brute force.

Written from the rules of eviction and of records, and sharing no code with the core. Every search looks at
everything. Blocks have one size; a tier has `capacity` slots; what is evicted is dropped.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

LOW, NORMAL, HIGH = 1, 2, 3


@dataclass
class Rules:
    """A policy: which rank, and its parameters."""

    rank: str = "auto"
    alpha: float = 0.5
    beta: float = 0.001
    per_step: float = 0.001
    persist: bool = True
    ghost_factor: float = 4.0
    leaf_only: bool = True


@dataclass
class Stats:
    touches: int = 0
    last: int = 0
    wall: float = 0.0
    ema: float = 0.0
    crf: float = 0.0
    unit: bool = True


@dataclass
class Block:
    """An identity with a slot."""

    identity: bytes
    position: int
    stats: Stats
    parent: bytes | None = None
    ready: bool = False
    generation: int = 0
    writer: int = 0
    leases: int = 0
    priority: int = NORMAL
    next_use: str = ""
    expected_until: float = 0.0
    pinned_until: float = 0.0

    def standing(self) -> int:
        """What goes first whatever its rank: ended, low or waiting for a human, normal, high, soon."""
        return {"CLOSED": 0, "HUMAN": LOW, "SOON": 4}.get(self.next_use, self.priority)


@dataclass
class Running:
    """An open sequence."""

    ids: list[bytes]
    touched: set[bytes] = field(default_factory=set)
    priority: int = 0
    chain: bool = True


@dataclass
class Party:
    """A session: its leases (lists of identities) and what it may still write, by identity."""

    ended: bool = False
    leases: dict[int, list[bytes]] = field(default_factory=dict)
    quarantined: int = 0


class Oracle:
    def __init__(self, capacity: int, rules: Rules) -> None:
        self.capacity, self.rules = capacity, rules
        self.step, self.age, self.most_blocks = 0, 50.0, 0
        self.blocks: dict[bytes, Block] = {}
        self.ghosts: list[tuple[bytes, Stats]] = []
        self.parties: dict[int, Party] = {}
        self.running: dict[tuple[int, str], Running] = {}
        self.reported: dict[bytes, tuple[int, Stats, float]] = {}
        self.now = 0.0
        self.hits = self.stored = self.evicted = self.misses = 0

    # --- sessions and sequences ---------------------------------------------------------------------

    def open_session(self, session: int) -> None:
        self.parties[session] = Party()

    def end_session(self, session: int, settled: bool) -> None:
        party = self.parties[session]
        party.ended = True
        for key in [key for key in self.running if key[0] == session]:
            del self.running[key]
        for block in [block for block in self.blocks.values() if block.writer == session]:
            party.quarantined += not settled
            self._remove(block)
        if settled:
            for lease in list(party.leases):
                self.release(session, lease)
        if settled or not (party.leases or party.quarantined):
            del self.parties[session]

    def open_sequence(
        self, session: int, name: str, ids: list[bytes], parent: bytes | None, priority: int = 0
    ) -> list[bool]:
        self._tick()
        self.running[session, name] = Running(ids, priority=priority)
        self._prefer(ids, priority)
        self._link(ids, parent)
        return self.present(ids)

    def close_sequence(self, session: int, name: str, next_use: str = "", expected_s: float = 0.0) -> None:
        running = self.running.pop((session, name))
        mine = [self.blocks[one] for one in {*running.ids, *running.touched} if one in self.blocks]
        if next_use == "SOON":
            for block in mine:
                block.next_use = "SOON"
                block.expected_until = max(block.expected_until, self.now + expected_s)
        elif next_use:
            for block in self._exclusive(mine):
                block.next_use, block.expected_until = next_use, 0.0

    def _exclusive(self, mine: list[Block]) -> list[Block]:
        """Those behind the last block that something else uses, too: a sequence, a lease, a second child."""
        children = [other.parent for other in self.blocks.values()]
        shared = [b.position for b in mine if self._in_use(b) or children.count(b.identity) > 1]
        return [block for block in mine if block.position > max(shared, default=-1)]

    def time_passes(self, now: float) -> None:
        """Pins and expectations whose time has come end."""
        self.now = now
        for block in self.blocks.values():
            if block.pinned_until <= now:
                block.pinned_until = 0.0
            if block.next_use == "SOON" and block.expected_until <= now:
                block.next_use, block.expected_until = "", 0.0

    # --- pins and touches ---------------------------------------------------------------------------

    def pin(self, ids: list[bytes], ttl_s: float, share: float) -> list[str] | None:
        """None: more than the share of slots would be pinned, and nothing is."""
        mine = {one for one in ids if one in self.blocks and self.blocks[one].ready}
        pinned = {one for one, block in self.blocks.items() if block.pinned_until}
        if mine - pinned and len(mine | pinned) > int(share * self.capacity):
            return None
        for one in mine:
            self.blocks[one].pinned_until = max(self.blocks[one].pinned_until, self.now + ttl_s)
        return ["PINNED" if one in mine else "MISS" for one in ids]

    def unpin(self, ids: list[bytes]) -> int:
        pinned = [one for one in set(ids) if one in self.blocks and self.blocks[one].pinned_until]
        for one in pinned:
            self.blocks[one].pinned_until = 0.0
        return len(pinned)

    def touch(self, session: int, ids: list[bytes], counts: list[int], sequence: str) -> tuple[int, int]:
        """Accesses served elsewhere: how many records of blocks, and of ghosts, they reached."""
        if not sequence:
            self._tick()
        self._link(ids, None)
        touched = self.running[session, sequence].touched if sequence else set()
        ghosts = dict(self.ghosts)
        blocks = forgotten = 0
        for one, times in zip(ids, counts, strict=True):
            if one in touched:
                continue
            block, ghost = self.blocks.get(one), ghosts.get(one)
            blocks, forgotten = blocks + (block is not None), forgotten + (ghost is not None)
            stats = block.stats if block else ghost
            for _ in range((1 if sequence else times) if stats else 0):
                self._count(stats, 1.0, 1)
            if block:
                block.next_use, block.expected_until = "", 0.0
                self.reported.pop(one, None)
            elif ghost:
                ghost.wall = float(int(ghost.wall))
        touched.update(ids)
        return blocks, forgotten

    def _prefer(self, ids: list[bytes], priority: int) -> None:
        """Nobody lowers the priority of a block that was there."""
        for one in ids:
            if one in self.blocks:
                self.blocks[one].priority = max(self.blocks[one].priority, priority)

    def present(self, ids: list[bytes]) -> list[bool]:
        return [one in self.blocks and self.blocks[one].ready for one in ids]

    # --- storing ------------------------------------------------------------------------------------

    def reserve(
        self, session: int, ids: list[bytes], position: int, parent: bytes | None, sequence: str, chain: bool,
        priority: int = 0,
    ) -> list[str]:
        """Outcomes; the leading missing ones that fit are granted."""
        if not sequence:
            self._tick()
        outcomes, missing = [], []
        for one in ids:
            if one not in self.blocks:
                outcomes.append("DUPLICATE" if one in missing else "GRANTED")
                missing += [one] if one not in missing else []
            else:
                outcomes.append("EXISTS" if self.blocks[one].ready else "BUSY")
        kept = set(ids) | self._ancestors(parent if chain else None)
        granted = missing[: self._make_room(len(missing), kept)]
        priority = priority or (self.running[session, sequence].priority if sequence else 0)
        self._prefer(ids, priority)
        for place, one in enumerate(ids):
            if outcomes[place] == "GRANTED" and one in granted:
                self.blocks[one] = Block(
                    one, position + place * chain, self._recall(one), writer=session, priority=priority or NORMAL
                )
            elif outcomes[place] == "GRANTED":
                outcomes[place] = "FULL"
        self.most_blocks = max(self.most_blocks, len(self.blocks))
        if chain:
            self._link(ids, parent)
        self._access(session, sequence, [one for one, how in zip(ids, outcomes, strict=True) if how == "EXISTS"])
        return outcomes

    def note_generation(self, identity: bytes, generation: int) -> None:
        self.blocks[identity].generation = generation

    def commit(self, session: int, items: list[tuple[bytes, int]], sequence: str) -> list[str]:
        outcomes = []
        done = []
        for identity, generation in items:
            block = self.blocks.get(identity)
            mine = block is not None and not block.ready
            mine = mine and (block.writer, block.generation) == (session, generation)
            if mine:
                block.ready, block.writer = True, 0
                self.stored += 1
                done.append(identity)
            outcomes.append("COMMITTED" if mine else "STALE")
        self._access(session, sequence, done)
        return outcomes

    def abort(self, session: int, items: list[tuple[bytes, int]]) -> list[str]:
        outcomes = []
        for identity, generation in items:
            block = self.blocks.get(identity)
            if block and not block.ready and (block.writer, block.generation) == (session, generation):
                self._remove(block)
                outcomes.append("ABORTED")
            else:
                outcomes.append("STALE")
        return outcomes

    # --- reading ------------------------------------------------------------------------------------

    def acquire(
        self, session: int, ids: list[bytes], parent: bytes | None, sequence: str, lease: int, more: bool
    ) -> list[str]:
        """Outcomes; what is leased goes to `lease`, the number that the engine gave. `more`: to one that it had."""
        if not sequence and not more:
            self._tick()
        self._link(ids, parent)
        outcomes = []
        for one in ids:
            block = self.blocks.get(one)
            outcomes.append("MISS" if block is None else "LEASED" if block.ready else "PENDING")
        leased = [one for one, how in zip(ids, outcomes, strict=True) if how == "LEASED"]
        self.hits += len(leased)
        self.misses += outcomes.count("MISS")
        self._prefer(leased, self.running[session, sequence].priority if sequence else 0)
        for one in leased:
            self.blocks[one].leases += 1
            self.parties[session].leases.setdefault(lease, []).append(one)
        self._access(session, sequence, leased)
        return outcomes

    def release(self, session: int, lease: int) -> int:
        identities = self.parties[session].leases.pop(lease)
        for one in identities:
            self.blocks[one].leases -= 1
        return len(identities)

    def observe(self, session: int, name: str, attention: list[float], steps: int) -> int:
        """Mass per leading block of the sequence; how many records it reached."""
        running = self.running[session, name]
        updated = 0
        for place, one in reversed(list(enumerate(running.ids[: len(attention)]))):
            if one in self.blocks:
                weight = min(1.0, max(attention[place:]) * len(attention))
                self._report(self.blocks[one], weight, steps)
                updated += 1
        return updated

    # --- removing -----------------------------------------------------------------------------------

    def drop(self, ids: list[bytes]) -> list[str]:
        """Evict with nowhere to go and leave to drop."""
        outcomes = []
        for one in ids:
            block = self.blocks.get(one)
            if block is None or not block.ready:
                outcomes.append("MISS")
            elif self._in_use(block) or block.pinned_until:
                outcomes.append("IN_USE")
            else:
                self._remove(block)
                outcomes.append("DROPPED")
        return outcomes

    def drop_damaged(self, identity: bytes, generation: int) -> int:
        """A copy that does not have its checksum: it goes even from a running sequence, but not from a lease."""
        block = self.blocks.get(identity)
        if block is None or not block.ready or block.generation != generation or block.leases:
            return 0
        self._remove(block)
        return 1

    def clear(self, ghosts: bool) -> tuple[int, int]:
        """Copies removed, and left because they are in use."""
        ready = [block for block in self.blocks.values() if block.ready]
        idle = [block for block in ready if not self._in_use(block) and not block.pinned_until]
        for block in idle:
            self._remove(block)
        if ghosts:
            self.ghosts.clear()
        return len(idle), len(ready) - len(idle)

    def set_rules(self, rules: Rules) -> None:
        before, self.rules = self.rules, rules
        if rules.alpha != before.alpha:
            records = [block.stats for block in self.blocks.values()] + [stats for _, stats in self.ghosts]
            for stats in [stats for stats in records if stats.unit]:
                stats.ema = 0.0
                for _ in range(stats.touches):
                    stats.ema = (1.0 - rules.alpha) * stats.ema + rules.alpha

    # --- ranks --------------------------------------------------------------------------------------

    def rank(self, block: Block) -> float:
        stats, idle = block.stats, self.step - block.stats.last
        if self.rules.rank == "lru":
            return float(idle)
        if self.rules.rank == "decayed":
            return -math.inf if stats.crf == math.inf else self.rules.per_step * idle - math.log2(stats.crf)
        score, beta = self._score(stats), self.rules.beta
        if self.rules.rank == "auto":
            score *= 2.0 ** (-idle / (2.0 * self.age))
            beta = 1.0 / (4.0 * self.age)
        return (1.0 - score) * (1.0 - math.exp(-beta * idle))

    def next_victim(self, gone: set[bytes], kept: set[bytes]) -> Block | None:
        """The block that goes next, were those of `gone` gone and those of `kept` not to go."""
        left = [block for block in self.blocks.values() if block.identity not in gone]
        parents = {block.parent for block in left} if self.rules.leaf_only else set()
        may_go = [
            block for block in left
            if block.ready and block.identity not in kept | parents
            and not self._in_use(block) and not block.pinned_until
        ]
        order = [(b.standing(), -self.rank(b), b.stats.last, -b.position, b.identity, b) for b in may_go]
        return min(order)[5] if order else None

    def order(self) -> list[bytes]:
        """Identities in the order in which they would go."""
        gone: set[bytes] = set()
        order = []
        while (victim := self.next_victim(gone, set())) is not None:
            gone.add(victim.identity)
            order.append(victim.identity)
        return order

    # --- inside -------------------------------------------------------------------------------------

    def totals(self) -> tuple[int, int, int, int]:
        """Leased, committed and evicted copies, and acquired ids that were nowhere."""
        return self.hits, self.stored, self.evicted, self.misses

    def free(self) -> int:
        return self.capacity - len(self.blocks) - sum(party.quarantined for party in self.parties.values())

    def _make_room(self, wanted: int, kept: set[bytes]) -> int:
        """Evicts until `wanted` slots are free or nothing more may go; how many of them there are."""
        idle: list[int] = []
        gone: dict[bytes, None] = {}
        while self.free() + len(gone) < wanted and (victim := self.next_victim(set(gone), kept)) is not None:
            gone[victim.identity] = None
            self.evicted += 1
            idle.append(self.step - victim.stats.last)
        for identity in gone:
            self._remove(self.blocks[identity])
        if idle:
            self.age += 0.02 * (max(1.0, sum(idle) / len(idle)) - self.age)
        return min(wanted, self.free())

    def _in_use(self, block: Block) -> bool:
        running = any(block.identity in sequence.ids for sequence in self.running.values())
        return running or block.leases > 0

    def _remove(self, block: Block) -> None:
        del self.blocks[block.identity]
        for other in self.blocks.values():
            if other.parent == block.identity:
                other.parent = None
        if self.rules.persist and block.stats.touches:
            self.ghosts.append((block.identity, replace(block.stats)))
            limit = int(self.rules.ghost_factor * self.most_blocks)
            del self.ghosts[: max(0, len(self.ghosts) - limit)]

    def _recall(self, identity: bytes) -> Stats:
        for place, ghost in enumerate(self.ghosts):
            if ghost[0] == identity:
                del self.ghosts[place]
                return ghost[1] if self.rules.persist else Stats()
        return Stats()

    def _link(self, ids: list[bytes], parent: bytes | None) -> None:
        for one, before in zip(ids, [parent, *ids[:-1]], strict=True):
            known = one in self.blocks and before in self.blocks
            if known and self.blocks[before].position < self.blocks[one].position:
                self.blocks[one].parent = before

    def _ancestors(self, identity: bytes | None) -> set[bytes]:
        """An identity with all that is known to lie before it."""
        found: set[bytes] = set()
        while identity in self.blocks and identity is not None:
            found.add(identity)
            identity = self.blocks[identity].parent
        return found

    def _tick(self) -> None:
        self.step += 1

    def _access(self, session: int, sequence: str, ids: list[bytes]) -> None:
        touched = self.running[session, sequence].touched if sequence else set()
        for one in dict.fromkeys(ids):
            if one not in touched:
                self._count(self.blocks[one].stats, 1.0, 1)
                self.blocks[one].next_use, self.blocks[one].expected_until = "", 0.0
                self.reported.pop(one, None)
        touched.update(ids)

    def _count(self, stats: Stats, weight: float, steps: int) -> None:
        kept = (1.0 - self.rules.alpha) ** steps
        taken = self.rules.alpha if steps == 1 else 1.0 - kept
        stats.ema = kept * stats.ema + taken * weight
        stats.crf = weight + stats.crf * 2.0 ** (-self.rules.per_step * (self.step - stats.last))
        stats.touches += 1
        stats.last, stats.wall = self.step, self.now
        stats.unit = stats.unit and weight == 1.0

    def _report(self, block: Block, weight: float, steps: int) -> None:
        """Several reports of one block in one step are one, of the largest weight."""
        step, before, most = self.reported.get(block.identity, (-1, block.stats, 0.0))
        if step == self.step:
            block.stats = replace(before)
            weight = max(weight, most)
        self.reported[block.identity] = (self.step, replace(block.stats), weight)
        self._count(block.stats, weight, steps)

    def _score(self, stats: Stats) -> float:
        """A record that met attention is sorted by -log2(1 - ema) in steps of 1/64, and ranked by the middle."""
        if stats.unit:
            return stats.ema
        step = math.floor(-64.0 * math.log2(max(1.0 - stats.ema, 2.0**-64)))
        return 1.0 - 2.0 ** (-(step + 0.5) / 64.0)
