"""AddFound: blocks that others, or an earlier life of this daemon, left in the spill store; TakeStatistics: what
they are to know of the blocks there.

A copy of another's is FOUND: it is read and promoted as any other, but takes no room of this daemon's limit, has
no place in the order of eviction, and is forgotten, never deleted. One of this instance is its own again.
"""

from __future__ import annotations

import numpy as np

from tierd.core import statistics
from tierd.core.copies import FOUND
from tierd.core.gaps import made_sound
from tierd.core.ghosts import Records
from tierd.core.hashindex import NO_ROW
from tierd.core.lineage import ghosts_of
from tierd.core.messages import AddFound, Done, Record, Taken, TakeStatistics, Tier
from tierd.core.policy.base import ranks_of
from tierd.core.state import State, TierState, split
from tierd_client.format import STATE_ABSENT, STATE_READY, I64Array, U8Array

FOUND_SHARE = 2
"""FOUND copies alone take at most one row of the catalog in so many."""
FORGET_SHARE = 8
"""Where some must be forgotten, at least one in so many is: the search looks at all rows."""


def add_found(state: State, command: AddFound) -> Done:
    """Takes over those that are not known; how many. Fewer than were named where rows are short."""
    spill = state.tier(Tier.SPILL)
    blocks = command.blocks
    rows = state.catalog.find(blocks.ids)
    fresh = _distinct(blocks.ids, np.flatnonzero(rows == NO_ROW))
    if not state.spill_up or not len(fresh):
        return Done()
    _make_rows(state, spill, len(fresh))
    fresh = fresh[: state.catalog.free_rows]
    mine = rows[fresh] = state.create_rows(blocks, fresh, ghosts_of(state, blocks.ids, rows), command.size)
    with state.catalog.writing(mine):
        state.catalog.checksum[mine] = command.checksums[fresh]
    _remember(state, mine, [command.records[place] for place in fresh.tolist()])
    state.link(blocks, rows)
    addresses = np.full(len(fresh), FOUND)
    own = np.flatnonzero(command.own[fresh])
    room = spill.copies.allocate(command.size, len(own))
    addresses[own[: len(room)]] = room
    state.reserve(spill, mine, addresses.tolist(), writer=0)
    state.publish(spill, mine)
    return Done(len(mine))


def _distinct(ids: U8Array, places: I64Array) -> I64Array:
    first: dict[bytes, int] = {}
    for place, identity in zip(places.tolist(), split(ids[places]), strict=True):
        first.setdefault(identity, place)
    return np.array(list(first.values()), np.int64)


def _make_rows(state: State, spill: TierState, wanted: int) -> None:
    over = spill.copies.found_blocks + wanted - state.catalog.capacity // FOUND_SHARE
    short = wanted - state.catalog.free_rows
    if max(over, short) > 0:
        forget_found(state, max(over, short))


def forget_found(state: State, wanted: int) -> int:
    """Forgets FOUND copies that are their blocks' only ones, lowest ranked first: they can be found again.

    At least `wanted`, as far as there are so many; how many.
    """
    spill = state.tiers.get(Tier.SPILL)
    if spill is None or not spill.copies.found_blocks:
        return 0
    copies = spill.copies
    alone = (copies.state == STATE_READY) & (copies.address == FOUND)
    for tier in state.tiers.values():
        alone &= (tier is spill) | (tier.copies.state == STATE_ABSENT)
    rows = np.flatnonzero(alone)
    rows = rows[~state.protected(spill, rows)]
    ranks = ranks_of(state.policy, statistics.StatsOf(state.catalog, rows), state.moment(spill))
    rows = rows[np.argsort(-ranks, kind="stable")[: max(wanted, len(rows) // FORGET_SHARE)]]
    state.drop(spill, rows)
    return len(rows)


def _remember(state: State, rows: I64Array, records: list[Record]) -> None:
    """Gives new rows the statistics that came with them, where those are newer than what is remembered."""
    column = {name: np.array([getattr(record, name) for record in records]) for name in Record._fields}
    newer = column["wall"] > state.catalog.wall[rows]
    wall = np.minimum(column["wall"][newer], state.clock.wall_s)
    touches = np.minimum(column["touches"][newer], 2**32 - 1).astype(np.uint32)
    unit = ~column["weighted"][newer].astype(bool)
    ema = np.clip(column["ema"][newer], 0.0, 1.0)
    ema[unit] = statistics.unit_ema(touches[unit], state.policy.common.alpha)
    crf = np.maximum(column["crf"][newer], 0.0)
    learnt = made_sound(column["learnt"][newer])
    found = Records(touches, state.clock.converted(wall), wall, ema, crf, unit, learnt)
    statistics.restore(state.catalog, rows[newer], found)


def take_statistics(state: State, command: TakeStatistics) -> Taken:
    spill = state.tier(Tier.SPILL)
    rows = np.flatnonzero(state.storing.unstated & (spill.copies.state == STATE_READY))
    rows = rows[np.argsort(state.catalog.wall[rows], kind="stable")[: command.limit]]
    state.storing.unstated[rows] = False
    identities = split(state.catalog.identity[rows])
    records = statistics.each_record(state.catalog, rows)
    return Taken(list(zip(state.catalog.namespace[rows].tolist(), identities, records, strict=True)))
