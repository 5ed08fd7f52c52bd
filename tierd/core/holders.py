"""What open sequences hold: rows are pinned, identities without a row are awaited."""

from __future__ import annotations

import numpy as np

from tierd.core.errors import LimitReached
from tierd.core.hashindex import NO_ROW
from tierd.core.state import State, split
from tierd_client.format import I64Array, U8Array

MOST_HELD = 1 << 22
"""Identities of all open sequences, 64 million tokens in blocks of 16: about 0.7 GiB when none of them is known."""


def refuse_above_most_held(state: State, count: int) -> None:
    """LimitReached when so many more identities would be held than may be."""
    if state.held_ids + count > MOST_HELD:
        raise LimitReached(f"sequence ids: {state.held_ids} in open ones, {count} more are over {MOST_HELD}")


def hold(state: State, ids: U8Array, rows: I64Array) -> None:
    """A sequence holds these; `rows`: of each, or NO_ROW."""
    state.held_ids += len(ids)
    state.pin(rows[rows != NO_ROW])
    for identity in split(ids[rows == NO_ROW]):
        state.awaited[identity] = state.awaited.get(identity, 0) + 1


def let_go(state: State, ids: U8Array) -> None:
    """A sequence holds these no more."""
    state.held_ids -= len(ids)
    rows = state.catalog.find(ids)
    for identity in split(ids[rows == NO_ROW]):
        if state.awaited[identity] == 1:
            del state.awaited[identity]
        else:
            state.awaited[identity] -= 1
    state.unpin(np.asarray(rows[rows != NO_ROW]))
