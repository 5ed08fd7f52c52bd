"""Engine and oracle in lockstep over random commands: replies, victims and records must agree."""

from __future__ import annotations

import os
from hashlib import blake2b

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from oracle import Oracle, Rules
from pytest import MonkeyPatch

from tierd.core import hashindex, victims
from tierd.core.engine import Engine
from tierd.core.engine_settings import EngineSettings, TierSpec
from tierd.core.errors import LimitReached
from tierd.core.invariants import check
from tierd.core.messages import (
    Abort,
    Aborted,
    Acquire,
    Acquired,
    AcquireReply,
    BlockFilter,
    BlockPage,
    Clear,
    Cleared,
    CloseSequence,
    Command,
    Commit,
    Committed,
    Describe,
    Done,
    DropDamaged,
    EndSession,
    Evict,
    Evicted,
    Ids,
    ListBlocks,
    LookedUp,
    Lookup,
    NextUse,
    Observe,
    Observed,
    Occupancy,
    OccupancyReply,
    OpenSequence,
    OpenSession,
    Outcomes,
    Pin,
    Pinned,
    PinReply,
    Plan,
    Planned,
    Priority,
    Release,
    Reply,
    Reserve,
    Reserved,
    ReserveReply,
    SequenceOpened,
    SetPolicy,
    Tier,
    Touch,
    Touched,
    Unpin,
)
from tierd.core.tables import Tables
from tierd_client.format import PAGE_BYTES, U8Array

FAST = os.environ.get("TIERD_TEST_EFFORT") == "fast"

POLICIES = {
    "lru": Rules("lru"),
    "lru(leaf_only=false,ghost_factor=1)": Rules("lru", leaf_only=False, ghost_factor=1.0),
    "lrfu(admission=none)": Rules("auto"),
    "lrfu(leaf_only=false,alpha=0.3,persist=false,admission=none)": Rules(
        "auto", 0.3, leaf_only=False, persist=False
    ),
    "lrfu(ranking=composite,beta=0.05,ghost_factor=0.5)": Rules("composite", 0.05, 0.05, ghost_factor=0.5),
    "lrfu(ranking=composite,leaf_only=false)": Rules("composite", 0.05, leaf_only=False),
    "lrfu(ranking=decayed,lambda=0.25,leaf_only=false)": Rules("decayed", 0.05, per_step=0.25, leaf_only=False),
    "lrfu(ranking=decayed,lambda=0)": Rules("decayed", 0.05, per_step=0.0),
}

PIN_SHARE = 0.6

MASSES = (0.0, 0.0625, 0.25, 0.5)
"""Exact in float32, so that both sides reckon with the same numbers."""


def chain(name: str, length: int, stem: tuple[bytes, ...] = ()) -> tuple[bytes, ...]:
    """A prompt of blocks of its own behind those of `stem`."""
    own = [blake2b(f"{name}{place}".encode(), digest_size=32).digest() for place in range(length)]
    return (*stem, *own)


STEM = chain("stem", 2)
PROMPTS = (STEM, chain("left", 3, STEM), chain("right", 2, STEM), chain("other", 4), chain("single", 1))

sessions = st.integers(1, 3)
names = st.sampled_from(["a", "b"])
prompts = st.sampled_from(PROMPTS)
numbers = st.integers(0, 1_000)
priorities = st.sampled_from(Priority)


def pack(identities: list[bytes]) -> U8Array:
    return np.frombuffer(b"".join(identities), np.uint8).reshape(-1, 32).copy()


def part_of(prompt: tuple[bytes, ...], start: int, length: int) -> tuple[list[bytes], int, bytes | None]:
    """Some consecutive blocks of a prompt, with their position and the parent of the first."""
    start = start % len(prompt)
    part = list(prompt[start : start + 1 + length % len(prompt)])
    return part, start, prompt[start - 1] if start else None


