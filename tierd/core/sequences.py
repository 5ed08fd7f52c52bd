"""Running requests: their blocks are pinned, their accesses count once."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from tierd.core import budgets, statistics
from tierd.core.catalog import FLAG_UNIT
from tierd.core.errors import InvalidInput, LimitReached, NotFound, Refused
from tierd.core.hashindex import NO_ROW
from tierd.core.hints import prefer, say_next
from tierd.core.holders import hold, let_go, refuse_above_most_held
from tierd.core.lineage import new_class_of
from tierd.core.messages import (
    BudgetSet,
    CloseSequence,
    Done,
    Ids,
    Observe,
    Observed,
    OpenSequence,
    SequenceOpened,
    SetBudget,
)
from tierd.core.policy.base import ByNeighbours
from tierd.core.state import State, split
from tierd.core.underway import Report, Sequence
from tierd_client.format import I64Array, U8Array
from tierd_client.hits import hit_blocks

MOST_MASS = 1.0 + 1e-3
"""Attention over the blocks of a sequence sums to at most 1; the rest is rounding."""
MOST_TOUCHED = 1 << 18
"""A sequence that names more identities than that (4 million tokens in blocks of 16) counts accesses anew."""
RECENT_SEQUENCES = 64
RECENT_IDS = 1 << 17
"""Closed sequences are remembered up to so many, and so many ids in all (4 MiB)."""


def open_sequence(state: State, command: OpenSequence) -> SequenceOpened:
    state.sessions.get(command.session)
    key = (command.session, command.name)
    if key in state.sequences:
        raise Refused(f"sequence {command.name!r} is open already")
    if len(state.sequences) >= state.settings.max_sequences:
        raise LimitReached(f"max_sequences: all {state.settings.max_sequences} are open")
    blocks = command.blocks
    refuse_above_most_held(state, len(blocks) + sum(map(len, command.others)))
    state.clock.request()
    held = np.concatenate([blocks.ids, *(other.ids for other in command.others)])
    rows = state.catalog.find(held)
    brings = new_class_of(state, blocks, rows[: len(blocks)])
    found = state.ready_tiers(rows[: len(blocks)]) != 0
    state.sequences[key] = Sequence(
        blocks, found, held, state.clock.step, priority=command.priority, new_class=brings
    )
    hold(state, held, rows)
    prefer(state, rows, command.priority)
    for other in command.others:
        state.link(other, state.catalog.find(other.ids))
    rows = rows[: len(blocks)]
    state.link(blocks, rows)
    rows[state.foreign(blocks, rows)] = NO_ROW
    tiers = state.ready_tiers(rows) & state.reach()
    return SequenceOpened(state.clock.step, tiers, hit_blocks(tiers != 0, blocks.rule.tail))


def close_sequence(state: State, command: CloseSequence) -> Done:
    state.sessions.get(command.session)
    say_next(state, find_sequence(state, command.session, command.name), command)
    end_sequence(state, (command.session, command.name))
    return Done()


def end_sequence(state: State, key: tuple[int, str]) -> None:
    """Unpins what a sequence held. It is remembered for a while, for reports that come late."""
    sequence = state.sequences.pop(key)
    budgets.end(state, key)
    sequence.touched.clear()
    state.recent.pop(key, None)
    state.recent[key] = sequence
    _forget_old(state)
    let_go(state, sequence.held)


def _forget_old(state: State) -> None:
    ids = sum(len(sequence.held) for sequence in state.recent.values())
    while len(state.recent) > RECENT_SEQUENCES or ids > RECENT_IDS:
        _, oldest = state.recent.popitem(last=False)
        ids -= len(oldest.held)


def find_sequence(state: State, session: int, name: str) -> Sequence:
    sequence = state.sequences.get((session, name))
    if sequence is None:
        raise NotFound(f"sequence {name!r} of session {session} is not open")
    return sequence


class Part(Protocol):
    """A command that may be part of a sequence."""

    @property
    def session(self) -> int: ...
    @property
    def sequence(self) -> str: ...


class Request(Part, Protocol):
    """A command that is a request of its own, or part of a sequence."""

    @property
    def blocks(self) -> Ids: ...


def continue_sequence(state: State, command: Part) -> Sequence:
    sequence = find_sequence(state, command.session, command.sequence)
    state.new_class = sequence.new_class
    return sequence


def begin_request(
    state: State, command: Request, rows: I64Array, ghosts: I64Array | None = None, *, counted: bool
) -> Sequence | None:
    """The sequence that a request belongs to; one outside any is a tick, unless it was `counted` before. `rows`:
    those of its ids; `ghosts`: their places (lineage.py), where they are known."""
    if command.sequence:
        return continue_sequence(state, command)
    state.new_class = new_class_of(state, command.blocks, rows, ghosts)
    if not counted:
        state.clock.request()
    return None


def count_accesses(state: State, sequence: Sequence | None, rows: I64Array, *, hit: bool | None) -> bool:
    """One access to each of these rows, which are distinct; at most one per sequence. True: to each of them. `hit`:
    as Fallback.access has it."""
    wanted = len(rows)
    if sequence is not None:
        rows = rows[first_in(sequence, state.catalog.identity[rows])]
    state.touch(rows, hit=hit)
    return len(rows) == wanted


def first_in(sequence: Sequence, ids: U8Array) -> NDArray[np.bool_]:
    """Which of these ids the sequence has not touched before; it has touched all of them then."""
    keys = split(ids)
    if len(sequence.touched) + len(keys) > MOST_TOUCHED:
        sequence.touched.clear()
    fresh = np.ones(len(keys), bool)
    if not sequence.touched.isdisjoint(keys):
        fresh[:] = [key not in sequence.touched for key in keys]
    sequence.touched.update(keys)
    return fresh


def observe(state: State, command: Observe) -> Observed:
    state.sessions.get(command.session)
    sequence = state.recent.get((command.session, command.sequence))
    if sequence is None or (command.session, command.sequence) in state.sequences:
        sequence = find_sequence(state, command.session, command.sequence)
    if command.policy_epoch not in (0, state.policy_epoch):
        raise Refused(f"policy_epoch {command.policy_epoch} is not {state.policy_epoch}: the policy was changed")
    return _observed(state, sequence, command.attention, command.steps)


def set_budget(state: State, command: SetBudget) -> BudgetSet:
    state.sessions.get(command.session)
    key = (command.session, command.sequence)
    sequence = find_sequence(state, *key)
    budget = command.budget or (sequence.ledger.budget if sequence.ledger else None)
    if budget is None:
        raise Refused(f"sequence {command.sequence!r} has no budget yet: give one")
    budgets.check(state, sequence, budget)
    if command.attention is not None:
        _shares(command.attention, len(sequence.blocks))
    budgets.give(state, key, sequence, budget)
    if command.attention is not None:
        _observed(state, sequence, command.attention, command.steps)
    budgets.trim(state, sequence)
    return budgets.told(state, sequence)


def _observed(state: State, sequence: Sequence, attention: NDArray[np.float32] | None, steps: int) -> Observed:
    """Takes in a report over the first blocks of a sequence."""
    shares = None if attention is None else _shares(attention, len(sequence.blocks))
    sequence.steps += steps
    state.clock.decoded(sequence.start_step + sequence.steps)
    if attention is None or shares is None:
        return Observed(state.clock.step, 0)
    if sequence.ledger is not None:
        sequence.ledger.report(attention.astype(np.float64), steps)
    rows = state.catalog.find(sequence.blocks.ids[: len(shares)])
    rows, places = np.unique(rows, return_index=True)
    known = rows != NO_ROW
    rows, places = rows[known], places[known]
    _note_attention(state, rows, places, shares)
    _report(state, rows, np.minimum(1.0, shares[places]), steps)
    return Observed(state.clock.step, len(rows))


def _shares(attention: NDArray[np.float32], blocks: int) -> NDArray[np.float64]:
    """Mass in even shares: monotone along the chain, comparable across sequences."""
    mass = attention.astype(np.float64)
    if len(mass) > blocks:
        raise InvalidInput("attention", f"{len(mass)} values for a sequence of {blocks} blocks")
    if not np.isfinite(mass).all() or (mass < 0).any():
        raise InvalidInput("attention", "a value is negative, infinite or NaN")
    if mass.sum() > MOST_MASS:
        raise InvalidInput("attention", f"sums to {mass.sum():.6g}, more than {MOST_MASS}")
    monotone = np.maximum.accumulate(mass[::-1])[::-1]
    shares: NDArray[np.float64] = monotone * len(mass)
    return shares


def _note_attention(state: State, rows: I64Array, places: I64Array, shares: NDArray[np.float64]) -> None:
    """Notes what policies over attention go by; `places` of the rows in the chain."""
    order = np.argsort(places)
    places = places[order]
    near = state.policy.near if isinstance(state.policy, ByNeighbours) else None
    state.catalog.attention.report(rows[order], shares[places], len(shares) - 1 - places, near)


def _report(state: State, rows: I64Array, weights: NDArray[np.float64], steps: int) -> None:
    """Several reports of one block in one step count as the largest of them, once."""
    if state.reports_step != state.clock.step:
        state.reports.clear()
        state.reports_step = state.clock.step
    weights = weights.copy()
    for place, row in enumerate(rows.tolist()):
        weights[place] = _merge_report(state, row, float(weights[place]))
    common = state.policy.common
    statistics.access_weighted(state.catalog, rows, weights, steps, state.clock.step, state.clock.wall_s, common)
    state.reorder(rows)


def _merge_report(state: State, row: int, weight: float) -> float:
    """Takes back what this step already reported of a row; the weight that stands for both."""
    catalog = state.catalog
    birth, touches = int(catalog.birth[row]), int(catalog.touches[row])
    before = state.reports.get(row)
    if before is None or (before.birth, before.touches) != (birth, touches):
        if state.fallback is not None:
            gap = state.clock.step - catalog.last[row : row + 1]
            state.fallback.access(state.clock.step, gap, hit=None)
        state.reports[row] = Report(
            birth, touches + 1, float(catalog.ema[row]), float(catalog.crf[row]), int(catalog.last[row]),
            float(catalog.wall[row]), int(catalog.flags[row]) & FLAG_UNIT, weight,
        )
        return weight
    catalog.ema[row], catalog.crf[row] = before.ema, before.crf
    catalog.last[row], catalog.wall[row] = before.last, before.wall
    catalog.flags[row] |= np.uint8(before.unit)
    catalog.touches[row] -= np.uint32(1)
    before.weight = max(before.weight, weight)
    return before.weight
