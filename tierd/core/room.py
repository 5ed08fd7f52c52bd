"""Making room, and moving copies between tiers.

A move has two ends: `start_moves` hands out the target slot and tells the shell to copy, `finish` publishes
the target or takes it back. Until then the source stays as it is; a move that fails changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from tierd.core.admission import Admission, worth_a_store
from tierd.core.arrays import Mask
from tierd.core.found import forget_found
from tierd.core.hashindex import NO_ROW
from tierd.core.messages import Hurry, Move, MoveResult, Tier
from tierd.core.state import State, TierState
from tierd.core.statistics import each_record
from tierd.core.underway import MoveInFlight
from tierd_client.format import STATE_ABSENT, I64Array

MOST_FAILED = 4096


@dataclass(slots=True)
class Room:
    """Slots obtained now, and the moves after which more may be had. No move: more is not to be had."""

    addresses: list[int] = field(default_factory=list)
    waiting: set[int] = field(default_factory=set)
    admission: Admission | None = None
    """Weighs newcomers against victims; None: all come in."""
    stuck: list[I64Array] = field(default_factory=list)
    """Pinned victims that fit nowhere below; held by a pin more while room is being made, or they would be
    chosen for ever."""


    @property
    def declined(self) -> int:
        """Newcomers that are not to come in, the last ones."""
        return self.admission.declined if self.admission else 0


def obtain(
    state: State, tier: TierState, size: int, count: int, guard: I64Array, had: Room | None = None
) -> Room:
    """Up to `count` slots for blocks of `size` bytes, evicting what ranks highest, never rows of `guard`.

    `had`: what was obtained already; it is added to.
    """
    tier.copies.ask_again(size, state.clock.wall_s)
    room = had or Room(tier.copies.allocate(size, count))
    if len(room.addresses) == count or not tier.copies.fits(size):
        return room
    state.guard(guard)
    try:
        _evict_for(state, tier, size, count, room)
    finally:
        state.unguard(guard)
        if room.stuck:
            state.unpin(np.concatenate(room.stuck))
    if len(room.addresses) < count - room.declined:
        room.waiting |= {
            op for op, move in state.moves.items()
            if move.source == tier.tier and (move.chosen or move.target == Tier.SPILL)
        }
    return room


def obtain_for_moves(state: State, tier: TierState, size: int, count: int, guard: I64Array) -> Room:
    """As `obtain`, but no more slots than moves may begin: making room may itself have taken moves."""
    room = obtain(state, tier, size, count, guard)
    able = max(0, state.settings.max_moves - len(state.moves))
    if len(room.addresses) > able:
        tier.copies.give_back(size, room.addresses[able:])
        del room.addresses[able:]
        room.waiting |= set(state.moves)
    return room


def _evict_for(state: State, tier: TierState, size: int, count: int, room: Room) -> None:
    in_vain = 0
    while (wanted := count - room.declined - len(room.addresses) - len(tier.leaving)) > 0:
        # Of small blocks it takes many to make a large slot. One by one, with a search for empty extents after
        # each, would take the square of their number; an eighth more each time takes at most an eighth too many.
        chosen = _choose(state, tier, max(wanted, in_vain // 8), room.admission)
        if not len(chosen) or not _dispose(state, tier, chosen, room):
            return
        slots = tier.copies.allocate(size, count - len(room.addresses))
        room.addresses += slots
        in_vain += len(chosen) if not slots and state.destination(tier) is None else 0


def _choose(state: State, tier: TierState, count: int, admission: Admission | None) -> I64Array:
    if admission is None:
        return state.choose(tier, count)
    admission.begin(count)
    return state.choose(tier, count, admission.lets)


def _dispose(state: State, tier: TierState, chosen: I64Array, room: Room) -> bool:
    """Drops or begins to move chosen victims. True when that freed slots at once."""
    target = state.destination(tier)
    if target is None:
        drop_chosen(state, tier, chosen)
        return True
    at_once = held_below(state, tier, chosen)
    dropped, kept = chosen[at_once], chosen[~at_once]
    freed = False
    if len(kept):
        freed = _demote(state, tier, target, kept, room)
    return drop_childless(state, tier, dropped) > 0 or freed


def drop_childless(state: State, tier: TierState, rows: I64Array) -> int:
    """Drops those of these victims that leave no child behind, and spares the others; how many were dropped."""
    while len(rows) and not (alone := _leave_no_child(state, tier, rows)).all():
        state.spare(tier, rows[~alone])
        rows = rows[alone]
    drop_chosen(state, tier, rows)
    return len(rows)


def drop_chosen(state: State, tier: TierState, rows: I64Array) -> None:
    state.note_evicted(tier, rows)
    state.drop(tier, rows, chosen=True)


def _leave_no_child(state: State, tier: TierState, rows: I64Array) -> NDArray[np.bool_]:
    """Which of these victims have no child that stays in the tier, or may yet stay because its move fails."""
    if not state.policy.common.leaf_only:
        return np.ones(len(rows), bool)
    parents = state.catalog.parents(np.array(sorted(tier.leaving), np.int64))
    alone: NDArray[np.bool_] = (tier.children[rows] == 0) & ~np.isin(rows, parents)
    return alone


def held_below(state: State, tier: TierState, rows: I64Array) -> NDArray[np.bool_]:
    """Which of these have a READY copy further down that can be relied upon."""
    held = np.zeros(len(rows), bool)
    for number, lower in state.tiers.items():
        if number > tier.tier and (number != Tier.SPILL or state.spill_up):
            held |= lower.copies.ready(rows)
    return held


def _demote(state: State, tier: TierState, target: TierState, rows: I64Array, room: Room) -> bool:
    """Begins to move victims down; those for which there is no room now, or no move left, are spared, and those
    for which there can be none are dropped: a server that others have filled must not stop the cache. True when
    some were dropped."""
    if target.tier == Tier.SPILL and not state.spill_up:
        state.spare(tier, rows)
        return False
    dropped = False
    if target.tier == Tier.SPILL:
        rows, dropped = _shed(state, tier, rows)
    filling = target.copies.state[rows] != STATE_ABSENT
    state.spare(tier, rows[filling])
    rows = rows[~filling]
    able = max(0, state.settings.max_moves - len(state.moves))
    state.spare(tier, rows[able:])
    rows = rows[:able]
    like = MoveInFlight(0, tier.tier, target.tier, chosen=True)
    for size, of in by_size(state, rows):
        lower = obtain_for_moves(state, target, size, len(of), rows)
        room.waiting |= lower.waiting
        started, left = of[: len(lower.addresses)], of[len(lower.addresses) :]
        start_moves(state, tier, target, started, lower.addresses, like)
        if target.copies.fits(size):
            state.spare(tier, left)
        elif len(left):
            _let_go(state, tier, left, room)
            dropped = True
    return dropped


def _let_go(state: State, tier: TierState, rows: I64Array, room: Room) -> None:
    """Drops victims that fit nowhere below, but for pinned ones."""
    pinned = state.kept.until[rows] != 0
    state.spare(tier, rows[pinned])
    state.pin(rows[pinned])
    room.stuck.append(rows[pinned])
    drop_chosen(state, tier, rows[~pinned])
    if (below := state.below(tier.tier)) is not None and below.tier == Tier.SPILL:
        below.counters.note_shed("full", int(np.count_nonzero(~pinned)))


def worth_storing(state: State, rows: I64Array) -> Mask:
    """Which of these blocks are stored in the spill tier when they are evicted."""
    if state.settings.spill_write != "on_reuse":
        return np.ones(len(rows), bool)
    used_again: Mask = state.catalog.touches[rows] >= state.storing.stored_from
    return used_again


def _shed(state: State, tier: TierState, rows: I64Array) -> tuple[I64Array, bool]:
    """Drops victims that are not to be stored in the spill tier, but for pinned ones; the others, and whether some
    were dropped."""
    dropped = 0
    for reason, goes in (("unused", worth_storing), ("declined", worth_a_store), ("rate", _within_rate)):
        down = goes(state, rows) | (state.kept.until[rows] != 0)
        shed = drop_childless(state, tier, rows[~down])
        state.tiers[Tier.SPILL].counters.note_shed(reason, shed)
        rows, dropped = rows[down], dropped + shed
    return rows, dropped > 0


def _within_rate(state: State, rows: I64Array) -> Mask:
    return np.full(len(rows), state.storing.allowance.spare)


def free_rows(state: State, wanted: int, guard: I64Array) -> None:
    """Makes room in the catalog, as far as it can: forgets what others stored, then drops blocks from the lowest
    tier up, first those that have one copy, then those that have more, which take a row as well."""
    state.guard(guard)
    try:
        wanted -= _forget_loans(state, wanted)
        wanted -= forget_found(state, wanted)
        for able in (_absent, _may_go):
            for tier in reversed(state.tiers.values()):
                wanted -= _drop_blocks(state, tier, wanted, able)
    finally:
        state.unguard(guard)


def _forget_loans(state: State, wanted: int) -> int:
    """Forgets blocks of which there are lent copies only, the longest unused first; returns how many."""
    forgotten = 0
    for tier in state.tiers.values():
        lent = np.flatnonzero(tier.copies.loans.lender) if len(tier.copies.loans) else np.empty(0, np.int64)
        others = [other for other in state.tiers.values() if other is not tier]
        for other in others:
            lent = lent[_absent(state, other, lent)]
        lent = lent[~state.protected(tier, lent) & (state.kept.until[lent] == 0)]
        lent = lent[np.argsort(state.catalog.last[lent], kind="stable")][: max(0, wanted - forgotten)]
        state.drop(tier, lent)
        forgotten += len(lent)
    return forgotten


def _drop_blocks(
    state: State, tier: TierState, wanted: int, able: Callable[[State, TierState, I64Array], NDArray[np.bool_]]
) -> int:
    """Drops this tier's victims altogether where each other tier is `able` to; returns how many."""
    others = [other for other in state.tiers.values() if other is not tier]
    spared, dropped = np.empty(0, np.int64), 0
    while dropped < wanted and len(chosen := state.choose(tier, wanted - dropped)):
        goes = state.kept.until[chosen] == 0
        for other in others:
            goes &= able(state, other, chosen)
        spared, chosen = np.concatenate([spared, chosen[~goes]]), chosen[goes]
        for other in others:
            state.drop(other, chosen[other.copies.ready(chosen)])
        drop_chosen(state, tier, chosen)
        dropped += len(chosen)
    state.spare(tier, spared)
    return dropped


