"""A namespace: the blocks of one cache layout, as a worker uses them.

Ids may be given as Identities (from chain_ids or plain_ids), as a list of single ones of them, as plain `bytes`
ids of 1 to 64 bytes or a list of them, which are hashed here, or as a packed uint8 array of shape (n, 32). All
but the first are free-standing.
A call of more identities than the daemon takes at once is split. `timeout_s` is how long the daemon may wait
for what is asked; what is not done by then is PENDING.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from tierd_client.arguments import text
from tierd_client.attention import AwaitingAttention, BlockingAttention, give_budget
from tierd_client.budget import Budget, budget_of
from tierd_client.chains import ChainsHit, Question
from tierd_client.deadline import Deadline
from tierd_client.direct import Lanes, Peeking
from tierd_client.errors import FailedPrecondition, InvalidArgument, NotFound, Unavailable
from tierd_client.format import U8Array
from tierd_client.hints import AwaitingHints, BlockingHints, Closing
from tierd_client.hits import hit_blocks
from tierd_client.holding import Batch, giving_back, opening
from tierd_client.identity import Identities, batches, chain_ids, ids_of
from tierd_client.layout import SCHEMA_VERSION, Layout
from tierd_client.lease import AsyncLease, Lease, Pinned
from tierd_client.lending import BasePool, adopt
from tierd_client.outcomes import (
    AcquireOutcome,
    AdoptOutcome,
    EvictOutcome,
    LookupResult,
    Outcome,
    Presence,
    Priority,
    PutOutcome,
    ReadmitOutcome,
    Tier,
    Tiers,
    looked_up,
    outcomes_of,
    said,
    tier_number,
    tier_of,
)
from tierd_client.paged_calls import AwaitingPaged, BlockingPaged
from tierd_client.payload import Form, Made, flat_blocks, writable_blocks
from tierd_client.reading import Reading, in_place, read_at_once
from tierd_client.routine import Opening, Perform, Routine, awaiting, blocking, described_by
from tierd_client.sequence import AsyncSequence, BaseSequence, Running, Sequence, entered
from tierd_client.session import Registered, Session
from tierd_client.shadow import AwaitingShadow, BlockingShadow
from tierd_client.staging import Sink, Source, sink_of, source_of
from tierd_client.transfer import SharedTransfer, StreamTransfer, Transfer
from tierd_client.v1 import blocks_pb2

if TYPE_CHECKING:
    from tierd_client.client import BaseClient

TIMEOUT_S = 2.0
"""How long a call of bytes may wait, unless it says so itself."""

T = TypeVar("T")


class NamespaceRoutines:
    """What can be done with a namespace, as routines (routine.py)."""

    def __init__(self, client: BaseClient, layout: Layout, name: str = "") -> None:
        if not isinstance(layout, Layout):
            raise InvalidArgument(f"layout: {layout!r} is no Layout")
        self.client = client
        self.layout = layout
        self.name = text(name or layout.name, "name")
        self.fingerprint = layout.fingerprint
        self.lanes = Lanes(self)
        self._forms = [Form.of_group(group) for group in layout.groups]
        self._fingerprints = [layout.group_fingerprint(group) for group in range(len(layout.groups))]

    async def register(self) -> None:
        """Raises FailedPrecondition naming the field when the name is bound to another layout."""
        await self.make(self._register)

    async def registered(self, session: Session) -> Registered:
        """What it is in a session; registers it there when it is not yet."""
        known = session.namespaces.get(self.fingerprint)
        return await self._register(session) if known is None else known

    async def _register(self, session: Session) -> Registered:
        reply = await session.call("RegisterNamespace", blocks_pb2.RegisterNamespaceRequest(
            schema_version=SCHEMA_VERSION, fingerprint=self.fingerprint,
            canonical=self.layout.canonical(), name=self.name))
        known = Registered(reply.namespace, tuple(reply.block_bytes))
        session.namespaces[self.fingerprint] = known
        return known

    def identities(self, ids: Any) -> Identities:
        """Ids in any accepted form as Identities of this namespace."""
        if isinstance(ids, bytes):
            ids = [ids]
        try:
            if isinstance(ids, np.ndarray):
                ids = Identities(ids)
            if not isinstance(ids, Identities):
                return ids_of(self.layout, ids)
        except (TypeError, ValueError) as error:
            raise InvalidArgument(str(error) if str(error).startswith("ids") else f"ids: {error}") from error
        if self.is_own(ids):
            return ids
        if ids.group >= len(self._forms):
            raise InvalidArgument(f"ids: group {ids.group}, the layout has {len(self._forms)}")
        own = self._fingerprints[ids.group]
        raise InvalidArgument(f"ids: made for another layout ({ids.fingerprint[:4].hex()}...), "
                              f"this namespace is {own[:4].hex()}...")

    def is_own(self, ids: Identities) -> bool:
        """Whether they were made for a group of this layout."""
        return ids.group < len(self._fingerprints) and ids.fingerprint in (b"", self._fingerprints[ids.group])

    def chains(self, token_ids: Any) -> list[Identities]:
        """The chains of a prompt, one per group."""
        return [chain_ids(self.layout, token_ids, group) for group in range(len(self.layout.groups))]

    # --- where blocks are -----------------------------------------------------------------------------

    async def lookup(self, ids: Any) -> LookupResult:
        """Where blocks are. Changes nothing, counts as no access."""
        ids = self.identities(ids)
        return await self.make(lambda session: self._lookup(session, ids))

    async def _lookup(self, session: Session, ids: Identities) -> LookupResult:
        presence, bits = self._look(ids)
        unseen = np.flatnonzero(presence != Presence.READY.value)
        waits: list[tuple[int, int]] = []
        if len(unseen):
            start, end = int(unseen[0]), int(unseen[-1]) + 1
            for at, part in batches(ids[start:end], session.info.max_ids):
                request = blocks_pb2.LookupRequest(blocks=await self.block_ids(session, part))
                reply = await session.call("Lookup", request)
                asked = slice(start + at, start + at + len(part))
                presence[asked], bits[asked] = looked_up(reply.presence, reply.tiers, len(part))
                waits.append((asked.start, reply.ready_in_ms))
        hit = hit_blocks(bits != 0, self.layout.groups[ids.group].hit_rule.tail)
        ready_in_ms = max((wait for start, wait in waits if start < hit), default=0)
        return LookupResult(hit, presence, bits, ready_in_ms)

    def _look(self, ids: Identities) -> tuple[U8Array, U8Array]:
        """Presence and tiers, as on the wire, of what the catalog in shared memory says to be in host. The rest is
        MISS in no tier: asked for it may be elsewhere."""
        bits = self.lanes.peek(ids)
        in_host = bits & Tiers.HOST.value != 0
        bits[~in_host] = 0
        return np.where(in_host, Presence.READY.value, Presence.MISS.value).astype(np.uint8), bits

    async def lookup_chains(self, chains: Iterable[Identities]) -> ChainsHit:
        """How much of a prompt the groups can give back together, and what is to be read for it.

        `chains`: of different groups, each from the first block of the prompt. Changes nothing, no access.
        """
        return await _lookup_chains(self.client, [(self, self.identities(ids)) for ids in chains])

    # --- bytes in -------------------------------------------------------------------------------------

    async def put(
        self, ids: Any, tensors: Any, tier: Tier | str | None = None, timeout_s: float = TIMEOUT_S,
        sequence: BaseSequence | str | None = None, priority: Priority | str | None = None, wait: bool = True,
    ) -> list[PutOutcome]:
        """Stores blocks, in host unless `tier` says hbm; a block is committed when its outcome is STORED.

        Without `wait` it returns as soon as the blocks are written into slots that this client holds: QUEUED ones
        are committed soon by a thread, found by nobody before, and `Client.flush` waits for them and says what
        became of them. Where there are not slots enough it waits as ever. `priority`: low, normal or high; the
        sequence's by default.

        `tensors`: one contiguous buffer of exactly the block's bytes per id (numpy array of any dtype, torch
        tensor on the CPU or a GPU, bytes, memoryview), or one of all blocks whose first axis is the number of ids.
        Raises InvalidArgument (a ValueError) naming the index and the sizes.
        """
        ids = self.identities(ids)
        source = source_of(flat_blocks(tensors, len(ids), self.block_bytes(ids)), "tensors")
        return await self.store(ids, source, tier, timeout_s, sequence, priority, wait=wait)

    async def store(
        self, ids: Identities, source: Source, tier: Tier | str | None, timeout_s: float,
        sequence: BaseSequence | str | None, priority: Priority | str | None, *, wait: bool = True,
    ) -> list[PutOutcome]:
        """As `put`, from any Source."""
        size, target, name = self.block_bytes(ids), tier_of(tier), self.sequence_name(ids, sequence)
        within, worth = Deadline.of(timeout_s), said(Priority, priority, "priority")
        running = self.client.sequences.known(name)
        budgeted = running is not None and running.budget is not None

        async def store(session: Session) -> list[PutOutcome]:
            transfer = self.transfer(session, target)
            outcomes: list[PutOutcome] = []
            most = transfer.batch_ids(size)
            for start, part in batches(ids, running.most_at_once(target, most) if running else most):
                batch = replace(await self.batch(session, part, name), priority=worth, budgeted=budgeted)
                blocks, done = source.part(start, start + len(part)), None
                if not wait and not budgeted:  # what is said later is a gap in the books until then
                    done = await transfer.queue(batch, blocks, target, self.client.committer)
                outcomes += await transfer.put(batch, blocks, target, within) if done is None else done
                if running is not None and budgeted:
                    running.go_on(part)
            return outcomes

        return await self.make(store, timeout_s)

    # --- bytes out ------------------------------------------------------------------------------------

    async def acquire(
        self, ids: Any, timeout_s: float = TIMEOUT_S, sequence: BaseSequence | str | None = None,
        on_device: bool = False,
    ) -> Pinned:
        """Pins blocks where they can be read in place, promoting from below while it waits. An access.

        `on_device`: blocks that the daemon has in a GPU's memory are read there: `tensors` are on that GPU.
        """
        ids = self.identities(ids)
        name, wait = self.sequence_name(ids, sequence), Deadline.of(timeout_s)

        async def pin(session: Session) -> Pinned:
            return await in_place(self, session, ids, name, wait, on_device)

        return await self.make(pin, timeout_s)

    async def get(
        self, ids: Any, torch: bool = False, timeout_s: float = TIMEOUT_S,
        sequence: BaseSequence | str | None = None, device: Any = None,
    ) -> list[Any]:
        """Copies of blocks, None for each that is absent or could not be read in time.

        numpy arrays of the layout's dtype and shape (flat uint8 where numpy lacks the dtype), or with
        `torch=True` tensors of the layout's dtype, on a `device` of torch if it is given. The usual layout's
        shape is (2, layers, block_tokens, kv_heads, head_dim). No lease outlives the call.
        """
        ids = self.identities(ids)
        made = Made(self.block_bytes(ids), torch or device is not None, device)
        outcomes = await self._reading(ids, made.sink, timeout_s, sequence).read()
        form = self.form(ids)
        shape = form.tensor if made.tensors else form.array
        return [
            shape(made.blocks[i]) if outcome is AcquireOutcome.LEASED else None
            for i, outcome in enumerate(outcomes)
        ]

    async def get_into(
        self, ids: Any, buffers: Any, timeout_s: float = TIMEOUT_S, sequence: BaseSequence | str | None = None,
    ) -> list[AcquireOutcome]:
        """Copies blocks into the caller's buffers, given as in `put`, writable; LEASED means it was read. What a
        buffer holds where the outcome is another is not said."""
        return await self.reading_into(ids, buffers, timeout_s, sequence).read()

    def reading_into(
        self, ids: Any, buffers: Any, timeout_s: float, sequence: BaseSequence | str | None,
    ) -> Reading:
        """What `get_into` does, to be begun."""
        ids = self.identities(ids)
        blocks = writable_blocks(buffers, len(ids), self.block_bytes(ids))
        return self._reading(ids, sink_of(blocks, "buffers"), timeout_s, sequence)

    def _reading(
        self, ids: Identities, sink: Sink, timeout_s: float, sequence: BaseSequence | str | None,
    ) -> Reading:
        return Reading(self, ids, sink, self.sequence_name(ids, sequence), timeout_s)

    # --- running requests -----------------------------------------------------------------------------

    async def sequence(
        self, name: str, ids: Any, priority: Priority | str | None = None, budget: Budget | str | None = None,
    ) -> Running:
        """Opens a sequence: a tick of the request clock; its blocks are pinned until it closes.

        `ids`: of one group, or the chains of a prompt, one per group; attention is over the first. `priority`:
        low, normal or high, of the blocks that it stores and of those that it finds. `budget`: how much of it may
        lie in hbm, from the start; a Budget or the name of a preset. Its `ids` are one chain then.
        """
        first, *others = map(self.identities, ids if _are_chains(ids) else [ids])
        level = said(Priority, priority, "priority")
        running = Running(self, text(name, "name"), first, level, tuple(others))
        running.budget = None if budget is None else budget_of(budget)
        self.client.connection.check_usable()
        self.client.sequences.add(running)
        try:
            await self.make(lambda session: self.open_sequence(session, running))
        except BaseException:
            self.client.sequences.discard(running)
            raise
        return running

    async def open_sequence(self, session: Session, sequence: Running) -> None:
        """Opens it in a session, unless it is open there. A prompt of less than a block has nothing to pin."""
        if sequence.name in session.sequences or not len(sequence.ids):
            return
        blocks = await self.block_ids(session, sequence.ids)
        others = [await self.block_ids(session, other) for other in sequence.others if len(other)]
        await opening(session, "OpenSequence", blocks_pb2.OpenSequenceRequest(
            session=session.id, sequence=sequence.name, blocks=blocks, priority=sequence.priority, others=others))
        session.sequences.add(sequence.name)
        try:
            await give_budget(session, sequence)
        except BaseException:
            await self._close_sequence(session, sequence, Closing())
            raise

    async def close_sequence(self, sequence: Running, closing: Closing) -> None:
        """Closes it; nothing when it is closed, in a forked child, or when the daemon that knew it is gone."""
        if self.client.connection.is_inherited:
            return
        if self.client.sequences.discard(sequence):
            if self.client.reports is not None:
                await self.client.reports.flush(sequence.name)
            with contextlib.suppress(NotFound, Unavailable):
                await self.make(lambda session: self._close_sequence(session, sequence, closing))

    async def _close_sequence(self, session: Session, sequence: Running, closing: Closing) -> None:
        if sequence.name in session.sequences:
            session.sequences.discard(sequence.name)
            await giving_back(session, "CloseSequence", closing.request(session.id, sequence.name))

    def sequence_name(self, ids: Identities, sequence: BaseSequence | str | None) -> str:
        """The sequence that a call belongs to: the one it names, or the innermost `with` block's that has its
        blocks."""
        if sequence is not None:
            return sequence if isinstance(sequence, str) else sequence.name
        for running in reversed(entered()):
            if running.namespace.client is self.client and self._has(running, ids):
                return running.name
        return ""

    def _has(self, running: Running, ids: Identities) -> bool:
        return running.namespace.fingerprint == self.fingerprint and running.contains(ids)

    # --- pages of this process ------------------------------------------------------------------------

    async def adopt(
        self, pool: BasePool, ids: Any, pages: Collection[int], fences: Collection[int] | None = None,
        sequence: BaseSequence | str | None = None,
    ) -> list[AdoptOutcome]:
        """Says that blocks lie in these pages of a lent pool, one each; from now on they are only read. `fences`:
        what the pool's fence must have reached before each page is read; None: they are ready. In a sequence the
        chain before the blocks is touched as well. Raises FailedPrecondition when a page is lent as another block.
        """
        ids = self.identities(ids)
        reach = [0] * len(ids) if fences is None else list(fences)
        if not len(pages) == len(reach) == len(ids):
            raise InvalidArgument(f"pages: {len(pages)}, with {len(reach)} fences, for {len(ids)} ids")
        name, where = self.sequence_name(ids, sequence), list(pages)

        async def lend(session: Session) -> list[AdoptOutcome]:
            outcomes: list[AdoptOutcome] = []
            for start, part in batches(ids, session.info.max_ids):
                end = start + len(part)
                blocks = await self.block_ids(session, part)
                outcomes += await adopt(pool, session, blocks, where[start:end], reach[start:end], name)
            return outcomes

        return await self.make(lend)

    # --- up and down ----------------------------------------------------------------------------------

    async def evict(
        self, ids: Any, to: Tier | str | None = "spill", allow_drop: bool = False, timeout_s: float = 5.0,
    ) -> list[EvictOutcome]:
        """Moves blocks down to a tier. `to=None` drops them, which needs `allow_drop=True`."""
        target, wait = tier_of(to), Deadline.of(timeout_s)
        if target is None and not allow_drop:
            raise FailedPrecondition("to: None drops blocks for good, which needs allow_drop=True")

        def request(blocks: Any) -> Any:
            return blocks_pb2.EvictRequest(
                blocks=blocks, to=tier_number(target), allow_drop=allow_drop, timeout_ms=wait.left_ms())

        return await self._move("Evict", EvictOutcome, ids, request, wait)

    async def readmit(
        self, ids: Any, to: Tier | str = "host", wait: bool = True, timeout_s: float = 5.0,
    ) -> list[ReadmitOutcome]:
        """Moves blocks up to a tier. Not an access. `wait=False` starts the moves and returns."""
        target, deadline = tier_of(to), Deadline.of(timeout_s)
        if not wait:
            deadline = Deadline(0.0)

        def request(blocks: Any) -> Any:
            return blocks_pb2.ReadmitRequest(
                blocks=blocks, to=tier_number(target), timeout_ms=deadline.left_ms())

        return await self._move("Readmit", ReadmitOutcome, ids, request, deadline)

    async def _move(
        self, method: str, kind: type[Outcome], ids: Any, request: Callable[[Any], Any], wait: Deadline,
    ) -> list[Outcome]:
        ids = self.identities(ids)

        async def move(session: Session) -> list[Outcome]:
            outcomes: list[Outcome] = []
            for _, part in batches(ids, session.info.max_ids):
                blocks = await self.block_ids(session, part)
                reply = await session.call(method, request(blocks), wait.left_s())
                outcomes += outcomes_of(kind, reply.outcomes)
            return outcomes

        return await self.make(move, wait.left_s())

    # --- shared ---------------------------------------------------------------------------------------

    async def make(self, call: Callable[[Session], Routine[T]], wait_s: float = 0.0) -> T:
        """Makes calls in a session that lives; see Connection.make."""
        return await self.client.connection.make(call, wait_s)

    def transfer(self, session: Session, tier: Tier | None = None) -> Transfer:
        """How bytes go in a session; into a `tier` that is on a device they go by stream."""
        if session.memory is None or (tier is Tier.HBM and not session.memory.maps_tier(tier)):
            return StreamTransfer(session, self.client.checks)
        return SharedTransfer(session, session.memory, self.client.checks)

    async def block_ids(self, session: Session, ids: Identities) -> Any:
        """Identities as the wire has them."""
        return blocks_pb2.BlockIds(
            namespace=(await self.registered(session)).number, group=ids.group, ids=ids.packed(), chain=ids.chain,
            position=ids.position, parent=ids.parent or b"")

    async def batch(self, session: Session, ids: Identities, sequence: str) -> Batch:
        """Identities of one call as a session takes them."""
        return Batch(await self.block_ids(session, ids), self.block_bytes(ids), sequence)

    def form(self, ids: Identities) -> Form:
        """How a block of their group looks to a caller."""
        return self._forms[ids.group]

    def block_bytes(self, ids: Identities) -> int:
        """Of a block of their group."""
        return self._forms[ids.group].block_bytes



class _Named(Peeking):
    """What both twins say of themselves."""

    def __init__(self, routines: NamespaceRoutines, perform: Perform) -> None:
        self._routines = routines
        self._perform = perform

    @property
    def layout(self) -> Layout:
        return self._routines.layout

    @property
    def name(self) -> str:
        return self._routines.name

    @property
    def fingerprint(self) -> bytes:
        """32 bytes that stand for the layout."""
        return self._routines.fingerprint

    def identities(self, ids: Any) -> Identities:
        """Ids in any accepted form as Identities of this namespace."""
        return self._routines.identities(ids)

    def chains(self, token_ids: Any) -> list[Identities]:
        """The chains of a prompt, one per group."""
        return self._routines.chains(token_ids)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name or self.fingerprint[:4].hex()!r}, {self.layout!r})"


class Namespace(_Named, BlockingAttention, BlockingHints, BlockingPaged, BlockingShadow):
    """Made by `Client.namespace`; thread-safe; stays valid over restarts of the daemon."""

    lookup = blocking(NamespaceRoutines.lookup)
    lookup_chains = blocking(NamespaceRoutines.lookup_chains)
    put = blocking(NamespaceRoutines.put)
    get = blocking(NamespaceRoutines.get)
    adopt = blocking(NamespaceRoutines.adopt)
    evict = blocking(NamespaceRoutines.evict)
    readmit = blocking(NamespaceRoutines.readmit)
    _acquire = blocking(NamespaceRoutines.acquire)
    _open = blocking(NamespaceRoutines.sequence)

    @described_by(NamespaceRoutines.get_into)
    def get_into(
        self, ids: Any, buffers: Any, timeout_s: float = TIMEOUT_S, sequence: BaseSequence | str | None = None,
    ) -> list[AcquireOutcome]:
        begun = None
        if sequence is None and timeout_s == TIMEOUT_S:
            begun = read_at_once(self._routines, ids, buffers)
            if begun is not None and begun.count(AcquireOutcome.LEASED) == len(begun):
                return begun
        reading = self._routines.reading_into(ids, buffers, timeout_s, sequence)
        if begun is not None:
            reading.outcomes = begun
        elif reading.begin():  # without a routine: there is nothing to wait for
            return reading.outcomes
        outcomes: list[AcquireOutcome] = self._perform(reading.finish())
        return outcomes

    @described_by(NamespaceRoutines.acquire)
    def acquire(
        self, ids: Any, timeout_s: float = TIMEOUT_S, sequence: BaseSequence | str | None = None,
        on_device: bool = False,
    ) -> Lease:
        return Lease(self._acquire(ids, timeout_s, sequence, on_device), self._perform)

    @described_by(NamespaceRoutines.sequence)
    def sequence(
        self, name: str, ids: Any, priority: Priority | str | None = None, budget: Budget | str | None = None,
    ) -> Sequence:
        return Sequence(self._open(name, ids, priority, budget), self._perform)


class AsyncNamespace(_Named, AwaitingAttention, AwaitingHints, AwaitingPaged, AwaitingShadow):
    """Namespace for an event loop; made by `await AsyncClient.namespace(...)`.

    `acquire` and `sequence` are awaited, or used at once: `async with ns.acquire(ids) as lease`.
    """

    lookup = awaiting(NamespaceRoutines.lookup)
    lookup_chains = awaiting(NamespaceRoutines.lookup_chains)
    put = awaiting(NamespaceRoutines.put)
    get = awaiting(NamespaceRoutines.get)
    get_into = awaiting(NamespaceRoutines.get_into)
    adopt = awaiting(NamespaceRoutines.adopt)
    evict = awaiting(NamespaceRoutines.evict)
    readmit = awaiting(NamespaceRoutines.readmit)
    _acquire = awaiting(NamespaceRoutines.acquire)
    _open = awaiting(NamespaceRoutines.sequence)

    @described_by(NamespaceRoutines.acquire)
    def acquire(
        self, ids: Any, timeout_s: float = TIMEOUT_S, sequence: BaseSequence | str | None = None,
        on_device: bool = False,
    ) -> Opening[AsyncLease]:
        async def acquired() -> AsyncLease:
            return AsyncLease(await self._acquire(ids, timeout_s, sequence, on_device), self._perform)

        return Opening(acquired())

    @described_by(NamespaceRoutines.sequence)
    def sequence(
        self, name: str, ids: Any, priority: Priority | str | None = None, budget: Budget | str | None = None,
    ) -> Opening[AsyncSequence]:
        async def opened() -> AsyncSequence:
            return AsyncSequence(await self._open(name, ids, priority, budget), self._perform)

        return Opening(opened())


async def lookup_chains(
    client: BaseClient, chains: Iterable[tuple[_Named, Identities]],
) -> ChainsHit:
    """How much of a prompt all of these chains can give back together: those of all groups, of all ranks.

    A block counts where every rank has it. Changes nothing, counts as no access.
    """
    asked = [(namespace._routines, namespace.identities(ids)) for namespace, ids in chains]
    return await _lookup_chains(client, asked)


async def _lookup_chains(
    client: BaseClient, asked: list[tuple[NamespaceRoutines, Identities]],
) -> ChainsHit:
    chains = [ids for _, ids in asked]
    rules = [routines.layout.groups[ids.group].hit_rule for routines, ids in asked]

    async def look(session: Session) -> ChainsHit:
        question = Question(chains, rules)
        for call in question.calls(session.info.max_ids):
            runs = [await asked[index][0].block_ids(session, run) for index, run in call]
            reply = await session.call("LookupChains", blocks_pb2.LookupChainsRequest(chains=runs))
            question.answered(call, reply.tiers, reply.ready_in_ms)
        return question.hit()

    return await client.connection.make(look)


def _are_chains(ids: Any) -> bool:
    """Whether these are several Identities, not ids of one."""
    return isinstance(ids, list | tuple) and bool(ids) and isinstance(ids[0], Identities)
