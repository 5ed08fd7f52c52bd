"""Lookup, Acquire, Release, Readmit: how blocks are found, pinned and brought up."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from tierd.core.arrays import first_of_each, indices
from tierd.core.budgets import bring_within_budgets
from tierd.core.errors import InvalidInput, NotFound
from tierd.core.hashindex import NO_ROW, UNKNOWN
from tierd.core.hints import prefer
from tierd.core.messages import (
    Acquire,
    Acquired,
    AcquireReply,
    ChainsLookedUp,
    Done,
    Ids,
    LookedUp,
    Lookup,
    LookupChains,
    Outcomes,
    Presence,
    Priority,
    Readmit,
    Readmitted,
    Release,
    Tier,
)
from tierd.core.read_ahead import read_ahead
from tierd.core.sequences import begin_request, count_accesses
from tierd.core.sessions import HOLD_LEASE, Lease, Session
from tierd.core.state import ARENA_TIERS, State, TierState
from tierd_client.format import STATE_FILLING, I64Array, U64Array
from tierd_client.hits import hit_blocks, hit_tokens


def lookup(state: State, command: Lookup) -> LookedUp:
    rule = command.blocks.rule
    rows = state.find(command.blocks)
    known = state.ready_tiers(rows)
    tiers = known & state.reach()
    readable = _readable(state, rows)
    presence = np.where(known, np.int8(Presence.BELOW), np.int8(Presence.MISS))
    presence[readable] = Presence.READY
    hit = hit_blocks(tiers != 0, rule.tail)
    needed = rule.needed(hit * rule.block_tokens)
    return LookedUp(presence, tiers, hit, _bytes_below(state, rows[needed], readable[needed]))


def lookup_chains(state: State, command: LookupChains) -> ChainsLookedUp:
    rows = [state.find(blocks) for blocks in command.chains]
    tiers = [state.ready_tiers(of) & state.reach() for of in rows]
    rules = [blocks.rule for blocks in command.chains]
    tokens = hit_tokens([(of != 0, rule) for of, rule in zip(tiers, rules, strict=True)])
    needed = [of[rule.needed(tokens)] for of, rule in zip(rows, rules, strict=True)]
    below = sum(_bytes_below(state, of, _readable(state, of)) for of in needed)
    return ChainsLookedUp(tiers, tokens, below)


def _readable(state: State, rows: I64Array) -> NDArray[np.bool_]:
    """Rows with a copy that a client can read where it lies."""
    found = np.zeros(len(rows), bool)
    for tier in state.readable():
        found |= tier.copies.own(rows)
    found &= rows != UNKNOWN
    return found


def _bytes_below(state: State, rows: I64Array, readable: NDArray[np.bool_]) -> int:
    """Bytes of those of these blocks that must come up before they can be read."""
    below = rows[~readable]
    return int(state.catalog.size[below].sum()) if len(below) else 0


def acquire(state: State, command: Acquire) -> AcquireReply:
    session = state.sessions.get(command.session)
    if command.lease and command.lease not in session.leases:
        raise NotFound(f"lease {command.lease} of session {session.number} is unknown")
    blocks, count = command.blocks, len(command.blocks)
    rows = state.find(blocks)
    state.sessions.room_to_hold(session, int(np.count_nonzero(rows != NO_ROW)))
    sequence = begin_request(state, command, rows, counted=command.retry or bool(command.lease))
    state.link(blocks, rows)
    zeros = np.zeros(count, np.uint64)
    reply = AcquireReply(
        np.full(count, Acquired.MISS, np.int8), zeros, zeros.copy(), zeros.copy(), np.zeros(count, np.uint8),
        command.lease,
    )
    _lease_ready(state, session, rows, reply, state.readable(device=command.device))
    leased = indices(reply.outcomes == Acquired.LEASED.value)
    if len(leased):
        leased = first_of_each(leased, rows)
        prefer(state, rows[leased], sequence.priority if sequence else Priority.UNSPECIFIED)
        count_accesses(state, sequence, rows[leased], hit=True)
    _bring_rest(state, blocks, rows, reply)
    state.misses += int(np.count_nonzero(reply.outcomes == Acquired.MISS.value))
    if not command.retry:
        read_ahead(state, blocks, rows)
    return reply


def _lease_ready(
    state: State, session: Session, rows: I64Array, reply: AcquireReply, readable: list[TierState]
) -> None:
    """Pins what lies in a readable tier, in the fastest that has it."""
    for tier in readable:
        places = indices((rows != NO_ROW) & (reply.outcomes != Acquired.LEASED.value) & tier.copies.own(rows))
        if not len(places):
            continue
        mine = rows[places]
        np.add.at(tier.copies.leases, mine, 1)
        reply.outcomes[places], reply.tiers[places] = Acquired.LEASED, tier.tier
        reply.addresses[places] = tier.copies.address[mine]
        reply.generations[places] = tier.copies.generation[mine]
        reply.checksums[places] = state.catalog.checksum[mine]
        reply.lease = reply.lease or state.sessions.new_lease()
        _add_to_lease(state, session, reply.lease, tier, mine, reply.generations[places])
        tier.counters.hits += len(places)


def _add_to_lease(
    state: State, session: Session, number: int, tier: TierState, rows: I64Array, generations: U64Array
) -> None:
    lease = session.leases.setdefault(number, Lease())
    lease.rows += rows.tolist()
    lease.tiers += [tier.tier] * len(rows)
    lease.holds += state.sessions.hold(
        session, HOLD_LEASE, tier.tier, tier.copies.address[rows], generations, state.catalog.size[rows]
    ).tolist()


def _bring_rest(state: State, blocks: Ids, rows: I64Array, reply: AcquireReply) -> None:
    """Begins to promote what lies lower, and says of the rest why it cannot be read now."""
    rest = indices((rows != NO_ROW) & (reply.outcomes != Acquired.LEASED.value))
    if not len(rest):
        return
    reply.outcomes[rest] = Acquired.PENDING
    target = state.readable()[-1] if state.readable() else None
    if target is None:
        return
    known = state.ready_tiers(rows[rest]) != 0
    full, waiting = bring_within_budgets(state, np.unique(rows[rest][known]), target, state.named(blocks, rows))
    reply.waiting = tuple(sorted(waiting | _moves_into(state.readable(), rows[rest])))
    reply.outcomes[rest[np.isin(rows[rest], full)]] = Acquired.FULL


def _moves_into(tiers: Iterable[TierState], rows: I64Array) -> set[int]:
    """Moves that fill a copy of these rows in one of these tiers."""
    writers = (tier.copies.writer.get(row, 0) for tier in tiers for row in rows.tolist())
    return {-writer for writer in writers if writer < 0}


def release(state: State, command: Release) -> Done:
    session = state.sessions.get(command.session)
    for number in command.leases:
        if number not in session.leases:
            raise NotFound(f"lease {number} of session {session.number} is unknown; none was released")
    return Done(sum(end_lease(state, session, number) for number in dict.fromkeys(command.leases)))


def end_lease(state: State, session: Session, number: int) -> int:
    """Unpins the blocks of a lease; returns how many."""
    lease = session.leases.pop(number)
    rows, tiers = np.array(lease.rows, np.int64), np.array(lease.tiers)
    for tier in state.tiers.values():
        mine = rows[tiers == tier.tier]
        if len(mine):
            np.subtract.at(tier.copies.leases, mine, 1)
            tier.victims.put_back(np.unique(mine[tier.copies.leases[mine] == 0]))
    state.sessions.unhold(session, lease.holds)
    return len(rows)


def readmit(state: State, command: Readmit) -> Outcomes:
    if command.to not in ARENA_TIERS:
        raise InvalidInput("to", "blocks are re-admitted to hbm or host")
    target = state.at_or_below(command.to)
    rows = state.find(command.blocks)
    state.link(command.blocks, rows)
    outcomes = np.full(len(rows), Readmitted.MISS, np.int8)
    known = (rows != NO_ROW) & (state.ready_tiers(rows) != 0)
    ready = known & at_least(state, target.tier, rows)
    outcomes[ready] = Readmitted.READY
    rest = indices(known & ~ready)
    outcomes[rest] = Readmitted.PENDING
    full, waiting = bring_within_budgets(state, np.unique(rows[rest]), target, state.named(command.blocks, rows))
    outcomes[rest[np.isin(rows[rest], full)]] = Readmitted.FULL
    outcomes[(rows != NO_ROW) & ~known & _filling(state, rows)] = Readmitted.PENDING
    return Outcomes(outcomes, tuple(sorted(waiting)))


def at_least(state: State, tier: Tier, rows: I64Array) -> NDArray[np.bool_]:
    """Rows with a READY copy in this tier or a faster one."""
    found = np.zeros(len(rows), bool)
    for number, candidate in state.tiers.items():
        if number <= tier:
            found |= candidate.copies.ready(rows)
    return found


def _filling(state: State, rows: I64Array) -> NDArray[np.bool_]:
    found = np.zeros(len(rows), bool)
    for tier in state.tiers.values():
        found |= tier.copies.state[rows] == STATE_FILLING
    return found
