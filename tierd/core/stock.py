"""Stock, Store, Unstock: slots that a session holds before it knows for which blocks, and blocks written into them.

A session takes slots ahead and writes into them without asking; Store says afterwards what was written where, and
the blocks are READY with it; or Store says before what is written where, and a Commit when. A stocked slot is under
a hold as a reservation is, counts as reserved, and belongs to no record. What a session may hold while it stores
nothing is bounded, so that a stock starves nobody.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tierd.core import budgets
from tierd.core.admission import admission_of, admits_by_index, decline
from tierd.core.arena import slot_bytes
from tierd.core.arrays import indices, some
from tierd.core.errors import Refused
from tierd.core.hashindex import NO_ROW
from tierd.core.lineage import count_followers, ghosts_of
from tierd.core.messages import (
    Done,
    OutcomeArray,
    Stock,
    StockReply,
    Store,
    Stored,
    StoreReply,
    Tier,
    Unstock,
)
from tierd.core.placing import (
    account,
    admit,
    arena_of,
    contradicted,
    count_existing,
    guard_of,
    known_outcomes,
    note_reservations,
    priority_of,
    refuse_foreign,
    rows_for,
    set_content,
)
from tierd.core.room import Room, obtain
from tierd.core.sequences import begin_request
from tierd.core.sessions import Session, StockedSlot
from tierd.core.state import State, TierState
from tierd.core.underway import Sequence
from tierd_client.format import I64Array, U64Array


def stock(state: State, command: Stock) -> StockReply:
    session, tier = state.sessions.get(command.session), arena_of(state, command.tier)
    slot = slot_bytes(command.block_bytes)
    needed = min(command.needed, _holds_left(state, session))
    spare_max = _spare_max(state, session, tier, slot)
    in_hand = session.stocked.get((tier.tier, slot), 0)
    spare = min(command.spare, max(0, spare_max - in_hand), _holds_left(state, session) - needed)
    room = _make_room(state, tier, command, needed + spare)
    addresses = np.array(room.addresses, np.uint64)
    generations = state.generations(len(addresses))
    tier.copies.borrow_slots(slot, room.addresses)
    state.sessions.add_to_stock(session, tier.tier, slot, addresses, generations)
    if len(addresses) >= needed:
        return StockReply(addresses, generations, spare_max)
    may_come = bool(room.waiting) or state.sessions.stocked_bytes > 0
    return StockReply(addresses, generations, spare_max, may_come, tuple(sorted(room.waiting)))


def _holds_left(state: State, session: Session) -> int:
    """Slots that a session may add to its stock; half of the table of holds is for what is read and reserved."""
    sessions = state.sessions
    ahead = max(0, sessions.free_holds - len(sessions.hold_session) // 2)
    return max(0, min(sessions.max_held - len(session.stock), ahead))


def _spare_max(state: State, session: Session, tier: TierState, slot: int) -> int:
    """Slots of this size that a session may hold without a block for them: within its own limits, and the share
    of the tier that all stocks together may have."""
    settings, mine = state.settings, slot * session.stocked.get((tier.tier, slot), 0)
    held = sum(size * count for (_, size), count in session.stocked.items())
    own = settings.stock_bytes - (held - mine)
    shared = int(tier.copies.capacity * settings.stock_share) - (state.sessions.stocked_bytes - mine)
    return max(0, min(own, shared) // slot)


def _make_room(state: State, tier: TierState, command: Stock, count: int) -> Room:
    room = Room(tier.copies.allocate(command.block_bytes, count))
    if len(room.addresses) == count:
        return room
    rows = state.find(command.blocks)
    return obtain(state, tier, command.block_bytes, count, guard_of(state, command.blocks, rows), room)


def unstock(state: State, command: Unstock) -> Done:
    """Slots that are not the session's are passed over."""
    session = state.sessions.get(command.session)
    generations = [one for one in dict.fromkeys(command.generations.tolist()) if one in session.stock]
    give_back(state, session, generations)
    return Done(len(generations))


def give_back(state: State, session: Session, generations: list[int]) -> None:
    """Stocked slots are free again."""
    for tier, slot, slots in _taken(state, session, generations):
        tier.copies.give_back_borrowed(slot, [one.address for one in slots])
        state.sessions.unhold(session, [one.hold for one in slots])


def quarantine_stock(state: State, session: Session) -> None:
    """The session is over, and its process may still write."""
    for tier, slot, slots in _taken(state, session, list(session.stock)):
        tier.copies.end_borrow(slot, [one.address for one in slots])
        for one in slots:
            tier.copies.bar(one.address, slot)
            state.sessions.quarantine(session, one.hold)


def _taken(
    state: State, session: Session, generations: list[int]
) -> Iterator[tuple[TierState, int, list[StockedSlot]]]:
    """Takes slots out of a stock, by tier and size."""
    for kind in list(session.stocked):
        of = [one for one in generations if session.stock[one].kind == kind]
        yield state.tiers[kind[0]], kind[1], state.sessions.take_of_stock(session, of)
        generations = [one for one in generations if one in session.stock]


