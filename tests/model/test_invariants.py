"""Each invariant of the core notices its own damage: what it keeps is bent by hand, one thing at a time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from tierd.core.engine import Engine
from tierd.core.engine_settings import EngineSettings, TierSpec
from tierd.core.invariants import Violated, check
from tierd.core.messages import (
    Acquire,
    Commit,
    EndSession,
    Evict,
    NextUse,
    OpenSequence,
    OpenSession,
    Pin,
    Prefetch,
    Reserve,
    ReserveReply,
    Stock,
    Tier,
)
from tierd.core.sessions import StockedSlot
from tierd.core.standing import set_next_use
from tierd.core.state import State, TierState
from tierd.core.tables import Tables
from tierd.core.underway import Sequence, Ticket
from tierd.testing.prompts import Kind, Prompt
from tierd_client.format import HOLD_LEASE, STATE_READY

KIND = Kind(1, 0, 4096)
CHAIN = tuple(bytes([n]) * 32 for n in range(1, 7))
SINGLES = tuple(bytes([n]) * 32 for n in range(11, 16))
READER, WRITER, LOST = 1, 2, 3

Damage = Callable[[State], None]


def rich_engine() -> Engine:
    """One of everything that can be damaged: leases, slots being written and in quarantine, an open sequence
    that also waits for blocks, a move down, a ghost, a pin, a prefetch that waits for a block that is written."""
    tiers = (TierSpec(Tier.HOST, ((1, 16 * 4096),)), TierSpec(Tier.SPILL, capacity_bytes=16 * 4096))
    engine = Engine(EngineSettings(tiers), Tables.private(24, sessions=8, holds=64))
    for session in (READER, WRITER, LOST):
        engine.step(OpenSession(session), 0.0)
    store(engine, Prompt(KIND, CHAIN[:4]))
    for identity in SINGLES:
        store(engine, Prompt(KIND, (identity,)))
    engine.step(Acquire(READER, Prompt(KIND, CHAIN[:2]).ids()), 1.0)
    engine.step(OpenSequence(WRITER, "running", Prompt(KIND, CHAIN).ids()), 2.0)
    engine.step(Reserve(WRITER, Prompt(KIND, (b"w" * 32,)).ids(), 4096), 3.0)
    engine.step(Stock(WRITER, Prompt(KIND, (b"w" * 32,)).ids(), 4096, 2, 0), 3.0)
    engine.step(Reserve(LOST, Prompt(KIND, (b"q" * 32,)).ids(), 4096), 4.0)
    engine.step(EndSession(LOST, settled=False), 5.0)
    engine.step(Evict(Prompt(KIND, SINGLES[:1]).ids(), None, allow_drop=True), 6.0)
    engine.step(Evict(Prompt(KIND, SINGLES[1:2]).ids(), Tier.SPILL), 7.0)
    engine.step(Pin(Prompt(KIND, SINGLES[2:3]).ids(), 1000.0), 8.0)
    engine.step(Prefetch(READER, Prompt(KIND, (SINGLES[3], b"w" * 32)).ids(), within_s=600.0), 9.0)
    return engine


def store(engine: Engine, prompt: Prompt) -> None:
    reply = engine.step(Reserve(READER, prompt.ids(), 4096), 0.0).reply
    assert isinstance(reply, ReserveReply)
    checksums = np.zeros(len(prompt.chain), np.uint64)
    engine.step(Commit(READER, prompt.ids().ids, reply.generations, checksums), 0.0)


def host(state: State) -> TierState:
    return state.tiers[Tier.HOST]


def ready(state: State, number: int = 0) -> int:
    """A row whose copy in host is READY."""
    return int(np.flatnonzero(host(state).copies.state == STATE_READY)[number])


def first_hold(state: State) -> int:
    """A hold of the reader's lease."""
    return next(iter(state.sessions.by_number[READER].leases.values())).holds[0]


