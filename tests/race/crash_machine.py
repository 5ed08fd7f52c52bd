"""A machine whose daemon dies at a chosen bytecode of the engine, and what its survivors know.

Slots, the spill store and the tables outlive the daemon; the engine does not. What clients were told is kept
apart, so that the next engine can be held to it. Everything follows from the seed.
"""

from __future__ import annotations

import hashlib
import random
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

import numpy as np

from tierd.core import messages as m
from tierd.core.engine import Engine
from tierd.core.engine_settings import EngineSettings, TierSpec
from tierd.core.invariants import check
from tierd.core.messages import Tier
from tierd.core.tables import Tables
from tierd_client.format import STATE_ABSENT

PAGE = 4096
SIZES = {1: PAGE, 2: 2 * PAGE}
"""Bytes of a block, per namespace."""
CHAIN_BLOCKS = 3
CHAINS = 8
PINNED_COMMANDS = 12.0
"""How long a pin lasts: a command takes a second."""
SETTINGS = EngineSettings(
    tiers=(
        TierSpec(Tier.HBM, segments=((0x4000, 6 * PAGE),)),
        TierSpec(Tier.HOST, segments=((1, 16 * PAGE), (2, 8 * PAGE))),
        TierSpec(Tier.SPILL, capacity_bytes=1 << 20),
    ),
    max_moves=8,
)
SESSIONS = (11, 12)
Garbage = b"garbage"


class Killed(BaseException):
    """kill -9."""


def identity_of(namespace: int, chain: int, place: int) -> bytes:
    return hashlib.blake2b(b"%d-%d-%d" % (namespace, chain, place), digest_size=32).digest()


@dataclass
class Slot:
    """A slot that a client may still read or write."""

    session: int
    tier: Tier
    address: int
    size: int


@dataclass
class Known:
    """What clients were told and hold the daemon to."""

    touches: Counter[bytes] = field(default_factory=Counter)
    """Acknowledged accesses of each block that must be there."""
    namespace: dict[bytes, int] = field(default_factory=dict)
    pinned: dict[bytes, float] = field(default_factory=dict)
    """Until when each pinned block was said to be."""
    held: list[tuple[m.Command, list[Slot]]] = field(default_factory=list)
    """Slots in the hands of clients, with the command that gives them back."""


class Killer:
    """Counts the bytecodes of tierd/core that run inside it, and ends the daemon at one of them.

    `writing`: only those count at which some record is half-written.
    """

    def __init__(self, at: int, *, writing: bool = False) -> None:
        self.at = at
        self.count = 0
        self.writing = writing
        self.sequence = np.zeros(0, np.uint32)

    def __enter__(self) -> Killer:
        sys.settrace(self._enter)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)

    def _enter(self, frame: FrameType, event: str, argument: Any) -> Callable[..., Any] | None:
        if "tierd/core" not in frame.f_code.co_filename:
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return self._bytecode

    def _bytecode(self, frame: FrameType, event: str, argument: Any) -> Callable[..., Any]:
        if event == "opcode" and (not self.writing or (self.sequence % 2).any()):
            self.count += 1
            if self.count == self.at:
                raise Killed
        return self._bytecode