def _absent(state: State, tier: TierState, rows: I64Array) -> NDArray[np.bool_]:
    del state
    found: NDArray[np.bool_] = tier.copies.state[rows] == STATE_ABSENT
    return found


def _may_go(state: State, tier: TierState, rows: I64Array) -> NDArray[np.bool_]:
    """Rows without a copy in this tier, or with one that could be a victim."""
    free = tier.copies.ready(rows) & ~state.protected(tier, rows)
    if state.policy.common.leaf_only:
        free &= tier.children[rows] == 0
    return free | _absent(state, tier, rows)


def by_size(state: State, rows: I64Array) -> list[tuple[int, I64Array]]:
    """Rows by the size of their blocks; the order among equals stays."""
    sizes = state.catalog.size[rows]
    return [(size, rows[sizes == size]) for size in np.unique(sizes).tolist()]


def start_moves(
    state: State, source: TierState, target: TierState, rows: I64Array, addresses: list[int], like: MoveInFlight
) -> list[int]:
    """Begins one move per row into the slots given; returns their numbers."""
    ops = [state.next_move() for _ in addresses]
    if not ops:
        return ops
    state.reserve(target, rows, addresses, [-op for op in ops])
    source.copies.moves[rows] += 1
    leave = (like.source,) if like.chosen else like.leave
    for op, row, touches in zip(ops, rows.tolist(), state.catalog.touches[rows].tolist(), strict=True):
        state.moves[op] = MoveInFlight(
            row, source.tier, target.tier, leave, like.chosen, like.allow_drop, touches, ahead=like.ahead
        )
    if like.chosen:
        source.leaving.update(rows.tolist())
    if Tier.SPILL in (source.tier, target.tier):
        state.storing.allowance.take(int(state.catalog.size[rows].sum()))
    state.effects += _described(state, ops, rows, source, target, addresses, ahead=like.ahead)
    return ops