def bump(counter: str, by: int = 4096) -> Damage:
    """Changes a counter of the host tier."""

    def damage(state: State) -> None:
        setattr(host(state).copies, counter, getattr(host(state).copies, counter) + by)

    return damage


def add(column: str, by: int = 1) -> Damage:
    """Changes what the host tier keeps of a READY row."""

    def damage(state: State) -> None:
        getattr(host(state).copies, column)[ready(state)] += by

    return damage


def use_an_empty_row(state: State) -> None:
    state.catalog.used[np.flatnonzero(~state.catalog.used)[0]] = True


def half_write(state: State) -> None:
    state.catalog.sequence[ready(state)] += 1


def rename(state: State) -> None:
    state.catalog.identity[ready(state)] = 77


def lose_a_free_row(state: State) -> None:
    state.catalog._free_count -= 1


def set_ema(value: float) -> Damage:
    def damage(state: State) -> None:
        state.catalog.ema[ready(state)] = value

    return damage


def lose_a_slot(state: State) -> None:
    arena = host(state).copies.arena
    assert arena is not None
    assert arena.allocate(4096, 1)


def overlap(state: State) -> None:
    host(state).copies.address[ready(state)] = host(state).copies.address[ready(state, 1)]


def move_out(state: State) -> None:
    host(state).copies.address[ready(state)] = 9 << 48


def share_a_generation(state: State) -> None:
    host(state).copies.generation[ready(state)] = host(state).copies.generation[ready(state, 1)]


def bar_too_much(state: State) -> None:
    barred = host(state).copies.barred
    address, (size, holds) = next(iter(barred.items()))
    barred[address] = (size, holds + 1)


def forget_a_writer(state: State) -> None:
    host(state).copies.writer.popitem()


def invent_a_writer(state: State) -> None:
    host(state).copies.writer[ready(state)] = WRITER


def set_writer(tier: Tier, writer: int) -> Damage:
    def damage(state: State) -> None:
        writers = state.tiers[tier].copies.writer
        writers[next(iter(writers))] = writer

    return damage


def forget_a_reservation(state: State) -> None:
    state.sessions.by_number[WRITER].reservations.clear()


def redirect_a_move(state: State) -> None:
    next(iter(state.moves.values())).target = Tier.HOST


def add_a_child(state: State) -> None:
    host(state).children[ready(state)] += 1


def pin(state: State) -> None:
    state.pins[ready(state)] += 1


def await_nothing(state: State) -> None:
    state.awaited[bytes(32)] = 1


def await_more(state: State) -> None:
    state.awaited[next(iter(state.awaited))] += 1


def drop_a_sequence(state: State) -> None:
    state.sequences.popitem()


def count_a_held_id_more(state: State) -> None:
    state.held_ids += 1


def open_a_sequence(state: State) -> None:
    chain = Prompt(KIND, CHAIN[4:]).ids()
    state.sequences[WRITER, "extra"] = Sequence(chain, np.zeros(len(chain), bool), chain.ids, 0)


def lengthen_a_lease(state: State) -> None:
    next(iter(state.sessions.by_number[READER].leases.values())).rows.append(ready(state))


def unready_what_is_leased(state: State) -> None:
    copies = host(state).copies
    row = next(iter(state.sessions.by_number[READER].leases.values())).rows[0]
    copies.state[row] = 1
    copies.used, copies.reserved, copies.blocks = copies.used - 4096, copies.reserved + 4096, copies.blocks - 1
    reserve_for_writer(state, host(state), row)


def reserve_for_writer(state: State, tier: TierState, row: int) -> None:
    """Makes the writer's session believe that it may write this row's copy."""
    generation = int(tier.copies.generation[row])
    tier.copies.writer[row] = WRITER
    state.sessions.by_number[WRITER].reservations[generation] = (tier.tier, row, 0)


def hold_more(state: State) -> None:
    state.sessions.by_number[READER].held += 1


def end_an_idle_session(state: State) -> None:
    state.sessions.open(4_000_001, bytes(16)).ended = True


def hold_twice(state: State) -> None:
    session = state.sessions.by_number[READER]
    session.quarantined.append(first_hold(state))
    session.held += 1


