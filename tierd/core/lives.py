"""Sessions begin and end; a new boot takes over what the last one left.

What a process may still touch is freed only when it is dead or has said that it no longer does.
"""

from __future__ import annotations

from bisect import insort

import numpy as np

from tierd.core import statistics
from tierd.core.arena import overlaps, slot_bytes, slots_of
from tierd.core.copies import FOUND
from tierd.core.hashindex import NO_ROW
from tierd.core.hazards import forget_page
from tierd.core.lending import end_lender
from tierd.core.loans import FIRST_POOL
from tierd.core.messages import BindProcess, Done, EndSession, OpenPage, OpenSession, Tier
from tierd.core.pins import recover_pins
from tierd.core.prefetch import end_prefetches
from tierd.core.reading import end_lease
from tierd.core.sequences import end_sequence
from tierd.core.sessions import Lease, Session, Sessions
from tierd.core.standing import forget_soon
from tierd.core.state import ARENA_TIERS, State, TierState
from tierd.core.stock import give_back, quarantine_stock
from tierd_client.format import (
    HOLD_LEASE,
    OFFSET_BITS,
    STATE_ABSENT,
    STATE_FILLING,
    STATE_READY,
    I64Array,
)

WORD_BOOTS = 7
"""Header word of the catalog: boots so far. Upper bits of a generation, so that none repeats."""
GENERATION_BITS = 40


def open_session(state: State, command: OpenSession) -> Done:
    state.sessions.open(command.session, command.token)
    return Done()


def bind_process(state: State, command: BindProcess) -> Done:
    state.sessions.bind(state.sessions.get(command.session), command.pid, command.start_time)
    return Done()


def open_page(state: State, command: OpenPage) -> Done:
    state.hazards.open(state.sessions.get(command.session).number, command.page)
    return Done()


def end_session(state: State, command: EndSession) -> Done:
    session = state.sessions.by_number.get(command.session)
    if session is None:
        return Done()
    for key in [key for key in state.sequences if key[0] == session.number]:
        end_sequence(state, key)
    end_prefetches(state, session.number)
    session.ended = True
    held = session.held
    _end_reservations(state, session, settled=command.settled)
    if command.settled:
        give_back(state, session, list(session.stock))
    else:
        quarantine_stock(state, session)
    end_lender(state, session.number)
    if command.settled:
        for lease in list(session.leases):
            end_lease(state, session, lease)
        _end_quarantine(state, session)
        forget_page(state, session.number)
    _close_if_done(state, session)
    return Done(held)


def _close_if_done(state: State, session: Session) -> None:
    """Forgets a session that has ended, unless its process may still touch something."""
    if session.held == 0 and session.number not in state.hazards:
        state.sessions.close(session)


def _end_reservations(state: State, session: Session, *, settled: bool) -> None:
    for number, row, hold, _ in list(session.reservations.values()):
        tier, rows = state.tiers[number], np.array([row])
        if settled:
            state.abandon(tier, rows)
            state.sessions.unhold(session, [hold])
        else:
            state.quarantine(tier, rows)
            state.sessions.quarantine(session, hold)
    session.reservations.clear()


def _end_quarantine(state: State, session: Session) -> None:
    sessions = state.sessions
    for hold in session.quarantined:
        state.tiers[Tier(int(sessions.hold_tier[hold]))].copies.unbar(int(sessions.hold_address[hold]))
    sessions.unhold(session, session.quarantined)
    session.quarantined.clear()


def recover(state: State, survivors: frozenset[int]) -> int:
    """Takes over what the tables of an earlier boot hold; `survivors`: sessions whose process may live.

    Returns how many identities were kept.
    """
    boots = int(state.tables.catalog.words[WORD_BOOTS]) + 1
    state.tables.catalog.words[WORD_BOOTS] = boots
    state.start_generations(boots << GENERATION_BITS)
    state.sessions.forget_others(survivors)
    rows = _sound_rows(state)
    orphans = {number: _keep_copies(state, tier, rows) for number, tier in state.tiers.items()}
    _clear_tiers_off(state)
    _revive_sessions(state, orphans)
    kept = np.flatnonzero((state.catalog.state != STATE_ABSENT).any(axis=0))
    _take_over(state, kept, rows)
    recover_pins(state)
    # A reader that slept through the restart must not take what it finds for what it began to read.
    state.catalog.sequence += np.uint32(2)
    for tier in state.tiers.values():
        _fit(state, tier)
    return len(state.catalog)