def _described(
    state: State, ops: list[int], rows: I64Array, source: TierState, target: TierState, addresses: list[int],
    *, ahead: bool,
) -> list[Move]:
    """A column of all moves for each field: row by row a field costs as much as here for all of them."""
    catalog, loans = state.catalog, source.copies.loans
    parents = catalog.parents(rows)
    named = zip(parents.tolist(), catalog.identity[parents], strict=True)
    columns = (
        catalog.namespace, catalog.group, catalog.position, catalog.size, catalog.checksum, source.copies.address,
        loans.lender, loans.fence,
    )
    described = zip(
        ops, (identity.tobytes() for identity in catalog.identity[rows]),
        (None if parent == NO_ROW else identity.tobytes() for parent, identity in named), addresses,
        each_record(catalog, rows), *(column[rows].tolist() for column in columns), strict=True,
    )
    return [
        Move(
            op, identity, namespace, group, position, parent, size, checksum, source.tier, source_address,
            target.tier, address, record, lender, fence, ahead,
        )
        for op, identity, parent, address, record, namespace, group, position, size, checksum, source_address,
        lender, fence in described
    ]


def moves_from(state: State, tier: TierState, rows: I64Array) -> set[int]:
    """Moves under way whose source is the copy of one of these rows in this tier."""
    wanted = set(rows.tolist())
    return {op for op, move in state.moves.items() if move.source == tier.tier and move.row in wanted}


