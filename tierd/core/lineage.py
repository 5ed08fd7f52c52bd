"""What a request tells by its ids alone: how much of it is new, and which blocks follow which.

An identity is known when it has a record, with a copy or as a ghost.
"""

from __future__ import annotations

from tierd.core.arrays import Mask, every
from tierd.core.gaps import FOLLOWERS_SHIFT, MOST_FOLLOWERS, new_class
from tierd.core.hashindex import NO_ROW
from tierd.core.messages import Ids
from tierd.core.state import State
from tierd_client.format import I64Array, U8Array

_ONE = 1 << FOLLOWERS_SHIFT


def known(state: State, ids: U8Array, rows: I64Array) -> Mask:
    """Which identities, whose rows these are, have a record."""
    found: Mask = rows != NO_ROW
    if not every(found):
        found[~found] = state.ghosts.places(ids[~found]) != NO_ROW
    return found


def new_class_of(state: State, blocks: Ids, rows: I64Array) -> int:
    """The class of a request by the tokens that it brings: those behind its leading known blocks."""
    ids = blocks.ids
    if blocks.whole is not None:
        ids, rows = blocks.whole, state.catalog.find(blocks.whole)
    return new_class(_unknown(known(state, ids, rows)) * blocks.rule.block_tokens)


def _unknown(found: Mask) -> int:
    """How many are behind the leading known ones."""
    return 0 if every(found) else len(found) - int(found.argmin())


def count_followers(state: State, blocks: Ids, rows: I64Array) -> None:
    """The first block of a chain that nobody knew is another that follows the one before it."""
    found = known(state, blocks.ids, rows)
    if not blocks.chain or every(found):
        return
    before = blocks.before()[int(found.argmin())][None, :]
    for column, find in ((state.catalog.learnt, state.catalog.find), (state.ghosts.learnt, state.ghosts.places)):
        place = int(find(before)[0])
        if place != NO_ROW:
            _add_follower(column, place)


def _add_follower(learnt: U8Array, place: int) -> None:
    value = learnt.item(place)
    if value >> FOLLOWERS_SHIFT < MOST_FOLLOWERS:
        learnt[place] = value + _ONE
