"""Budgets of sequences: a cap on the blocks of one in hbm, and slots that it re-uses in place.

A block that is over its sequence's budget is copied down or, where the sequence is lossy, given up. Its slot does
not become free: the sequence's next block gets it. What others hold too stays where it is and counts no more; what
a lossy sequence found is the cache's, and stays as well. Never chosen is what is leased, pinned, being written or
copied.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tierd.core.arrays import Mask
from tierd.core.budget_messages import Budget, BudgetSet, Residency
from tierd.core.errors import InvalidInput, LimitReached
from tierd.core.hashindex import NO_ROW
from tierd.core.holders import hold, let_go, refuse_above_most_held
from tierd.core.ledger import MOST_BLOCKS, Ledger, policy_of
from tierd.core.messages import Ids, Tier
from tierd.core.room import Room, bring, held_below, moves_from, obtain
from tierd.core.state import State, TierState, split
from tierd.core.underway import Sequence
from tierd_client.format import STATE_ABSENT, I64Array, U8Array

KEPT, AWAY, LEAVING, GIVEN_UP = (one.value for one in Residency)


def check(state: State, sequence: Sequence, budget: Budget) -> None:
    """InvalidInput or Refused when a sequence cannot have this budget."""
    state.tier(Tier.HBM, "budget")
    if sequence.ledger is not None:
        sequence.ledger.check(budget)
        return
    policy_of(budget)
    _check_length(len(sequence.blocks))
    _check_chain(sequence.blocks)
    if len(sequence.held) > len(sequence.blocks):
        raise InvalidInput("others", "a sequence with a budget has one chain, and no blocks of other groups")


def _check_length(blocks: int) -> None:
    if blocks > MOST_BLOCKS:
        raise LimitReached(f"blocks: {blocks} in a sequence with a budget, more than {MOST_BLOCKS}")


def _check_chain(blocks: Ids) -> None:
    if not blocks.chain:
        raise InvalidInput("blocks.chain", "false: a budget goes by the places of blocks in a chain")


def give(state: State, key: tuple[int, str], sequence: Sequence, budget: Budget) -> None:
    """A sequence has this budget from now on, which was checked. What of it lies in hbm is kept, until `trim`."""
    if sequence.ledger is not None:
        sequence.ledger.change(budget)
        return
    sequence.ledger, state.budgeted[key] = Ledger(budget), sequence
    sequence.ledger.grow(len(sequence.blocks))
    in_hbm = _in_hbm(state.ready_tiers(state.find(sequence.blocks)))
    sequence.ledger.take_in(np.arange(len(sequence.blocks)), in_hbm, sequence.found)


def end(state: State, key: tuple[int, str]) -> None:
    """The budget of a sequence that closes: slots in hand are free, copies down go on as any others."""
    sequence = state.budgeted.pop(key, None)
    if sequence is None or sequence.ledger is None:
        return
    _give_back_slots(state, sequence.ledger, len(sequence.ledger.slots))
    sequence.ledger = None


def take_in(state: State, sequence: Sequence | None, tier: TierState, blocks: Ids) -> bool:
    """A sequence stores blocks: where it has a budget it holds them from now on, also those behind its last one.
    True when they come into hbm under the budget. InvalidInput when they are not where its chain goes on."""
    if sequence is None or sequence.ledger is None or not covers(sequence, tier, blocks):
        return False
    _check_chain(blocks)
    _hold(state, sequence, sequence.ledger, blocks)
    return tier.tier == Tier.HBM


def covers(sequence: Sequence | None, tier: TierState, blocks: Ids) -> bool:
    """Whether a sequence has a budget that is about these blocks, on their way into this tier. Free-standing ones
    are no part of its chain, and so may not come into hbm."""
    if sequence is None or sequence.ledger is None:
        return False
    own = sequence.blocks
    is_own = (own.namespace, own.group) == (blocks.namespace, blocks.group)
    return is_own and (blocks.chain or tier.tier == Tier.HBM)


def _hold(state: State, sequence: Sequence, ledger: Ledger, blocks: Ids) -> None:
    own = sequence.blocks
    places = blocks.positions() - own.position
    inside = (places >= 0) & (places < len(own))
    if not np.array_equal(own.ids[places[inside]], blocks.ids[inside]):
        raise InvalidInput("blocks.ids", "are not those of the sequence at their positions")
    further = np.flatnonzero(~inside)
    if not np.array_equal(places[further], len(own) + np.arange(len(further))):
        raise InvalidInput("blocks.position", f"leaves a gap behind the {len(own)} blocks of the sequence")
    held = places[inside]
    missing = np.concatenate([held[ledger.residency[held] == GIVEN_UP], places[further]])
    if not len(missing):
        return
    _check_length(len(own) + len(further))
    refuse_above_most_held(state, len(missing))
    sequence.blocks = replace(own, ids=np.concatenate([own.ids, blocks.ids[further]]))
    ledger.grow(len(further))
    ids = np.ascontiguousarray(sequence.blocks.ids[missing])
    rows = state.catalog.find(ids)
    hold(state, ids, rows)
    tiers = state.ready_tiers(rows)
    ledger.take_in(missing, _in_hbm(tiers), tiers != 0)
    _note_held(sequence, ledger)


def _in_hbm(tiers: U8Array) -> Mask:
    kept: Mask = tiers & np.uint8(1 << (Tier.HBM - 1)) != 0
    return kept


def _note_held(sequence: Sequence, ledger: Ledger) -> None:
    sequence.held = np.ascontiguousarray(sequence.blocks.ids[ledger.residency != GIVEN_UP])


def make_room(state: State, sequence: Sequence, size: int, count: int, named: I64Array) -> Room:
    """Slots in hbm for the next blocks of a sequence, as far as its budget goes: first those that others of it have
    left. At once no more than `recent_blocks` come over the cap: of more nothing is known by which they could stay.
    `named`: rows that do not go for them."""
    tier, ledger = state.tiers[Tier.HBM], sequence.ledger
    assert ledger is not None
    trim(state, sequence, named=named)
    soon = max(0, ledger.room + ledger.count(Residency.LEAVING))
    trim(state, sequence, min(count, soon + ledger.budget.recent_blocks), named)
    able = max(0, min(count, ledger.room))
    own = ledger.slots[:able]
    del ledger.slots[:able]
    tier.copies.end_borrow(ledger.slot_bytes, own)
    room = Room(own + tier.copies.allocate(size, able - len(own)))
    if len(room.addresses) < able:
        room = obtain(state, tier, size, able, named, room)
    if able < count:
        leaving = state.catalog.find(sequence.blocks.ids[ledger.places(Residency.LEAVING)])
        room.waiting |= moves_from(state, tier, leaving)
    return room


def come(sequence: Sequence, blocks: Ids, granted: I64Array) -> None:
    """Blocks at these places of a request have slots in hbm."""
    assert sequence.ledger is not None
    sequence.ledger.residency[blocks.positions()[granted] - sequence.blocks.position] = KEPT


def told(state: State, sequence: Sequence) -> BudgetSet:
    """Where the blocks of a sequence with a budget are."""
    ledger = sequence.ledger
    assert ledger is not None
    leaving = state.catalog.find(sequence.blocks.ids[ledger.places(Residency.LEAVING)])
    waiting = moves_from(state, state.tiers[Tier.HBM], leaving)
    return BudgetSet(ledger.budget, ledger.residency.astype(np.int8), tuple(sorted(waiting)))


def settle(state: State) -> None:
    """Moves have ended: what was copied down leaves. Where something left the next go; where nothing did, copies
    fail, and whoever asks next tries again."""
    tier = state.tiers.get(Tier.HBM)
    for sequence in state.budgeted.values():
        ledger = sequence.ledger
        assert tier is not None and ledger is not None
        if not ledger.count(Residency.LEAVING):
            continue
        some_left = _arrive(state, tier, ledger, _look(state, tier, sequence, ledger))
        _give_back_surplus(state, ledger)
        if some_left:
            trim(state, sequence)


def trim(state: State, sequence: Sequence, coming: int = 0, named: I64Array | None = None) -> None:
    """Lets go what is over the budget, with `coming` blocks more, but for rows that they are `named` with."""
    tier, ledger = state.tiers[Tier.HBM], sequence.ledger
    assert ledger is not None
    rows = _look(state, tier, sequence, ledger)
    _arrive(state, tier, ledger, rows)
    kept = ledger.places(Residency.KEPT)
    over = len(kept) + coming - ledger.budget.blocks
    if over > 0:
        able = _able(state, tier, rows[kept]) & ~np.isin(rows[kept], [] if named is None else named)
        going = ledger.choose(kept, able, over, coming)
        _depart(state, tier, sequence, ledger, rows, going)
    _give_back_surplus(state, ledger)


def _able(state: State, tier: TierState, rows: I64Array) -> Mask:
    """Which of these copies in hbm may go at all."""
    copies = tier.copies
    idle: Mask = copies.ready(rows) & (copies.leases[rows] == 0) & (copies.moves[rows] == 0)
    idle &= state.kept.until[rows] == 0
    return idle


def _look(state: State, tier: TierState, sequence: Sequence, ledger: Ledger) -> I64Array:
    """The rows of a sequence's blocks. What was kept and is not there is AWAY: its write was given up, or it was
    found damaged. What is there and others held until now counts again."""
    rows = state.find(sequence.blocks)
    here = (rows != NO_ROW) & (tier.copies.state[rows] != STATE_ABSENT)
    residency = ledger.residency
    residency[((residency == KEPT) | (residency == LEAVING)) & ~here] = AWAY
    residency[(residency == AWAY) & here & tier.copies.own(rows) & (state.pins[rows] == 1)] = KEPT
    return rows


def _arrive(state: State, tier: TierState, ledger: Ledger, rows: I64Array) -> bool:
    """What was copied down leaves; what could not be, or is in use, is kept still. True when some left."""
    leaving = ledger.places(Residency.LEAVING)
    ended = leaving[tier.copies.moves[rows[leaving]] == 0]
    ledger.residency[ended] = KEPT
    able = _able(state, tier, rows[ended]) & held_below(state, tier, rows[ended])
    others = _others(state, tier, rows[ended])
    ledger.residency[ended[others]] = AWAY
    _vacate(state, tier, ledger, rows, ended[able & ~others])
    return bool(np.count_nonzero(able & ~others))


def _others(state: State, tier: TierState, rows: I64Array) -> Mask:
    """Which of these another sequence holds too, or an engine lends: neither is this sequence's to move."""
    shared: Mask = (state.pins[rows] > 1) | tier.copies.on_loan(rows)
    return shared


