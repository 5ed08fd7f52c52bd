"""Reserve, Commit, Abort: how a block comes in. Nothing is visible before the commit. Note: how one comes in of
which nothing but the identity is known."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain, repeat

import numpy as np
from numpy.typing import NDArray

from tierd.core import budgets
from tierd.core.admission import admission_of, admits_by_index, decline
from tierd.core.arena import slot_bytes
from tierd.core.arrays import every, first_of_each, indices, some
from tierd.core.errors import InvalidInput
from tierd.core.hashindex import NO_ROW, UNKNOWN
from tierd.core.hints import introduce, prefer
from tierd.core.lineage import count_followers, ghosts_of
from tierd.core.messages import (
    Abort,
    Aborted,
    Commit,
    Committed,
    Ids,
    Note,
    OutcomeArray,
    Outcomes,
    Priority,
    Reserve,
    Reserved,
    ReserveReply,
    Tier,
)
from tierd.core.room import Room, free_rows, obtain
from tierd.core.sequences import begin_request, continue_sequence, count_accesses
from tierd.core.sessions import HOLD_RESERVATION, Reservation, Session
from tierd.core.state import ARENA_TIERS, State, TierState, split
from tierd.core.touching import touch_kept_out
from tierd.core.underway import Sequence
from tierd_client.format import STATE_FILLING, I64Array, U8Array, U64Array, words_of

# Members of an enum stand beside arrays by their `value`: numpy takes five times as long over the member itself.


def reserve(state: State, command: Reserve) -> ReserveReply:
    session = state.sessions.get(command.session)
    tier = arena_of(state, command.tier)
    coming = _coming(state, tier, command)
    state.sessions.room_to_hold(session, len(coming.wanted))
    granted, room = _let_in(state, tier, command, coming)
    outcomes, count = coming.outcomes, len(coming.outcomes)
    reply = ReserveReply(outcomes, np.zeros(count, np.uint64), np.zeros(count, np.uint64))
    if len(granted):
        addresses = room.addresses[: len(granted)]
        reply.addresses[granted] = addresses
        reply.generations[granted] = _hand_out(state, session, tier, coming.rows[granted], addresses)
    if room.waiting and some(outcomes == Reserved.PENDING.value):
        reply.waiting = tuple(sorted(room.waiting))
    return reply


def note(state: State, command: Note) -> Outcomes:
    """What Reserve and Commit do, at once: there is nothing to write in between."""
    state.sessions.get(command.session)
    tier = arena_of(state, command.tier)
    coming = _coming(state, tier, command)
    granted, room = _let_in(state, tier, command, coming)
    if len(granted):
        rows = coming.rows[granted]
        state.appear(tier, rows, room.addresses[: len(granted)])
        tier.counters.stored += len(rows)
        state.touch(rows, hit=False)
    return Outcomes(coming.outcomes)


@dataclass(slots=True)
class _Coming:
    """The blocks of a request: their rows, places of their ghosts, what is known of each, and the places of those
    that want a slot."""

    rows: I64Array
    ghosts: I64Array
    outcomes: OutcomeArray
    wanted: I64Array


def _coming(state: State, tier: TierState, command: Reserve | Note) -> _Coming:
    blocks = command.blocks
    rows = state.catalog.find(blocks.ids)
    refuse_foreign(state, blocks, rows)
    outcomes = known_outcomes(state, tier, blocks.ids, rows)
    return _Coming(rows, ghosts_of(state, blocks.ids, rows), outcomes, indices(outcomes == 0))


def _let_in(
    state: State, tier: TierState, command: Reserve | Note, coming: _Coming
) -> tuple[I64Array, Room]:
    """Counts the accesses to what is there, makes room, and rows for what gets a slot: the places of those."""
    blocks, rows, ghosts = command.blocks, coming.rows, coming.ghosts
    outcomes, wanted = coming.outcomes, coming.wanted
    sequence = begin_request(state, command, rows, ghosts, counted=command.retry)
    budgeted = sequence if budgets.take_in(state, sequence, tier, blocks) else None
    if not command.retry:
        count_followers(state, blocks, rows, ghosts)
    count_existing(state, sequence, rows, outcomes)
    tier.victims.expect(blocks.ids, wanted)
    priority = priority_of(command.priority, sequence)
    if budgeted is not None:
        named = state.named(blocks, rows)
        room, fitting = budgets.make_room(state, budgeted, command.block_bytes, len(wanted), named), wanted
    else:
        room, fitting = _make_room(state, tier, command, coming, priority)
    granted = wanted[: rows_for(state, blocks, rows, wanted[: len(room.addresses)])]
    tier.copies.give_back(command.block_bytes, room.addresses[len(granted) :])
    may_come = room.waiting or (budgeted is None and state.sessions.stocked_bytes)
    outcomes[wanted] = (Reserved.PENDING if may_come else Reserved.FULL).value
    outcomes[fitting[len(fitting) - room.declined :]] = Reserved.DECLINED.value
    outcomes[granted] = Reserved.GRANTED.value
    if room.admission is not None:
        decline(state, tier, sequence, blocks, rows, ghosts, indices(outcomes == Reserved.DECLINED.value))
        touch_kept_out(state, sequence, blocks, rows, ghosts, indices(outcomes == Reserved.FULL.value))
    admit(state, blocks, rows, ghosts, granted, command.block_bytes, priority)
    if budgeted is not None:
        budgets.come(budgeted, blocks, granted)
    return granted, room


def priority_of(said: Priority, sequence: Sequence | None) -> Priority:
    """What a request says of its blocks, else what its sequence does."""
    return said or (sequence.priority if sequence else Priority.UNSPECIFIED)


def _make_room(
    state: State, tier: TierState, command: Reserve | Note, coming: _Coming, priority: Priority
) -> tuple[Room, I64Array]:
    """Slots for new blocks, never at the cost of the chain that they belong to: without its head, or with a
    hole in it, they would be of no use. And the places of those that the tier could hold at all."""
    places = coming.wanted
    room = Room(tier.copies.allocate(command.block_bytes, len(places)))
    if len(room.addresses) == len(places):
        return room, places
    if admits_by_index(state, tier):
        places = places[places < tier.copies.capacity // slot_bytes(command.block_bytes)]
        room.admission = admission_of(state, command.blocks, coming.ghosts, places, priority)
    guard = guard_of(state, command.blocks, coming.rows)
    return obtain(state, tier, command.block_bytes, len(places), guard, room), places


def guard_of(state: State, blocks: Ids, rows: I64Array) -> I64Array:
    """Rows that a request must not lose to itself: those it names, and the chain before them."""
    return np.concatenate([state.named(blocks, rows), state.ancestors(blocks)])


def count_existing(state: State, sequence: Sequence | None, rows: I64Array, outcomes: NDArray[np.int8]) -> None:
    """One access to each block that is there already."""
    exists = indices(outcomes == Reserved.EXISTS.value)
    if len(exists):
        count_accesses(state, sequence, rows[first_of_each(exists, rows)], hit=True)


def arena_of(state: State, number: Tier) -> TierState:
    if number not in ARENA_TIERS:
        raise InvalidInput("tier", "blocks are written into hbm or host, not into spill")
    tier = state.tier(number)
    if tier.copies.arena is None:
        raise InvalidInput("tier", f"the {number.name.lower()} tier has no memory of the daemon's own")
    return tier


def refuse_foreign(state: State, blocks: Ids, rows: I64Array) -> None:
    """An identity has one content, so that it cannot be a block of two namespaces."""
    foreign = state.foreign(blocks, rows)
    if some(foreign):
        index = int(np.argmax(foreign))
        namespace, group = state.catalog.namespace[rows[index]], state.catalog.group[rows[index]]
        problem = f"identity {index} is a block of namespace {namespace}, group {group}"
        raise InvalidInput("blocks.ids", f"{problem}, not of {blocks.namespace}, {blocks.group}")


def known_outcomes(state: State, tier: TierState, ids: U8Array, rows: I64Array) -> NDArray[np.int8]:
    """What is known of each id before any room is sought; 0 where a slot is wanted. A copy that an engine lends
    stands in the way of one in the same tier only: it goes when the engine says so."""
    outcomes = np.zeros(len(rows), np.int8)
    known = rows != UNKNOWN
    filling = np.zeros(len(rows), bool)
    ready = np.zeros(len(rows), bool)
    for number in ARENA_TIERS:
        if number in state.tiers:
            copies = state.tiers[number].copies
            ready |= copies.ready(rows) if number == tier.tier else copies.own(rows)
            filling |= copies.state[rows] == STATE_FILLING
    if some(filling):
        outcomes[known & filling] = Reserved.BUSY
    outcomes[known & ready] = Reserved.EXISTS
    mark_duplicates(ids, outcomes)
    return outcomes


def mark_duplicates(ids: U8Array, outcomes: NDArray[np.int8], duplicate: int = Reserved.DUPLICATE) -> None:
    """Of ids without an outcome, those that stand earlier already."""
    wanted = indices(outcomes == 0)
    first_words = words_of(ids)[:, 0][wanted]
    if len(set(first_words.tolist())) == len(wanted):
        return
    seen: set[bytes] = set()
    for place, key in zip(wanted.tolist(), split(ids[wanted]), strict=True):
        if key in seen:
            outcomes[place] = duplicate
        seen.add(key)


def rows_for(state: State, blocks: Ids, rows: I64Array, places: I64Array) -> int:
    """For how many of these places, from the first on, the catalog has rows; others are freed for it."""
    if len(places) <= state.catalog.free_rows:
        return len(places)
    fresh = np.cumsum(rows[places] == NO_ROW)
    if fresh[-1] > state.catalog.free_rows:
        free_rows(state, int(fresh[-1]) - state.catalog.free_rows, guard_of(state, blocks, rows))
    return int(np.count_nonzero(fresh <= state.catalog.free_rows))


def admit(
    state: State, blocks: Ids, rows: I64Array, ghosts: I64Array, places: I64Array, block_bytes: int,
    priority: Priority,
) -> None:
    """Makes rows, into `rows`, for the ids at `places` that have none, and links all that have one."""
    prefer(state, rows, priority)
    fresh = places[rows[places] == UNKNOWN]
    if len(fresh):
        rows[fresh] = state.create_rows(blocks, fresh, ghosts, block_bytes)
        introduce(state, rows[fresh], priority)
    state.link(blocks, rows)


def _hand_out(
    state: State, session: Session, tier: TierState, rows: I64Array, addresses: list[int]
) -> U64Array:
    generations = state.reserve(tier, rows, addresses, session.number)
    holds = state.sessions.hold(
        session, HOLD_RESERVATION, tier.tier, tier.copies.address[rows], generations, state.catalog.size[rows]
    )
    note_reservations(state, session, tier, rows, generations, holds.tolist())
    return generations


def note_reservations(
    state: State, session: Session, tier: TierState, rows: I64Array, generations: U64Array, holds: list[int]
) -> None:
    """The session may write these FILLING copies, whose slots are under these holds."""
    count = len(holds)
    each = zip(repeat(tier.tier, count), rows.tolist(), holds, repeat(state.new_class, count), strict=True)
    session.reservations.update(zip(generations.tolist(), map(Reservation._make, each), strict=True))


def commit(state: State, command: Commit) -> Outcomes:
    session = state.sessions.get(command.session)
    tier = arena_of(state, command.tier)
    sequence = continue_sequence(state, command) if command.sequence else None
    places, rows, classes = _written(state, session, tier, command.ids, command.generations)
    if sequence is None and len(classes):
        state.new_class = int(classes[0])
    kept = _agree(state, tier, rows, command.checksums[places])
    places, rows = places[kept], rows[kept]
    tier.counters.stored += len(rows)
    state.publish(tier, rows, ordered=False)
    account(state, sequence, rows)
    outcomes = np.full(len(command.ids), Committed.STALE.value, np.int8)
    outcomes[places] = Committed.COMMITTED
    return Outcomes(outcomes)


def account(state: State, sequence: Sequence | None, rows: I64Array) -> None:
    """Counts the accesses by which new READY copies came, and puts them in the order of victims."""
    if not count_accesses(state, sequence, rows, hit=False):
        state.reorder(rows)


def _written(
    state: State, session: Session, tier: TierState, ids: U8Array, generations: U64Array
) -> tuple[I64Array, I64Array, I64Array]:
    """Places and rows of those ids whose slot, of that generation, this session may write, and the class of each.

    Their reservations and holds end with this: what becomes of the slots is the caller's.
    """
    open_, numbers = session.reservations, generations.tolist()
    known = [(place, *open_[number]) for place, number in enumerate(numbers) if number in open_]
    places, tiers, rows, holds, classes = np.fromiter(chain(*known), np.int64, 5 * len(known)).reshape(-1, 5).T
    same = state.catalog.words.take(rows, axis=0) == words_of(ids).take(places, axis=0)
    if not every(same) or not every(tiers == tier.tier.value) or len(set(numbers)) < len(numbers):
        mine = indices((tiers == tier.tier) & same.all(axis=1))
        mine = np.sort(mine[np.unique(rows[mine], return_index=True)[1]])  # a slot named twice is written once
        places, rows, holds, classes = places[mine], rows[mine], holds[mine], classes[mine]
    for place in places.tolist():
        del open_[numbers[place]]
    state.sessions.unhold(session, holds)
    return places, rows, classes


def _agree(state: State, tier: TierState, rows: I64Array, checksums: U64Array) -> NDArray[np.bool_]:
    """Sets the checksums of those FILLING copies that may have them; the others are abandoned."""
    kept = ~contradicted(state, rows, checksums)
    if not every(kept):
        state.abandon(tier, rows[~kept])
        rows, checksums = rows[kept], checksums[kept]
    set_content(state, rows, checksums)
    return kept


def contradicted(state: State, rows: I64Array, checksums: U64Array) -> NDArray[np.bool_]:
    """Rows with another copy that has other bytes and is in use: the new one gives way, so that an identity never
    has two contents."""
    found = np.zeros(len(rows), bool)
    for other in state.tiers.values():
        if some(other.copies.ready(rows)):
            in_use = (other.copies.leases[rows] > 0) | (other.copies.moves[rows] > 0)
            found |= _differs(state, other, rows, checksums) & in_use
    return found


def set_content(state: State, rows: I64Array, checksums: U64Array) -> None:
    """Sets the checksums of FILLING copies. A copy elsewhere with other bytes gives way to them."""
    for other in state.tiers.values():
        if some(other.copies.ready(rows)):
            state.drop(other, rows[_differs(state, other, rows, checksums)])
    with state.catalog.writing(rows):
        state.catalog.checksum[rows] = checksums


def _differs(state: State, tier: TierState, rows: I64Array, checksums: U64Array) -> NDArray[np.bool_]:
    """Rows with a READY copy in the tier whose bytes are known to be others: those of a lent page are not."""
    found: NDArray[np.bool_] = tier.copies.own(rows) & (state.catalog.checksum[rows] != checksums)
    return found


def abort(state: State, command: Abort) -> Outcomes:
    session = state.sessions.get(command.session)
    tier = arena_of(state, command.tier)
    places, rows, _ = _written(state, session, tier, command.ids, command.generations)
    state.abandon(tier, rows)
    outcomes = np.full(len(command.ids), Aborted.STALE, np.int8)
    outcomes[places] = Aborted.ABORTED
    return Outcomes(outcomes)
