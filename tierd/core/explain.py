"""What the engine tells people: occupancy, records, why a block stands where it stands, what would go next."""

from __future__ import annotations

import numpy as np

from tierd.core import statistics
from tierd.core.admission import worth_a_store, worth_terms
from tierd.core.budgets import departures, in_hbm
from tierd.core.deadlines import Deadlines
from tierd.core.errors import InvalidInput
from tierd.core.hashindex import NO_ROW
from tierd.core.ledger import Ledger
from tierd.core.messages import (
    BlockPage,
    BlockView,
    CopyView,
    Describe,
    Explain,
    Explained,
    Explanation,
    ListBlocks,
    ListSequences,
    OccupancyReply,
    Plan,
    Planned,
    Record,
    Residency,
    SequencePage,
    SequenceView,
    SharesReply,
    Tier,
    TierOccupancy,
    TierShares,
)
from tierd.core.moving import select
from tierd.core.pins import quota
from tierd.core.policy.base import ranks_of
from tierd.core.room import worth_storing
from tierd.core.standing import next_use_of, priority_of, standing_of, standings
from tierd.core.state import State, TierState, split
from tierd_client.format import STATE_ABSENT, STATE_FILLING, STATE_READY, I64Array


def occupancy(state: State) -> OccupancyReply:
    sessions = state.sessions.by_number.values()
    leases = sum(len(lease.rows) for session in sessions for lease in session.leases.values())
    leases += sum(map(len, state.hazards.leased.values()))
    return OccupancyReply(
        [_tier_occupancy(state, tier) for number, tier in state.tiers.items() if state.is_on(number)],
        identities=len(state.catalog), ghosts=len(state.ghosts), sessions=len(state.sessions),
        sequences=len(state.sequences), leases=leases, step=state.clock.step, misses_total=state.misses,
        moves_in_flight=len(state.moves), policy=state.policy.spec, policy_epoch=state.policy_epoch,
        pinned_blocks=len(state.kept), pinned_bytes=state.kept_bytes, pinned_bytes_max=quota(state),
        prefetches=sum(ticket.blocks is not None for ticket in state.prefetches.values()),
        budgeted_sequences=len(state.budgeted), budgeted_blocks=sum(map(in_hbm, state.budgeted.values())),
        read_ahead_used_total=state.catalog.ahead.used, read_ahead_wasted_total=state.catalog.ahead.wasted,
    )


def _tier_occupancy(state: State, tier: TierState) -> TierOccupancy:
    copies, counters = tier.copies, tier.counters
    ready = np.flatnonzero(copies.state == STATE_READY)
    evictable = int(np.count_nonzero(~state.protected(tier, ready) & copies.takes_room(ready)))
    return TierOccupancy(
        tier.tier, copies.capacity, copies.free, copies.used, copies.reserved, copies.quarantined, copies.blocks,
        evictable, int(np.count_nonzero(copies.leases)), tier.age, counters.hits, counters.stored, counters.evicted,
        counters.demoted, counters.promoted, counters.failed_moves, len(copies.loans),
        copies.found_blocks, dict(counters.shed), _stocked_bytes(state, tier),
        counters.over_budget, copies.footprints.learnt,
    )


def _stocked_bytes(state: State, tier: TierState) -> int:
    stocks = (session.stocked.items() for session in state.sessions.by_number.values())
    return sum(size * count for stock in stocks for (number, size), count in stock if number == tier.tier)


def shares(state: State) -> SharesReply:
    """Blocks and bytes of each namespace in each tier, counted from the rows themselves."""
    return SharesReply({number: _tier_shares(state, tier) for number, tier in state.tiers.items()})


def _tier_shares(state: State, tier: TierState) -> TierShares:
    catalog = state.catalog
    ready = np.flatnonzero(tier.copies.state == STATE_READY)
    filling = np.flatnonzero(tier.copies.state == STATE_FILLING)
    length = int(catalog.namespace[np.concatenate([ready, filling])].max(initial=0)) + 1

    def slot_sums(rows: I64Array) -> I64Array:
        slots = tier.copies.footprints.each(catalog.size[rows]) * tier.copies.takes_room(rows)
        sums = np.bincount(catalog.namespace[rows], slots, length)
        return sums.astype(np.int64)  # of whole pages below 2^53 bytes, so exact

    blocks = np.bincount(catalog.namespace[ready], minlength=length)
    return TierShares(blocks, slot_sums(ready), slot_sums(filling))


def describe(state: State, command: Describe) -> BlockPage:
    rows = state.catalog.find(command.ids)
    views: list[BlockView | None] = []
    for row, identity in zip(rows.tolist(), split(command.ids), strict=True):
        views.append(view(state, row) if row != NO_ROW else _ghost_view(state, identity))
    return BlockPage(views)