def _depart(
    state: State, tier: TierState, sequence: Sequence, ledger: Ledger, rows: I64Array, going: I64Array
) -> None:
    """These places are over the budget."""
    others = _others(state, tier, rows[going])
    if ledger.budget.lossy:
        gone = rows[going[~others & ~ledger.found[going]]]
        ledger.residency[going] = GIVEN_UP
        let_go(state, np.ascontiguousarray(sequence.blocks.ids[going]))
        _note_held(sequence, ledger)
        _keep_slots(state, tier, ledger, gone)
        return
    ledger.residency[going[others]] = AWAY
    mine = going[~others]
    below = held_below(state, tier, rows[mine])
    _vacate(state, tier, ledger, rows, mine[below])
    _demote(state, tier, ledger, rows, mine[~below])


def _demote(state: State, tier: TierState, ledger: Ledger, rows: I64Array, going: I64Array) -> None:
    """Begins to copy blocks down; those for which there is no room below stay."""
    target = state.destination(tier)
    if not len(going) or target is None or (target.tier == Tier.SPILL and not state.spill_up):
        return
    full, _ = bring(state, rows[going], target, rows[going])
    ledger.residency[going[~np.isin(rows[going], full)]] = LEAVING


def _vacate(state: State, tier: TierState, ledger: Ledger, rows: I64Array, places: I64Array) -> None:
    """Blocks that lie below too leave hbm."""
    ledger.residency[places] = AWAY
    _keep_slots(state, tier, ledger, rows[places])


