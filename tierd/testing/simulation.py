"""A seeded simulation of a whole machine around the engine: workers, mover, spill server, restarts.

    python -m tierd.testing.simulation --seed 7 --steps 2000

One random number generator decides everything: which worker does what, which move ends when and how, when the
spill server fails, when a process dies, when the daemon is killed (between two commands, or in the middle of
one) and starts again from its tables. A shadow memory knows what each page holds and who may touch it. Checked:
whoever reads a leased block finds the committed block of its identity; no range is handed out that someone
alive may still touch; what was known is not a miss; what was READY is READY with its record after a kill;
what is pinned is not dropped; a prefetch ends by its deadline; the invariants of the core; and that in the end
every byte comes back.
"""

from __future__ import annotations

import argparse
import random
from collections import Counter, deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from zlib import crc32

import numpy as np

from tierd.core.engine import Engine
from tierd.core.errors import InvalidInput, LimitReached, Refused
from tierd.core.invariants import check as check_invariants
from tierd.core.messages import (
    Abort,
    Aborted,
    Acquire,
    Acquired,
    AcquireReply,
    BlockFilter,
    BlockPage,
    BlockView,
    BorrowedSlot,
    BorrowSlot,
    Budget,
    CancelPrefetch,
    Clear,
    CloseSequence,
    Command,
    Commit,
    Committed,
    Drainable,
    Drained,
    DropDamaged,
    EndSession,
    Evict,
    Evicted,
    Explain,
    Finish,
    Ids,
    ListBlocks,
    ListDrainable,
    LookedUp,
    Lookup,
    Move,
    NextUse,
    Observe,
    Occupancy,
    OccupancyReply,
    OpenSequence,
    OpenSession,
    Outcomes,
    Pin,
    Pinned,
    PinReply,
    Plan,
    Prefetch,
    PrefetchReply,
    PrefetchStatus,
    Presence,
    Priority,
    Readmit,
    Release,
    Reply,
    Reserve,
    Reserved,
    ReserveReply,
    ReturnSlot,
    SetBudget,
    SetPolicy,
    SpillState,
    Stock,
    StockReply,
    Store,
    StoreBelow,
    Stored,
    StoreReply,
    Tier,
    Touch,
    Unlink,
    Unpin,
    Unstock,
)
from tierd.testing.machine import (
    POLICIES,
    Killed,
    Scale,
    build_engine,
    build_settings,
    build_tables,
    killed_after,
)
from tierd.testing.mover import SimulatedMover
from tierd.testing.mover import Store as SpillServer
from tierd.testing.promises import Promises
from tierd.testing.prompts import Prompt, checksum_of, draw_prompt, unpack
from tierd.testing.shadow import Hold, Shadow, Use, Violation
from tierd.testing.worker import Ahead, Slot, Waiting, Worker, packed_slots
from tierd_client.format import PAGE_BYTES, STATE_ABSENT, U8Array

ARENAS = (Tier.HBM, Tier.HOST)
PIN_TTL_S = 90.0
CANARY = bytes([0xCA] * 32)
STOCKED = bytes([0x57] * 32)
KEPT_EVENTS = 30
"""Events that a violation prints."""


@dataclass(frozen=True, slots=True)
class Summary:
    """What a run met: how often each event happened and each outcome was given."""

    events: Counter[str]
    outcomes: Counter[str]
    digest: int