def bring(state: State, rows: I64Array, target: TierState, guard: I64Array) -> tuple[I64Array, set[int]]:
    """Begins to copy rows, which are distinct and have a READY copy elsewhere, into `target`.

    Returns those for which there is no room and none to come, and the moves that the others wait for.
    """
    waiting: set[int] = set()
    full: list[int] = []
    rows = _not_under_way(state, target, rows, waiting)
    for source in _sources(state, target):
        here = source.copies.ready(rows) & ~source.copies.loans.recalled[rows]
        mine, rows = rows[here], rows[~here]
        if len(mine) and (source.tier != Tier.SPILL or state.spill_up):
            full += _bring_from(state, source, target, mine, guard, waiting)
    return np.array(full, np.int64), waiting


def _not_under_way(state: State, target: TierState, rows: I64Array, waiting: set[int]) -> I64Array:
    """Leaves out what is FILLING there already; a move is waited for, a session's write is not."""
    writers = [target.copies.writer.get(row, 0) for row in rows.tolist()]
    ops = [-writer for writer in writers if writer < 0]
    _hurry(state, [op for op in ops if state.moves[op].ahead])
    waiting |= set(ops)
    still: I64Array = rows[np.array([writer == 0 for writer in writers], bool)]
    return still


def _hurry(state: State, ops: list[int]) -> None:
    """Moves ahead are waited for from now on."""
    for op in ops:
        state.moves[op].ahead = False
    if ops:
        state.effects.append(Hurry(tuple(ops)))


def _sources(state: State, target: TierState) -> list[TierState]:
    """Where a copy may come from, the cheapest first: arenas, then spill."""
    others = [tier for tier in state.tiers.values() if tier is not target]
    return sorted(others, key=lambda tier: (tier.tier == Tier.SPILL, -tier.tier))


def _bring_from(
    state: State, source: TierState, target: TierState, rows: I64Array, guard: I64Array, waiting: set[int]
) -> list[int]:
    full: list[int] = []
    able = max(0, state.settings.max_moves - len(state.moves))
    rows, later = rows[:able], rows[able:]
    like = MoveInFlight(0, source.tier, target.tier)
    for size, of in by_size(state, rows):
        room = obtain_for_moves(state, target, size, len(of), guard)
        started, left = of[: len(room.addresses)], of[len(room.addresses) :]
        waiting |= set(start_moves(state, source, target, started, room.addresses, like))
        waiting |= room.waiting
        if not room.waiting:
            full += left.tolist()
    if len(later):
        waiting |= set(state.moves)
        # None of those before could begin, and there is nothing to wait for: these would fare no better.
        full += later.tolist() if not state.moves else []
    return full


def finish(state: State, results: Iterable[MoveResult]) -> None:
    """The shell has carried out moves, or could not. Copies that arrive alike, nearly all, do so together."""
    alike: dict[tuple[Tier, Tier, tuple[Tier, ...]], list[MoveInFlight]] = {}
    for result in results:
        move = state.moves.pop(result.op, None)
        if move is None:
            continue
        if not result.ok or result.found or move.chosen or move.void or state.tiers[move.source].copies.loans:
            _finish_one(state, move, result)
        else:
            alike.setdefault((move.source, move.target, move.leave), []).append(move)
    for moves in alike.values():
        source, rows = state.tiers[moves[0].source], np.array([move.row for move in moves])
        source.copies.moves[rows] -= 1
        _arrived(state, moves, source, state.tiers[moves[0].target], rows)


