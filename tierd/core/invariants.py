"""What is true of an engine between any two commands, checked from scratch against all it keeps.

For tests and simulations: it looks at every row. Each check is named by the sentence that is false when it
fails.
"""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import numpy as np

from tierd.core.arena import slot_bytes
from tierd.core.copies import FOUND, TierCopies
from tierd.core.deadlines import Deadlines
from tierd.core.engine import Engine
from tierd.core.explain import shares
from tierd.core.hashindex import NO_ROW
from tierd.core.messages import NextUse, Prefetched, Residency, Tier
from tierd.core.pins import quota
from tierd.core.standing import NEXT_MASK, NEXT_SHIFT
from tierd.core.state import State, TierState, split
from tierd_client.format import (
    HOLD_FREE,
    HOLD_LEASE,
    HOLD_RESERVATION,
    STATE_ABSENT,
    STATE_FILLING,
    STATE_READY,
    I64Array,
)


class Violated(AssertionError):
    """An invariant is false; its sentence and the numbers."""


def check(engine: Engine) -> None:
    """Raises Violated at the first invariant that is false."""
    state = engine.state
    _check_rows(state)
    for tier in state.tiers.values():
        _check_bytes(tier)
        _check_slots(state, tier)
        _check_writers(state, tier)
        _check_children(state, tier)
        _check_loans(state, tier)
    _check_holders(state)
    _check_leases(state)
    _check_holds(state)
    _check_moves(state)
    _check_ghosts(state)
    _check_pinned(state)
    _check_expected(state)
    _check_prefetches(state)
    _check_shares(state)
    _check_budgets(state)


def _require(true: object, sentence: str) -> None:
    if not true:
        raise Violated(sentence)


def _check_rows(state: State) -> None:
    catalog = state.catalog
    used = np.flatnonzero(catalog.used)
    has_copy = (catalog.state != STATE_ABSENT).any(axis=0)
    _require((has_copy == catalog.used).all(), "a row is in use exactly when it has a copy")
    _require((catalog.sequence % 2 == 0).all(), "no record is left half-written")
    _require((catalog.find(catalog.identity[used]) == used).all(), "each identity finds its own row")
    _require(len(set(split(catalog.identity[used]))) == len(used), "an identity has one row")
    _require(catalog.free_rows == catalog.capacity - len(used), "free and used rows are all rows")
    ready_or_filling = (catalog.state[:, used] == STATE_READY) | (catalog.state[:, used] == STATE_FILLING)
    _require((ready_or_filling.any(axis=0)).all(), "each row in use has a READY or FILLING copy")
    _require((catalog.ema >= 0).all() and (catalog.ema <= 1).all(), "ema lies in [0, 1]")


def _check_bytes(tier: TierState) -> None:
    copies = tier.copies
    sizes = _taken_bytes(copies) * (copies.loans.lender == 0)
    found = (copies.state == STATE_READY) & (copies.address == FOUND)
    used = int(sizes[(copies.state == STATE_READY) & ~found].sum())
    reserved = int(sizes[copies.state == STATE_FILLING].sum()) + sum(copies.borrowed.values())
    quarantined = sum(size for size, _ in copies.barred.values()) + sum(copies.aside.values())
    _require(copies.used == used, f"{tier.tier.name}: used is the bytes of READY slots, {copies.used} not {used}")
    _require(copies.reserved == reserved, f"{tier.tier.name}: reserved is the bytes of FILLING and borrowed slots")
    _require(copies.quarantined == quarantined, f"{tier.tier.name}: quarantined is what is barred or aside")
    _require(copies.blocks == np.count_nonzero(copies.state == STATE_READY), f"{tier.tier.name}: blocks are READY")
    _require(copies.found_blocks == np.count_nonzero(found), f"{tier.tier.name}: found blocks are FOUND")
    total = copies.free + used + reserved + quarantined
    _require(total == copies.capacity, f"{tier.tier.name}: free + used + reserved + quarantined = capacity")
    _require(min(copies.free, used, reserved, quarantined) >= 0, f"{tier.tier.name}: no share is negative")


def _taken_bytes(copies: TierCopies) -> I64Array:
    """What a copy of each row takes: whole pages, or what was learnt of its size."""
    sizes: I64Array = copies.catalog.size.astype(np.int64)
    taken = (sizes + 4095) // 4096 * 4096
    for size, learnt in copies.footprints.learnt.items():
        taken[sizes == size] = learnt
    return taken


