"""What the daemon can do, in core types: one method per verb of the API.

A verb is one command to the engine. Where its reply leaves ids PENDING, the method waits for the moves they
wait for and repeats the command for those ids alone, until none is left or the deadline passes; deadlines
are in the event loop's time. A caller that goes away while it waits gets nothing: what was granted or
leased for it is given back.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

from tierd.app.finder import Finder
from tierd.app.lending import Pools
from tierd.app.mover import Mover
from tierd.app.namespaces import Namespace, Namespaces
from tierd.app.recorder import Shadowed
from tierd.app.sessions import Orphan, Session, Sessions
from tierd.app.settling import PAUSE_MAX_S, settle
from tierd.app.shadow import Shadow
from tierd.app.shares import NamespaceShare, by_namespace
from tierd.app.spill_switch import SpillSwitch
from tierd.app.spill_watch import SpillWatch
from tierd.app.sweep import Sweep
from tierd.app.writer import Writer
from tierd.core import messages as m
from tierd.core.errors import NotFound, Refused, TierdError, Unavailable
from tierd.core.loans import PoolPlan
from tierd_client.format import I64Array, U8Array, U64Array

PATIENCE_S = 0.25
"""How long who takes nothing as moves end waits for all of them, where each block has its own."""

N = TypeVar("N")


@dataclass(frozen=True, slots=True)
class About:
    """What the daemon says of itself, fixed for its life. `requested_bytes`: per tier, 0 = off."""

    boot_id: bytes
    instance_id: bytes
    attach_path: str
    heartbeat_ms: int
    max_ids: int
    max_held: int
    stock_bytes: int
    version: str
    requested_bytes: Mapping[m.Tier, int]
    config_json: str


@dataclass(frozen=True, slots=True)
class TierState:
    """Whether a tier serves now, and in words why (not)."""

    serving: bool
    text: str


class Service:
    """The verbs. All methods belong to the event loop's thread."""

    def __init__(
        self, writer: Writer, mover: Mover, namespaces: Namespaces, about: About, *, shadow: Shadow,
        orphans: Callable[[], Sequence[Orphan]] = tuple, spill_watch: SpillWatch | None = None,
        pools: Pools | None = None,
        finder: Finder | None = None, spill_switch: SpillSwitch | None = None,
    ) -> None:
        """`finder`: looks for blocks that are not known here. `spill_switch`: changes the spill store."""
        self.about = about
        self.sweep = Sweep(writer, namespaces, lambda: mover.unlinks_waiting)
        self.namespaces = namespaces
        self.pools = pools or Pools(None, 0)
        self.sessions = Sessions(writer, orphans)
        self.sessions.on_end.append(self.pools.end)
        self.writer = writer
        self.mover = mover
        self.measures = mover.measures
        self.shadow = shadow
        self._is_draining = False
        self._spill_watch = spill_watch
        self.finder = finder
        self._spill_switch = spill_switch
        self._registrar = ThreadPoolExecutor(1, thread_name_prefix="tierd-registrar")
        self.policy_epoch = self.occupancy().policy_epoch

    # --- namespaces and sessions ----------------------------------------------------------------------

    async def register(
        self, canonical: bytes, fingerprint: bytes, schema_version: int, name: str, deadline: float
    ) -> Namespace:
        """Registers a layout."""
        register = functools.partial(self.namespaces.register, canonical, fingerprint, name, schema_version)
        return await self._on_disk(register, deadline)

    async def switch_epoch(self, name: str, weights_epoch: int, deadline: float) -> tuple[Namespace, Namespace]:
        """Binds a name to its layout with other weights, and lets the blocks of those before be swept; the
        namespaces of before and of now."""
        loop = asyncio.get_running_loop()

        def switch() -> tuple[Namespace, Namespace]:
            switched = self.namespaces.switch(name, weights_epoch)
            loop.call_soon_threadsafe(self.sweep.wake)
            return switched

        return await self._on_disk(switch, deadline)

    async def _on_disk(self, write: Callable[[], N], deadline: float) -> N:
        """Changes the registry on the registrar's thread, for the sake of its fsync; it has one thread, so that
        two changes never run at once, even when the first one's caller has given up."""
        try:
            async with asyncio.timeout_at(deadline):
                return await asyncio.get_running_loop().run_in_executor(self._registrar, write)
        except TimeoutError as error:
            raise Unavailable("the state directory's disk did not answer in time") from error
        except OSError as error:
            raise Unavailable(f"the state directory cannot be written: {error}") from error

    def open_session(self, client_name: str, pid: int) -> Session:
        return self.sessions.open(client_name, pid)

    def end_session(self, session: int) -> None:
        """The session's stream has ended."""
        self.sessions.stream_closed(session)

    def require_session(self, session: int) -> None:
        """NotFound or Refused for a session that has ended."""
        self.sessions.require(session)

    def bind_process(self, session: int, token: bytes, pid: int, start_time: int) -> None:
        """Binds a session to its process (attach socket). NotFound, Refused."""
        self.sessions.bind(session, token, pid, start_time)

    def open_page(self, session: int, page: U64Array) -> None:
        """What the session looks at will be said in this page. NotFound, Refused."""
        self.sessions.require(session)
        self.writer.step(m.OpenPage(session, page))

    def process_ended(self, session: int) -> None:
        """The session's process is dead; unknown sessions are ignored."""
        self.sessions.process_ended(session)

    def segments_reserved(self, session: int) -> frozenset[int]:
        """Segments in which the session holds reservations now."""
        return self.sessions.segments_reserved(session)

    async def detach(self, session: int, token: bytes, deadline: float) -> int:
        """Ends a session of this or an earlier boot; returns the blocks released."""
        return await self.sessions.detach(session, token, deadline)

    # --- verbs ----------------------------------------------------------------------------------------

    def block_bytes(self, blocks: m.Ids) -> int:
        """Bytes of one of these blocks. NotFound for the namespace, InvalidInput for the group."""
        return self.namespaces.place(blocks.namespace, blocks.group).block_bytes

    async def lookup(self, blocks: m.Ids, deadline: float) -> m.LookedUp:
        blocks = self._placed(blocks)
        await self._find((blocks,), deadline)
        return self.writer.ask(m.Lookup(blocks), m.LookedUp)

    async def lookup_chains(self, chains: Sequence[m.Ids], deadline: float) -> m.ChainsLookedUp:
        """Where the chains of one prompt are, and the hit that all of them support."""
        placed = tuple(map(self._placed, chains))
        await self._find(placed, deadline)
        return self.writer.ask(m.LookupChains(placed), m.ChainsLookedUp)

    def ready_in_ms(self, below_bytes: int) -> int:
        """Estimate of how long bytes take to come up from the spill tier; 0 for none."""
        return self.mover.load_ms(below_bytes) if below_bytes else 0

    async def reserve(
        self, session: int, blocks: m.Ids, tier: m.Tier, sequence: str, deadline: float, call: int = 0,
        priority: m.Priority = m.Priority.UNSPECIFIED,
    ) -> m.ReserveReply:
        """Slots to write blocks into, waiting for room. `call`: its number, by which it can be given up."""
        calls = self.sessions.require(session).calls
        calls.begin(call)
        blocks, size = self._placed(blocks), self.block_bytes(blocks)

        def ask(some: m.Ids, retry: bool) -> m.ReserveReply:
            command = m.Reserve(session, some, size, tier, sequence, retry, priority)
            return self.writer.ask(command, m.ReserveReply)

        reply = ask(blocks, False)
        if not reply.waiting and (reply.outcomes == m.Reserved.PENDING.value).any():
            self.sessions.ask_stocks_back()

        def again(left: I64Array) -> m.ReserveReply:
            return ask(blocks.take(left), True)

        kept = False
        try:
            await settle(self.writer, reply, m.Reserved.PENDING, again, deadline)
            kept = True
        finally:
            granted = np.flatnonzero(reply.outcomes == m.Reserved.GRANTED.value)
            undo = m.Abort(session, blocks.ids[granted], reply.generations[granted], tier)
            kept = kept and calls.took(call, undo)
            if kept:
                self.sessions.granted(session, tier, reply.addresses[granted], reply.generations[granted])
            else:
                self._give_back(undo)
        if not kept:
            raise Refused(f"call {call} was given up")
        return reply

    def commit(
        self, session: int, ids: U8Array, generations: U64Array, checksums: U64Array, tier: m.Tier, sequence: str
    ) -> m.Outcomes:
        """Publishes written slots."""
        self.sessions.require(session)
        return self.commit_reserved(session, ids, generations, checksums, tier, sequence)

    def commit_reserved(
        self, session: int, ids: U8Array, generations: U64Array, checksums: U64Array, tier: m.Tier, sequence: str
    ) -> m.Outcomes:
        """`commit` for a stream of this daemon, also when its session is about to end."""
        command = m.Commit(session, ids, generations, checksums, tier, sequence)
        reply = self.writer.ask_first(command, m.Outcomes)
        self.sessions.settled(session, tier, generations)
        return reply

    def abort(self, session: int, ids: U8Array, generations: U64Array, tier: m.Tier) -> m.Outcomes:
        """Gives reserved slots back."""
        self.sessions.require(session)
        reply = self.writer.ask(m.Abort(session, ids, generations, tier), m.Outcomes)
        self.sessions.settled(session, tier, generations)
        return reply

    def abort_reserved(self, session: int, ids: U8Array, generations: U64Array, tier: m.Tier) -> None:
        """Gives back what a stream of this daemon reserved and did not commit. Never raises."""
        self._give_back(m.Abort(session, ids, generations, tier))
        self.sessions.settled(session, tier, generations)

    async def acquire(
        self, session: int, blocks: m.Ids, sequence: str, deadline: float, call: int = 0, device: bool = False
    ) -> m.AcquireReply:
        """Pins blocks where the caller can read them, promoting them while it waits. `call` as in `reserve`;
        `device`: it reads memory of a device too."""
        calls = self.sessions.require(session).calls
        calls.begin(call)
        blocks = self._placed(blocks)
        await self._find((blocks,), deadline)
        self.sessions.require(session)
        reply = self.writer.ask(m.Acquire(session, blocks, sequence, device=device), m.AcquireReply)

        def again(left: I64Array) -> m.AcquireReply:
            command = m.Acquire(session, blocks.take(left), sequence, reply.lease, retry=True, device=device)
            rest = self.writer.ask(command, m.AcquireReply)
            # It was known a moment ago, so what is a miss now was lost on its way up.
            rest.outcomes[rest.outcomes == m.Acquired.MISS.value] = m.Acquired.LOST
            reply.lease = rest.lease or reply.lease
            return rest

        kept = False
        try:
            await settle(self.writer, reply, m.Acquired.PENDING, again, deadline)
            kept = True
        finally:
            kept = kept and calls.took(call, m.Release(session, (reply.lease,)) if reply.lease else None)
            nothing = not (reply.outcomes == m.Acquired.LEASED.value).any()
            if reply.lease and (nothing or not kept):
                self.give_back_lease(session, reply.lease)
                reply.lease = 0
        if not kept:
            raise Refused(f"call {call} was given up")
        return reply

    def give_up(self, session: int, call: int) -> int:
        """Ends a Reserve or Acquire whose reply its caller never saw; returns blocks released."""
        undo = self.sessions.require(session).calls.give_up(call)
        if isinstance(undo, m.Abort) and len(undo.ids):
            outcomes = self.abort(session, undo.ids, undo.generations, undo.tier).outcomes
            return int((outcomes == m.Aborted.ABORTED).sum())
        if isinstance(undo, m.Release):
            with suppress(NotFound):  # released already
                return self.release(session, undo.leases)
        return 0

    def release(self, session: int, leases: tuple[int, ...]) -> int:
        """Ends leases; returns blocks released."""
        self.sessions.require(session)
        return self.writer.ask(m.Release(session, leases), m.Done).count

    def give_back_lease(self, session: int, lease: int) -> None:
        """Ends a lease that never reached its client, or a stream's own. Never raises."""
        self._give_back(m.Release(session, (lease,)))

    async def open_sequence(
        self, session: int, name: str, blocks: m.Ids, deadline: float,
        priority: m.Priority = m.Priority.UNSPECIFIED, others: Sequence[m.Ids] = (),
    ) -> m.SequenceOpened:
        self.sessions.require(session)
        first, *rest = chains = [self._placed(one) for one in (blocks, *others)]
        await self._find(chains, deadline)
        self.sessions.require(session)
        command = m.OpenSequence(session, name, first, priority, tuple(rest))
        return self.writer.ask(command, m.SequenceOpened)

    def close_sequence(self, command: m.CloseSequence) -> None:
        """Ends a running request, with what is known of the next use of its blocks."""
        self.sessions.require(command.session)
        self.writer.step(command)

    def observe(self, command: m.Observe) -> m.Observed:
        """Reports attention over an open sequence."""
        self.sessions.require(command.session)
        return self.writer.ask(command, m.Observed)

    async def set_budget(self, command: m.SetBudget, deadline: float) -> m.BudgetSet:
        """Gives a sequence a budget, and waits for what is over it to be copied down."""
        self.sessions.require(command.session)
        rest = m.SetBudget(command.session, command.sequence)
        reply = self.writer.ask(command, m.BudgetSet)

        def again(left: I64Array) -> m.BudgetSet:
            now = self.writer.ask(rest, m.BudgetSet)
            return replace(now, outcomes=now.outcomes[left])

        await settle(self.writer, reply, m.Residency.LEAVING, again, deadline)
        return reply

    async def evict(self, blocks: m.Ids, to: m.Tier | None, allow_drop: bool, deadline: float) -> m.Outcomes:
        """Moves blocks down or drops them."""
        blocks = self._placed(blocks)

        def again(left: I64Array) -> m.Outcomes:
            rest = self.writer.ask(m.Evict(blocks.take(left), to, allow_drop, retry=True), m.Outcomes)
            if allow_drop:  # it was there a moment ago: its move failed, and it was let go
                rest.outcomes[rest.outcomes == m.Evicted.MISS] = m.Evicted.DROPPED
            return rest

        reply = self.writer.ask(m.Evict(blocks, to, allow_drop), m.Outcomes)
        await settle(self.writer, reply, m.Evicted.PENDING, again, deadline, PATIENCE_S)
        return reply

    async def readmit(self, blocks: m.Ids, to: m.Tier, deadline: float) -> m.Outcomes:
        """Moves blocks up by identity."""
        blocks = self._placed(blocks)

        def again(left: I64Array) -> m.Outcomes:
            rest = self.writer.ask(m.Readmit(blocks.take(left), to), m.Outcomes)
            rest.outcomes[rest.outcomes == m.Readmitted.MISS] = m.Readmitted.LOST
            return rest

        await self._find((blocks,), deadline)
        reply = self.writer.ask(m.Readmit(blocks, to), m.Outcomes)
        await settle(self.writer, reply, m.Readmitted.PENDING, again, deadline, PATIENCE_S)
        return reply

    # --- pages of engines -----------------------------------------------------------------------------

    async def lend(self, session: int, plan: PoolPlan, deadline: float) -> int:
        """Opens a pool of an engine's pages; its number."""
        process = self.sessions.require(session).process
        if process is None:
            raise Refused("a session that lends attaches first, so that it is known which process may take away")
        return await self.pools.open(session, plan, process, lambda: self.sessions.require(session), deadline)

    def adopt(
        self, session: int, blocks: m.Ids, pool: int, pages: U64Array, fences: U64Array, sequence: str
    ) -> m.Outcomes:
        """Takes note of blocks in an engine's pages."""
        self.sessions.require(session)
        blocks, size = self._placed(blocks), self.block_bytes(blocks)
        self.pools.check(session, pool, pages, fences, size)
        return self.writer.ask(m.Adopt(session, blocks, size, pool, pages, fences, sequence), m.Outcomes)

    async def withdraw(
        self, session: int, pool: int, pages: U64Array | None, save: bool, deadline: float
    ) -> m.WithdrawReply:
        """Gives pages back to their engine; without `pages` all of the pool, which is closed when none is left."""
        self.sessions.require(session)
        if pages is None:
            self.pools.begin_end(session, pool)
        else:
            self.pools.require(session, pool)
        reply = self.writer.ask(m.Withdraw(session, pool, pages, save), m.WithdrawReply)

        def again(left: I64Array) -> m.WithdrawReply:
            return self.writer.ask(m.Withdraw(session, pool, reply.pages[left], save), m.WithdrawReply)

        await settle(self.writer, reply, m.Withdrawn.PENDING, again, deadline)
        if pages is None and not (reply.outcomes == m.Withdrawn.PENDING).any():
            self.pools.close(pool)
        return reply

    # --- hints ----------------------------------------------------------------------------------------

    def pin(self, command: m.Pin) -> m.PinReply:
        """Protects blocks from being dropped, until a time. LimitReached above the share of pins."""
        return self.writer.ask(replace(command, blocks=self._placed(command.blocks)), m.PinReply)

    def unpin(self, command: m.Unpin) -> int:
        """Ends pins; returns how many."""
        return self.writer.ask(replace(command, blocks=self._placed(command.blocks)), m.Done).count

    def touch(self, command: m.Touch) -> m.Touched:
        """Accesses that were served elsewhere."""
        self.sessions.require(command.session)
        return self.writer.ask(replace(command, blocks=self._placed(command.blocks)), m.Touched)

    async def prefetch(self, command: m.Prefetch, deadline: float) -> m.PrefetchReply:
        """Begins to bring blocks up. LimitReached."""
        self.sessions.require(command.session)
        blocks = self._placed(command.blocks)
        await self._find((blocks,), deadline)
        self.sessions.require(command.session)
        return self.writer.ask(replace(command, blocks=blocks), m.PrefetchReply)

    async def prefetch_status(self, command: m.PrefetchStatus, deadline: float) -> m.PrefetchReply:
        """How far a prefetch is, when it is done or at the deadline."""
        self.sessions.require(command.session)
        loop = asyncio.get_running_loop()
        while True:
            reply = self.writer.ask(command, m.PrefetchReply)
            if reply.done or loop.time() >= deadline:
                return reply
            # Its own end, and that of a wait for room, come without a move that has ended.
            await self.writer.wait(reply.waiting, min(deadline, loop.time() + min(reply.left_s, PAUSE_MAX_S)))

    def cancel_prefetch(self, command: m.CancelPrefetch) -> m.PrefetchReply:
        """Forgets a prefetch, and begins no more of it."""
        self.sessions.require(command.session)
        return self.writer.ask(command, m.PrefetchReply)

    # --- shadow mode ----------------------------------------------------------------------------------

    def shadow_request(
        self, session: int, blocks: m.Ids, shadowed: Shadowed, *, begins: bool, ends: bool
    ) -> None:
        """A request, or a part of one, whose blocks are stored nowhere."""
        self.sessions.require(session)
        blocks = self._placed(blocks)
        block_bytes = shadowed.block_bytes or self.block_bytes(blocks)
        known = replace(shadowed, namespace=blocks.namespace, block_bytes=block_bytes)
        self.shadow.report(session, blocks, known, begins=begins, ends=ends)

    # --- the spill store ------------------------------------------------------------------------------

    async def attach_spill(self, url: str, replace: bool, deadline: float, *, files: bool = False) -> int:
        """Uses the store of a URL from now on; returns the blocks of the old one that were forgotten. `files`:
        whether the URL may name files of this machine."""
        return await self._switch().attach(url, replace, deadline, files=files)

    async def detach_spill(self, deadline: float) -> int:
        """Uses no spill store from now on; returns the blocks that were forgotten."""
        return await self._switch().detach(deadline)

    def requested_bytes(self, tier: m.Tier) -> int:
        """What the settings ask for; 0 for a tier that is off."""
        off = tier is m.Tier.SPILL and self._spill_switch is not None and not self._spill_switch.attached
        return 0 if off else self.about.requested_bytes.get(tier, 0)

    # --- admin ----------------------------------------------------------------------------------------

    def occupancy(self) -> m.OccupancyReply:
        return self.writer.ask(m.Occupancy(), m.OccupancyReply)

    def is_on(self, tier: m.Tier) -> bool:
        """Whether the settings have the tier, and a store is attached where it needs one."""
        return self.requested_bytes(tier) > 0

    def tier_state(self, tier: m.Tier) -> TierState:
        """Whether a tier serves now."""
        if not self.is_on(tier):
            lent = tier is m.Tier.HBM and self.pools.most > 0
            return TierState(lent, "serving: lent pages only" if lent else "off")
        watch = self._spill_watch if tier is m.Tier.SPILL else None
        if watch is not None and not watch.is_up:
            return TierState(False, f"down: {watch.detail}")
        return TierState(True, f"serving: {watch.detail}" if watch is not None and watch.detail else "serving")

    def shares(self) -> list[NamespaceShare]:
        """What each namespace has in each tier, by number."""
        return by_namespace(self.namespaces.all(), self.writer.ask(m.Shares(), m.SharesReply))

    def list_sequences(self, limit: int, offset: int) -> m.SequencePage:
        return self.writer.ask(m.ListSequences(limit, offset), m.SequencePage)

    def list_blocks(self, command: m.ListBlocks) -> m.BlockPage:
        return self.writer.ask(command, m.BlockPage)

    def describe(self, ids: U8Array) -> m.BlockPage:
        return self.writer.ask(m.Describe(ids), m.BlockPage)

    def explain(self, ids: U8Array, tier: m.Tier) -> m.Explained:
        return self.writer.ask(m.Explain(ids, tier), m.Explained)

    def plan(self, tier: m.Tier, size: int, limit: int) -> m.Planned:
        return self.writer.ask(m.Plan(tier, size, limit), m.Planned)

    def set_policy(self, spec: str) -> m.PolicySet:
        reply = self.writer.ask(m.SetPolicy(spec), m.PolicySet)
        self.policy_epoch, self.shadow.policy = reply.epoch, reply.spec
        return reply

    async def clear(self, command: m.Clear, deadline: float) -> tuple[m.Cleared, int]:
        """Removes blocks, and waits for their stored values to be deleted: others, or the next daemon, would find
        them. Blocks for whose delete there is no room are left. How many deletes are still to come."""
        reply = self.writer.ask(replace(command, most_deletes=self.mover.unlinks_room), m.Cleared)
        return reply, 0 if command.dry_run else await self.mover.until_unlinked(deadline)

    @contextmanager
    def draining(self) -> Iterator[None]:
        """While inside, a drain is under way. Refused when one is already."""
        if self._is_draining:
            raise Refused("another drain is under way")
        self._is_draining = True
        try:
            yield
        finally:
            self._is_draining = False

    async def store_below(self, ids: U8Array, deadline: float) -> m.Outcomes:
        """Copies blocks into the spill tier; those above stay."""
        reply = self.writer.ask(m.StoreBelow(ids), m.Outcomes)

        def again(left: I64Array) -> m.Outcomes:
            return self.writer.ask(m.StoreBelow(np.ascontiguousarray(ids[left]), retry=True), m.Outcomes)

        await settle(self.writer, reply, m.Drained.PENDING, again, deadline)
        return reply

    def drop_damaged(self, tier: m.Tier, ids: U8Array, generations: U64Array) -> None:
        self.writer.step(m.DropDamaged(tier, ids, generations))

    def placed_store(self, command: m.Store) -> m.Store:
        """A Store of blocks as their namespace has them."""
        blocks = self._placed(command.blocks)
        return replace(command, blocks=blocks, block_bytes=self.block_bytes(blocks))

    # --- inside ---------------------------------------------------------------------------------------

    def _placed(self, blocks: m.Ids) -> m.Ids:
        """Ids as blocks of the namespace that their group belongs to, with its rule."""
        place = self.namespaces.place(blocks.namespace, blocks.group)
        return replace(blocks, namespace=place.namespace, rule=place.rule)

    def _switch(self) -> SpillSwitch:
        if self._spill_switch is None:
            raise Unavailable("the spill store of this daemon cannot be changed")
        return self._spill_switch

    async def _find(self, chains: Sequence[m.Ids], deadline: float) -> None:
        if self.finder is not None:
            await self.finder.find(chains, deadline)

    def _give_back(self, command: m.Abort | m.Release) -> None:
        if isinstance(command, m.Abort) and not len(command.ids):
            return
        with suppress(TierdError):  # the session has ended meanwhile, and with it what it held
            self.writer.step(command)
