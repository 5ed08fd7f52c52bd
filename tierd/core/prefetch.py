"""Prefetch: blocks are brought up for a request that waits in a queue, a few at a time, the oldest ticket first.

A ticket begins moves by itself, after each that has ended; all together have no more under way than the settings
allow. What is brought up is expected until the ticket's time is over: not gone again before it can be read, nor in
the way of anything for longer. What finds no room is FULL, and is not asked for again.
"""

from __future__ import annotations

import numpy as np

from tierd.core.errors import InvalidInput, LimitReached, NotFound
from tierd.core.hashindex import NO_ROW
from tierd.core.hints import expect
from tierd.core.messages import (
    CancelPrefetch,
    Prefetch,
    Prefetched,
    PrefetchReply,
    PrefetchStatus,
    Readmit,
    Readmitted,
)
from tierd.core.reading import at_least, readmit
from tierd.core.state import ARENA_TIERS, State
from tierd.core.underway import Ticket
from tierd_client.format import I64Array

MOST_WITHIN_S = 600.0
MOST_IDS = 1 << 20
"""Identities of all prefetches that are not done: 32 MiB."""
Key = tuple[int, int]
"""Session, ticket."""


def prefetch(state: State, command: Prefetch) -> PrefetchReply:
    session = state.sessions.get(command.session)
    if command.to not in ARENA_TIERS:
        raise InvalidInput("to", "blocks are prefetched to hbm or host")
    if not 0 < command.within_s <= MOST_WITHIN_S:
        raise InvalidInput("within_ms", f"{command.within_s:g} s is not above 0 and at most {MOST_WITHIN_S:g} s")
    count = len(command.blocks)
    _make_place(state, session.number, count)
    state.tickets += 1
    key = session.number, state.tickets
    state.prefetches[key] = Ticket(
        command.blocks, command.to, state.clock.wall_s + command.within_s,
        np.full(count, Prefetched.PENDING, np.int8), np.empty(0, np.int64),
    )
    return _report(state, key)


def _make_place(state: State, session: int, ids: int) -> None:
    """LimitReached when a session has too many prefetches under way; of those that are done it forgets the
    oldest."""
    mine = [key for key in state.prefetches if key[0] == session]
    done = [key for key in mine if state.prefetches[key].blocks is None]
    if len(mine) >= state.settings.max_prefetches:
        if not done:
            raise LimitReached(f"max_prefetches: all {len(mine)} of session {session} are under way")
        del state.prefetches[done[0]]
    held = sum(len(ticket.blocks) for ticket in state.prefetches.values() if ticket.blocks is not None)
    if held + ids > MOST_IDS:
        raise LimitReached(f"prefetched ids: {held} under way, {ids} more are over {MOST_IDS}")


def prefetch_status(state: State, command: PrefetchStatus) -> PrefetchReply:
    state.sessions.get(command.session)
    _find(state, command.session, command.ticket)
    return _report(state, (command.session, command.ticket))


def cancel_prefetch(state: State, command: CancelPrefetch) -> PrefetchReply:
    """Begins no further move and forgets the ticket. Moves that have begun are carried out."""
    reply = prefetch_status(state, PrefetchStatus(command.session, command.ticket))
    del state.prefetches[command.session, command.ticket]
    reply.done, reply.waiting = True, ()
    return reply


def _find(state: State, session: int, number: int) -> Ticket:
    ticket = state.prefetches.get((session, number))
    if ticket is None:
        raise NotFound(f"ticket {number} of session {session} is unknown: cancelled, or done and forgotten")
    return ticket


def end_prefetches(state: State, session: int) -> None:
    """The session is over."""
    for key in [key for key in state.prefetches if key[0] == session]:
        del state.prefetches[key]


def _report(state: State, key: Key) -> PrefetchReply:
    waiting = advance(state).get(key, ())
    ticket = state.prefetches[key]
    done = ticket.blocks is None
    if not done and not len(ticket.active):  # others are before it
        waiting = tuple(sorted(state.moves))
    left_s = 0.0 if done else ticket.until - state.clock.wall_s
    return PrefetchReply(key[1], ticket.outcomes.copy(), waiting, done, left_s)


def advance(state: State) -> dict[Key, tuple[int, ...]]:
    """Lets each ticket see what has arrived, and begin more moves as far as the window is free, the oldest first.
    Returns the moves that each waits for."""
    waiting = {}
    free = state.settings.max_prefetch_moves - sum(len(ticket.active) for ticket in state.prefetches.values())
    for key, ticket in state.prefetches.items():
        if ticket.blocks is None:
            continue
        free += len(ticket.active)
        if state.clock.wall_s >= ticket.until:
            ticket.outcomes[ticket.outcomes == Prefetched.PENDING] = Prefetched.EXPIRED
            _finish(ticket)
            continue
        waiting[key] = _go_on(state, ticket, free)
        free -= len(ticket.active)
    return waiting


def _go_on(state: State, ticket: Ticket, room: int) -> tuple[int, ...]:
    """Looks after the ids under way, then begins others until the ticket has `room` of them."""
    assert ticket.blocks is not None
    active, ticket.active = ticket.active, np.empty(0, np.int64)
    waiting = _ask(state, ticket, active)
    ticket.outcomes[active[ticket.outcomes[active] == Prefetched.MISS]] = Prefetched.LOST
    while ticket.begun < len(ticket.blocks) and len(ticket.active) < room:
        waiting |= _begin(state, ticket, room - len(ticket.active))
    if ticket.begun == len(ticket.blocks) and not len(ticket.active):
        _finish(ticket)
    return tuple(sorted(waiting))


def _begin(state: State, ticket: Ticket, room: int) -> set[int]:
    """Begins with the next ids, of which at most `room` must be brought up. Where none of them can be, there is no
    room for any of the rest."""
    assert ticket.blocks is not None
    rest = np.arange(ticket.begun, len(ticket.blocks))
    rows = state.find(ticket.blocks.take(rest))
    below = (rows != NO_ROW) & ~at_least(state, state.at_or_below(ticket.to).tier, rows)
    cut = int(np.searchsorted(np.cumsum(below), room, side="right"))
    waiting = _ask(state, ticket, rest[:cut])
    if len(ticket.active) or not below[:cut].any():
        ticket.begun += cut
        return waiting
    ticket.outcomes[rest[cut:][below[cut:]]] = Prefetched.FULL
    ticket.begun += len(rest)
    return waiting | _ask(state, ticket, rest[cut:][~below[cut:]])


def _ask(state: State, ticket: Ticket, places: I64Array) -> set[int]:
    """Asks for these ids; those that do not come at once are active. Returns the moves that they wait for."""
    assert ticket.blocks is not None
    if not len(places):
        return set()
    blocks = ticket.blocks.take(places)
    reply = readmit(state, Readmit(blocks, ticket.to))
    ticket.outcomes[places] = reply.outcomes
    pending = reply.outcomes == Readmitted.PENDING
    expect(state, _rows(state, blocks.ids[pending | (reply.outcomes == Readmitted.READY)]), ticket.until)
    ticket.active = np.concatenate([ticket.active, places[pending]])
    return set(reply.waiting)


def _rows(state: State, ids: np.ndarray) -> I64Array:
    rows = np.unique(state.catalog.find(ids))
    known: I64Array = rows[rows != NO_ROW]
    return known


def _finish(ticket: Ticket) -> None:
    ticket.blocks, ticket.active = None, np.empty(0, np.int64)
