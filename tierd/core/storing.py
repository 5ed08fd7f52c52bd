"""What goes to the spill store beside victims, and what is taken from it in time: stores ahead, and the watermarks.

`spill_ahead`: so many of the next victims are stored before anybody waits for their room.

`spill_write`: `on_evict` stores a block when it is evicted; `on_worth` as well, unless what would be deleted for it
is worth more (admission.py); `on_reuse` when it is accessed for the second time, and
drops what is evicted before that; `through` as soon as it is committed.
"""

from __future__ import annotations

import math

import numpy as np

from tierd.core.admission import worth_a_store
from tierd.core.arrays import indices
from tierd.core.messages import Tier
from tierd.core.room import by_size, drop_chosen, obtain_for_moves, start_moves, worth_storing
from tierd.core.state import ARENA_TIERS, State, TierState
from tierd.core.underway import MoveInFlight
from tierd_client.format import STATE_ABSENT, I64Array

AHEAD_SHARE = 4
"""Stores ahead take at most one of so many moves: loads and evictions have the others."""
LOOKS_PER_WINDOW = 4
"""The next victims are looked at anew when this part of them is gone."""
TRIM_BLOCKS = 256
"""Most copies that one command deletes for the watermarks."""


def settle(state: State) -> None:
    """At the end of each command: what it led to for the spill store."""
    touched, state.storing.touched = state.storing.touched, []
    if not state.is_on(Tier.SPILL):
        return
    if touched:
        _store_ahead(state, state.tiers[Tier.SPILL], np.unique(np.concatenate(touched)))
    _store_next_victims(state, state.tiers[Tier.SPILL])
    _trim(state, state.tiers[Tier.SPILL])
    state.tiers[Tier.SPILL].copies.return_to_limit()


def _store_ahead(state: State, spill: TierState, rows: I64Array) -> None:
    rows = rows[state.catalog.used[rows]]
    used = state.catalog.touches[rows] >= state.storing.stored_from
    rows = rows[(spill.copies.state[rows] == STATE_ABSENT) & used]
    if not state.spill_up or not len(rows):
        return
    for number in reversed(ARENA_TIERS):
        if number in state.tiers:
            here = state.tiers[number].copies.own(rows)  # not in a page that an engine may take back
            _store_from(state, state.tiers[number], spill, rows[here])
            rows = rows[~here]


def _store_from(state: State, source: TierState, spill: TierState, rows: I64Array) -> None:
    rows = rows[indices(source.copies.moves[rows] == 0)]
    if not state.storing.allowance.spare:
        spill.counters.note_shed("rate", len(rows))
        return
    able = max(0, state.settings.max_moves // AHEAD_SHARE - _ahead(state))
    spill.counters.note_shed("busy", len(rows[able:]))
    for size, of in by_size(state, rows[:able]):
        room = obtain_for_moves(state, spill, size, len(of), of)
        like = MoveInFlight(0, source.tier, Tier.SPILL)
        start_moves(state, source, spill, of[: len(room.addresses)], room.addresses, like)
        spill.counters.note_shed("full", len(of) - len(room.addresses))


def _store_next_victims(state: State, spill: TierState) -> None:
    """Where little is free above the spill tier, the next victims are stored, and stay: to make room they are only
    dropped, which waits for nobody."""
    storing = state.storing
    source = next((tier for tier in state.tiers.values() if state.destination(tier) is spill), None)
    if source is None or not state.spill_up or source.counters.evicted < storing.look_at:
        return
    copies = source.copies
    count = min(state.settings.spill_ahead, copies.blocks // 2)  # what is being stored cannot make room
    if not count or copies.free * copies.blocks >= count * copies.used or _ahead(state):
        return
    chosen = state.choose(source, count)
    state.spare(source, chosen)
    rows = chosen[worth_storing(state, chosen) & worth_a_store(state, chosen)]
    rows = rows[spill.copies.state[rows] == STATE_ABSENT]
    able = state.settings.max_moves // AHEAD_SHARE
    storing.look_at = source.counters.evicted + (max(1, count // LOOKS_PER_WINDOW) if len(rows) <= able else 0)
    _store_from(state, source, spill, rows[:able])


def _ahead(state: State) -> int:
    """Stores under way after which nothing is dropped."""
    return sum(move.target == Tier.SPILL and not move.leave for move in state.moves.values())


def _trim(state: State, spill: TierState) -> None:
    """Above the high watermark the lowest ranked copies are deleted, command by command, down to the low one."""
    copies, settings = spill.copies, state.settings
    most = min(copies.capacity, copies.limit)
    if copies.capacity - copies.free > settings.spill_high * most:
        state.storing.trimming = True
    if not state.storing.trimming:
        return
    left, low = TRIM_BLOCKS, settings.spill_low * most
    while left > 0 and (over := copies.capacity - copies.free - low) > 0:
        mean_bytes = max(1, copies.used) / max(1, copies.blocks - copies.found_blocks)
        chosen = state.choose(spill, min(left, math.ceil(over / mean_bytes)))
        if not len(chosen):
            break
        drop_chosen(state, spill, chosen)
        left -= len(chosen)
    state.storing.trimming = left <= 0
