"""Evict, Clear, DropDamaged, SpillState: how copies go because somebody says so."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tierd.core.errors import InvalidInput
from tierd.core.hashindex import NO_ROW
from tierd.core.messages import (
    BlockFilter,
    Clear,
    Cleared,
    Done,
    DropDamaged,
    Evict,
    Evicted,
    Outcomes,
    SpillState,
    Tier,
)
from tierd.core.prefetch import advance
from tierd.core.room import by_size, have_failed, obtain_for_moves, start_moves
from tierd.core.state import State, TierState
from tierd.core.underway import MoveInFlight
from tierd_client.format import STATE_FILLING, STATE_READY, I64Array

SKIPPED_MAX = 1_000
"""Blocks in use of which a Clear tells the identities; it counts all."""


def evict(state: State, command: Evict) -> Outcomes:
    rows = state.find(command.blocks)
    outcomes = np.full(len(rows), Evicted.MISS, np.int8)
    places = np.flatnonzero((rows != NO_ROW) & (state.ready_tiers(rows) != 0))
    _, first = np.unique(rows[places], return_index=True)
    places = places[first]
    if command.to is None:
        if not command.allow_drop:
            raise InvalidInput("allow_drop", "dropping every copy of a block needs allow_drop")
        _drop_all(state, rows, places, outcomes)
        return Outcomes(outcomes)
    if command.to == Tier.HBM:
        raise InvalidInput("to", "blocks are evicted to host or spill")
    target = state.tier(command.to, "to")
    waiting = _move_down(state, command, target, rows, places, outcomes)
    return Outcomes(_repeat(rows, places, outcomes), tuple(sorted(waiting)))


def _repeat(rows: I64Array, places: I64Array, outcomes: NDArray[np.int8]) -> NDArray[np.int8]:
    """An identity that was named twice has one outcome."""
    known = dict(zip(rows[places].tolist(), outcomes[places].tolist(), strict=True))
    pairs = zip(rows.tolist(), outcomes.tolist(), strict=True)
    return np.array([known.get(row, had) for row, had in pairs], np.int8)


def _drop_all(state: State, rows: I64Array, places: I64Array, outcomes: NDArray[np.int8]) -> None:
    busy = to_stay(state, rows[places])
    outcomes[places[busy]] = Evicted.IN_USE
    outcomes[places[~busy]] = Evicted.DROPPED
    outcomes[:] = _repeat(rows, places, outcomes)
    drop_everywhere(state, rows[places[~busy]])


def in_use(state: State, rows: I64Array) -> NDArray[np.bool_]:
    """Rows that a lease, a move, a write or a running sequence holds anywhere."""
    busy = state.pins[rows] > 0
    for tier in state.tiers.values():
        copies = tier.copies
        busy |= (copies.leases[rows] > 0) | (copies.moves[rows] > 0) | (copies.state[rows] == STATE_FILLING)
    return busy


def to_stay(state: State, rows: I64Array) -> NDArray[np.bool_]:
    """Rows that nobody's word drops: in use, or pinned."""
    staying: NDArray[np.bool_] = in_use(state, rows) | (state.kept.until[rows] != 0)
    return staying


def drop_everywhere(state: State, rows: I64Array) -> dict[Tier, int]:
    """Drops every READY copy of rows that nothing holds; how many per tier."""
    dropped = {}
    for number, tier in state.tiers.items():
        mine = rows[tier.copies.ready(rows)]
        dropped[number] = len(mine)
        if len(mine):
            state.drop(tier, mine)
    return dropped


def _move_down(
    state: State, command: Evict, target: TierState, rows: I64Array, places: I64Array, outcomes: NDArray[np.int8]
) -> set[int]:
    """Leaves each block at or below `target`; what must be copied first is PENDING."""
    waiting: set[int] = set()
    above = [tier for number, tier in state.tiers.items() if number < target.tier]
    upper = np.zeros(len(places), bool)
    for tier in above:
        upper |= tier.copies.ready(rows[places])
    outcomes[places[~upper]] = Evicted.MOVED
    places = places[upper]
    under_way = np.array([target.copies.writer.get(row, 0) for row in rows[places].tolist()], np.int64)
    waiting |= set((-under_way[under_way < 0]).tolist())
    outcomes[places[under_way != 0]] = Evicted.PENDING
    places = places[under_way == 0]
    busy = in_use(state, rows[places])
    outcomes[places[busy]] = Evicted.IN_USE
    places = places[~busy]
    held = target.copies.ready(rows[places])
    if target.tier == Tier.SPILL and not state.spill_up:
        held[:] = False
    for tier in above:
        mine = rows[places[held]]
        state.drop(tier, mine[tier.copies.ready(mine)])
    outcomes[places[held]] = Evicted.MOVED
    places = places[~held]
    failed = have_failed(state, rows[places], target.tier, retry=command.retry)
    outcomes[places[failed]] = Evicted.FAILED
    places = places[~failed]
    _start_down(state, command, target, above, rows, places, outcomes, waiting)
    return waiting


