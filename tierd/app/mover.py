"""The mover: carries out what the engine decided, on a few threads, and reports how it ended.

Lanes of threads, because a spill server or a device that hangs must not stop copies in memory: `copy` for host
memory, streams and checks, `device` for hbm and lent pages, `spill` for everything that talks to the spill
tier, where loads go before stores (somebody waits for a load, or soon will). Each accepted move is answered exactly
once, also at stop. Results reach the loop in batches: one wake-up, however many moves ended.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeVar

import structlog

from tierd.app.carrier import Carrier, Check, SpillGate
from tierd.app.fences import Fences
from tierd.app.lanes import Lane, Turn
from tierd.app.measures import Cause, Measures, cause_of
from tierd.app.outbox import Outbox
from tierd.app.unlinks import Unlinks
from tierd.core.errors import SpillDown, Unavailable
from tierd.core.messages import Abandon, BlockView, CopyView, Effect, Hurry, Move, MoveResult, Tier, Unlink
from tierd.ports import ArenaStore, LentStore, SpillStore, StoredBlock
from tierd_client.format import U8Array

log = structlog.get_logger(__name__)

T = TypeVar("T")

MOVES_ACCEPTED_MAX = 100_000
"""Moves waiting or under way; another one is answered as failed at once."""

STREAM_S = 0.05
"""How long a thread goes on drawing moves for one call of the spill store, which has the next under way while one
ends: a new call begins with nothing under way, and costs about a millisecond."""

UNLINKS_POLL_S = 0.005
"""How often is looked whether what a Clear removed is deleted: 512 deletes take a millisecond or more."""

INLINE_BYTES = 64 * 1024
"""Up to this a copy in memory takes less time than handing it to a thread and back (about 50 us)."""

LOAD_BYTES_PER_S = 200e6
"""Rate of loads from the spill tier assumed before one was measured."""

LOAD_WEIGHT = 0.1
"""Weight of the newest load in the mean of the rate."""


class _Ended(NamedTuple):
    """A move that was carried out (`cause` None) or not, and the seconds that it took on its thread."""

    result: MoveResult
    move: Move
    cause: Cause | None
    took_s: float


class Mover:
    """Carries out effects. All methods belong to the event loop's thread."""

    def __init__(
        self, arenas: Mapping[Tier, ArenaStore], spill: SpillStore | None, *,
        fingerprint_of: Callable[[int], bytes], threads: int, op_timeout_s: float,
        on_results: Callable[[Sequence[MoveResult]], None], lent: LentStore | None = None,
        fence_timeout_s: float = 2.0, spill_threads: int | None = None,
    ) -> None:
        """`threads`: of each lane, `spill_threads` of that for the spill tier. `op_timeout_s`: of each call to the
        spill tier. `fence_timeout_s`: how long a lent page may take to be ready."""
        self._gate = SpillGate(self._report_down)
        self._carrier = Carrier(arenas, spill, self._gate, fingerprint_of, op_timeout_s, lent)
        self._copies = Lane("copy", threads, self._carry)
        self._devices = Lane("device", threads, self._carry)
        spill_threads = spill_threads or threads
        self._spills = Lane("spill", spill_threads, self._carry, STREAM_S)
        self._fences = Fences(lent, fence_timeout_s, self._push, self._answer) if lent else None
        self._abandoned: set[int] = set()
        """Moves that are answered instead of being begun."""
        self._unlinks = Unlinks()
        self._on_results = on_results
        self._on_spill_down: Callable[[str], None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._outbox: Outbox[_Ended] = Outbox(self._take)
        self.measures = Measures()
        self._reports: deque[str] = deque()
        self._idle = asyncio.Event()
        self._idle.set()
        self._stopping = False
        self._spill_threads = spill_threads
        self._load_bytes_per_s = LOAD_BYTES_PER_S

    # --- effects --------------------------------------------------------------------------------------

    def submit(self, effects: Sequence[Effect]) -> None:
        """Accepts effects; the answers come by `on_results`, never from inside this call."""
        self._loop = asyncio.get_running_loop()
        lanes: dict[tuple[Lane, Turn], list[Move]] = {}
        for effect in effects:
            if isinstance(effect, Unlink):
                self._unlinks.add(effect)
            elif isinstance(effect, Abandon):
                self._abandon(effect)
            elif isinstance(effect, Hurry):
                self._hurry(effect)
            elif self._accept(effect) and not self._waits_for_fence(effect):
                lanes.setdefault(self._lane_of(effect), []).append(effect)
        for (lane, turn), moves in lanes.items():
            lane.push(moves, turn)
        self._unlink_next()

    def guard_spill(self, on_down: Callable[[str], None]) -> None:
        """Shuts the spill tier until `open_spill`. `on_down` is called with the reason each time a move finds
        it down, before the results that failed for it."""
        self._on_spill_down = on_down
        self._gate.shut()

    def open_spill(self) -> None:
        """The spill tier answers again."""
        self._gate.open()
        self._loop = asyncio.get_running_loop()
        self._unlink_next()

    def shut_spill(self) -> None:
        """The spill tier is down: moves from and to it fail at once until `open_spill`."""
        self._gate.shut()

    @property
    def queued_moves(self) -> dict[str, int]:
        """Moves that no thread has taken yet, by lane."""
        lanes = {"copy": self._copies, "device": self._devices, "spill": self._spills}
        return {name: lane.waiting for name, lane in lanes.items()}

    @property
    def unlinks_waiting(self) -> int:
        """Stored values that are still to be deleted from the spill tier."""
        return len(self._unlinks)

    @property
    def unlinks_room(self) -> int:
        """How many more stored values may wait to be deleted: what is over that is given up."""
        return self._unlinks.room

    async def until_unlinked(self, deadline: float) -> int:
        """Waits until all stored values that are to be deleted now are, the spill tier is down, or the deadline
        (loop's time); how many are left."""
        unlinks, loop = self._unlinks, asyncio.get_running_loop()
        added = unlinks.added
        while unlinks.settled < added and self._gate.is_open and loop.time() < deadline:
            await asyncio.sleep(UNLINKS_POLL_S)
        return unlinks.left if unlinks.settled < added or not self._gate.is_open else 0

    @property
    def carrier(self) -> Carrier:
        """For calls on other threads than the mover's."""
        return self._carrier

    @property
    def spill_is_shared(self) -> bool:
        """Whether there is a spill store that answers and that other daemons write to as well."""
        spill = self._carrier.spill
        return self._gate.is_open and spill is not None and spill.shared

    def deletes(self, namespace: int, identity: bytes) -> bool:
        """Whether a stored block is about to be deleted."""
        return self._unlinks.concerns(namespace, identity)

    def forget_deletes(self) -> None:
        """The spill store was given up: what waits to be deleted from it stays there."""
        self._unlinks.forget()

    @property
    def accepted_moves(self) -> int:
        """Moves not yet answered."""
        return self._outbox.open

    def load_ms(self, size: int) -> int:
        """Estimate of how long so many bytes take to come up from the spill tier, in ms, at least 1."""
        return max(1, round(1000 * size / self._load_bytes_per_s))

    # --- bytes for streams and checks -----------------------------------------------------------------

    async def read(self, tier: Tier, address: int, size: int) -> U8Array:
        """The bytes of a block that the caller holds under lease: in place where they can be, else a copy."""
        arena = self._carrier.arena(tier)
        if arena.mappable:
            return arena.view(address, size)
        return await self._run(self._arena_lane(tier), self._carrier.read, tier, address, size)

    def begin_copy(self, tier: Tier, size: int, copy: Callable[[], T]) -> asyncio.Future[T]:
        """Copies `size` bytes into slots that the caller has reserved: on a thread where that takes longer than to
        hand it over. Before it gives a slot back, the caller must `outlast` it. Unavailable when stopping."""
        if self._stopping:
            raise Unavailable("the daemon is stopping")
        loop = asyncio.get_running_loop()
        if size > INLINE_BYTES or not self._carrier.arena(tier).mappable:
            return loop.run_in_executor(self._arena_lane(tier).pool, copy)
        done: asyncio.Future[T] = loop.create_future()
        done.set_result(copy())
        return done

    async def check(self, view: BlockView, copy: CopyView, timeout_s: float) -> Check:
        """Compares one copy with its checksum."""
        lane = self._spills if copy.tier is Tier.SPILL else self._arena_lane(copy.tier)
        return await self._run(lane, self._carrier.check, view, copy, timeout_s)

    async def exercise_arena(self, tier: Tier, address: int, payload: U8Array) -> bool:
        """Whether a borrowed slot takes bytes and gives them back, by the threads that all copies go by."""
        return await self._run(self._arena_lane(tier), self._carrier.exercise_arena, tier, address, payload)

    async def exercise_spill(self, block: StoredBlock, payload: U8Array, timeout_s: float) -> bool:
        """Whether the spill tier stores a block and gives it back. SpillError."""
        return await self._run(self._spills, self._carrier.exercise_spill, block, payload, timeout_s)

    # --- end ------------------------------------------------------------------------------------------

    async def stop(self, timeout_s: float) -> None:
        """Answers what waits with "stopping", lets what runs end, and gives the threads up."""
        self._loop = asyncio.get_running_loop()
        self._stopping = True
        if self._fences is not None:
            self._fences.stop()
        lanes = (self._copies, self._devices, self._spills)
        waiting = [move for lane in lanes for move in lane.take_all()] + list(self._unlinks.take_held())
        for move in waiting:
            self._answer(MoveResult(move.op, ok=False, reason="stopping"), move, Cause.STOPPING)
        try:
            await asyncio.wait_for(self._idle.wait(), timeout_s)
        except TimeoutError:
            log.warning("moves_left_running", moves=self._outbox.open, timeout_s=timeout_s)
        for lane in lanes:
            lane.shut()

    # --- inside ---------------------------------------------------------------------------------------

    def _accept(self, move: Move) -> bool:
        self._outbox.expect(_is_awaited(move))
        self._idle.clear()
        if self._stopping or self._outbox.open > MOVES_ACCEPTED_MAX:
            reason = "stopping" if self._stopping else f"{MOVES_ACCEPTED_MAX} moves are waiting already"
            cause = Cause.STOPPING if self._stopping else Cause.LIMIT
            self._answer(MoveResult(move.op, ok=False, reason=reason), move, cause)
            return False
        return not (move.target is Tier.SPILL and self._unlinks.holds(move))

    def _lane_of(self, move: Move) -> tuple[Lane, Turn]:
        if move.lender or (Tier.HBM in (move.source, move.target) and Tier.SPILL not in (move.source, move.target)):
            return self._devices, Turn.AWAITED
        if Tier.SPILL not in (move.source, move.target):
            return self._copies, Turn.AWAITED
        if move.source is not Tier.SPILL:
            return self._spills, Turn.LATER
        return self._spills, Turn.AHEAD if move.ahead else Turn.AWAITED

    def _arena_lane(self, tier: Tier) -> Lane:
        return self._devices if tier is Tier.HBM else self._copies

    def _waits_for_fence(self, move: Move) -> bool:
        """Whether a move goes by the fences, which pass it on to its lane; one that was abandoned does not wait."""
        if not move.lender or self._fences is None or move.op in self._abandoned:
            return False
        self._fences.add(move)
        return True

    def _push(self, move: Move) -> None:
        lane, turn = self._lane_of(move)
        lane.push([move], turn)

    def _abandon(self, effect: Abandon) -> None:
        self._abandoned.update(effect.ops)
        if self._fences is not None:
            self._fences.abandon(effect.ops, Cause.WITHDRAWN)

    def _hurry(self, effect: Hurry) -> None:
        """Loads that somebody waits for by now; those that are under way end soon."""
        moves = [move._replace(ahead=False) for move in self._spills.take_ahead(effect.ops)]
        self._outbox.hurry(len(moves))
        self._spills.push(moves, Turn.AWAITED)

    def _carry(self, moves: Iterator[Move]) -> None:
        """Each is said to have taken the time since the one before it ended."""
        began = time.monotonic()
        for move, result in self._carrier.carry(filter(self._may_begin, moves)):
            ended = time.monotonic()
            self._answer(result, move, None if result.ok else cause_of(result), ended - began)
            began = ended

    def _may_begin(self, move: Move) -> bool:
        """Not one that was abandoned, which is answered so."""
        abandoned = move.op in self._abandoned
        if abandoned:
            self._answer(MoveResult(move.op, ok=False, reason="withdrawn"), move, Cause.WITHDRAWN)
        return not abandoned

    def _answer(self, result: MoveResult, move: Move, cause: Cause | None, took_s: float = 0.0) -> None:
        self._outbox.put(_Ended(result, move, cause, took_s), _is_awaited(move))

    def _note(self, ended: _Ended) -> None:
        move, edge = ended.move, (ended.move.source, ended.move.target)
        if ended.cause is not None:
            self.measures.failed_moves[edge, ended.cause] += 1
            return
        self.measures.moved(edge, move.size, ended.took_s)
        if move.source is Tier.SPILL:
            rate = self._spill_threads * move.size / max(ended.took_s, 1e-6)
            self._load_bytes_per_s += LOAD_WEIGHT * (rate - self._load_bytes_per_s)

    def _report_down(self, reason: str) -> None:
        self._reports.append(reason)
        self._outbox.wake()

    def _take(self, ended: Sequence[_Ended]) -> None:
        while self._reports:
            reason = self._reports.popleft()
            if self._on_spill_down is not None:
                self._on_spill_down(reason)
        for one in ended:
            self._note(one)
        results = [one.result for one in ended]
        self._abandoned.difference_update(result.op for result in results)
        if not self._outbox.open:
            self._idle.set()
        if results:
            self._on_results(results)

    def _unlink_next(self) -> None:
        if self._stopping or self._loop is None or not self._gate.is_open:
            return
        call = self._unlinks.begin()
        if call is not None:
            future = self._spills.pool.submit(self._carrier.unlink, call.namespace, call.identities)
            loop = self._loop
            future.add_done_callback(lambda done: loop.call_soon_threadsafe(self._unlinked, done.exception()))

    def _unlinked(self, error: BaseException | None) -> None:
        stores = self._unlinks.finished(done=not isinstance(error, SpillDown))
        if error is not None:
            self._complain(error)
        stores = [move for move in stores if not self._waits_for_fence(move)]
        if stores:
            self._spills.push(stores, Turn.LATER)
        self._unlink_next()

    def _complain(self, error: BaseException) -> None:
        log.warning("unlink_failed", error=str(error), dropped=self._unlinks.dropped)

    async def _run(self, lane: Lane, call: Callable[..., T], *arguments: object) -> T:
        if self._stopping:
            raise Unavailable("the daemon is stopping")
        future = asyncio.get_running_loop().run_in_executor(lane.pool, call, *arguments)
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            await outlast(future)
            raise


def _is_awaited(move: Move) -> bool:
    """Whether somebody waits for a move, as a rule: for room is waited as well, but for any."""
    return move.target is not Tier.SPILL and not move.ahead


async def outlast(future: asyncio.Future[T]) -> None:
    """Waits for a call on a thread that cannot be interrupted, however often the waiter is cancelled.

    Its length is bounded by the call: a copy of one block, or one deadline of the spill tier.
    """
    while not future.done():
        try:
            await asyncio.wait([future])
        except asyncio.CancelledError:
            continue
    if not future.cancelled():
        future.exception()