def _sound_rows(state: State) -> I64Array:
    """Rows to be believed: those that are not half-written, and of those that are the ones with a READY copy.

    Whatever was being written there, its READY copies are whole: what makes a copy READY is stored after all
    that belongs to it, what ends it before its slot is given to another, and an identity changes only while it
    has no copy.
    """
    catalog = state.catalog
    odd = catalog.sequence % 2 == 1
    sound = catalog.identity.any(axis=1) & (~odd | (catalog.state == STATE_READY).any(axis=0))
    catalog.state[:, ~sound] = STATE_ABSENT
    catalog.sequence[odd] += np.uint32(1)
    return np.flatnonzero(sound)


def _keep_copies(state: State, tier: TierState, rows: I64Array) -> dict[int, int]:
    """READY copies whose slots are possible and their own are kept; FILLING ones are not.

    Returns the slots, address -> bytes, that survivors may touch and no kept copy owns.
    """
    orphans: dict[int, int] = {}
    copies, catalog = tier.copies, state.catalog
    if not state.is_on(tier.tier):
        copies.state[:] = STATE_ABSENT
    copies.state[copies.state == STATE_FILLING] = STATE_ABSENT
    if tier.tier in ARENA_TIERS:  # what an engine lent to the last boot it lends no more
        copies.state[copies.address >> np.uint64(OFFSET_BITS) >= FIRST_POOL] = STATE_ABSENT
    ready = rows[copies.state[rows] == STATE_READY]
    if copies.arena is not None:
        ready = _without_overlaps(state, tier, ready)
        slots = [(int(copies.address[row]), slot_bytes(int(catalog.size[row]))) for row in ready.tolist()]
        orphans = _orphan_slots(state, tier, slots)
        owned = sorted(slots + list(orphans.items()))
        named = state.hazards.unowned(copies.arena, owned)
        copies.set_aside(named)
        copies.arena.claim(sorted(owned + named))
    copies.used = copies.bytes_of(ready)
    copies.blocks = len(ready)
    copies.found_blocks = len(ready) - len(copies.placed(ready))
    return orphans


def _without_overlaps(state: State, tier: TierState, ready: I64Array) -> I64Array:
    """Drops copies that lie outside the segments, and every one whose slot overlaps another's."""
    copies, catalog = tier.copies, state.catalog
    assert copies.arena is not None
    order = ready[np.argsort(copies.address[ready], kind="stable")]
    start = copies.address[order].astype(np.int64)
    length = slots_of(catalog.size[order])
    pairs = zip(start.tolist(), length.tolist(), strict=True)
    bad = np.array([not copies.arena.contains(address, size) for address, size in pairs], bool)
    clash = np.zeros(len(order), bool)
    furthest = np.maximum.accumulate(start + length)
    clash[1:] = start[1:] < furthest[:-1]
    clash[:-1] |= clash[1:]
    dropped = bad | clash
    copies.state[order[dropped]] = STATE_ABSENT
    kept: I64Array = order[~dropped]
    return kept


def _orphan_slots(state: State, tier: TierState, claimed: list[tuple[int, int]]) -> dict[int, int]:
    found = {
        int(state.sessions.hold_address[hold]): slot_bytes(int(state.sessions.hold_bytes[hold]))
        for hold in np.flatnonzero(state.sessions.hold_session).tolist()
        if _slot_exists(state, tier, hold)
    }
    owned, orphans = sorted(claimed), dict[int, int]()
    for address, size in sorted(found.items()):
        if not overlaps(owned, address, size):
            orphans[address] = size
            insort(owned, (address, size))
    return orphans


def _slot_exists(state: State, tier: TierState, hold: int) -> bool:
    sessions, arena = state.sessions, tier.copies.arena
    size = slot_bytes(int(sessions.hold_bytes[hold]))
    here = int(sessions.hold_tier[hold]) == tier.tier
    return here and arena is not None and arena.contains(int(sessions.hold_address[hold]), size)


def _clear_tiers_off(state: State) -> None:
    for number in Tier:
        if number not in state.tiers:
            state.catalog.state[number - 1] = STATE_ABSENT