@dataclass
class Simulation:
    """One machine and its random numbers."""

    seed: int
    scale: Scale = field(default_factory=Scale)
    check_every: int = 10

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        draw = self.random
        self.settings = build_settings(
            self.scale, draw.choice(POLICIES), hbm=draw.random() < 0.8, spill=draw.random() < 0.85
        )
        self.tiers = [spec.tier for spec in self.settings.tiers]
        self.tables = build_tables(self.scale)
        self.engine: Engine = build_engine(self.settings, self.tables)
        self.shadow, self.spill_server = Shadow(), SpillServer()
        self.mover = SimulatedMover(self.shadow, self.spill_server, draw)
        self.workers: list[Worker] = []
        self.sessions = 0
        self.now = 1_000_000.0
        self.generations: set[int] = set()
        self.evictions: list[tuple[Evict, set[int]]] = []
        """Evictions to ask for again, and the moves that they wait for."""
        self.events: Counter[str] = Counter()
        self.outcomes: Counter[str] = Counter()
        self.recent: deque[str] = deque(maxlen=KEPT_EVENTS)
        self.digest = 0
        self.dying = True
        self.promises = Promises()
        self.tickets: list[tuple[Worker, int, float]] = []
        """Prefetches: whose, which, and until when."""
        self.draining: U8Array = np.empty((0, 32), np.uint8)
        """Identities of a drain that are PENDING."""
        self.canaries: list[Hold] = []
        """Slots that were borrowed and not yet returned."""
        self.told_up = True
        """What the engine was last told of the spill server."""
        self._table = [(weight, event) for event, weight in self._weights().items()]

    # --- running ------------------------------------------------------------------------------------

    def run(self, steps: int) -> Summary:
        """Lets `steps` events happen, then lets everything end. Violation says what went wrong where."""
        step = 0
        try:
            for step in range(1, steps + 1):
                self.one_event()
                if step % self.check_every == 0:
                    self.check()
            self.wind_down()
        except (Violation, AssertionError, Exception) as error:
            raise Violation(self._report(step, steps, error)) from error
        return Summary(self.events, self.outcomes, self.digest)

    def one_event(self) -> None:
        weights, events = zip(*self._table, strict=True)
        event: Callable[[], None] = self.random.choices(events, weights)[0]
        self.now += self.random.random()
        self.events[event.__name__] += 1
        self.recent.append(event.__name__)
        try:
            event()
        except Killed:
            self.recent.append("killed in the middle")

    def _weights(self) -> dict[Callable[[], None], float]:
        return {
            self.arrive: 3, self.open_sequence: 8, self.close_sequence: 7, self.look_up: 2, self.reserve: 14,
            self.write_or_read: 24, self.commit: 14, self.abort: 1, self.acquire: 14, self.release: 11,
            self.pin: 2, self.unpin: 0.5, self.touch: 2, self.prefetch: 3, self.ask_prefetch: 4,
            self.retry: 8, self.observe: 3, self.set_budget: 5, self.evict: 5, self.retry_evict: 3, self.readmit: 3,
            self.finish_moves: 16, self.write_part: 3, self.ask: 2, self.clear: 0.2, self.damage: 0.5,
            self.canary: 2, self.drain: 2, self.stock: 6, self.store: 10, self.unstock: 1,
            self.set_policy: 0.4, self.worker_dies: 0.3, self.worker_is_lost: 0.3, self.reap: 1, self.detach: 0.3,
            self.spill_fails: 0.4, self.spill_returns: 2, self.store_loses: 0.7, self.kill_daemon: 0.25,
        }

    def do(self, command: Command) -> Reply:
        """Gives the engine a command and its effects to the mover. Killed when the daemon dies over it."""
        self.recent.append(f"  {_short(command)}")
        if self.dying and self.random.random() < 0.004:
            self._die_over(command)
        step = self.engine.step(command, self.now)
        for effect in step.effects:
            if isinstance(effect, Move):
                self.mover.start(effect)
            elif isinstance(effect, Unlink):
                self.mover.unlink(effect)
        self._count(command, step.reply)
        return step.reply

    def _count(self, command: Command, reply: Reply) -> None:
        outcomes = getattr(reply, "outcomes", None)
        if outcomes is not None:
            for value, count in Counter(outcomes.tolist()).items():
                self.outcomes[f"{type(command).__name__} {value}"] += count
            self.digest = crc32(outcomes.tobytes(), self.digest)

    def _report(self, step: int, steps: int, error: BaseException) -> str:
        events = "\n".join(self.recent)
        return (
            f"seed {self.seed}, step {step}: {type(error).__name__}: {error}\n"
            f"to repeat: python -m tierd.testing.simulation --seed {self.seed} --steps {steps}\n"
            f"last events:\n{events}"
        )

    # --- checks -------------------------------------------------------------------------------------

    def check(self) -> None:
        """What must hold at any time."""
        check_invariants(self.engine)
        self.promises.check(self.all_blocks(), self.now)
        for tier in self.occupancy().tiers:
            parts = tier.free_bytes + tier.used_bytes + tier.reserved_bytes + tier.quarantined_bytes
            if parts != tier.capacity_bytes:
                raise Violation(f"{tier.tier.name}: parts add up to {parts} of {tier.capacity_bytes} bytes")

    def occupancy(self) -> OccupancyReply:
        reply = self.engine.step(Occupancy(), self.now).reply
        assert isinstance(reply, OccupancyReply)
        return reply

    def all_blocks(self) -> list[BlockView]:
        page = self.engine.step(ListBlocks(BlockFilter(), 10_000), self.now).reply
        assert isinstance(page, BlockPage)
        return [block for block in page.blocks if block is not None]

    def wind_down(self) -> None:
        """Everyone leaves and everything ends: no byte may stay behind."""
        self.dying = False
        self.spill_server.up = True
        self.spill_known_up()
        while self.canaries:
            self.canary()
        self.end_moves()
        for worker in list(self.workers):
            worker.give_up_memory(self.shadow)
            self.settle(worker)
        self.end_moves()
        self.now += PIN_TTL_S
        self.check()
        left = self.occupancy()
        if left.pinned_blocks or left.prefetches:
            raise Violation(f"after all deadlines: {left}")
        held = sum(tier.reserved_bytes + tier.quarantined_bytes for tier in left.tiers)
        if held or left.moves_in_flight or left.leases or left.sequences or left.sessions:
            raise Violation(f"after everyone left: {left}")
        self.engine.step(Clear(BlockFilter(), ghosts=True), self.now)
        self.end_moves()
        self.check()
        left = self.occupancy()
        if left.identities or any(tier.free_bytes != tier.capacity_bytes for tier in left.tiers):
            raise Violation(f"after all was cleared: {left}")

    def end_moves(self) -> None:
        for _ in range(100):
            ops = sorted(self.mover.pending)
            if not ops:
                return
            self._finish(ops, faults=False)
        raise Violation("moves lead to moves for ever")

    # --- sequences ----------------------------------------------------------------------------------

    def arrive(self) -> None:
        if sum(worker.active for worker in self.workers) < self.scale.workers:
            self.sessions += 1
            worker = Worker(self.sessions)
            self.do(OpenSession(worker.session))
            self.workers.append(worker)

    def open_sequence(self) -> None:
        worker = self._someone()
        if worker and len(worker.sequences) < 2:
            name, prompt = worker.new_name(), self._prompt()
            others = tuple(self._prompt().ids() for _ in range(self.random.randrange(3)))
            priority = self.random.choice(list(Priority))
            self.do(OpenSequence(worker.session, name, prompt.ids(), priority, others))
            worker.sequences[name] = prompt

    def close_sequence(self) -> None:
        worker = self._someone(lambda worker: bool(worker.sequences))
        if worker:
            name = self.random.choice(sorted(worker.sequences))
            del worker.sequences[name]
            next_use = self.random.choice(list(NextUse))
            self.do(CloseSequence(worker.session, name, next_use, self.random.uniform(0.0, 60.0)))

    def observe(self) -> None:
        worker = self._someone(lambda worker: bool(worker.sequences))
        if not worker:
            return
        name = self.random.choice(sorted(worker.sequences))
        blocks = len(worker.sequences[name].chain)
        mass = [self.random.random() for _ in range(self.random.randint(1, blocks))]
        attention = np.array(mass, np.float32) / np.float32(sum(mass) + 1.0)
        null = self.random.random() < 0.3
        self.do(Observe(worker.session, name, None if null else attention, self.random.randint(1, 3)))

    def set_budget(self) -> None:
        """A sequence gets a budget of hbm blocks, or another one, or is brought there first; not one of several
        chains, and none that has lost blocks gets one by which it would not."""
        worker = self._someone(lambda worker: bool(worker.sequences))
        if not worker:
            return
        name, sinks = self.random.choice(sorted(worker.sequences)), self.random.randrange(2)
        if name not in worker.budgeted and self.random.random() < 0.5:
            self.do(Readmit(worker.sequences[name].ids(), Tier.HBM))
            return
        budget = Budget(1 + sinks + self.random.randrange(3), 1, sinks, self.random.random() < 0.5)
        with suppress(InvalidInput, Refused):
            self.do(SetBudget(worker.session, name, budget))
            worker.budgeted.add(name)
            worker.lossy |= {name} if budget.lossy else set()

    def look_up(self) -> None:
        """What a lookup knows, an acquire right after it does not miss; what it does not, none leases."""
        worker = self._someone()
        if not worker:
            return
        prompt = self._prompt()
        looked = self.do(Lookup(prompt.ids()))
        assert isinstance(looked, LookedUp)
        reply = self.do(Acquire(worker.session, prompt.ids()))
        assert isinstance(reply, AcquireReply)
        self._take_lease(worker, prompt, reply)
        forgotten = (looked.presence != Presence.MISS) & (reply.outcomes == Acquired.MISS)
        early = (looked.presence == Presence.MISS) & (reply.outcomes == Acquired.LEASED)
        if (forgotten | early).any():
            raise Violation(f"lookup says {looked.presence.tolist()}, acquire {reply.outcomes.tolist()}")
        self._check_hit(looked, prompt.kind.rule.tail)

    def _check_hit(self, looked: LookedUp, tail: int) -> None:
        """The hit is the longest whose last `tail` blocks, or all, are in tiers that can be reached now."""
        reach = 7 if self.told_up else 3
        tiers = looked.tiers.tolist()
        if any(tier & ~reach for tier in tiers):
            raise Violation(f"{tiers} names a tier that is down")
        possible = [n for n in range(len(tiers) + 1) if all(tiers[max(0, n - tail) : n])]
        if looked.hit_blocks != possible[-1]:
            raise Violation(f"a hit of {looked.hit_blocks} blocks where it is {possible[-1]}: {tiers}")

    # --- storing ------------------------------------------------------------------------------------

    def reserve(self) -> None:
        worker = self._someone(lambda worker: len(worker.slots) < 12)
        if not worker:
            return
        budgeted = sorted(worker.budgeted & worker.sequences.keys())
        sequence = self.random.choice(["", *sorted(worker.sequences), *4 * budgeted])
        prompt = worker.sequences[sequence] if sequence else self._prompt()
        start = self.random.randrange(len(prompt.chain)) if self.random.random() < 0.3 else 0
        end = self.random.randint(start + 1, len(prompt.chain))
        part = Prompt(prompt.kind, prompt.chain[start:end])
        tier = Tier.HBM if sequence in worker.budgeted else self._arena()
        command = Reserve(
            worker.session, prompt.ids(start, end), prompt.kind.block_bytes, tier, sequence,
            priority=self.random.choice(list(Priority)),
        )
        self._reserve(worker, part, command)

    def _reserve(self, worker: Worker, prompt: Prompt, command: Reserve) -> None:
        reply = self.do(command)
        assert isinstance(reply, ReserveReply)
        for place in np.flatnonzero(reply.outcomes == Reserved.GRANTED).tolist():
            generation = int(reply.generations[place])
            self._new_generation(generation)
            hold = Hold(
                command.tier, int(reply.addresses[place]), command.block_bytes, prompt.chain[place],
                Use.WRITE, f"session {worker.session}",
            )
            worker.slots.append(Slot(self.shadow.take(hold), generation, prompt, command.sequence))
        pending = np.flatnonzero(reply.outcomes == Reserved.PENDING)
        if len(pending):
            rest = Prompt(prompt.kind, tuple(prompt.chain[place] for place in pending.tolist()))
            again = Reserve(
                worker.session, command.blocks.take(pending), command.block_bytes, command.tier,
                command.sequence, retry=True, priority=command.priority,
            )
            worker.waiting.append(Waiting(again, frozenset(reply.waiting), rest))

    def _new_generation(self, generation: int) -> None:
        if generation in self.generations:
            raise Violation(f"generation {generation} is handed out twice")
        self.generations.add(generation)

    def stock(self) -> None:
        """A worker takes slots ahead."""
        worker = self._someone(lambda worker: len(worker.stock) < 6)
        if worker:
            prompt, tier = self._prompt(), self._arena()
            needed, spare = self.random.randint(0, 3), self.random.randint(0, 3)
            size = prompt.kind.block_bytes
            reply = self.do(Stock(worker.session, prompt.ids(), size, needed, spare, tier))
            assert isinstance(reply, StockReply)
            for address, generation in zip(reply.addresses.tolist(), reply.generations.tolist(), strict=True):
                self._new_generation(generation)
                hold = Hold(tier, address, size, STOCKED, Use.WRITE, f"session {worker.session}")
                worker.stock.append(Ahead(self.shadow.take(hold), generation))

    def store(self) -> None:
        """A worker writes blocks into slots that it took ahead, and says so, or says so before it writes; it keeps
        those that were not used."""
        worker = self._someone(lambda worker: bool(worker.stock))
        if not worker:
            return
        first = self.random.choice(worker.stock).hold
        tier, size = first.tier, first.size
        kind = next(kind for kind in self.scale.kinds if kind.block_bytes == size)
        prompt = draw_prompt(self.random, kind, self.scale.longest_prompt)
        fitting = [one for one in worker.stock if (one.hold.tier, one.hold.size) == (tier, size)]
        used: list[Ahead | None] = [*fitting, *[None] * len(prompt.chain)][: len(prompt.chain)]
        self.random.shuffle(used)
        later = self.random.random() < 0.5
        for identity, ahead in zip(prompt.chain, used, strict=True):
            if ahead:
                if not later:
                    self.shadow.write(replace(ahead.hold, identity=identity))
                self.shadow.give_back(ahead.hold)
                worker.stock.remove(ahead)
        generations = np.array([ahead.generation if ahead else 0 for ahead in used], np.uint64)
        checksums = np.array([checksum_of(identity) for identity in prompt.chain], np.uint64)
        sequence = self.random.choice(["", *sorted({*worker.sequences} - worker.budgeted)])
        reply = self.do(Store(
            worker.session, prompt.ids(), size, generations, checksums[: 0 if later else None], tier, sequence,
            self.random.choice(list(Priority)), commit_later=later,
        ))
        assert isinstance(reply, StoreReply)
        self._settle_stored(worker, prompt, sequence, used, reply.outcomes.tolist())

    def _settle_stored(
        self, worker: Worker, prompt: Prompt, sequence: str, used: list[Ahead | None], outcomes: list[int]
    ) -> None:
        for identity, ahead, outcome in zip(prompt.chain, used, outcomes, strict=True):
            if ahead and outcome == Stored.GRANTED:
                hold = self.shadow.take(replace(ahead.hold, identity=identity))
                worker.slots.append(Slot(hold, ahead.generation, prompt, sequence))
            elif ahead and outcome != Stored.STORED:
                worker.stock.append(Ahead(self.shadow.take(ahead.hold), ahead.generation))

    def unstock(self) -> None:
        worker = self._someone(lambda worker: bool(worker.stock))
        if worker:
            for ahead in worker.stock:
                self.shadow.give_back(ahead.hold)
            generations, worker.stock = [ahead.generation for ahead in worker.stock], []
            self.do(Unstock(worker.session, np.array(generations, np.uint64)))

    def write_or_read(self) -> None:
        """Someone alive touches memory, whatever the engine thinks of its session."""
        living = [worker for worker in self.workers if worker.alive]
        if living:
            self.random.choice(living).touch_memory(self.random, self.shadow)

    def commit(self) -> None:
        worker = self._someone(lambda worker: any(slot.written for slot in worker.slots))
        if not worker:
            return
        first = self.random.choice([slot for slot in worker.slots if slot.written])
        slots = [
            slot for slot in worker.slots
            if slot.written and (slot.hold.tier, slot.sequence) == (first.hold.tier, first.sequence)
        ]
        stale = self.random.random() < 0.05
        ids, generations, checksums = packed_slots(slots)
        self._give_up(worker, slots, unless=stale)
        sequence = first.sequence if first.sequence in worker.sequences else ""
        reply = self.do(
            Commit(worker.session, ids, generations + np.uint64(stale), checksums, first.hold.tier, sequence)
        )
        self._all_are(reply, Committed.STALE if stale else Committed.COMMITTED)

    def abort(self) -> None:
        worker = self._someone(lambda worker: bool(worker.slots))
        if not worker:
            return
        tier = self.random.choice(worker.slots).hold.tier
        slots = [slot for slot in worker.slots if slot.hold.tier == tier]
        ids, generations, _ = packed_slots(slots)
        self._give_up(worker, slots)
        self._all_are(self.do(Abort(worker.session, ids, generations, tier)), Aborted.ABORTED)

    def _give_up(self, worker: Worker, slots: list[Slot], *, unless: bool = False) -> None:
        """Before it says that slots are written, or unwanted, a worker stops touching them."""
        for slot in [] if unless else slots:
            self.shadow.give_back(slot.hold)
            worker.slots.remove(slot)

    def _all_are(self, reply: Reply, wanted: Committed | Aborted) -> None:
        assert isinstance(reply, Outcomes)
        if (reply.outcomes != wanted).any():
            raise Violation(f"outcomes {reply.outcomes.tolist()}, not all {wanted.name}")

    # --- reading ------------------------------------------------------------------------------------

    def acquire(self) -> None:
        worker = self._someone(lambda worker: len(worker.leases) < 4)
        if not worker:
            return
        sequence = self.random.choice(["", *sorted(worker.sequences)])
        prompt = worker.sequences[sequence] if sequence else self._prompt()
        end = self.random.randint(1, len(prompt.chain))
        part = Prompt(prompt.kind, prompt.chain[:end])
        self._acquire(worker, part, Acquire(worker.session, prompt.ids(0, end), sequence))

    def _acquire(self, worker: Worker, prompt: Prompt, command: Acquire) -> None:
        reply = self.do(command)
        assert isinstance(reply, AcquireReply)
        self._take_lease(worker, prompt, reply)
        pending = np.flatnonzero(reply.outcomes == Acquired.PENDING)
        if len(pending) and reply.waiting:
            rest = Prompt(prompt.kind, tuple(prompt.chain[place] for place in pending.tolist()))
            again = Acquire(
                worker.session, command.blocks.take(pending), command.sequence, reply.lease, retry=True
            )
            worker.waiting.append(Waiting(again, frozenset(reply.waiting), rest))

    def _take_lease(self, worker: Worker, prompt: Prompt, reply: AcquireReply) -> None:
        for place in np.flatnonzero(reply.outcomes == Acquired.LEASED).tolist():
            identity = prompt.chain[place]
            hold = Hold(
                Tier(int(reply.tiers[place])), int(reply.addresses[place]), prompt.kind.block_bytes, identity,
                Use.READ, f"session {worker.session}",
            )
            self.shadow.check(self.shadow.take(hold))
            if int(reply.checksums[place]) != checksum_of(identity):
                raise Violation(f"{hold} with the checksum of another block")
            worker.leases.setdefault(reply.lease, []).append(hold)

    def release(self) -> None:
        worker = self._someone(lambda worker: bool(worker.leases))
        if worker:
            lease = self.random.choice(sorted(worker.leases))
            for hold in worker.leases.pop(lease):
                self.shadow.check(hold)
                self.shadow.give_back(hold)
            self.do(Release(worker.session, (lease,)))

    def retry(self) -> None:
        """A worker whose moves have ended asks again for what was pending."""
        ready = [
            (worker, waiting) for worker in self.workers if worker.active for waiting in worker.waiting
            if waiting.ops.isdisjoint(self.mover.pending)
        ]
        if not ready:
            return
        worker, waiting = self.random.choice(ready)
        worker.waiting.remove(waiting)
        command = waiting.command
        if command.sequence and command.sequence not in worker.sequences:
            return
        if isinstance(command, Reserve):
            self._reserve(worker, waiting.prompt, command)
        elif not command.lease or command.lease in worker.leases:
            self._acquire(worker, waiting.prompt, command)

    # --- hints --------------------------------------------------------------------------------------

    def pin(self) -> None:
        """More than their share is refused, and then nothing is pinned."""
        prompt, ttl_s = self._prompt(), self.random.uniform(1.0, PIN_TTL_S)
        try:
            reply = self.do(Pin(prompt.ids(), ttl_s))
        except LimitReached:
            self.outcomes["Pin refused"] += 1
            return
        assert isinstance(reply, PinReply)
        pinned = [prompt.chain[place] for place in np.flatnonzero(reply.outcomes == Pinned.PINNED).tolist()]
        self.promises.add(pinned, self.now + ttl_s)

    def unpin(self) -> None:
        prompt = self._prompt()
        self.promises.end(prompt.chain)
        self.do(Unpin(prompt.ids()))

    def touch(self) -> None:
        worker = self._someone()
        if worker:
            sequence = self.random.choice(["", *sorted(worker.sequences)])
            prompt = worker.sequences[sequence] if sequence else self._prompt()
            counts = np.array([self.random.randint(1, 3) for _ in prompt.chain])
            self.do(Touch(worker.session, prompt.ids(), counts, sequence))

    def prefetch(self) -> None:
        worker = self._someone(lambda worker: len(self._tickets_of(worker)) < 3)
        if worker:
            within_s = self.random.uniform(0.5, 30.0)
            reply = self.do(Prefetch(worker.session, self._prompt().ids(), self._arena(), within_s))
            assert isinstance(reply, PrefetchReply)
            self.tickets.append((worker, reply.ticket, self.now + within_s))

    def ask_prefetch(self) -> None:
        """A prefetch is under way until its deadline at most; one that is done, or cancelled, is forgotten."""
        self.tickets = [one for one in self.tickets if one[0] in self.workers]
        mine = [one for one in self.tickets if one[0].active]
        if not mine:
            return
        worker, ticket, until = one = self.random.choice(mine)
        cancel = self.random.random() < 0.2
        reply = self.do((CancelPrefetch if cancel else PrefetchStatus)(worker.session, ticket))
        assert isinstance(reply, PrefetchReply)
        if self.now >= until and not reply.done:
            raise Violation(f"prefetch {ticket} goes on after its deadline")
        if reply.done and not cancel:
            self.do(CancelPrefetch(worker.session, ticket))
        if reply.done:
            self.tickets.remove(one)

    def _tickets_of(self, worker: Worker) -> list[int]:
        return [ticket for owner, ticket, _ in self.tickets if owner is worker]

    # --- moving -------------------------------------------------------------------------------------

    def evict(self) -> None:
        prompt = self._prompt()
        to = self.random.choice([None, *(tier for tier in self.tiers if tier != Tier.HBM)])
        drop = to is None or self.random.random() < 0.5
        self._evict(Evict(prompt.ids(), to, drop))

    def _evict(self, command: Evict) -> None:
        reply = self.do(command)
        assert isinstance(reply, Outcomes)
        used = self._in_use()
        for identity, outcome in zip(unpack(command.blocks.ids), reply.outcomes.tolist(), strict=True):
            if outcome == Evicted.DROPPED and identity in used:
                raise Violation(f"{identity[:4].hex()} was dropped while it is {used[identity]}")
        pending = np.flatnonzero(reply.outcomes == Evicted.PENDING)
        if len(pending):
            rest = command.blocks.take(pending)
            self.evictions.append((Evict(rest, command.to, command.allow_drop, retry=True), set(reply.waiting)))

    def retry_evict(self) -> None:
        """Someone who waited for moves down asks what became of them."""
        ready = [pair for pair in self.evictions if pair[1].isdisjoint(self.mover.pending)]
        if ready:
            self.evictions.remove(ready[0])
            self._evict(ready[0][0])

    def readmit(self) -> None:
        self.do(Readmit(self._prompt().ids(), self._arena()))

    def finish_moves(self) -> None:
        ops = sorted(self.mover.pending)
        if ops:
            self.random.shuffle(ops)
            self.promises.check(self.all_blocks(), self.now)
            self._finish(ops[: self.random.randint(1, len(ops))], faults=True)

    def _finish(self, ops: list[int], *, faults: bool) -> None:
        results = self.mover.finish(ops, faults=faults)
        moves = self.engine.state.moves
        void = any(moves[result.op].void for result in results if result.op in moves)
        self.do(Finish(results))
        if void or any(result.lost for result in results):
            self.promises.excuse(self.all_blocks(), self.now)

    def write_part(self) -> None:
        self.mover.write_part()

    # --- administration -----------------------------------------------------------------------------

    def ask(self) -> None:
        """Questions change nothing."""
        before = self.all_blocks()
        tier = self.random.choice(self.tiers)
        self.do(Plan(tier, self.random.randrange(1, 200_000), 10))
        self.do(Explain(self._prompt().ids().ids, tier))
        self.do(ListBlocks(BlockFilter(tier=tier), 5, by_rank=True))
        if before != self.all_blocks():
            raise Violation("a question changed a record")

    def canary(self) -> None:
        """A slot is borrowed, written and read; it is returned some events later."""
        if self.canaries:
            hold = self.canaries.pop()
            self.shadow.check(hold)
            self.shadow.give_back(hold)
            self.do(ReturnSlot(hold.tier, hold.address))
            return
        tier = self._arena()
        before = self.all_blocks()
        reply = self.do(BorrowSlot(tier, PAGE_BYTES))
        assert isinstance(reply, BorrowedSlot)
        if reply.address is not None:
            hold = self.shadow.take(Hold(tier, reply.address, PAGE_BYTES, CANARY, Use.WRITE, "a canary"))
            self.shadow.write(hold)
            self.canaries.append(hold)
        if before != self.all_blocks():
            raise Violation("a canary changed a record")

    def drain(self) -> None:
        """Some of what lies in arenas alone is stored below; what is PENDING is asked for again later."""
        if Tier.SPILL not in self.tiers:
            return
        ids, retry = self.draining, len(self.draining) > 0
        if not retry:
            listed = self.do(ListDrainable(BlockFilter()))
            assert isinstance(listed, Drainable)
            ids = listed.ids[: self.random.randint(1, 8)]
        if len(ids):
            reply = self.do(StoreBelow(ids, retry))
            assert isinstance(reply, Outcomes)
            self.draining = np.ascontiguousarray(ids[reply.outcomes == Drained.PENDING])

    def clear(self) -> None:
        where = BlockFilter(self.random.choice([0, 1, 2]), self.random.choice([None, *self.tiers]))
        self.do(Clear(where, dry_run=self.random.random() < 0.3, ghosts=self.random.random() < 0.3))

    def damage(self) -> None:
        """The daemon is told that some copy does not have its checksum."""
        copies = [(block, copy) for block in self.all_blocks() for copy in block.copies if copy.ready]
        if copies:
            block, copy = self.random.choice(copies)
            ids = np.frombuffer(block.identity, np.uint8)[None, :]
            generation = copy.generation + (self.random.random() < 0.2)
            self.promises.check(self.all_blocks(), self.now)
            self.do(DropDamaged(copy.tier, ids, np.array([generation], np.uint64)))
            self.promises.excuse(self.all_blocks(), self.now)

    def set_policy(self) -> None:
        """The next boot has the same policy: another one's records would be rescaled."""
        policy = self.random.choice(POLICIES)
        self.settings = replace(self.settings, policy=policy)
        self.do(SetPolicy(policy))

    # --- failures -----------------------------------------------------------------------------------

    def worker_dies(self) -> None:
        """A process dies; the engine does not know yet."""
        living = [worker for worker in self.workers if worker.alive]
        if living:
            worker = self.random.choice(living)
            worker.alive = False
            worker.give_up_memory(self.shadow)

    def worker_is_lost(self) -> None:
        """The connection to a worker breaks; it lives on and may touch what it had."""
        worker = self._someone()
        if worker:
            worker.told = True
            worker.sequences.clear()
            self.do(EndSession(worker.session, settled=False))

    def reap(self) -> None:
        """The daemon learns that a process is dead."""
        dead = [worker for worker in self.workers if not worker.alive]
        if dead:
            self.settle(self.random.choice(dead))

    def detach(self) -> None:
        """A worker, or a later boot of it, vouches that it touches nothing any more."""
        living = [worker for worker in self.workers if worker.alive]
        if living:
            worker = self.random.choice(living)
            worker.give_up_memory(self.shadow)
            self.settle(worker)

    def settle(self, worker: Worker) -> None:
        self.workers.remove(worker)
        self.do(EndSession(worker.session, settled=True))

    def spill_fails(self) -> None:
        if Tier.SPILL in self.tiers:
            self.spill_server.up = False
            if self.random.random() < 0.7:
                self.tell_spill(SpillState(up=False))

    def spill_returns(self) -> None:
        if Tier.SPILL in self.tiers:
            self.spill_server.up = True
            self.spill_known_up(forgotten=self.random.random() < 0.2)

    def spill_known_up(self, *, forgotten: bool = False) -> None:
        if Tier.SPILL in self.tiers:
            if forgotten:
                self.spill_server.values.clear()
            self.tell_spill(SpillState(True, forgotten))

    def tell_spill(self, spill: SpillState) -> None:
        self.told_up = spill.up
        self.promises.check(self.all_blocks(), self.now)
        self.do(spill)
        if spill.forgotten:
            self.promises.excuse(self.all_blocks(), self.now)

    def store_loses(self) -> None:
        self.spill_server.lose(self.random)

    def kill_daemon(self) -> None:
        """The daemon dies between two commands; what was READY must be READY after it, with its record."""
        self.promises.check(self.all_blocks(), self.now)
        before = self._durable()
        self.restart()
        after = self._durable()
        if before != after:
            lost = [key for key in before if after.get(key) != before[key]]
            new = [key for key in after if key not in before]
            raise Violation(f"over a restart {len(lost)} copies changed or went and {len(new)} came: {lost[:3]}")

    def _die_over(self, command: Command) -> None:
        """The daemon dies somewhere in the middle of a command; nobody gets its reply."""
        try:
            with killed_after(self.random.randint(1, 600)):
                self.engine.step(command, self.now)
        except Killed:
            self.events["killed in the middle"] += 1
        self.restart()
        raise Killed

    def restart(self) -> None:
        """A new engine over the old tables. Processes that lived through it hold what they held."""
        self.mover.die()
        for hold in self.canaries:
            self.shadow.give_back(hold)
        self.canaries.clear()
        self.draining = self.draining[:0]
        self.evictions.clear()
        self.tables.catalog["state"][Tier.HBM - 1] = STATE_ABSENT
        survivors = set()
        for worker in self.workers:
            worker.told = True
            worker.sequences.clear()
            worker.waiting.clear()
            if worker.alive or self.random.random() < 0.5:
                survivors.add(worker.session)
        self.workers = [worker for worker in self.workers if worker.session in survivors]
        self.tickets.clear()
        self.engine = build_engine(self.settings, self.tables, frozenset(survivors))
        self.promises.excuse(self.all_blocks(), self.now)
        self.check()
        if Tier.SPILL in self.tiers:
            self.told_up = self.spill_server.up
            self.engine.step(SpillState(self.spill_server.up), self.now)

    def _durable(self) -> dict[tuple[bytes, Tier], tuple[object, ...]]:
        """READY copies that outlive the daemon, each with what must not change."""
        return {
            (block.identity, copy.tier): (
                copy.address, copy.generation, block.size, block.checksum, block.record, block.priority,
                block.pinned_s,
            )
            for block in self.all_blocks() for copy in block.copies
            if copy.ready and copy.tier != Tier.HBM
        }

    # --- choices ------------------------------------------------------------------------------------

    def _someone(self, fit: Callable[[Worker], bool] = lambda _: True) -> Worker | None:
        """A worker that can send commands, or None."""
        fitting = [worker for worker in self.workers if worker.active and fit(worker)]
        return self.random.choice(fitting) if fitting else None

    def _prompt(self) -> Prompt:
        return draw_prompt(self.random, self.random.choice(self.scale.kinds), self.scale.longest_prompt)

    def _arena(self) -> Tier:
        return self.random.choice([tier for tier in self.tiers if tier in ARENAS])

    def _in_use(self) -> dict[bytes, str]:
        """Identities that a session holds which the engine takes for alive."""
        used = {}
        for worker in [worker for worker in self.workers if not worker.told]:
            for holds in worker.leases.values():
                used.update({hold.identity: "leased" for hold in holds})
            for name in worker.sequences.keys() - worker.lossy:
                used.update(dict.fromkeys(worker.sequences[name].chain, "of a running sequence"))
        return used


