"""What a request tells by its ids alone: how much of it is new, and which blocks follow which.

An identity is known when it has a record, with a copy or as a ghost.
"""

from __future__ import annotations

import numpy as np

from tierd.core.arrays import some
from tierd.core.gaps import FOLLOWERS_SHIFT, MOST_FOLLOWERS, new_class
from tierd.core.hashindex import NO_ROW, UNKNOWN
from tierd.core.messages import Ids
from tierd.core.state import State
from tierd_client.format import I64Array, U8Array

_ONE = 1 << FOLLOWERS_SHIFT


def ghosts_of(state: State, ids: U8Array, rows: I64Array) -> I64Array:
    """Place of the ghost of each identity that has no row, NO_ROW where there is none, or a row."""
    places = np.full(len(rows), NO_ROW, np.int64)
    if some(absent := rows == UNKNOWN):
        places[absent] = state.ghosts.places(ids[absent])
    return places


def new_class_of(state: State, blocks: Ids, rows: I64Array, ghosts: I64Array | None = None) -> int:
    """The class of a request by the tokens that it brings: those behind its leading known blocks. `ghosts`: of its
    ids, where that is known."""
    ids = blocks.ids
    if blocks.whole is not None:
        ids, rows, ghosts = blocks.whole, state.catalog.find(blocks.whole), None
    ghosts = ghosts_of(state, ids, rows) if ghosts is None else ghosts
    return new_class((len(rows) - _leading(rows, ghosts)) * blocks.rule.block_tokens)


def _leading(rows: I64Array, ghosts: I64Array) -> int:
    """How many known ones come before the first that is not."""
    unknown = (rows == UNKNOWN) & (ghosts == UNKNOWN)
    return int(unknown.argmax()) if some(unknown) else len(rows)


def count_followers(state: State, blocks: Ids, rows: I64Array, ghosts: I64Array) -> None:
    """The first block of a chain that nobody knew is another that follows the one before it."""
    if not blocks.chain or (first := _leading(rows, ghosts)) == len(rows):
        return
    if first and blocks.some is None:
        row, ghost = int(rows[first - 1]), int(ghosts[first - 1])
    else:
        before = blocks.before()[first][None, :]
        row, ghost = int(state.catalog.find(before)[0]), int(state.ghosts.places(before)[0])
    if row != NO_ROW:
        _add_follower(state.catalog.learnt, row)
    elif ghost != NO_ROW:
        _add_follower(state.ghosts.learnt, ghost)


def _add_follower(learnt: U8Array, place: int) -> None:
    value = learnt.item(place)
    if value >> FOLLOWERS_SHIFT < MOST_FOLLOWERS:
        learnt[place] = value + _ONE
