"""Adopt, Withdraw: an engine lends the pages of its own KV memory, and takes them back.

The daemon only reads a lent page: a copy there is READY in hbm, hit by lookups, source of moves. It is never a
victim and under no lease; others get the block from a lower tier, to which it is copied first. The page is its
engine's own again when Withdraw says so, by when no copy of the daemon reads it any more.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tierd.core import budgets
from tierd.core.errors import InvalidInput, Refused
from tierd.core.hashindex import NO_ROW
from tierd.core.lineage import count_followers, ghosts_of
from tierd.core.loans import page_address
from tierd.core.messages import Abandon, Adopt, Adopted, Ids, Outcomes, Tier, Withdraw, Withdrawn, WithdrawReply
from tierd.core.placing import mark_duplicates, refuse_foreign
from tierd.core.room import bring, held_below, moves_from
from tierd.core.sequences import begin_request, count_accesses
from tierd.core.state import State, TierState
from tierd.core.underway import Sequence
from tierd_client.format import OFFSET_BITS, OFFSET_MASK, STATE_FILLING, I64Array, U64Array


def adopt(state: State, command: Adopt) -> Outcomes:
    session = state.sessions.get(command.session)
    tier = _lending_tier(state)
    blocks = command.blocks
    rows = state.catalog.find(blocks.ids)
    refuse_foreign(state, blocks, rows)
    addresses = [page_address(command.pool, page) for page in command.pages.tolist()]
    _refuse_lent_pages(tier, addresses, rows)
    outcomes = _known_outcomes(tier, addresses, rows)
    mark_duplicates(blocks.ids, outcomes, Adopted.EXISTS)
    sequence = begin_request(state, command, rows, counted=False)
    budgeted = sequence if budgets.take_in(state, sequence, tier, blocks) else None
    ghosts = ghosts_of(state, blocks.ids, rows)
    count_followers(state, blocks, rows, ghosts)
    wanted = np.flatnonzero(outcomes == 0)
    outcomes[wanted] = Adopted.FULL
    taken = wanted[np.cumsum(rows[wanted] == NO_ROW) <= state.catalog.free_rows]
    outcomes[taken] = Adopted.ADOPTED
    new = taken[rows[taken] == NO_ROW]
    if len(new):
        rows[new] = state.create_rows(blocks, new, ghosts, command.block_bytes)
    state.link(blocks, rows)
    at = [addresses[place] for place in taken.tolist()]
    state.adopt(tier, rows[taken], at, session.number, command.fences[taken])
    lent = outcomes == Adopted.ADOPTED
    tier.copies.loans.fence[rows[lent]] = np.maximum(tier.copies.loans.fence[rows[lent]], command.fences[lent])
    _count_accesses(state, sequence, blocks, rows[(outcomes == Adopted.ADOPTED) | (outcomes == Adopted.EXISTS)])
    if budgeted is not None:
        budgets.come(budgeted, blocks, taken)
        budgets.trim(state, budgeted)
    return Outcomes(outcomes)


def _known_outcomes(tier: TierState, addresses: list[int], rows: I64Array) -> NDArray[np.int8]:
    """What is known of each block before it is lent; 0 where it can be. A call that comes again finds its own
    loans: ADOPTED once more, or its engine would take pages for its own that are lent."""
    copies, known = tier.copies, rows != NO_ROW
    outcomes = np.zeros(len(rows), np.int8)
    outcomes[known & copies.ready(rows)] = Adopted.EXISTS
    again = known & copies.on_loan(rows) & (copies.address[rows] == np.array(addresses, np.uint64))
    outcomes[again] = Adopted.ADOPTED
    outcomes[known & ((copies.state[rows] == STATE_FILLING) | (again & copies.loans.recalled[rows]))] = Adopted.BUSY
    return outcomes


def _count_accesses(state: State, sequence: Sequence | None, blocks: Ids, rows: I64Array) -> None:
    """One access to each block; in a sequence to the chain before them too, which the engine reads in its own
    memory without asking. Outside one nothing would tell that it was counted before."""
    rows = np.unique(rows[rows != NO_ROW])
    if sequence is not None:
        rows = np.unique(np.concatenate([rows, state.ancestors(blocks)]))
    count_accesses(state, sequence, rows, hit=None)


def _lending_tier(state: State) -> TierState:
    tier = state.tiers.get(Tier.HBM)
    if tier is None or not tier.lends:
        raise Refused("lending is off: max_lent_pools is 0")
    return tier


def _refuse_lent_pages(tier: TierState, addresses: list[int], rows: I64Array) -> None:
    """A page holds one block. One that was given another without being withdrawn first may have been read since."""
    if len(set(addresses)) < len(addresses):
        raise InvalidInput("pages", "a page is named twice")
    for place, (address, row) in enumerate(zip(addresses, rows.tolist(), strict=True)):
        if tier.copies.loans.row_of.get(address, row) != row:
            named = f"pages: page {address & OFFSET_MASK} (at {place})"
            raise Refused(f"{named} is lent as another block: withdraw it first")


def withdraw(state: State, command: Withdraw) -> WithdrawReply:
    state.sessions.get(command.session)
    tier = _lending_tier(state)
    pages = _lent_pages(tier, command.pool) if command.pages is None else command.pages
    rows = _rows_of(tier, command.pool, pages)
    outcomes = np.full(len(rows), Withdrawn.WITHDRAWN, np.int8)
    lent = np.unique(rows[rows != NO_ROW])
    unsaved, waiting = _save(state, tier, lent) if command.save else (lent[:0], set[int]())
    if not command.save:
        _recall(state, tier, lent)
    outcomes[np.isin(rows, unsaved)] = Withdrawn.UNSAVED
    left = _rows_of(tier, command.pool, pages)
    outcomes[left != NO_ROW] = Withdrawn.PENDING
    waiting |= moves_from(state, tier, left[left != NO_ROW])
    return WithdrawReply(outcomes, pages, tuple(sorted(waiting)))


def end_lender(state: State, session: int) -> None:
    """A session is over: nothing of it is lent any more, once no copy reads it."""
    for tier in state.tiers.values():
        if len(tier.copies.loans):
            _recall(state, tier, tier.copies.loans.of(session))


def _lent_pages(tier: TierState, pool: int) -> U64Array:
    addresses = np.array(list(tier.copies.loans.row_of), np.uint64)
    pages: U64Array = addresses[addresses >> np.uint64(OFFSET_BITS) == pool] & np.uint64(OFFSET_MASK)
    return pages


def _rows_of(tier: TierState, pool: int, pages: U64Array) -> I64Array:
    row_of = tier.copies.loans.row_of
    return np.array([row_of.get(page_address(pool, page), NO_ROW) for page in pages.tolist()], np.int64)


def _recall(state: State, tier: TierState, rows: I64Array) -> None:
    """Drops lent copies; those that are being read go when that has ended, the sooner the better."""
    moving = tier.copies.moves[rows] > 0
    state.drop(tier, rows[~moving])
    tier.copies.loans.recalled[rows[moving]] = True
    if moving.any():
        state.effects.append(Abandon(tuple(sorted(moves_from(state, tier, rows[moving])))))


def _save(state: State, tier: TierState, rows: I64Array) -> tuple[I64Array, set[int]]:
    """Begins to copy down what lies nowhere else, and drops what does. Returns the rows that cannot be saved,
    which are dropped too, and the moves that the others wait for."""
    loans = tier.copies.loans
    rows = rows[tier.copies.moves[rows] == 0]
    held = held_below(state, tier, rows)
    state.drop(tier, rows[held])
    rows = rows[~held]
    tried = np.array([row in loans.saving for row in rows.tolist()], bool)
    unsaved, rows = rows[tried], rows[~tried]
    waiting: set[int] = set()
    target = state.readable()[-1] if state.readable() else None
    full = rows
    if target is not None:
        full, waiting = bring(state, rows, target, rows)
    loans.saving.update(rows[tier.copies.moves[rows] > 0].tolist())
    unsaved = np.concatenate([unsaved, full])
    state.drop(tier, unsaved)
    return unsaved, waiting
