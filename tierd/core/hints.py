"""What requests say of the future of blocks: priority, and what comes next. It changes the order of eviction alone:
a hint makes no block stay that must go, and no newcomer wait."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tierd.core.errors import InvalidInput
from tierd.core.hashindex import NO_ROW
from tierd.core.messages import CloseSequence, NextUse, Priority
from tierd.core.standing import raise_priority, set_next_use, set_priority
from tierd.core.state import State
from tierd.core.terms import pack
from tierd.core.underway import Sequence
from tierd_client.format import I64Array


def prefer(state: State, rows: I64Array, priority: Priority) -> None:
    """Blocks that were there before have at least this priority from now on."""
    if priority > Priority.LOW:
        state.reorder(raise_priority(state.catalog, np.unique(rows[rows != NO_ROW]), priority))


def introduce(state: State, rows: I64Array, priority: Priority) -> None:
    """New rows have this priority."""
    if priority not in (Priority.UNSPECIFIED, Priority.NORMAL):
        set_priority(state.catalog, rows, priority)


def expect(state: State, rows: I64Array, until: float) -> None:
    """Distinct rows are soon to be read: they go last until they are, or until this time."""
    fresh = state.expected.extend(rows, until)
    set_next_use(state.catalog, fresh, NextUse.SOON)
    state.reorder(fresh)


def lapse(state: State) -> None:
    """What was expected by now and did not come is nothing special any more."""
    if state.expected.passed(state.clock.wall_s):
        late = state.expected.due(state.clock.wall_s)
        set_next_use(state.catalog, late, NextUse.NONE)
        state.reorder(late)


def expected_until(state: State, seconds: float) -> float:
    """The time `expected_s` means; 0 is the default. InvalidInput for what is longer than allowed."""
    settings = state.settings
    if not 0 <= seconds <= settings.tool_call_max_s:
        most = f"tool_call_max_s, {settings.tool_call_max_s:g} s"
        raise InvalidInput("expected_ms", f"{seconds:g} s, more than {most}")
    return state.clock.wall_s + (seconds or settings.tool_call_s)


def say_next(state: State, sequence: Sequence, command: CloseSequence) -> None:
    """What is known of the next use of a sequence's blocks, while it still holds them.

    A tool call concerns all of them; waiting for a human and the end of the session only those that nothing else
    is known to use.
    """
    if command.next_use == NextUse.NONE:
        return
    if command.next_use == NextUse.SOON:
        expect(state, _rows(state, sequence), expected_until(state, command.expected_s))
        return
    rows = _exclusive(state, sequence)
    state.expected.end(rows)
    set_next_use(state.catalog, rows, command.next_use)
    state.reorder(rows)


def _rows(state: State, sequence: Sequence) -> I64Array:
    """Distinct rows of the blocks that it named, and of those that it touched."""
    touched = state.catalog.find(pack(sequence.touched)) if sequence.touched else np.empty(0, np.int64)
    rows = np.unique(np.concatenate([state.catalog.find(sequence.held), touched]))
    known: I64Array = rows[rows != NO_ROW]
    return known


def _exclusive(state: State, sequence: Sequence) -> I64Array:
    """Those of its blocks that only it is known to use: behind the last one that another sequence or lease holds,
    or from which two blocks go on."""
    rows = _rows(state, sequence)
    shared = _shared(state, sequence, rows)
    if sequence.blocks.chain:
        group, position = state.catalog.group[rows], state.catalog.position[rows].astype(np.int64)
        for number in np.unique(group):
            of = group == number
            shared[of] |= position[of] <= position[of & shared].max(initial=-1)
    mine: I64Array = rows[~shared]
    return mine


def _shared(state: State, sequence: Sequence, rows: I64Array) -> NDArray[np.bool_]:
    named, times = np.unique(state.catalog.find(sequence.held), return_counts=True)
    own = np.zeros(len(rows), np.int64)
    own[np.isin(rows, named)] = times[np.isin(named, rows)]
    shared = state.pins[rows] > own
    for tier in state.tiers.values():
        shared |= (tier.copies.leases[rows] > 0) | (tier.children[rows] > 1)
    return shared