def clear_a_hold(state: State) -> None:
    state.sessions.hold_session[first_hold(state)] = 0


def give_a_hold_away(state: State) -> None:
    state.sessions.hold_session[first_hold(state)] = WRITER


def name_a_free_hold(state: State) -> None:
    state.sessions.hold_kind[np.flatnonzero(state.sessions.hold_session == 0)[0]] = HOLD_LEASE


def hold_another_generation(state: State) -> None:
    state.sessions.hold_generation[first_hold(state)] += 1


def hold_another_address(state: State) -> None:
    state.sessions.hold_address[first_hold(state)] += 4096


def call_a_lease_a_reservation(state: State) -> None:
    state.sessions.hold_kind[first_hold(state)] = 2


def quarantine_elsewhere(state: State) -> None:
    hold = state.sessions.by_number[LOST].quarantined[0]
    state.sessions.hold_address[hold] += 4096


def allow_no_moves(state: State) -> None:
    state.settings = replace(state.settings, max_moves=0)


def leave(state: State) -> None:
    """A leaf that nobody counts as a child is said to be on its way out."""
    leaf = next(row for row in np.flatnonzero(host(state).copies.state == STATE_READY).tolist()
                if state.catalog.parents(np.array([row]))[0] < 0)
    host(state).leaving.add(leaf)


def stretch_the_ring(state: State) -> None:
    state.ghosts.tail = state.ghosts.head + state.ghosts.capacity + 1


def turn_the_ring(state: State) -> None:
    state.ghosts.tail = state.ghosts.head - 1


def raise_a_ghost(state: State) -> None:
    ghosts, at = state.ghosts, state.ghosts.live()[0]
    ghosts.identity[at[:1]] = state.catalog.identity[ready(state)]
    ghosts._index.rebuild(ghosts.head + 1, at)


def miscount_pins(state: State) -> None:
    state.kept._count += 1


def pin_an_empty_row(state: State) -> None:
    row = np.flatnonzero(~state.catalog.used)[:1]
    state.kept.extend(row, 9e9)


def lose_pinned_bytes(state: State) -> None:
    state.kept_bytes -= 1


def share_less(state: State) -> None:
    state.settings = replace(state.settings, pin_share=0.0)


def forget_the_end_of_a_pin(state: State) -> None:
    state.kept._heap.clear()


def say_soon(state: State) -> None:
    set_next_use(state.catalog, np.array([ready(state)]), NextUse.SOON)


def miscount_expected(state: State) -> None:
    state.expected._count += 1


def forget_the_end_of_an_expectation(state: State) -> None:
    state.expected._heap.clear()


def expect_an_empty_row(state: State) -> None:
    state.expected.extend(np.flatnonzero(~state.catalog.used)[:1], 9e9)


def ticket(state: State) -> Ticket:
    return next(iter(state.prefetches.values()))


def bring_up_too_much(state: State) -> None:
    ticket(state).active = np.arange(1000)


def keep_a_prefetch(state: State) -> None:
    state.prefetches[4_000_000, 1] = ticket(state)


def do_nothing_more(state: State) -> None:
    ticket(state).blocks = None


def stocked(state: State) -> tuple[int, StockedSlot]:
    return next(iter(state.sessions.by_number[WRITER].stock.items()))


def lose_a_stocked_slot(state: State) -> None:
    generation, slot = stocked(state)
    state.sessions.by_number[WRITER].stock[generation] = slot._replace(address=slot.address + (1 << 40))


def miscount_a_stock(state: State) -> None:
    state.sessions.by_number[WRITER].stocked[Tier.HOST, 4096] += 1


def miscount_stocked_bytes(state: State) -> None:
    state.sessions.stocked_bytes += 4096


def hold_a_stocked_slot_under_another_generation(state: State) -> None:
    state.sessions.hold_generation[stocked(state)[1].hold] += np.uint64(1)