def _keep_slots(state: State, tier: TierState, ledger: Ledger, rows: I64Array) -> None:
    """Copies end; their slots are for the sequence's next blocks."""
    if len(rows):
        tier.counters.over_budget += len(rows)
        ledger.slot_bytes = int(state.slot_bytes_of(rows[:1]))
        ledger.slots += state.vacate(tier, rows)


def _give_back_surplus(state: State, ledger: Ledger) -> None:
    """Slots for which the budget has no room are free."""
    _give_back_slots(state, ledger, len(ledger.slots) - max(0, ledger.room))


def _give_back_slots(state: State, ledger: Ledger, count: int) -> None:
    if count > 0:
        state.tiers[Tier.HBM].copies.give_back_borrowed(ledger.slot_bytes, ledger.slots[:count])
        del ledger.slots[:count]


def bring_within_budgets(
    state: State, rows: I64Array, target: TierState, guard: I64Array
) -> tuple[I64Array, set[int]]:
    """As `bring`; what is over the budget of the one sequence that holds it does not come back into hbm."""
    barred = np.zeros(len(rows), bool)
    if state.budgeted and target.tier == Tier.HBM:
        barred = _only_of_budgets(state, rows)
    full, waiting = bring(state, rows[~barred], target, guard)
    return np.concatenate([full, rows[barred]]), waiting


def _only_of_budgets(state: State, rows: I64Array) -> Mask:
    """Which of these rows one sequence alone holds, that has a budget and does not keep them in hbm."""
    barred = np.zeros(len(rows), bool)
    catalog, alone = state.catalog, np.flatnonzero(state.pins[rows] == 1)
    for sequence in state.budgeted.values():
        ledger = sequence.ledger
        assert ledger is not None
        places = catalog.position[rows[alone]].astype(np.int64) - sequence.blocks.position
        inside = (places >= 0) & (places < len(sequence.blocks))
        of, places = alone[inside], places[inside]
        same = (catalog.identity[rows[of]] == sequence.blocks.ids[places]).all(axis=1)
        barred[of] |= same & (ledger.residency[places] == AWAY)
    return barred


def departures(state: State) -> dict[bytes, tuple[str, Ledger, int]]:
    """Blocks that left hbm by the budget of an open sequence: its name and books, and the block's place in them."""
    found = {}
    for (_, name), sequence in state.budgeted.items():
        ledger = sequence.ledger
        assert ledger is not None
        left = np.flatnonzero((ledger.residency != KEPT) & ~np.isnan(ledger.worth_left))
        for place, identity in zip(left.tolist(), split(sequence.blocks.ids[left]), strict=True):
            found[identity] = name, ledger, place
    return found


def in_hbm(sequence: Sequence) -> int:
    """Blocks in hbm that count for the budget of a sequence."""
    ledger = sequence.ledger
    return 0 if ledger is None else ledger.budget.blocks - ledger.room