def _check_shares(state: State) -> None:
    for number, of in shares(state).tiers.items():
        copies = state.tiers[number].copies
        told = int(of.blocks.sum()), int(of.used_bytes.sum()), int(of.reserved_bytes.sum())
        kept = copies.blocks, copies.used, copies.reserved - sum(copies.borrowed.values())
        _require(told == kept, f"{number.name}: the shares of namespaces add up to the tier, {told} not {kept}")


def _check_slots(state: State, tier: TierState) -> None:
    copies = tier.copies
    if copies.arena is None:
        return
    rows = np.flatnonzero((copies.state != STATE_ABSENT) & (copies.loans.lender == 0))
    slots = [(int(copies.address[row]), slot_bytes(int(state.catalog.size[row]))) for row in rows.tolist()]
    slots += [(address, size) for address, (size, _) in copies.barred.items()]
    slots += list(copies.borrowed.items()) + list(copies.aside.items())
    slots.sort()
    for address, size in slots:
        _require(copies.arena.contains(address, size), f"{tier.tier.name}: slot {address:#x} lies in a segment")
    for (address, size), (after, _) in pairwise(slots):
        _require(address + size <= after, f"{tier.tier.name}: slots {address:#x} and {after:#x} do not overlap")
    generations = copies.generation[rows]
    _require(len(np.unique(generations)) == len(rows), f"{tier.tier.name}: no two copies have one generation")


def _check_writers(state: State, tier: TierState) -> None:
    copies = tier.copies
    filling = set(np.flatnonzero(copies.state == STATE_FILLING).tolist())
    _require(filling == set(copies.writer), f"{tier.tier.name}: each FILLING copy has exactly one writer")
    for row, writer in copies.writer.items():
        if writer < 0:
            move = state.moves.get(-writer)
            known = move is not None and (move.row, move.target) == (row, tier.tier)
        else:
            session = state.sessions.by_number.get(writer)
            held = session.reservations.get(int(copies.generation[row])) if session else None
            known = held is not None and held[:2] == (tier.tier, row)
        _require(known, f"{tier.tier.name}: the writer of row {row} knows of it")


def _check_children(state: State, tier: TierState) -> None:
    copies = tier.copies
    rows = copies.placed(np.flatnonzero(copies.state != STATE_ABSENT))
    staying = rows[~np.isin(rows, list(tier.leaving))] if tier.leaving else rows
    parents = state.catalog.parents(staying)
    children = np.zeros(state.catalog.capacity, np.int32)
    np.add.at(children, parents[parents != NO_ROW], 1)
    wrong = np.flatnonzero(children != tier.children)
    _require(not len(wrong), f"{tier.tier.name}: the children of rows {wrong[:5]} are counted right")
    if state.policy.common.leaf_only and not state.failed:
        _require(not (tier.leaving - set(rows.tolist())), f"{tier.tier.name}: what is leaving is still here")


def _check_loans(state: State, tier: TierState) -> None:
    copies, loans, name = tier.copies, tier.copies.loans, tier.tier.name
    lent = np.flatnonzero(loans.lender)
    _require(tier.lends or not len(lent), f"{name}: only a tier that takes loans has any")
    _require((copies.state[lent] == STATE_READY).all(), f"{name}: what is lent is READY")
    _require((copies.leases[lent] == 0).all(), f"{name}: nobody leases a page that is lent")
    pages = dict(zip(copies.address[lent].tolist(), lent.tolist(), strict=True))
    _require(pages == loans.row_of, f"{name}: each lent page is known by its address, and no other")
    recalled = np.flatnonzero(loans.recalled)
    _require((copies.moves[recalled] > 0).all(), f"{name}: what is recalled is still being copied")
    _require(loans.saving <= set(lent.tolist()), f"{name}: only lent pages are being saved")
    open_now = {number for number, session in state.sessions.by_number.items() if not session.ended}
    owed = lent[~np.isin(loans.lender[lent], np.array(sorted(open_now), np.uint64))]
    _require(loans.recalled[owed].all(), f"{name}: a loan whose session has ended is recalled")