def _start_down(
    state: State, command: Evict, target: TierState, above: list[TierState], rows: I64Array, places: I64Array,
    outcomes: NDArray[np.int8], waiting: set[int],
) -> None:
    outcomes[places] = Evicted.PENDING
    leave = tuple(tier.tier for tier in above)
    down = target.tier == Tier.SPILL and not state.spill_up
    for tier in reversed(above):
        here = tier.copies.ready(rows[places])
        mine, places = places[here], places[~here]
        able = len(mine) if down else max(0, state.settings.max_moves - len(state.moves))
        mine, later = mine[:able], mine[able:]
        like = MoveInFlight(0, tier.tier, target.tier, leave=leave, allow_drop=command.allow_drop)
        for size, of in by_size(state, rows[mine]):
            guard = state.named(command.blocks, rows)
            room = None if down else obtain_for_moves(state, target, size, len(of), guard)
            started = of[: len(room.addresses)] if room else of[:0]
            waiting |= room.waiting if room else set()
            if room:
                waiting |= set(start_moves(state, tier, target, started, room.addresses, like))
            if not (room and room.waiting):
                _cannot_move(state, command, above, rows, of[len(started) :], outcomes)
        if len(later):
            waiting |= set(state.moves)
            if not state.moves:  # none of those before could begin: these would fare no better
                _cannot_move(state, command, above, rows, rows[later], outcomes)


def _cannot_move(
    state: State, command: Evict, above: list[TierState], rows: I64Array, stuck: I64Array,
    outcomes: NDArray[np.int8],
) -> None:
    """There is no room below and none to come, or the tier below is down."""
    pinned = state.kept.until[stuck] != 0
    outcomes[np.isin(rows, stuck[pinned] if command.allow_drop else stuck)] = Evicted.FAILED
    if not command.allow_drop:
        return
    stuck = stuck[~pinned]
    for tier in above:
        state.drop(tier, stuck[tier.copies.ready(stuck)])
    outcomes[np.isin(rows, stuck)] = Evicted.DROPPED


def select(state: State, where: BlockFilter) -> I64Array:
    """Rows with a READY copy that a filter takes."""
    catalog = state.catalog
    tiers = [state.tier(where.tier, "filter.tier")] if where.tier else list(state.tiers.values())
    found = np.zeros(catalog.capacity, bool)
    for tier in tiers:
        found |= tier.copies.state == STATE_READY
    if where.namespace:
        found &= catalog.namespace == where.namespace
    if where.namespaces is not None:
        found &= np.isin(catalog.namespace, list(where.namespaces))
    if where.group is not None:
        found &= catalog.group == where.group
    if where.older_than_s:
        found &= catalog.wall <= state.clock.wall_s - where.older_than_s
    if where.identity_prefix:
        prefix = np.frombuffer(where.identity_prefix, np.uint8)
        found &= (catalog.identity[:, : len(prefix)] == prefix).all(axis=1)
    if where.pinned is not None:
        found &= (state.kept.until != 0) == where.pinned
    rows = np.flatnonzero(found)
    if where.in_use is not None:
        rows = rows[in_use(state, rows) == where.in_use]
    return rows


def clear(state: State, command: Clear) -> Cleared:
    rows = select(state, command.where)
    busy = to_stay(state, rows)
    planes = [state.tier(command.where.tier)] if command.where.tier else list(state.tiers.values())
    able = rows[~busy]
    kept = _deletable(able, planes, command.most_deletes)
    left, free = len(able) - len(kept), kept[: command.most]
    gone = {tier.tier: free[tier.copies.ready(free)] for tier in planes}
    copies = {tier: len(of) for tier, of in gone.items()}
    size = {tier: state.tiers[tier].copies.bytes_of(of) for tier, of in gone.items()}
    skipped = state.catalog.identity[rows[busy][:SKIPPED_MAX]].tobytes()
    ghosts = len(state.ghosts) if command.ghosts else 0
    if not command.dry_run:
        for tier in planes:
            state.drop(tier, gone[tier.tier])
        if command.ghosts:
            ghosts = state.ghosts.clear()
    return Cleared(copies, ghosts, int(np.count_nonzero(busy)), size, skipped, left)


def _deletable(rows: I64Array, tiers: list[TierState], most: int | None) -> I64Array:
    """Rows without those whose stored value would be one more to delete than may be."""
    spill = next((tier for tier in tiers if tier.tier == Tier.SPILL), None)
    if spill is None or most is None:
        return rows
    stored = np.isin(rows, spill.copies.placed(rows[spill.copies.ready(rows)]))
    return rows[~stored | (np.cumsum(stored) <= most)]


def drop_damaged(state: State, command: DropDamaged) -> Done:
    """Drops copies that are still what was found damaged, unless they are in use."""
    tier = state.tier(command.tier)
    rows = state.catalog.find(command.ids)
    same = (rows != NO_ROW) & tier.copies.ready(rows) & (tier.copies.generation[rows] == command.generations)
    rows = np.unique(rows[same])
    rows = rows[(tier.copies.leases[rows] == 0) & (tier.copies.moves[rows] == 0)]
    if tier.tier == Tier.SPILL:
        state.unlink(rows)  # whoever stored it: else it would be found again
    state.drop(tier, rows, unlink=False)
    return Done(len(rows))


def spill_state(state: State, command: SpillState) -> Done:
    """The spill tier went down, came back, or forgot what it held."""
    if Tier.SPILL not in state.tiers:
        return Done()
    state.outage.change(command.up, state.clock.wall_s)
    if command.up:
        state.release_pinned()
    if command.attached is not None:
        state.spill_attached = command.attached
    if not command.forgotten:
        advance(state)
        return Done()
    spill = state.tiers[Tier.SPILL]
    for move in state.moves.values():
        move.void = move.void or Tier.SPILL in (move.source, move.target)
    rows = np.flatnonzero((spill.copies.state == STATE_READY) & (spill.copies.moves == 0))
    state.drop(spill, rows, unlink=False)
    spill.copies.footprints.forget()
    spill.copies.recount()
    return Done(len(rows))