def _revive_sessions(state: State, orphans: dict[Tier, dict[int, int]]) -> None:
    """Survivors keep their leases where the block is still there; their other slots are in quarantine."""
    sessions = state.sessions
    owners = {number: _owners(tier) for number, tier in state.tiers.items()}
    for number in sessions.number[sessions.number != 0].tolist():
        session, lease = sessions.revive(number), Lease()
        for hold in sessions.holds_of(number).tolist():
            session.held += 1
            tier = state.tiers.get(Tier(int(sessions.hold_tier[hold])))
            if tier is None or not _take_up(tier, sessions, session, lease, hold, owners, orphans):
                sessions.unhold(session, [hold])
        if lease.rows:
            session.leases[sessions.new_lease()] = lease
        _close_if_done(state, session)


def _take_up(
    tier: TierState, sessions: Sessions, session: Session, lease: Lease, hold: int,
    owners: dict[Tier, dict[int, int]], orphans: dict[Tier, dict[int, int]],
) -> bool:
    """Goes on with one hold of a survivor; False when there is nothing left to hold."""
    address = int(sessions.hold_address[hold])
    row = owners[tier.tier].get(address, NO_ROW)
    if _is_lease_of(tier, sessions, hold, row):
        tier.copies.leases[row] += 1
        lease.rows.append(row)
        lease.tiers.append(tier.tier)
        lease.holds.append(hold)
        return True
    if address in orphans[tier.tier]:
        tier.copies.bar(address, orphans[tier.tier][address])
        sessions.quarantine(session, hold)
        return True
    return False


def _owners(tier: TierState) -> dict[int, int]:
    """Address of each READY copy -> its row."""
    rows = np.flatnonzero(tier.copies.state == STATE_READY)
    return dict(zip(tier.copies.address[rows].tolist(), rows.tolist(), strict=True))


def _is_lease_of(tier: TierState, sessions: Sessions, hold: int, row: int) -> bool:
    """Whether a hold is a lease of the very copy that this row has."""
    same = row != NO_ROW and tier.copies.generation[row] == sessions.hold_generation[hold]
    return bool(same and sessions.hold_kind[hold] == HOLD_LEASE)


def _take_over(state: State, rows: I64Array, sound: I64Array) -> None:
    catalog = state.catalog
    _remember(state, sound[~np.isin(sound, rows)])
    gone = np.ones(catalog.capacity, bool)
    gone[rows] = False
    catalog.identity[gone] = 0
    catalog.pinned_until[gone] = 0
    catalog.birth[gone] += np.uint32(1)  # their children, if any stayed, are nobody's now
    catalog.take_over(rows)
    parents = catalog.parents(rows)
    catalog.followers[parents[parents != NO_ROW]] = rows[parents != NO_ROW]
    for tier in state.tiers.values():
        here = (tier.copies.state[rows] != STATE_ABSENT) & (tier.copies.address[rows] != FOUND)
        np.add.at(tier.children, parents[here & (parents != NO_ROW)], 1)
    statistics.rescale(catalog, state.ghosts, state.policy.common.alpha)
    statistics.retell(catalog, state.ghosts, rows, state.clock)
    _, records = state.ghosts.live()
    latest = max(catalog.last[rows].max(initial=0), records.last.max(initial=0))
    state.clock.step = max(state.clock.step, int(latest))
    forget_soon(catalog, rows)
    state.make_victims()


def _fit(state: State, tier: TierState) -> None:
    """Drops what ranks highest while a tier holds more than its limit, which may be lower than at the last boot."""
    while tier.copies.free < 0 and len(chosen := state.choose(tier, 1 + tier.copies.blocks // 64)):
        state.drop(tier, chosen, chosen=True)


def _remember(state: State, rows: I64Array) -> None:
    """Records whose last copy did not survive become ghosts, as if it had been dropped."""
    catalog = state.catalog
    state.most_identities = len(rows) + int(np.count_nonzero((catalog.state != STATE_ABSENT).any(axis=0)))
    met = rows[catalog.touches[rows] > 0]
    if state.policy.common.persist and len(met):
        known, _ = state.ghosts.peek(catalog.identity[met])
        met = np.delete(met, known)
        met = met[np.argsort(catalog.last[met], kind="stable")]
        limit = state.policy.common.ghosts_for(state.most_identities)
        state.ghosts.add(catalog.identity[met], statistics.records_of(catalog, met), limit)
