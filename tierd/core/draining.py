"""Draining: what lies in arenas alone is stored in the spill tier as well, the blocks worth most first.

The copies above stay. Room in the spill tier is made of blocks that are worth less, never of those that are worth
as much: else a drain of more than it holds would throw out at its end what it stored at its beginning.
"""

from __future__ import annotations

import numpy as np

from tierd.core.arena import slot_bytes
from tierd.core.explain import in_rank_order, rank_of
from tierd.core.hashindex import NO_ROW
from tierd.core.messages import Drainable, Drained, ListDrainable, Outcomes, StoreBelow, Tier
from tierd.core.moving import select
from tierd.core.room import bring
from tierd.core.state import State, TierState
from tierd_client.format import I64Array


def list_drainable(state: State, command: ListDrainable) -> Drainable:
    spill = state.tier(Tier.SPILL)
    rows = select(state, command.where)
    held = spill.copies.ready(rows)
    order, seen = [np.empty(0, np.int64)], np.zeros(state.catalog.capacity, bool)
    for tier in state.tiers.values():
        if tier is not spill:
            mine = rows[~held & tier.copies.ready(rows) & ~seen[rows]]
            seen[mine] = True
            order.append(in_rank_order(state, tier, mine)[::-1])
    chosen = np.concatenate(order)
    return Drainable(state.catalog.identity[chosen], state.catalog.size[chosen], int(np.count_nonzero(held)))


def store_below(state: State, command: StoreBelow) -> Outcomes:
    spill = state.tier(Tier.SPILL)
    rows = state.catalog.find(command.ids)
    outcomes = np.full(len(rows), Drained.MISS, np.int8)
    known = np.flatnonzero((rows != NO_ROW) & (state.ready_tiers(rows) != 0))
    outcomes[known] = np.where(spill.copies.ready(rows[known]), Drained.STORED, Drained.PENDING)
    rest = known[outcomes[known] == Drained.PENDING]
    outcomes[rest[_failed(state, rows[rest], command.retry)]] = Drained.FAILED
    rest = rest[outcomes[rest] == Drained.PENDING]
    under_way = np.array([spill.copies.writer.get(row, 0) != 0 for row in rows[rest].tolist()], bool)
    if not state.spill_up:
        outcomes[rest[~under_way]] = Drained.FAILED
    elif len(rest) and not under_way.all() and not _worth_a_place(state, spill, rows[rest[~under_way]]):
        outcomes[rest[~under_way]] = Drained.FULL
    rest = rest[outcomes[rest] == Drained.PENDING]
    full, waiting = bring(state, rows[rest], spill, rows[rest])
    outcomes[rest[np.isin(rows[rest], full)]] = Drained.FULL
    return Outcomes(outcomes, tuple(sorted(waiting)))


def _failed(state: State, rows: I64Array, retry: bool) -> I64Array:
    """Places of those whose move has failed since the first call, which forgets of earlier failures."""
    keys = [(row, int(state.catalog.birth[row])) for row in rows.tolist()]
    failed = [place for place, key in enumerate(keys) if state.failed.pop(key, None) == Tier.SPILL]
    return np.array(failed if retry else [], np.int64)


def _worth_a_place(state: State, spill: TierState, rows: I64Array) -> bool:
    """Whether there is room for one of these, or a victim that is worth less than all of them."""
    if spill.copies.free >= slot_bytes(int(state.catalog.size[rows].max())):
        return True
    victims = state.choose(spill, 1)
    if not len(victims):
        return False
    state.spare(spill, victims)
    return rank_of(state, spill, int(victims[0])) > max(rank_of(state, spill, row) for row in rows.tolist())