def view(state: State, row: int) -> BlockView:
    """The record of one row, for people."""
    catalog = state.catalog
    parent = catalog.parent_of(row)
    holding = [tier for tier in state.tiers.values() if tier.copies.state[row] != STATE_ABSENT]
    copies = [_copy_view(state, tier, row) for tier in holding]
    return BlockView(
        catalog.identity[row].tobytes(), int(catalog.namespace[row]), int(catalog.group[row]),
        int(catalog.position[row]), None if parent == NO_ROW else catalog.identity[parent].tobytes(),
        int(catalog.size[row]), int(catalog.checksum[row]), statistics.record_of(catalog, row), copies,
        int(state.pins[row]),
        priority=priority_of(catalog, row), next_use=next_use_of(catalog, row),
        expected_s=_left_s(state, state.expected, row), pinned_s=_left_s(state, state.kept, row),
    )


def _left_s(state: State, deadlines: Deadlines, row: int) -> float:
    return max(0.0, float(deadlines.until[row]) - state.clock.wall_s)


def _copy_view(state: State, tier: TierState, row: int) -> CopyView:
    copies = tier.copies
    return CopyView(
        tier.tier, bool(copies.state[row] == STATE_READY), int(copies.address[row]), int(copies.generation[row]),
        int(copies.leases[row]), rank_of(state, tier, row), bool(copies.loans.lender[row]),
    )


def rank_of(state: State, tier: TierState, row: int) -> float:
    stats = statistics.StatsOf(state.catalog, np.array([row]))
    return float(ranks_of(state.policy, stats, state.moment(tier))[0])


def _ghost_view(state: State, identity: bytes) -> BlockView | None:
    found, records = state.ghosts.peek(np.frombuffer(identity, np.uint8)[None, :])
    if not len(found):
        return None
    record = Record(
        int(records.touches[0]), int(records.last[0]), float(records.wall[0]), float(records.ema[0]),
        float(records.crf[0]), not bool(records.unit[0]), int(records.learnt[0]),
    )
    return BlockView(identity, 0, 0, 0, None, 0, 0, record, ghost=True)


def list_blocks(state: State, command: ListBlocks) -> BlockPage:
    rows = select(state, command.where)
    rows = _by_rank(state, command, rows) if command.by_rank else _by_identity(state, rows)
    first = _start(state, command, rows)
    page = rows[first : first + command.limit]
    more = first + command.limit < len(rows)
    if not more or not len(page):
        end = b""
    elif command.by_rank:
        end = (first + len(page)).to_bytes(8, "little")
    else:
        end = state.catalog.identity[page[-1]].tobytes()
    return BlockPage([view(state, row) for row in page.tolist()], end)


def list_sequences(state: State, command: ListSequences) -> SequencePage:
    """Open sequences, and what of their budgets is used."""
    keys = sorted(state.sequences)
    page = keys[command.offset : command.offset + command.limit]
    return SequencePage([_sequence_view(state, key) for key in page], command.offset + len(page) < len(keys))


def _sequence_view(state: State, key: tuple[int, str]) -> SequenceView:
    sequence = state.sequences[key]
    blocks, ledger = sequence.blocks, sequence.ledger
    view = SequenceView(*key, blocks.namespace, blocks.group, len(blocks))
    if ledger is not None:
        view.budget, view.spare_slots = ledger.budget, len(ledger.slots)
        view.kept_blocks, view.leaving_blocks, view.given_up_blocks = map(
            ledger.count, (Residency.KEPT, Residency.LEAVING, Residency.GIVEN_UP)
        )
    return view


def _by_identity(state: State, rows: I64Array) -> I64Array:
    words = state.catalog.identity[rows].view(">u8").T
    order: I64Array = rows[np.lexsort((words[3], words[2], words[1], words[0]))]
    return order


def _by_rank(state: State, command: ListBlocks, rows: I64Array) -> I64Array:
    if command.where.tier is None:
        raise InvalidInput("filter.tier", "listing by rank needs a tier")
    return in_rank_order(state, state.tier(command.where.tier, "filter.tier"), rows)


def in_rank_order(state: State, tier: TierState, rows: I64Array) -> I64Array:
    """Rows in the order of eviction, protection aside."""
    catalog = state.catalog
    ranks = ranks_of(state.policy, statistics.StatsOf(catalog, rows), state.moment(tier))
    words = catalog.identity[rows].view(">u8").T
    depth = -catalog.position[rows].astype(np.int64)
    keys = (words[3], words[2], words[1], words[0], depth, catalog.last[rows], -ranks, standings(catalog, rows))
    order: I64Array = rows[np.lexsort(keys)]
    return order


def _start(state: State, command: ListBlocks, rows: I64Array) -> int:
    if not command.after:
        return 0
    if command.by_rank:
        if len(command.after) != 8:
            raise InvalidInput("page_token", "is not one that this listing gave")
        return int.from_bytes(command.after, "little")
    if len(command.after) != 32:
        raise InvalidInput("page_token", "is not one that this listing gave")
    keys = split(state.catalog.identity[rows])
    return next((place for place, key in enumerate(keys) if key > command.after), len(keys))