def store(state: State, command: Store) -> StoreReply:
    session, tier = state.sessions.get(command.session), arena_of(state, command.tier)
    if command.commit_later:
        state.sessions.within_max_held(session, int(np.count_nonzero(command.generations)))
    blocks = command.blocks
    rows = state.catalog.find(blocks.ids)
    refuse_foreign(state, blocks, rows)
    outcomes = known_outcomes(state, tier, blocks.ids, rows)
    ghosts = ghosts_of(state, blocks.ids, rows)
    sequence = begin_request(state, command, rows, ghosts, counted=command.retry)
    if tier.tier == Tier.HBM and budgets.covers(sequence, tier, blocks):
        raise Refused(f"sequence {command.sequence!r} has a budget: its blocks come to hbm by Reserve")
    budgets.take_in(state, sequence, tier, blocks)
    if not command.retry:
        count_followers(state, blocks, rows, ghosts)
    count_existing(state, sequence, rows, outcomes)
    _weigh(state, tier, sequence, command, rows, ghosts, outcomes)
    written = _written(session, tier, command, outcomes)
    written = _uncontradicted(state, command, rows, written, outcomes)
    stored = written[: rows_for(state, blocks, rows, written)]
    outcomes[written[len(stored) :]] = Stored.FULL
    outcomes[stored] = (Stored.GRANTED if command.commit_later else Stored.STORED).value
    admit(state, blocks, rows, ghosts, stored, command.block_bytes, priority_of(command.priority, sequence))
    if len(stored) and command.commit_later:
        _grant(state, session, tier, command, stored, rows[stored])
    elif len(stored):
        _publish(state, session, tier, command, stored, rows[stored])
        account(state, sequence, rows[stored])
    return StoreReply(outcomes)


def _weigh(
    state: State, tier: TierState, sequence: Sequence | None, command: Store, rows: I64Array, ghosts: I64Array,
    outcomes: OutcomeArray,
) -> None:
    """Declines what is worth less than the victims that slots for it would cost, or that stocked ones will cost to
    replace. The further parts of a call were weighed with its first."""
    if command.retry or not admits_by_index(state, tier):
        return
    slot = slot_bytes(command.block_bytes)
    wanted = indices(outcomes == 0)
    wanted = wanted[wanted < tier.copies.capacity // slot]
    short = len(wanted) - tier.copies.free // slot
    if short <= 0:
        return
    priority, guard = priority_of(command.priority, sequence), guard_of(state, command.blocks, rows)
    admission = admission_of(state, command.blocks, ghosts, wanted, priority)
    admission.begin(short)
    state.guard(guard)
    state.spare(tier, state.choose(tier, short, admission.lets))
    state.unguard(guard)
    declined = wanted[len(wanted) - admission.declined :]
    outcomes[declined] = Stored.DECLINED
    decline(state, tier, sequence, command.blocks, rows, ghosts, declined)


def _written(session: Session, tier: TierState, command: Store, outcomes: OutcomeArray) -> I64Array:
    """Places of ids without an outcome that come with a slot of this stock; the others get theirs."""
    wanted = indices(outcomes == 0)
    slot, seen = slot_bytes(command.block_bytes), {0}
    for place, generation in zip(wanted.tolist(), command.generations[wanted].tolist(), strict=True):
        held = session.stock.get(generation)
        if generation in seen or held is None or held.bytes != slot or held.tier != tier.tier:
            outcomes[place] = Stored.STALE if generation else Stored.ABSENT
        seen.add(generation)
    return indices(outcomes == 0)


def _uncontradicted(
    state: State, command: Store, rows: I64Array, written: I64Array, outcomes: OutcomeArray
) -> I64Array:
    if command.commit_later:  # Commit looks
        return written
    known = written[rows[written] != NO_ROW]
    against = contradicted(state, rows[known], command.checksums[known])
    if not some(against):
        return written
    outcomes[known[against]] = Stored.BUSY
    return indices(outcomes == 0)


def _publish(
    state: State, session: Session, tier: TierState, command: Store, places: I64Array, rows: I64Array
) -> None:
    """Slots of the stock become READY copies; their holds end last."""
    slots = _fill(state, session, tier, command.generations[places], rows)
    set_content(state, rows, command.checksums[places])
    tier.counters.stored += len(rows)
    state.publish(tier, rows, ordered=False)
    state.sessions.unhold(session, [slot.hold for slot in slots])


def _grant(
    state: State, session: Session, tier: TierState, command: Store, places: I64Array, rows: I64Array
) -> None:
    """Slots of the stock become FILLING copies, as if they had been reserved for these blocks."""
    generations = command.generations[places]
    slots = _fill(state, session, tier, generations, rows)
    note_reservations(state, session, tier, rows, generations, [slot.hold for slot in slots])


def _fill(
    state: State, session: Session, tier: TierState, generations: U64Array, rows: I64Array
) -> list[StockedSlot]:
    """Slots of the stock are those of FILLING copies. Their holds go on."""
    slots = state.sessions.take_of_stock(session, generations.tolist())
    addresses = [slot.address for slot in slots]
    tier.copies.end_borrow(slots[0].bytes, addresses)
    state.reserve(tier, rows, addresses, session.number, told=generations)
    return slots