def simulate(seed: int, steps: int, scale: Scale | None = None) -> Summary:
    """Runs one seed. Violation carries the command that repeats it."""
    return Simulation(seed, scale or Scale()).run(steps)


def _short(command: Command) -> str:
    """A command on one line; of identities their first bytes."""
    parts = []
    for name in command.__dataclass_fields__:
        value = getattr(command, name)
        if isinstance(value, Ids):
            value = f"{value.namespace}/{value.group} at {value.position}: {_names(value.ids)}"
        elif name == "ids":
            value = _names(value)
        parts.append(f"{name}={value}")
    return f"{type(command).__name__}({', '.join(parts)})"


def _names(ids: U8Array) -> str:
    return " ".join(identity[:3].hex() for identity in unpack(ids))


def main() -> None:
    parser = argparse.ArgumentParser(description="Simulates the machine around the engine from a seed.")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seeds", type=int, default=1, help="so many seeds from --seed on")
    parser.add_argument("--steps", type=int, default=2000)
    arguments = parser.parse_args()
    for seed in range(arguments.seed, arguments.seed + arguments.seeds):
        summary = simulate(seed, arguments.steps)
        print(f"seed {seed}: {dict(summary.events)} {dict(summary.outcomes)}")  # noqa: T201


if __name__ == "__main__":
    main()