def _check_holders(state: State) -> None:
    pins = np.zeros(state.catalog.capacity, np.int32)
    awaited: dict[bytes, int] = {}
    for sequence in state.sequences.values():
        rows = state.catalog.find(sequence.held)
        np.add.at(pins, rows[rows != NO_ROW], 1)
        for identity in split(sequence.held[rows == NO_ROW]):
            awaited[identity] = awaited.get(identity, 0) + 1
    _require((pins == state.pins).all(), "each row has a pin for each open sequence that names it, and no other")
    _require(awaited == state.awaited, "each identity without a row is awaited by its open sequences, and no other")
    named = sum(len(sequence.held) for sequence in state.sequences.values())
    _require(named == state.held_ids, "the identities of open sequences are counted right")


def _check_budgets(state: State) -> None:
    with_ledger = {key: sequence for key, sequence in state.sequences.items() if sequence.ledger is not None}
    _require(with_ledger == state.budgeted, "the sequences with a budget are known")
    for sequence in state.budgeted.values():
        ledger, copies = sequence.ledger, state.tiers[Tier.HBM].copies
        assert ledger is not None
        held = sequence.blocks.ids[ledger.residency != Residency.GIVEN_UP]
        _require(len(ledger.residency) == len(sequence.blocks), "the books of a budget are about all its blocks")
        _require((held == sequence.held).all(), "a sequence holds what it has not given up")
        _require(len(ledger.slots) <= max(0, ledger.room), "slots in hand are within the budget")
        out = {copies.borrowed.get(address) for address in ledger.slots}
        _require(out <= {ledger.slot_bytes}, "slots in hand are out, and no record's")


def _check_pinned(state: State) -> None:
    rows = state.kept.rows()
    _require(len(rows) == len(state.kept), "pinned rows are counted right")
    _require(state.catalog.used[rows].all(), "a pinned row is in use")
    sizes = sum(slot_bytes(size) for size in state.catalog.size[rows].tolist())
    _require(sizes == state.kept_bytes, "pinned bytes are the slots of pinned rows")
    _require(sizes <= quota(state), "pins keep no more than their share")
    _require(_are_awaited(state.kept), "the end of each pin is awaited")


def _check_expected(state: State) -> None:
    soon = (state.catalog.flags & NEXT_MASK) == NextUse.SOON << NEXT_SHIFT
    _require((soon[state.catalog.used] == (state.expected.until != 0)[state.catalog.used]).all(),
             "what is soon to be read is expected until a time, and nothing else is")
    _require(state.catalog.used[state.expected.rows()].all(), "what is expected is in use")
    _require(len(state.expected.rows()) == len(state.expected), "expected rows are counted right")
    _require(_are_awaited(state.expected), "the end of each expectation is awaited")


def _are_awaited(deadlines: Deadlines) -> bool:
    wanted = {(float(deadlines.until[row]), row) for row in deadlines.rows().tolist()}
    return wanted <= set(deadlines.entries())


def _check_prefetches(state: State) -> None:
    active = sum(len(ticket.active) for ticket in state.prefetches.values())
    _require(active <= state.settings.max_prefetch_moves, "prefetches bring up no more at once than allowed")
    for (session, _), ticket in state.prefetches.items():
        _require(session in state.sessions.by_number, "a prefetch ends with its session")
        pending = int(np.count_nonzero(ticket.outcomes == Prefetched.PENDING))
        _require((ticket.blocks is None) == (pending == 0), "a prefetch is done when nothing is PENDING")


def _check_leases(state: State) -> None:
    for tier in state.tiers.values():
        leases = np.zeros(state.catalog.capacity, np.int32)
        for session in state.sessions.by_number.values():
            for lease in session.leases.values():
                _require(len(lease.rows) == len(lease.tiers) == len(lease.holds), "a lease has a hold for each row")
                rows = [row for row, number in zip(lease.rows, lease.tiers, strict=True) if number == tier.tier]
                np.add.at(leases, np.array(rows, np.int64), 1)
        np.add.at(leases, state.hazards.leased.get(tier.tier, np.empty(0, np.int64)), 1)
        _require((leases == tier.copies.leases).all(), f"{tier.tier.name}: leases are counted right")
        leased = np.flatnonzero(leases)
        _require((tier.copies.state[leased] == STATE_READY).all(), f"{tier.tier.name}: what is leased is READY")


