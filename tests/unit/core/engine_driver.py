"""A hand on the engine for tests: identities by number, blocks put and got in one line, moves carried out."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tierd.core import messages as m
from tierd.core.engine import Engine, EngineSettings, Tables, TierSpec
from tierd.core.hazards import Hazards
from tierd.core.invariants import check

BLOCK = 4096
SESSION = 7


def identity(number: int) -> bytes:
    """The identity of block `number`."""
    return (number + 1).to_bytes(8, "big") + bytes(24)


def ids_of(numbers: Sequence[int], *, chain: bool = False, first: int = 0, parent: int | None = None) -> m.Ids:
    packed = np.frombuffer(b"".join(map(identity, numbers)), np.uint8).reshape(-1, 32)
    return m.Ids(1, 0, packed, chain, first, None if parent is None else identity(parent))


class Driver:
    """An engine with small tiers. Moves wait in `moves` until `carry_out`."""

    def __init__(
        self, host: int, *, hbm: int = 0, spill: int = 0, policy: str = "lru", rows: int = 256,
        tables: Tables | None = None, survivors: frozenset[int] = frozenset(), lends: bool = False,
        looked_at: Hazards | None = None, **settings: object,
    ) -> None:
        owned = ((0x4000, hbm * BLOCK),) if hbm else ()
        tiers = [TierSpec(m.Tier.HBM, owned, lends=lends)] if hbm or lends else []
        tiers += [TierSpec(m.Tier.HOST, ((1, host * BLOCK),))] if host else []
        tiers += [TierSpec(m.Tier.SPILL, capacity_bytes=spill * BLOCK)] if spill else []
        self.tables = tables or Tables.private(rows)
        self.now = 1000.0
        chosen = EngineSettings(tuple(tiers), policy=policy, **settings)
        self.engine = Engine(chosen, self.tables, survivors, looked_at)
        self.moves: list[m.Move] = []
        self.unlinked: list[bytes] = []
        self.abandoned: list[int] = []
        self.hurried: list[int] = []
        if tables is None:
            self.step(m.OpenSession(SESSION, bytes(16)))

    def step(self, command: m.Command) -> m.Reply:
        done = self.engine.step(command, self.now)
        for effect in done.effects:
            if isinstance(effect, m.Move):
                self.moves.append(effect)
            elif isinstance(effect, m.Abandon):
                self.abandoned += effect.ops
            elif isinstance(effect, m.Hurry):
                self.hurried += effect.ops
            else:
                self.unlinked += effect.identities
        check(self.engine)
        return done.reply

    def carry_out(self, *, ok: bool = True, lost: bool = False, full: bool = False, checksum: int = 5) -> int:
        """Answers all moves that wait; how many there were."""
        moves, self.moves = self.moves, []
        if moves:
            self.step(m.Finish(tuple(m.MoveResult(move.op, ok, lost, full, checksum=checksum) for move in moves)))
        return len(moves)

    def reserve(self, blocks: m.Ids, tier: m.Tier = m.Tier.HOST, sequence: str = "") -> m.ReserveReply:
        reply = self.step(m.Reserve(SESSION, blocks, BLOCK, tier, sequence))
        assert isinstance(reply, m.ReserveReply)
        return reply

    def put(
        self, numbers: Sequence[int], *, tier: m.Tier = m.Tier.HOST, chain: bool = False, sequence: str = "",
        checksum: int = 5,
    ) -> list[m.Reserved]:
        """Reserves and commits; the outcomes of the reservation."""
        return self.put_ids(ids_of(numbers, chain=chain), tier=tier, sequence=sequence, checksum=checksum)

    def put_ids(
        self, blocks: m.Ids, *, tier: m.Tier = m.Tier.HOST, sequence: str = "", checksum: int = 5
    ) -> list[m.Reserved]:
        reply = self.reserve(blocks, tier, sequence)
        granted = np.flatnonzero(reply.outcomes == m.Reserved.GRANTED)
        if len(granted):
            sums = np.full(len(granted), checksum, np.uint64)
            self.step(m.Commit(SESSION, blocks.ids[granted], reply.generations[granted], sums, tier, sequence))
        return [m.Reserved(outcome) for outcome in reply.outcomes.tolist()]

    def acquire(self, numbers: Sequence[int], sequence: str = "") -> m.AcquireReply:
        return self.acquire_ids(ids_of(numbers), sequence)

    def acquire_ids(self, blocks: m.Ids, sequence: str = "") -> m.AcquireReply:
        reply = self.step(m.Acquire(SESSION, blocks, sequence))
        assert isinstance(reply, m.AcquireReply)
        return reply

    def release(self, reply: m.AcquireReply) -> None:
        self.step(m.Release(SESSION, (reply.lease,)))

    def tiers(self, number: int) -> set[m.Tier]:
        """Where a block has a READY copy."""
        reply = self.step(m.Lookup(ids_of([number])))
        assert isinstance(reply, m.LookedUp)
        return {tier for tier in m.Tier if reply.tiers[0] >> (tier - 1) & 1}

    def describe(self, number: int) -> m.BlockView | None:
        reply = self.step(m.Describe(ids_of([number]).ids))
        assert isinstance(reply, m.BlockPage)
        return reply.blocks[0]

    def present(self, tier: m.Tier = m.Tier.HOST, among: int = 64) -> list[int]:
        return [number for number in range(among) if tier in self.tiers(number)]
