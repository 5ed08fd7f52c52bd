"""Prefetches: blocks come up by themselves, a few at a time, and nothing waits for them for ever."""

from __future__ import annotations

import pytest
from engine_driver import SESSION, Driver, ids_of

from tierd.core import messages as m
from tierd.core import prefetch as prefetching
from tierd.core.errors import InvalidInput, LimitReached, NotFound
from tierd.core.messages import Prefetched, Tier

READY, MISS, PENDING = Prefetched.READY, Prefetched.MISS, Prefetched.PENDING
FULL, LOST, EXPIRED = Prefetched.FULL, Prefetched.LOST, Prefetched.EXPIRED


def spilled(host: int, count: int, **settings: object) -> Driver:
    """A machine with blocks 0 .. count - 1 in spill alone."""
    driver = Driver(host, spill=64, **settings)
    for number in range(count):
        driver.put([number])
        driver.step(m.Evict(ids_of([number]), Tier.SPILL))
        driver.carry_out()
    return driver


def prefetch(driver: Driver, numbers: list[int], **fields: object) -> m.PrefetchReply:
    reply = driver.step(m.Prefetch(SESSION, ids_of(numbers), **fields))
    assert isinstance(reply, m.PrefetchReply)
    return reply


def status(driver: Driver, ticket: int) -> m.PrefetchReply:
    reply = driver.step(m.PrefetchStatus(SESSION, ticket))
    assert isinstance(reply, m.PrefetchReply)
    return reply


def test_blocks_come_up_a_few_at_a_time_by_themselves() -> None:
    """No more moves run at once than the window allows; each that ends begins the next, without being asked."""
    driver = spilled(16, 8, max_prefetch_moves=3)
    reply = prefetch(driver, list(range(8)))
    assert reply.outcomes.tolist() == [PENDING] * 8 and not reply.done and len(reply.waiting) == 3
    rounds = []
    while driver.moves:
        rounds.append(driver.carry_out())
    assert rounds == [3, 3, 2]
    done = status(driver, reply.ticket)
    assert done.outcomes.tolist() == [READY] * 8 and done.done and not done.waiting
    assert driver.present() == list(range(8))


def test_the_oldest_ticket_is_served_first() -> None:
    """While the window is full of one ticket's blocks, a later ticket begins none, and waits for those moves."""
    driver = spilled(16, 8, max_prefetch_moves=4)
    first, second = prefetch(driver, [0, 1, 2, 3]), prefetch(driver, [4, 5])
    assert second.waiting == first.waiting
    driver.carry_out()
    assert status(driver, first.ticket).done and len(driver.moves) == 2
    driver.carry_out()
    assert status(driver, second.ticket).done


def test_the_window_counts_the_moves_of_later_tickets() -> None:
    """When a slow block of the oldest ticket has come it takes no more of the window than the later ones left."""
    driver = spilled(16, 10, max_prefetch_moves=2)
    prefetch(driver, [0, 1, 2, 3])
    prefetch(driver, [4, 5, 6])
    while driver.moves:
        assert len(driver.moves) <= 2
        move = driver.moves.pop(0)
        driver.step(m.Finish((m.MoveResult(move.op, True),)))
    assert driver.present() == list(range(7))


def test_each_outcome() -> None:
    """READY above already, MISS unknown, LOST vanished on the way, FULL without room."""
    driver = spilled(2, 4)
    driver.put([9])
    kept = driver.acquire([9])
    reply = prefetch(driver, [9, 33, 0])
    assert reply.outcomes.tolist() == [READY, MISS, PENDING]
    driver.carry_out(ok=False, lost=True)
    assert status(driver, reply.ticket).outcomes.tolist() == [READY, MISS, LOST]
    driver.put([10])
    also = driver.acquire([10])
    assert prefetch(driver, [1]).outcomes.tolist() == [FULL]
    driver.release(kept)
    driver.release(also)


def test_a_prefetch_ends_at_its_time() -> None:
    """What has not come by the deadline is EXPIRED, and nothing more is begun."""
    driver = spilled(16, 6, max_prefetch_moves=2)
    reply = prefetch(driver, list(range(6)), within_s=5.0)
    driver.carry_out()
    driver.now += 5.0
    late = status(driver, reply.ticket)
    assert late.outcomes.tolist() == [READY, READY, *[EXPIRED] * 4] and late.done and late.left_s == 0.0
    driver.carry_out()
    assert not driver.moves


def test_what_came_up_is_kept_until_it_is_read_or_overdue() -> None:
    """Prefetched blocks are older than all others, and still go last; once read, or late, they go by rank."""
    driver = spilled(4, 2)
    driver.put([5, 6])
    prefetch(driver, [0, 1], within_s=30.0)
    driver.carry_out()
    for _ in range(2):
        driver.put([7, 8])
        driver.carry_out()
    assert {0, 1} <= set(driver.present())
    driver.release(driver.acquire([0]))
    driver.now += 30.0
    driver.put([9])
    driver.carry_out()
    driver.put([9])
    assert 1 not in driver.present() and 0 in driver.present()