def _finish_one(state: State, move: MoveInFlight, result: MoveResult) -> None:
    row, rows = move.row, np.array([move.row])
    source, target = state.tiers[move.source], state.tiers[move.target]
    source.copies.moves[row] -= 1
    if move.chosen:
        source.leaving.discard(row)
    lent = source.copies.on_loan(rows)[0]
    if result.ok and lent and not _same_content(state, source, target, row, result.checksum):
        result = result._replace(ok=False, lost=True)
    if result.ok and not (move.void and target.tier == Tier.SPILL):
        if result.found:
            state.disown(target, rows)
        _arrived(state, [move], source, target, rows)
    else:
        _failed(state, move, source, target, rows, result)
    if move.void and source.copies.ready(rows)[0] and source.tier == Tier.SPILL and not source.copies.moves[row]:
        state.drop(source, rows, unlink=False)
    if source.copies.loans.recalled[row] and not source.copies.moves[row]:
        state.drop(source, rows)


def _same_content(state: State, source: TierState, target: TierState, row: int, checksum: int) -> bool:
    """Whether bytes that came from a lent page, whose checksum nobody knew, are those of the identity. Where no
    other copy says what they are, they are."""
    catalog, rows = state.catalog, np.array([row])
    others = [tier for tier in state.tiers.values() if tier not in (source, target)]
    if any(tier.copies.ready(rows)[0] for tier in others):
        return int(catalog.checksum[row]) == checksum
    with catalog.writing(rows):
        catalog.checksum[row] = checksum
    return True


def _arrived(
    state: State, moves: Sequence[MoveInFlight], source: TierState, target: TierState, rows: I64Array
) -> None:
    """Moves that differ in their rows only; a victim's comes alone."""
    state.publish(target, rows)
    if target.tier == Tier.SPILL:
        state.outage.store_succeeded()
        state.storing.unstated[rows] = state.catalog.touches[rows] != [move.touches for move in moves]
    if target.tier > source.tier:
        source.counters.demoted += len(rows)
    else:
        target.counters.promoted += len(rows)
    if moves[0].chosen:
        if _may_leave(state, source, rows, moves[0].touches):
            state.note_evicted(source, rows)
            state.drop(source, rows, chosen=True)
        else:
            state.spare(source, rows)
        return
    source.victims.put_back(rows)
    _leave(state, moves[0], rows)


def _leave(state: State, move: MoveInFlight, rows: I64Array) -> None:
    """Drops the copies that go when a move has ended, unless somebody has taken them up."""
    for number in move.leave:
        tier = state.tiers[number]
        state.drop(tier, rows[tier.copies.ready(rows) & ~state.protected(tier, rows)])


def _may_leave(state: State, source: TierState, rows: I64Array, touches: int) -> bool:
    """Whether a victim that now lies below is still one: nobody took it up, no child stayed behind."""
    if state.protected(source, rows)[0] or state.catalog.touches[rows[0]] != touches:
        return False
    return bool(_leave_no_child(state, source, rows)[0])


def _failed(
    state: State, move: MoveInFlight, source: TierState, target: TierState, rows: I64Array, result: MoveResult
) -> None:
    source.counters.failed_moves += 1
    state.abandon(target, rows)
    now_s, in_vain = state.clock.wall_s, target.tier == Tier.SPILL and not result.lost
    if result.full or (in_vain and state.outage.is_too_long(now_s)):
        target.copies.believe_full(now_s)
    if in_vain and not result.full:
        state.outage.store_failed(now_s)
    if move.chosen:
        state.spare(source, rows)
    else:
        source.victims.put_back(rows)
    if result.lost:
        # Pins of running sequences do not keep what is gone; a lease or another move still reads the slot.
        if not source.copies.moves[move.row] and not source.copies.leases[move.row]:
            if result.damaged and not move.void and source.tier == Tier.SPILL:
                state.unlink(rows)
            state.drop(source, rows, unlink=False)
        return
    if (move.leave or move.target == Tier.SPILL) and not move.chosen:
        _asked_move_failed(state, move, rows)


def _asked_move_failed(state: State, move: MoveInFlight, rows: I64Array) -> None:
    if not move.allow_drop or state.kept.until[move.row]:
        if len(state.failed) >= MOST_FAILED:
            state.failed.pop(next(iter(state.failed)))
        state.failed[move.row, int(state.catalog.birth[move.row])] = move.target
        return
    _leave(state, move, rows)


def have_failed(state: State, rows: I64Array, target: Tier, *, retry: bool) -> Mask:
    """Rows whose move to a tier has failed since the first call of a request, which forgets of earlier failures."""
    keys = [(row, int(state.catalog.birth[row])) for row in rows.tolist()]
    failed: Mask = np.array([state.failed.pop(key, None) == target for key in keys], bool)
    return failed & retry