class Lockstep(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.small = MonkeyPatch()

    @initialize(
        capacity=st.integers(2, 8), policy=st.sampled_from(sorted(POLICIES)), stage=st.integers(1, 4),
        compact=st.sampled_from([0, 1, 4, 4096]), batch=st.sampled_from([0, 2, 48]),
    )
    def begin(self, capacity: int, policy: str, stage: int, compact: int, batch: int) -> None:
        """Batches and thresholds are small, so that what is rare at full size happens here."""
        self.small.setattr(victims, "STAGE_ROWS", stage)
        self.small.setattr(victims, "COMPACT_ABOVE", compact)
        self.small.setattr("tierd_client.format.FEW_PROBES", batch)
        self.small.setattr(hashindex, "FEW", batch)
        tiers = (TierSpec(Tier.HOST, ((1, capacity * PAGE_BYTES),)),)
        tables = Tables.private(capacity, ghosts=16 * capacity, sessions=8, holds=256)
        self.engine = Engine(EngineSettings(tiers, policy, pin_share=PIN_SHARE), tables)
        self.oracle = Oracle(capacity, POLICIES[policy])
        self.policy = policy
        self.now = 1_000.0
        self.slots: dict[int, list[tuple[bytes, int]]] = {}
        self.generations: set[int] = set()

    def teardown(self) -> None:
        self.small.undo()

    def do(self, command: Command) -> Reply:
        step = self.engine.step(command, self.now)
        assert step.effects == []
        return step.reply

    @rule(seconds=st.integers(0, 30))
    def time_passes(self, seconds: int) -> None:
        self.now += seconds
        self.oracle.time_passes(self.now)
        self.do(Occupancy())

    # --- sessions and sequences ---------------------------------------------------------------------

    def live(self, session: int) -> bool:
        party = self.oracle.parties.get(session)
        if party is None:
            self.oracle.now = self.now
            self.do(OpenSession(session))
            self.oracle.open_session(session)
            self.slots[session] = []
            return True
        return not party.ended

    def sequence_of(self, session: int, number: int) -> str:
        """One of the session's open sequences, or none."""
        mine = ["", *sorted(name for owner, name in self.oracle.running if owner == session)]
        return mine[number % len(mine)]

    @rule(session=sessions, settled=st.booleans())
    def end_session(self, session: int, settled: bool) -> None:
        if session in self.oracle.parties:
            self.do(EndSession(session, settled))
            self.oracle.end_session(session, settled)
            self.slots[session] = []

    @rule(session=sessions, name=names, prompt=prompts, start=numbers, length=numbers, priority=priorities)
    def open_sequence(
        self, session: int, name: str, prompt: tuple[bytes, ...], start: int, length: int, priority: Priority
    ) -> None:
        if not self.live(session) or (session, name) in self.oracle.running:
            return
        part, position, parent = part_of(prompt, start, length)
        reply = self.do(OpenSequence(session, name, Ids(1, 0, pack(part), True, position, parent), priority))
        present = self.oracle.open_sequence(session, name, part, parent, priority)
        assert isinstance(reply, SequenceOpened)
        assert reply.step == self.oracle.step
        assert reply.tiers.tolist() == [2 * here for here in present]
        assert reply.hit_blocks == (present.index(False) if False in present else len(present))

    @rule(session=sessions, name=names, next_use=st.sampled_from(NextUse), expected_s=st.integers(1, 60))
    def close_sequence(self, session: int, name: str, next_use: NextUse, expected_s: int) -> None:
        if (session, name) in self.oracle.running:
            self.do(CloseSequence(session, name, next_use, expected_s))
            self.oracle.close_sequence(session, name, next_use.name * bool(next_use), expected_s)

    # --- pins and touches ---------------------------------------------------------------------------

    @rule(prompt=prompts, start=numbers, length=numbers, ttl_s=st.integers(1, 60))
    def pin(self, prompt: tuple[bytes, ...], start: int, length: int, ttl_s: int) -> None:
        part, _, _ = part_of(prompt, start, length)
        expected = self.oracle.pin(part, ttl_s, PIN_SHARE)
        if expected is None:
            with pytest.raises(LimitReached, match="pin_share"):
                self.do(Pin(Ids(1, 0, pack(part)), ttl_s))
            return
        reply = self.do(Pin(Ids(1, 0, pack(part)), ttl_s))
        assert isinstance(reply, PinReply)
        assert [Pinned(one).name for one in reply.outcomes.tolist()] == expected

    @rule(prompt=prompts, start=numbers, length=numbers)
    def unpin(self, prompt: tuple[bytes, ...], start: int, length: int) -> None:
        part, _, _ = part_of(prompt, start, length)
        reply = self.do(Unpin(Ids(1, 0, pack(part))))
        assert isinstance(reply, Done)
        assert reply.count == self.oracle.unpin(part)

    @rule(session=sessions, number=numbers, prompt=prompts, counts=st.lists(st.integers(1, 4), min_size=9))
    def touch(self, session: int, number: int, prompt: tuple[bytes, ...], counts: list[int]) -> None:
        if not self.live(session):
            return
        sequence, ids = self.sequence_of(session, number), list(prompt)
        counts = counts[: len(ids)]
        reply = self.do(Touch(session, Ids(1, 0, pack(ids), True), np.array(counts), sequence))
        assert isinstance(reply, Touched)
        assert (reply.blocks, reply.ghosts) == self.oracle.touch(session, ids, counts, sequence)
        assert reply.step == self.oracle.step

    @rule(prompt=prompts)
    def look_up(self, prompt: tuple[bytes, ...]) -> None:
        reply = self.do(Lookup(Ids(1, 0, pack(list(prompt)), True)))
        present = self.oracle.present(list(prompt))
        assert isinstance(reply, LookedUp)
        assert reply.presence.tolist() == [1 if here else 3 for here in present]

    # --- storing ------------------------------------------------------------------------------------

    @rule(
        session=sessions, number=numbers, prompt=prompts, start=numbers, length=numbers, loose=st.booleans(),
        twice=st.booleans(), priority=priorities,
    )
    def reserve(
        self, session: int, number: int, prompt: tuple[bytes, ...], start: int, length: int, loose: bool,
        twice: bool, priority: Priority,
    ) -> None:
        if not self.live(session):
            return
        sequence = self.sequence_of(session, number)
        part, position, parent = part_of(prompt, start, length)
        if loose:
            part, position, parent = part + part * twice, 0, None
        ids = Ids(1, 0, pack(part), not loose, position, parent)
        reply = self.do(Reserve(session, ids, PAGE_BYTES, sequence=sequence, priority=priority))
        outcomes = self.oracle.reserve(session, part, position, parent, sequence, not loose, priority)
        assert isinstance(reply, ReserveReply)
        assert [Reserved(one).name for one in reply.outcomes.tolist()] == outcomes
        for place, how in enumerate(outcomes):
            if how == "GRANTED":
                generation = int(reply.generations[place])
                assert generation not in self.generations
                self.generations.add(generation)
                self.oracle.note_generation(part[place], generation)
                self.slots[session].append((part[place], generation))

    @precondition(lambda self: any(self.slots.values()))
    @rule(session=sessions, number=numbers, most=st.integers(1, 9), old=st.booleans())
    def commit(self, session: int, number: int, most: int, old: bool) -> None:
        if not self.live(session) or not self.slots[session]:
            return
        items = self.slots[session][:most]
        del self.slots[session][: 0 if old else most]
        items = [(identity, generation - old) for identity, generation in items]
        sequence = self.sequence_of(session, number)
        generations = np.array([generation for _, generation in items], np.uint64)
        ids = pack([identity for identity, _ in items])
        checksums = np.zeros(len(items), np.uint64)
        reply = self.do(Commit(session, ids, generations, checksums, sequence=sequence))
        assert isinstance(reply, Outcomes)
        outcomes = self.oracle.commit(session, items, sequence)
        assert [Committed(one).name for one in reply.outcomes.tolist()] == outcomes
        assert old or set(outcomes) == {"COMMITTED"}

    @precondition(lambda self: any(self.slots.values()))
    @rule(session=sessions, most=st.integers(1, 3))
    def abort(self, session: int, most: int) -> None:
        if not self.live(session) or not self.slots[session]:
            return
        items = self.slots[session][-most:]
        del self.slots[session][-most:]
        generations = np.array([generation for _, generation in items], np.uint64)
        reply = self.do(Abort(session, pack([identity for identity, _ in items]), generations))
        assert isinstance(reply, Outcomes)
        outcomes = self.oracle.abort(session, items)
        assert [Aborted(one).name for one in reply.outcomes.tolist()] == outcomes

    # --- reading ------------------------------------------------------------------------------------

    @rule(session=sessions, number=numbers, prompt=prompts, start=numbers, length=numbers, more=st.booleans())
    def acquire(
        self, session: int, number: int, prompt: tuple[bytes, ...], start: int, length: int, more: bool
    ) -> None:
        if not self.live(session):
            return
        sequence = self.sequence_of(session, number)
        part, position, parent = part_of(prompt, start, length)
        leases = sorted(self.oracle.parties[session].leases)
        lease = leases[number % len(leases)] if leases and more else 0
        reply = self.do(Acquire(session, Ids(1, 0, pack(part), True, position, parent), sequence, lease))
        assert isinstance(reply, AcquireReply)
        outcomes = self.oracle.acquire(session, part, parent, sequence, reply.lease, bool(lease))
        assert [Acquired(one).name for one in reply.outcomes.tolist()] == outcomes
        assert (reply.lease != 0) == (bool(lease) or "LEASED" in outcomes)

    @rule(session=sessions, number=numbers)
    def release(self, session: int, number: int) -> None:
        if self.live(session) and (leases := sorted(self.oracle.parties[session].leases)):
            lease = leases[number % len(leases)]
            reply = self.do(Release(session, (lease,)))
            assert isinstance(reply, Done)
            assert reply.count == self.oracle.release(session, lease)

    @precondition(lambda self: self.oracle.running)
    @rule(
        number=numbers, masses=st.lists(st.sampled_from(MASSES), min_size=1, max_size=5), steps=st.integers(1, 3),
        null=st.booleans(),
    )
    def observe(self, number: int, masses: list[float], steps: int, null: bool) -> None:
        running = sorted(self.oracle.running)
        session, name = running[number % len(running)]
        masses = masses[: len(self.oracle.running[session, name].ids)]
        masses = masses if sum(masses) <= 1.0 else [mass / 4 for mass in masses]
        reply = self.do(Observe(session, name, None if null else np.array(masses, np.float32), steps))
        assert isinstance(reply, Observed)
        assert reply.updated == (0 if null else self.oracle.observe(session, name, masses, steps))

    # --- removing -----------------------------------------------------------------------------------

    @rule(prompt=prompts, start=numbers)
    def drop(self, prompt: tuple[bytes, ...], start: int) -> None:
        one = [prompt[start % len(prompt)]]
        reply = self.do(Evict(Ids(1, 0, pack(one)), None, allow_drop=True))
        assert isinstance(reply, Outcomes)
        assert [Evicted(how).name for how in reply.outcomes.tolist()] == self.oracle.drop(one)

    @rule(prompt=prompts, start=numbers, wrong=st.booleans())
    def drop_damaged(self, prompt: tuple[bytes, ...], start: int, wrong: bool) -> None:
        identity = prompt[start % len(prompt)]
        if identity in self.oracle.blocks:
            generation = self.oracle.blocks[identity].generation + wrong
            reply = self.do(DropDamaged(Tier.HOST, pack([identity]), np.array([generation], np.uint64)))
            assert isinstance(reply, Done)
            assert reply.count == self.oracle.drop_damaged(identity, generation)

    @rule(sure=st.integers(0, 5))
    def clear(self, sure: int) -> None:
        if sure == 0:
            reply = self.do(Clear(BlockFilter(), ghosts=True))
            assert isinstance(reply, Cleared)
            assert (reply.copies[Tier.HOST], reply.in_use) == self.oracle.clear(ghosts=True)

    @rule(policy=st.sampled_from(sorted(POLICIES)), sure=st.integers(0, 2))
    def set_policy(self, policy: str, sure: int) -> None:
        if sure == 0:
            self.do(SetPolicy(policy))
            self.oracle.set_rules(POLICIES[policy])

    # --- what must agree ----------------------------------------------------------------------------

    @invariant()
    def engine_is_sound(self) -> None:
        check(self.engine)

    @invariant()
    def records_agree(self) -> None:
        """Which blocks there are, who holds them, and their records, to the last bit."""
        page = self.do(ListBlocks(BlockFilter(), 1_000))
        assert isinstance(page, BlockPage)
        shown = {block.identity: block for block in page.blocks if block is not None}
        assert shown.keys() == {one for one, block in self.oracle.blocks.items() if block.ready}
        for identity, view in shown.items():
            block = self.oracle.blocks[identity]
            stats, record = block.stats, view.record
            assert (record.touches, record.last, record.wall) == (stats.touches, stats.last, stats.wall)
            assert record.ema == stats.ema
            assert abs(record.crf - stats.crf) <= 1e-14 * stats.crf
            assert (view.position, view.parent) == (block.position, block.parent)
            assert view.copies[0].leases == block.leases
            assert (view.priority, view.next_use.name) == (block.priority, block.next_use or "NONE")
            assert view.pinned_s == max(0.0, block.pinned_until - self.now)
            assert view.expected_s == max(0.0, block.expected_until - self.now)
            assert view.sequences == sum(identity in running.ids for running in self.oracle.running.values())

    @invariant()
    def ghosts_agree(self) -> None:
        ghosts = dict(self.oracle.ghosts)
        identities = sorted({one for prompt in PROMPTS for one in prompt})
        page = self.do(Describe(pack(identities)))
        assert isinstance(page, BlockPage)
        for identity, view in zip(identities, page.blocks, strict=True):
            assert (view is not None and view.ghost) == (identity in ghosts and identity not in self.oracle.blocks)
            if view is not None and view.ghost:
                stats = ghosts[identity]
                assert (view.record.touches, view.record.last, view.record.wall, view.record.ema) == (
                    stats.touches, stats.last, stats.wall, stats.ema,
                )

    @rule()
    def order_of_eviction_agrees(self) -> None:
        """No invariant: a plan takes all victims out and puts them back, which would hide how they lay."""
        planned = self.do(Plan(Tier.HOST, 1 << 40, 1_000))
        assert isinstance(planned, Planned)
        assert [victim.identity for victim in planned.victims] == self.oracle.order()

    @invariant()
    def counts_agree(self) -> None:
        reply = self.do(Occupancy())
        assert isinstance(reply, OccupancyReply)
        host = next(tier for tier in reply.tiers if tier.tier == Tier.HOST)
        filling = sum(not block.ready for block in self.oracle.blocks.values())
        assert host.free_bytes == self.oracle.free() * PAGE_BYTES
        assert host.reserved_bytes == filling * PAGE_BYTES
        assert host.used_bytes == (len(self.oracle.blocks) - filling) * PAGE_BYTES
        assert host.characteristic_age_steps == self.oracle.age
        assert host.blocks == len(self.oracle.blocks) - filling
        assert host.leased_blocks == sum(block.leases > 0 for block in self.oracle.blocks.values())
        assert (host.hits_total, host.stored_total, host.evicted_total, reply.misses_total) == self.oracle.totals()
        assert reply.step == self.oracle.step
        assert reply.identities == len(self.oracle.blocks)
        assert reply.ghosts == len(self.oracle.ghosts)
        assert reply.sequences == len(self.oracle.running)
        assert reply.sessions == sum(not party.ended for party in self.oracle.parties.values())


TestLockstep = Lockstep.TestCase
TestLockstep.settings = settings(
    max_examples=int(os.environ.get("TIERD_TEST_EXAMPLES", 25 if FAST else 80)), stateful_step_count=40,
    deadline=None, phases=[Phase.generate] if FAST else list(Phase),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
)