def test_cancelling_begins_nothing_more() -> None:
    """A cancelled prefetch is forgotten; its moves under way end, and no further one begins."""
    driver = spilled(16, 6, max_prefetch_moves=2)
    ticket = prefetch(driver, list(range(6))).ticket
    reply = driver.step(m.CancelPrefetch(SESSION, ticket))
    assert isinstance(reply, m.PrefetchReply) and reply.done and not reply.waiting
    assert driver.carry_out() == 2 and not driver.moves
    with pytest.raises(NotFound, match=f"ticket {ticket}"):
        status(driver, ticket)


def test_a_prefetch_ends_with_its_session() -> None:
    """When the session ends nothing more of its prefetches is begun, and another session does not see them."""
    driver = spilled(16, 6, max_prefetch_moves=2)
    ticket = prefetch(driver, list(range(6))).ticket
    driver.step(m.OpenSession(8))
    with pytest.raises(NotFound):
        driver.step(m.PrefetchStatus(8, ticket))
    driver.step(m.EndSession(SESSION, settled=True))
    assert driver.carry_out() == 2 and not driver.moves


def test_a_session_has_a_bounded_number_of_tickets() -> None:
    """One more than allowed is refused by name while all are under way; of those that are done the oldest is
    forgotten."""
    driver = spilled(16, 4, max_prefetches=2, max_prefetch_moves=1)
    first, second = prefetch(driver, [0]).ticket, prefetch(driver, [1]).ticket
    with pytest.raises(LimitReached, match="max_prefetches: all 2"):
        prefetch(driver, [2])
    driver.carry_out()
    third = prefetch(driver, [2]).ticket
    with pytest.raises(NotFound):
        status(driver, first)
    while driver.carry_out():
        pass
    assert status(driver, second).done and status(driver, third).done


def test_ids_of_all_tickets_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Prefetches under way hold no more ids than the bound; those that are done hold none."""
    monkeypatch.setattr(prefetching, "MOST_IDS", 5)
    driver = spilled(16, 4)
    prefetch(driver, [0, 1, 2])
    with pytest.raises(LimitReached, match="prefetched ids: 3 under way, 3 more are over 5"):
        prefetch(driver, [3, 4, 5])
    driver.carry_out()
    assert prefetch(driver, [3, 4, 5]).outcomes.tolist() == [PENDING, MISS, MISS]


def test_a_spill_tier_that_is_down_is_waited_for() -> None:
    """While the spill tier is down a prefetch is PENDING without a move; when it is back it goes on by itself."""
    driver = spilled(16, 2)
    driver.step(m.SpillState(up=False))
    reply = prefetch(driver, [0, 1])
    assert reply.outcomes.tolist() == [PENDING, PENDING] and not driver.moves
    driver.step(m.SpillState(up=True))
    assert driver.carry_out() == 2
    assert status(driver, reply.ticket).done


def test_room_is_made_by_demotion_first() -> None:
    """Where blocks must go down before others can come up, the ticket goes on when they have."""
    driver = spilled(2, 2)
    driver.put([5, 6])
    ticket = prefetch(driver, [0, 1]).ticket
    for _ in range(6):
        driver.carry_out()
    assert status(driver, ticket).outcomes.tolist() == [READY, READY]
    assert driver.present() == [0, 1] and driver.tiers(5) == {Tier.SPILL}


@pytest.mark.parametrize("within_s", [0.0, -1.0, 601.0, float("nan")])
def test_a_time_that_cannot_be_is_refused(within_s: float) -> None:
    """A deadline that is none, or later than the latest, is refused by name."""
    with pytest.raises(InvalidInput, match="within_ms"):
        prefetch(spilled(4, 1), [0], within_s=within_s)


def test_nothing_is_prefetched_into_spill() -> None:
    """Blocks are brought up to a tier that can be read, not to spill."""
    with pytest.raises(InvalidInput, match="to: blocks are prefetched to hbm or host"):
        prefetch(spilled(4, 1), [0], to=Tier.SPILL)


def test_a_prefetch_is_no_access() -> None:
    """The record of a prefetched block is as it was, and no step has passed."""
    driver = spilled(4, 1)
    before, step = driver.describe(0).record, driver.engine.state.clock.step
    prefetch(driver, [0])
    driver.carry_out()
    assert (driver.describe(0).record, driver.engine.state.clock.step) == (before, step)


def test_where_one_block_finds_no_room_the_rest_finds_none() -> None:
    """READY and MISS are told as far as the window reaches; once nothing can come up, of all ids at once."""
    driver = spilled(8, 6, max_prefetch_moves=2)
    driver.put([20, 21])
    reply = prefetch(driver, [20, *range(6), 21, 30])
    assert reply.outcomes.tolist() == [READY, *[PENDING] * 8]
    driver.step(m.CancelPrefetch(SESSION, reply.ticket))
    driver.carry_out(ok=False)
    driver.put([22, 23, 24, 25, 26, 27])
    kept = driver.acquire([20, 21, 22, 23, 24, 25, 26, 27])
    full = prefetch(driver, [20, *range(6), 21, 30])
    assert full.outcomes.tolist() == [READY, *[FULL] * 6, READY, MISS] and full.done
    driver.release(kept)