class Machine:
    """`run` carries out the operations of a seed; `killer` strikes in command number `fatal`."""

    def __init__(self, seed: int, fatal: int = -1, killer: Killer | None = None) -> None:
        self.random = random.Random(seed)
        self.tables = Tables.private(rows=40, ghosts=64, sessions=8, holds=64)
        self.pages: dict[tuple[int, int], bytes] = {}
        """(tier, address of a page) -> what was written there: identity and number of the page."""
        self.spilled: dict[bytes, int] = {}
        self.known = Known()
        self.commands = 0
        self.opcodes: list[int] = []
        self._fatal, self._killer = fatal, killer
        if killer is not None:
            killer.sequence = self.tables.catalog["sequence"]
        self._moves: list[m.Move] = []
        self.engine = Engine(SETTINGS, self.tables)
        for session in SESSIONS:
            self.step(m.OpenSession(session))
            self.step(m.BindProcess(session, session, 1))

    def run(self, operations: int) -> None:
        choices = [self._put, self._put, self._put, self._half_put, self._acquire, self._acquire, self._let_go,
                   self._evict, self._readmit, self._clear, self._sequence, self._adopt,
                   self._pin]
        for _ in range(operations):
            self.random.choice(choices)()
            for _ in range(self.random.randrange(4)):
                self._finish_one()

    def step(self, command: m.Command) -> Any:
        """Runs one command; Killed in the fatal one."""
        self.commands += 1
        if self._killer is not None and self.commands == self._fatal:
            with self._killer:
                done = self.engine.step(command, float(self.commands))
        else:
            done = self.engine.step(command, float(self.commands))
        for effect in done.effects:
            if isinstance(effect, m.Move):
                self._moves.append(effect)
                self._fill(effect.target, effect.target_address, effect.size, None)
            else:
                for identity in effect.identities:
                    self.spilled.pop(identity, None)
        return done.reply

    # --- operations -------------------------------------------------------------------------------------

    def _blocks(self, first: int = 0) -> m.Ids:
        namespace = self.random.choice(list(SIZES))
        chain, count = first + self.random.randrange(CHAINS), self.random.randint(1, CHAIN_BLOCKS)
        ids = b"".join(identity_of(namespace, chain, place) for place in range(count))
        return m.Ids(namespace, 0, np.frombuffer(ids, np.uint8).reshape(-1, 32), chain=True)

    def _reserve(self, tier: Tier) -> tuple[int, m.Ids, m.ReserveReply]:
        session, blocks = self.random.choice(SESSIONS), self._blocks()
        reply = self.step(m.Reserve(session, blocks, SIZES[blocks.namespace], tier))
        for place in np.flatnonzero(reply.outcomes == m.Reserved.EXISTS):
            self._touched(blocks.ids[place].tobytes(), blocks.namespace)
        for place in np.flatnonzero(reply.outcomes == m.Reserved.GRANTED):
            self._fill(tier, int(reply.addresses[place]), SIZES[blocks.namespace], None)
        return session, blocks, reply

    def _put(self) -> None:
        session, blocks, reply = self._reserve(Tier.HOST)
        places = np.flatnonzero(reply.outcomes == m.Reserved.GRANTED)
        ids = blocks.ids[places]
        for place in places:
            self._fill(Tier.HOST, int(reply.addresses[place]), SIZES[blocks.namespace], blocks.ids[place].tobytes())
        if not len(places):
            return
        checksums = np.array([int.from_bytes(one.tobytes()[:8], "little") for one in ids], np.uint64)
        done = self.step(m.Commit(session, ids, reply.generations[places], checksums))
        assert set(done.outcomes.tolist()) == {m.Committed.COMMITTED}
        for one in ids:
            self._touched(one.tobytes(), blocks.namespace)

    def _half_put(self) -> None:
        if self.random.random() < 0.5:
            return  # rarely, or nothing else finds room
        tier = self.random.choice([Tier.HBM, Tier.HOST])
        session, blocks, reply = self._reserve(tier)
        places = np.flatnonzero(reply.outcomes == m.Reserved.GRANTED)
        if not len(places):
            return
        slots = [Slot(session, tier, int(reply.addresses[p]), SIZES[blocks.namespace]) for p in places]
        give_back = m.Abort(session, blocks.ids[places], reply.generations[places], tier)
        self.known.held.append((give_back, slots))

    def _acquire(self) -> None:
        session, blocks = self.random.choice(SESSIONS), self._blocks()
        reply = self.step(m.Acquire(session, blocks))
        places = np.flatnonzero(reply.outcomes == m.Acquired.LEASED)
        for place in places:
            self._touched(blocks.ids[place].tobytes(), blocks.namespace)
        if reply.lease:
            slots = [Slot(session, Tier(int(reply.tiers[p])), int(reply.addresses[p]), SIZES[blocks.namespace])
                     for p in places]
            self.known.held.append((m.Release(session, (reply.lease,)), slots))

    def _let_go(self) -> None:
        for _ in self.known.held[:2]:
            command, _ = self.known.held.pop(0)  # from the moment it is sent the client touches nothing
            self.step(command)

    def _evict(self) -> None:
        self.step(m.Evict(self._blocks(), Tier.SPILL))

    def _readmit(self) -> None:
        self.step(m.Readmit(self._blocks(), self.random.choice([Tier.HBM, Tier.HOST])))

    def _clear(self) -> None:
        if self.random.random() < 0.5:
            return
        prefix = self._blocks().ids[0].tobytes()[:4]
        for identity in [one for one in self.known.touches if one.startswith(prefix)]:
            del self.known.touches[identity]  # whatever comes of it, nobody may count on the block any more
        self.step(m.Clear(m.BlockFilter(identity_prefix=prefix)))

    def _adopt(self) -> None:
        """The store is found to hold blocks: of an earlier life, or of others, which nobody here counts on."""
        own = self.random.random() < 0.5
        blocks = self._blocks(first=0 if own else CHAINS)
        parents = np.zeros_like(blocks.ids)
        parents[1:] = blocks.ids[:-1]
        places = m.Ids(blocks.namespace, 0, blocks.ids, True, some=(np.arange(len(blocks)), parents))
        checksums = [int.from_bytes(one.tobytes()[:8], "little") for one in blocks.ids]
        for one, checksum in zip(blocks.ids, checksums, strict=True):
            self.spilled[one.tobytes()] = checksum
        records = (m.Record(touches=1, wall=float(self.commands)),) * len(blocks)
        mine = np.full(len(blocks), own)
        size = SIZES[blocks.namespace]
        self.step(m.AddFound(places, size, np.array(checksums, np.uint64), records, mine))

    def _sequence(self) -> None:
        session, blocks = self.random.choice(SESSIONS), self._blocks()
        self.step(m.OpenSequence(session, "s", blocks))
        self.step(m.Acquire(session, blocks, "s"))
        self._finish_one()
        self.step(m.CloseSequence(session, "s"))

    def _pin(self) -> None:
        blocks = self._blocks()
        reply = self.step(m.Pin(blocks, PINNED_COMMANDS))
        for one in blocks.ids[reply.outcomes == m.Pinned.PINNED]:
            self.known.pinned[one.tobytes()] = self.commands + PINNED_COMMANDS

    def _finish_one(self) -> None:
        if not self._moves:
            return
        move = self._moves.pop(self.random.randrange(len(self._moves)))
        ok = self.random.random() < 0.9
        if ok and move.target is Tier.SPILL:
            self.spilled[move.identity] = move.checksum
        elif ok:
            self._fill(move.target, move.target_address, move.size, move.identity)
        self.step(m.Finish((m.MoveResult(move.op, ok=ok),)))

    def _touched(self, identity: bytes, namespace: int) -> None:
        self.known.touches[identity] += 1
        self.known.namespace[identity] = namespace

    def _fill(self, tier: Tier, address: int, size: int, identity: bytes | None) -> None:
        for page in range(size // PAGE):
            content = Garbage if identity is None else identity + b"%d" % page
            self.pages[tier, address + page * PAGE] = content

    # --- after the end ----------------------------------------------------------------------------------

    def restart(self, killer: Killer | None = None) -> None:
        """A new engine over what the old one left; its start may be killed too."""
        self.tables.catalog["state"][Tier.HBM - 1] = STATE_ABSENT  # as tierd/adapters/memory.py does
        self._moves.clear()
        if killer is None:
            self.engine = Engine(SETTINGS, self.tables, frozenset(SESSIONS))
        else:
            with killer:
                self.engine = Engine(SETTINGS, self.tables, frozenset(SESSIONS))

    def assert_kept(self) -> None:
        """Every block that was acknowledged is there, with its bytes and all acknowledged accesses."""
        check(self.engine)
        if not self.engine.state.clock.wall_s:  # no command yet that knows how late it is
            self._assert_pinned()
        for identity, touches in self.known.touches.items():
            (view,) = self.engine.step(m.Describe(as_ids(identity)), 1e6).reply.blocks
            assert view is not None and not view.ghost, f"{identity.hex()} is lost"
            assert view.record.touches >= touches, f"{identity.hex()}: {view.record.touches} of {touches} accesses"
            assert abs(view.record.ema - (1 - 0.5**view.record.touches)) < 1e-12, "ema is not that of the accesses"
            for copy in view.copies:
                self._assert_bytes(identity, copy, view.size)

    def _assert_pinned(self) -> None:
        state = self.engine.state
        for identity, until in self.known.pinned.items():
            row = int(state.catalog.find(as_ids(identity))[0])
            assert until <= self.commands or state.kept.until[row] >= until, f"{identity.hex()} is not pinned"

    def _assert_bytes(self, identity: bytes, copy: m.CopyView, size: int) -> None:
        assert copy.ready
        if copy.tier is Tier.SPILL:
            assert self.spilled[identity] == int.from_bytes(identity[:8], "little")
            return
        found = [self.pages[copy.tier, copy.address + offset] for offset in range(0, size, PAGE)]
        assert found == [identity + b"%d" % page for page in range(size // PAGE)]

    def assert_held_slots_are_kept_aside(self) -> None:
        """No slot that a client may still touch is handed out; once all have let go, every slot is free."""
        held = {(slot.tier, slot.address + offset) for _, slots in self.known.held for slot in slots
                for offset in range(0, slot.size, PAGE)}
        self.engine.step(m.OpenSession(99), 1e6)
        for tier in (Tier.HBM, Tier.HOST):
            for address in self._take_all(tier):
                assert (tier, address) not in held, f"{tier.name} {address:#x} is in a client's hands"
        check(self.engine)
        for session in (99, *SESSIONS):
            self.engine.step(m.EndSession(session, settled=True), 1e6)
        self.engine.step(m.Clear(m.BlockFilter()), 1e6)
        check(self.engine)
        for occupancy in self.engine.step(m.Occupancy(), 1e6).reply.tiers:
            assert occupancy.free_bytes == occupancy.capacity_bytes, occupancy

    def _take_all(self, tier: Tier) -> list[int]:
        """Addresses of all slots that can be had in a tier, one page each."""
        taken: list[int] = []
        for number in range(64):
            blocks = m.Ids(1, 0, as_ids(hashlib.blake2b(b"%d-%d" % (tier, number), digest_size=32).digest()))
            step = self.engine.step(m.Reserve(99, blocks, PAGE, tier), 1e6)
            while moves := [m.MoveResult(one.op, ok=True) for one in step.effects if isinstance(one, m.Move)]:
                self.engine.step(m.Finish(tuple(moves)), 1e6)
                step = self.engine.step(m.Reserve(99, blocks, PAGE, tier, retry=True), 1e6)
            taken += [address for address in step.reply.addresses.tolist() if address]
        return taken


def as_ids(identity: bytes) -> np.ndarray:
    return np.frombuffer(identity, np.uint8)[None, :]