DAMAGES: list[tuple[Damage, str]] = [
    (use_an_empty_row, "a row is in use exactly"),
    (half_write, "half-written"),
    (rename, "finds its own row"),
    (lose_a_free_row, "free and used rows"),
    (set_ema(1.5), "ema lies"),
    (set_ema(-0.5), "ema lies"),
    (bump("used"), "used is the bytes of READY"),
    (bump("reserved"), "reserved is the bytes of FILLING"),
    (bump("quarantined"), "quarantined is what is barred or aside"),
    (bump("blocks", 1), "blocks are READY"),
    (bump("blocks", -1), "blocks are READY"),
    (bump("found_blocks", 1), "found blocks are FOUND"),
    (lose_a_slot, "= capacity"),
    (bump("capacity"), "= capacity"),
    (overlap, "do not overlap"),
    (move_out, "lies in a segment"),
    (share_a_generation, "one generation"),
    (bar_too_much, "barred by as many holds"),
    (forget_a_writer, "exactly one writer"),
    (invent_a_writer, "exactly one writer"),
    (set_writer(Tier.HOST, 4_000_000), "knows of it"),
    (set_writer(Tier.HOST, READER), "knows of it"),
    (set_writer(Tier.SPILL, -4_000_000), "knows of it"),
    (forget_a_reservation, "knows of it"),
    (redirect_a_move, "knows of it"),
    (add_a_child, "children of rows"),
    (pin, "a pin for each open sequence"),
    (drop_a_sequence, "a pin for each open sequence"),
    (open_a_sequence, "awaited by its open sequences"),
    (await_nothing, "awaited by its open sequences"),
    (await_more, "awaited by its open sequences"),
    (count_a_held_id_more, "identities of open sequences are counted right"),
    (lengthen_a_lease, "a hold for each row"),
    (unready_what_is_leased, "what is leased is READY"),
    (add("leases"), "leases are counted right"),
    (add("leases", -1), "leases are counted right"),
    (hold_more, "holds what it counts"),
    (end_an_idle_session, "is forgotten"),
    (hold_twice, "belongs to one session"),
    (clear_a_hold, "hold table says"),
    (give_a_hold_away, "hold table says"),
    (name_a_free_hold, "has no kind"),
    (hold_another_generation, "slot of one copy"),
    (hold_another_address, "slot of one copy"),
    (call_a_lease_a_reservation, "slot of one copy"),
    (quarantine_elsewhere, "barred by as many holds"),
    (lose_a_stocked_slot, "is out, and no record's"),
    (miscount_a_stock, "slots of a stock are counted right"),
    (miscount_stocked_bytes, "bytes of all stocks"),
    (hold_a_stocked_slot_under_another_generation, "is under its hold"),
    (allow_no_moves, "no more moves"),
    (add("moves"), "moves are counted right"),
    (leave, "has a move"),
    (stretch_the_ring, "no more than its places"),
    (turn_the_ring, "no more than its places"),
    (raise_a_ghost, "has no ghost"),
    (miscount_pins, "pinned rows are counted"),
    (pin_an_empty_row, "a pinned row is in use"),
    (lose_pinned_bytes, "pinned bytes are"),
    (share_less, "no more than their share"),
    (forget_the_end_of_a_pin, "end of each pin is awaited"),
    (say_soon, "expected until a time"),
    (miscount_expected, "expected rows are counted"),
    (forget_the_end_of_an_expectation, "end of each expectation is awaited"),
    (expect_an_empty_row, "what is expected is in use"),
    (bring_up_too_much, "bring up no more at once"),
    (keep_a_prefetch, "ends with its session"),
    (do_nothing_more, "done when nothing is PENDING"),
]


@pytest.mark.parametrize(("damage", "sentence"), DAMAGES)
def test_damage_is_named(damage: Damage, sentence: str) -> None:
    """A state that is bent in one place violates the invariant of that place, by its sentence."""
    engine = rich_engine()
    check(engine)
    damage(engine.state)
    with pytest.raises(Violated, match=sentence):
        check(engine)