def explain(state: State, command: Explain) -> Explained:
    tier = state.tier(command.tier)
    rows = state.catalog.find(command.ids)
    blocks, left = [], departures(state) if tier.tier == Tier.HBM else {}
    for row, identity in zip(rows.tolist(), split(command.ids), strict=True):
        if row == NO_ROW or tier.copies.state[row] != STATE_READY:
            blocks.append(_absence(identity, left.get(identity)))
        else:
            blocks.append(_explanation(state, tier, row))
    return Explained(blocks, state.policy.spec, state.clock.step)


def _absence(identity: bytes, left: tuple[str, Ledger, int] | None) -> Explanation:
    """Of a block that is not there nothing is said, but for one that left by the budget of a sequence."""
    if left is None:
        return Explanation(identity, "", {}, 0.0, "", "")
    name, ledger, place = left
    budget, worth, stayed = ledger.budget, float(ledger.worth_left[place]), float(ledger.worth_stayed[place])
    rule = f"over the budget of sequence {name!r}: worth least to {budget.policy}"
    terms = {"place": float(place), "worth": worth, "budget_blocks": float(budget.blocks)}
    terms |= {"recent_blocks": float(budget.recent_blocks), "sink_blocks": float(budget.sink_blocks)}
    if not np.isinf(stayed):
        terms["worth_of_next"] = stayed
    return Explanation(identity, rule, terms, -worth, "", "given up" if budget.lossy else "copied down")


def _explanation(state: State, tier: TierState, row: int) -> Explanation:
    stats = statistics.StatsOf(state.catalog, np.array([row]))
    terms = state.policy.terms(stats, state.moment(tier)) | {"touches": float(stats.touches[0])}
    terms |= tier.victims.terms(row)
    terms["standing"], terms["priority"] = standing_of(state.catalog, row), priority_of(state.catalog, row)
    if state.expected.until[row]:
        terms["expected_s"] = _left_s(state, state.expected, row)
    if state.kept.until[row]:
        terms["pinned_s"] = _left_s(state, state.kept, row)
    if state.policy.common.admission == "learned":
        terms |= worth_terms(state, row)
    if state.fallback is not None:
        terms |= {"fallen_back": float(state.fallback.active), "lead_over_lru": state.fallback.lead}
    return Explanation(
        state.catalog.identity[row].tobytes(), state.policy.rule, terms, rank_of(state, tier, row),
        _protection(state, tier, row), _destination(state, tier, row),
    )


def _protection(state: State, tier: TierState, row: int) -> str:
    """What keeps a copy from being chosen now, in words; empty when nothing does."""
    reasons = []
    if tier.copies.loans.lender[row]:
        reasons.append("lent by its engine")
    if state.pins[row]:
        reasons.append(f"in {state.pins[row]} running sequences")
    if tier.copies.leases[row]:
        reasons.append(f"under {tier.copies.leases[row]} leases")
    if tier.copies.moves[row]:
        reasons.append("being copied")
    if state.kept.until[row] and state.destination(tier) is None:
        reasons.append(f"pinned for {_left_s(state, state.kept, row):.0f} s")
    if state.policy.common.leaf_only and tier.children[row]:
        reasons.append(f"{tier.children[row]} later blocks of its chain are here")
    return ", ".join(reasons)


def _destination(state: State, tier: TierState, row: int) -> str:
    for number, lower in state.tiers.items():
        relied_upon = number != Tier.SPILL or state.spill_up
        if number > tier.tier and relied_upon and lower.copies.state[row] == STATE_READY:
            return f"dropped ({number.name.lower()} holds it)"
    below = state.destination(tier)
    if below is None:
        return "dropped"
    if below.tier == Tier.SPILL and not state.spill_up:
        return "kept (spill is down)"
    if below.tier == Tier.SPILL and not worth_storing(state, np.array([row]))[0]:
        return "dropped (never used again)"
    if below.tier == Tier.SPILL and not worth_a_store(state, np.array([row]))[0]:
        return "dropped (worth less than what would go for it)"
    return below.tier.name.lower()


def plan(state: State, command: Plan) -> Planned:
    """Chooses as an eviction would, says what came out, and puts it back."""
    tier = state.tier(command.tier)
    free = tier.copies.free
    need, taken, victims = command.bytes - free, 0, list[int]()
    biggest = tier.copies.footprints.of(int(state.catalog.size[tier.copies.state == STATE_READY].max(initial=1)))
    while taken < need and len(more := state.choose(tier, max(1, (need - taken) // biggest))):
        victims += more.tolist()
        taken += tier.copies.bytes_of(more)
    listed = [_explanation(state, tier, row) for row in victims[: command.limit]]
    state.spare(tier, np.array(victims, np.int64))
    return Planned(listed, taken >= need, free, taken, len(victims))
