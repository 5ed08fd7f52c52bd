"""Draining: what lies in arenas alone is stored in the spill tier as well, the blocks worth most first.

The copies above stay. Room in the spill tier is made of blocks that are worth less, never of those that are worth
as much: else a drain of more than it holds would throw out at its end what it stored at its beginning.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tierd.core.hashindex import NO_ROW
from tierd.core.messages import Drainable, Drained, ListDrainable, Outcomes, StoreBelow, Tier
from tierd.core.moving import select
from tierd.core.policy.base import ranks_of
from tierd.core.room import bring, have_failed
from tierd.core.standing import standings
from tierd.core.state import State, TierState
from tierd.core.statistics import StatsOf
from tierd_client.format import STATE_ABSENT, I64Array


def list_drainable(state: State, command: ListDrainable) -> Drainable:
    spill = state.tier(Tier.SPILL)
    rows = select(state, command.where)
    held = spill.copies.ready(rows)
    order, left = [np.empty(0, np.int64)], rows[~held]
    for tier in state.tiers.values():
        here = tier.copies.ready(left)
        order.append(_best_first(state, tier, left[here]))
        left = left[~here]
    chosen = np.concatenate(order)
    return Drainable(state.catalog.identity[chosen], state.catalog.size[chosen], int(np.count_nonzero(held)))


def store_below(state: State, command: StoreBelow) -> Outcomes:
    spill = state.tier(Tier.SPILL)
    rows = state.catalog.find(command.ids)
    outcomes = np.full(len(rows), Drained.MISS, np.int8)
    known = np.flatnonzero((rows != NO_ROW) & (state.ready_tiers(rows) != 0))
    outcomes[known] = np.where(spill.copies.ready(rows[known]), Drained.STORED, Drained.PENDING)
    rest = known[outcomes[known] == Drained.PENDING]
    outcomes[rest[have_failed(state, rows[rest], Tier.SPILL, retry=command.retry)]] = Drained.FAILED
    new = rest[(outcomes[rest] == Drained.PENDING) & (spill.copies.state[rows[rest]] == STATE_ABSENT)]
    if state.spill_up:
        outcomes[new[~_worth_a_place(state, spill, rows[new])]] = Drained.FULL
    else:
        outcomes[new] = Drained.FAILED
    rest = rest[outcomes[rest] == Drained.PENDING]
    full, waiting = bring(state, rows[rest], spill, rows[rest])
    outcomes[rest[np.isin(rows[rest], full)]] = Drained.FULL
    return Outcomes(outcomes, tuple(sorted(waiting)))


def _best_first(state: State, tier: TierState, rows: I64Array) -> I64Array:
    """Rows by what they are worth in a tier; of equals the shallower first."""
    ranks, standing = _worth(state, tier, rows)
    order: I64Array = rows[np.lexsort((state.catalog.position[rows], ranks, -standing))]
    return order


def _worth(state: State, tier: TierState, rows: I64Array) -> tuple[NDArray[np.float64], I64Array]:
    """What decides which goes first: a lower standing, of equals a higher rank."""
    ranks = ranks_of(state.policy, StatsOf(state.catalog, rows), state.moment(tier))
    return ranks, standings(state.catalog, rows)


def _worth_a_place(state: State, spill: TierState, rows: I64Array) -> NDArray[np.bool_]:
    """Which of these find room that is free, or are worth more than the next victim."""
    free: NDArray[np.bool_] = np.cumsum(spill.copies.footprints.each(state.catalog.size[rows])) <= spill.copies.free
    if free.all():
        return free
    victims = state.choose(spill, 1)
    if not len(victims):
        return free
    state.spare(spill, victims)
    ranks, standing = _worth(state, spill, np.concatenate([victims, rows]))
    free |= (standing[1:] > standing[0]) | ((standing[1:] == standing[0]) & (ranks[1:] < ranks[0]))
    return free
