"""Read-ahead: while a request reads the first blocks of a chain, the next are brought up from the spill tier.

Which come next is known from requests that named them. A load ahead takes no slot that is of use: a free one, or
that of a block which lies in the spill tier too and was idle for longer than what is evicted as a rule. It waits
behind all loads that are waited for, and is one of them as soon as somebody asks for the block.
"""

from __future__ import annotations

import numpy as np

from tierd.core.arena import slot_bytes
from tierd.core.hashindex import NO_ROW
from tierd.core.hints import expect
from tierd.core.messages import Ids, Tier
from tierd.core.room import by_size, drop_childless, held_below, start_moves
from tierd.core.state import State, TierState
from tierd.core.underway import MoveInFlight
from tierd_client.format import STATE_ABSENT, I64Array

BLOCKS_MAX = 64
"""Most blocks that are looked at behind those of a request."""
MOVES_SHARE = 4
"""Loads ahead are at most one of so many moves."""
UNREAD_SHARE = 4
"""What was brought up ahead and not read yet takes at most one of so many bytes of the tier, or is one block."""
HELD_S = 2.0
"""How long it is expected to be read."""


def read_ahead(state: State, blocks: Ids, rows: I64Array) -> None:
    """After a request for these blocks, whose `rows` are as far as they are known."""
    spill = state.tiers.get(Tier.SPILL)
    if spill is None or not spill.copies.blocks or not state.settings.read_ahead_bytes or not blocks.chain:
        return
    if not state.spill_up or not state.storing.allowance.spare or not len(rows) or rows[-1] == NO_ROW:
        return
    readable = state.readable()
    if readable and len(wanted := _wanted(state, spill, int(rows[-1]))):
        _load(state, spill, readable[-1], wanted, state.named(blocks, rows))


def _wanted(state: State, spill: TierState, row: int) -> I64Array:
    """Those of the blocks behind a row that can be loaded now, the next first."""
    rows = _following(state, row)
    below = spill.copies.ready(rows)
    for tier in state.tiers.values():
        below &= (tier is spill) | (tier.copies.state[rows] == STATE_ABSENT)
    if not below.any():
        return rows[:0]
    under_way, moves_max = sum(move.ahead for move in state.moves.values()), state.settings.max_moves
    able = min(moves_max - len(state.moves), moves_max // MOVES_SHARE - under_way)
    return rows[below][: max(0, able)]


def _following(state: State, row: int) -> I64Array:
    """The chain behind a row, as it was read last, within the bytes of the settings."""
    left, found = state.settings.read_ahead_bytes, list[int]()
    while len(found) < BLOCKS_MAX and (after := state.catalog.follower_of(row)) != NO_ROW:
        left -= int(state.catalog.size[after])
        if left < 0:
            break
        found.append(after)
        row = after
    return np.array(found, np.int64)


def _load(state: State, spill: TierState, target: TierState, rows: I64Array, guard: I64Array) -> None:
    for size, of in by_size(state, rows):
        most = max(1, target.copies.capacity // UNREAD_SHARE // slot_bytes(size))
        able = most - state.catalog.ahead.unread_blocks
        addresses = _slots(state, target, size, min(len(of), max(0, able)), guard)
        of = of[: len(addresses)]
        start_moves(state, spill, target, of, addresses, MoveInFlight(0, Tier.SPILL, target.tier, ahead=True))
        state.catalog.ahead.begin(of)
        expect(state, of, state.clock.wall_s + HELD_S)


def _slots(state: State, target: TierState, size: int, count: int, guard: I64Array) -> list[int]:
    addresses = target.copies.allocate(size, count)
    short = count - len(addresses)
    if not short:
        return addresses
    state.guard(guard)
    try:
        chosen = state.choose(target, short)
        idle = state.clock.step - state.catalog.last[chosen] >= target.age
        cold = idle & held_below(state, target, chosen)
        state.spare(target, chosen[~cold])
        drop_childless(state, target, chosen[cold])
    finally:
        state.unguard(guard)
    return addresses + target.copies.allocate(size, short)