def _check_holds(state: State) -> None:
    sessions = state.sessions
    owned: dict[int, int] = {}
    for session in sessions.by_number.values():
        holds = [hold for lease in session.leases.values() for hold in lease.holds]
        holds += [*(one.hold for one in session.reservations.values()), *session.quarantined]
        holds += [slot.hold for slot in session.stock.values()]
        _require(session.held == len(holds), "a session holds what it counts")
        idle = session.held == 0 and session.number not in state.hazards
        _require(not (session.ended and idle), "an ended session that holds nothing is forgotten")
        for hold in holds:
            _require(hold not in owned, "a hold belongs to one session")
            owned[hold] = session.number
    table = {hold: int(sessions.hold_session[hold]) for hold in np.flatnonzero(sessions.hold_session).tolist()}
    _require(owned == table, "the hold table says what sessions hold, and no more")
    _require((sessions.hold_kind[sessions.hold_session == 0] == HOLD_FREE).all(), "a free hold has no kind")
    _check_hold_targets(state)


def _check_hold_targets(state: State) -> None:
    sessions = state.sessions
    barred: dict[tuple[int, int], int] = {}
    stocked = _check_stocks(state)
    for hold in np.flatnonzero(sessions.hold_session).tolist():
        tier = state.tiers[Tier(int(sessions.hold_tier[hold]))]
        address, kind = int(sessions.hold_address[hold]), int(sessions.hold_kind[hold])
        if kind == HOLD_RESERVATION and hold in stocked:
            continue
        if kind in (HOLD_LEASE, HOLD_RESERVATION):
            wanted = STATE_READY if kind == HOLD_LEASE else STATE_FILLING
            found = (tier.copies.address == address) & (tier.copies.state == wanted)
            found &= tier.copies.generation == sessions.hold_generation[hold]
            _require(found.sum() == 1, f"hold {hold} names the slot of one copy")
        else:
            barred[tier.tier, address] = barred.get((tier.tier, address), 0) + 1
    for tier in state.tiers.values():
        for address, (_, holds) in tier.copies.barred.items():
            _require(barred.pop((tier.tier, address), 0) == holds, "a slot is barred by as many holds as it counts")
    _require(not barred, "a quarantined hold bars its slot")


def _check_stocks(state: State) -> set[int]:
    """The holds of stocks."""
    holds: set[int] = set()
    for session in state.sessions.by_number.values():
        counted = Counter((slot.tier, slot.bytes) for slot in session.stock.values())
        _require(+Counter(session.stocked) == counted, "the slots of a stock are counted right")
        _require(not (session.ended and session.stock), "a session that has ended has no stock")
        for generation, slot in session.stock.items():
            out = state.tiers[slot.tier].copies.borrowed.get(slot.address)
            _require(out == slot.bytes, f"stocked slot {slot.address:#x} is out, and no record's")
            held = state.sessions.hold_address[slot.hold], state.sessions.hold_generation[slot.hold]
            _require(held == (slot.address, generation), f"stocked slot {slot.address:#x} is under its hold")
            holds.add(slot.hold)
    total = sum(slot.bytes for session in state.sessions.by_number.values() for slot in session.stock.values())
    _require(state.sessions.stocked_bytes == total, "the bytes of all stocks are counted right")
    return holds


def _check_moves(state: State) -> None:
    _require(len(state.moves) <= state.settings.max_moves, "no more moves are in flight than allowed")
    for tier in state.tiers.values():
        moves = np.zeros(state.catalog.capacity, np.uint8)
        leaving = set()
        for move in state.moves.values():
            if move.source == tier.tier:
                moves[move.row] += 1
                leaving |= {move.row} if move.chosen else set()
        _require((moves == tier.copies.moves).all(), f"{tier.tier.name}: moves are counted right")
        _require(leaving == tier.leaving, f"{tier.tier.name}: what is leaving has a move")


def _check_ghosts(state: State) -> None:
    ghosts = state.ghosts
    _require(0 <= ghosts.tail - ghosts.head <= max(ghosts.capacity, 0), "the ring holds no more than its places")
    found, _ = ghosts.peek(state.catalog.identity[state.catalog.used])
    if state.policy.common.persist:
        _require(not len(found), "an identity with a copy has no ghost")
