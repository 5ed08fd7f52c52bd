"""Priority, and what comes next: which blocks go first, whatever their ranks."""

from __future__ import annotations

import numpy as np
import pytest
from engine_driver import SESSION, Driver, ids_of

from tierd.core import messages as m
from tierd.core.errors import InvalidInput, LimitReached
from tierd.core.messages import NextUse, Priority, Tier

POLICIES = ["lru", "lrfu", "lrfu(ranking=composite)", "lrfu(ranking=decayed)"]


def order(driver: Driver, tier: Tier = Tier.HOST) -> list[int]:
    """Numbers of the blocks in the order in which they would go."""
    reply = driver.step(m.Plan(tier, 1 << 40, 100))
    assert isinstance(reply, m.Planned)
    return [int.from_bytes(one.identity[:8], "big") - 1 for one in reply.victims]


def put(driver: Driver, number: int, priority: Priority) -> None:
    blocks = ids_of([number])
    reply = driver.step(m.Reserve(SESSION, blocks, 4096, priority=priority))
    assert isinstance(reply, m.ReserveReply)
    if reply.outcomes[0] == m.Reserved.GRANTED:
        driver.step(m.Commit(SESSION, blocks.ids, reply.generations, np.zeros(1, np.uint64)))


def run(driver: Driver, name: str, numbers: list[int], **closing: object) -> None:
    """A request over a chain: opened, stored, read and closed."""
    driver.step(m.OpenSequence(SESSION, name, ids_of(numbers, chain=True)))
    driver.put(numbers, chain=True, sequence=name)
    driver.step(m.CloseSequence(SESSION, name, **closing))


@pytest.mark.parametrize("policy", POLICIES)
def test_low_goes_first_and_high_last(policy: str) -> None:
    """Blocks go by priority, and within a priority as without; a block of which nothing is said is normal."""
    driver = Driver(8, policy=policy)
    said = [Priority.HIGH, Priority.LOW, Priority.NORMAL, Priority.HIGH, Priority.UNSPECIFIED, Priority.LOW]
    for number, priority in enumerate(said):
        put(driver, number, priority)
    assert order(driver) == [1, 5, 2, 4, 0, 3]
    listed = driver.step(m.ListBlocks(m.BlockFilter(tier=Tier.HOST), 10, by_rank=True))
    assert isinstance(listed, m.BlockPage)
    assert [block.priority for block in listed.blocks if block] == [1, 1, 2, 2, 3, 3]


def test_a_request_raises_what_it_finds_and_lowers_nothing() -> None:
    """Of all requests for a block the highest priority counts, in whatever order they come."""
    driver = Driver(8)
    for number, (first, second) in enumerate([(1, 3), (3, 1), (1, 2), (2, 0), (1, 0)]):
        put(driver, number, Priority(first))
        put(driver, number, Priority(second))
    assert [driver.describe(number).priority for number in range(5)] == [3, 3, 2, 2, 1]


def test_a_sequence_gives_its_priority_to_what_it_stores_and_finds() -> None:
    """Blocks of a sequence of high priority are high, those that it finds from the moment that it opens."""
    driver = Driver(8)
    driver.put([0])
    driver.put([9])
    driver.step(m.OpenSequence(SESSION, "s", ids_of([0, 1], chain=True), Priority.HIGH))
    assert driver.describe(0).priority == Priority.HIGH
    driver.put([0, 1], chain=True, sequence="s")
    driver.acquire([9], sequence="s")
    assert [driver.describe(number).priority for number in (0, 1, 9)] == [Priority.HIGH] * 3


def test_a_chain_stays_whole() -> None:
    """With leaf_only a head of low priority stays while a tail of high priority is there."""
    driver = Driver(8)
    put(driver, 0, Priority.LOW)
    driver.step(m.OpenSequence(SESSION, "tail", ids_of([1], chain=True, first=1, parent=0), Priority.HIGH))
    driver.put_ids(ids_of([1], chain=True, first=1, parent=0), sequence="tail")
    driver.step(m.CloseSequence(SESSION, "tail"))
    put(driver, 5, Priority.NORMAL)
    assert order(driver) == [5, 1, 0]


@pytest.mark.parametrize("policy", POLICIES)
def test_what_a_closed_session_alone_used_goes_first(policy: str) -> None:
    """Blocks behind the last one that another chain goes on from go before all others, the deepest first."""
    driver = Driver(16, policy=policy)
    run(driver, "a", [0, 1, 2, 3])
    run(driver, "b", [0, 1, 8, 9])
    run(driver, "c", [4, 5])
    driver.step(m.OpenSequence(SESSION, "b", ids_of([0, 1, 8, 9], chain=True)))
    driver.step(m.CloseSequence(SESSION, "b", NextUse.CLOSED))
    assert order(driver)[:2] == [9, 8]
    assert driver.describe(1).next_use == NextUse.NONE


def test_what_another_request_uses_now_is_not_ended() -> None:
    """A block that another open sequence, or a lease, holds when the session closes is nobody's alone, nor is what
    lies before it."""
    driver = Driver(16)
    run(driver, "a", [0, 1, 2, 3])
    driver.step(m.OpenSequence(SESSION, "other", ids_of([0], chain=True)))
    driver.acquire([2])
    driver.step(m.OpenSequence(SESSION, "a", ids_of([0, 1, 2, 3], chain=True)))
    driver.step(m.CloseSequence(SESSION, "a", NextUse.CLOSED))
    assert [driver.describe(number).next_use for number in range(4)] == [0, 0, 0, NextUse.CLOSED]


def test_blocks_decoded_by_the_sequence_count() -> None:
    """What a sequence stored behind its prompt ends with it, too."""
    driver = Driver(16)
    driver.step(m.OpenSequence(SESSION, "s", ids_of([0, 1], chain=True)))
    driver.put([0, 1], chain=True, sequence="s")
    driver.put_ids(ids_of([2], chain=True, first=2, parent=1), sequence="s")
    driver.step(m.CloseSequence(SESSION, "s", NextUse.CLOSED))
    assert [driver.describe(number).next_use for number in range(3)] == [NextUse.CLOSED] * 3


def test_waiting_for_a_human_goes_with_the_low_ones() -> None:
    """Blocks that wait for a human go as early as low ones, whatever their priority, until they are read."""
    driver = Driver(16)
    put(driver, 8, Priority.NORMAL)
    put(driver, 9, Priority.LOW)
    driver.step(m.OpenSequence(SESSION, "s", ids_of([0]), Priority.HIGH))
    driver.put([0], sequence="s")
    driver.step(m.CloseSequence(SESSION, "s", NextUse.HUMAN))
    assert order(driver) == [9, 0, 8]
    driver.release(driver.acquire([0]))
    assert order(driver) == [9, 8, 0]


def test_a_tool_call_keeps_blocks_until_it_is_overdue() -> None:
    """Blocks of a sequence whose tool call runs go after any others, and when its time is over as if nothing had
    been said."""
    driver = Driver(16)
    run(driver, "s", [0, 1], next_use=NextUse.SOON, expected_s=20.0)
    put(driver, 9, Priority.HIGH)
    assert order(driver) == [9, 1, 0]
    assert driver.describe(1).expected_s == 20.0
    driver.now += 20.0
    assert order(driver) == [1, 0, 9]
    assert driver.describe(1).next_use == NextUse.NONE


def test_expected_blocks_make_no_newcomer_wait() -> None:
    """When nothing else is there, blocks that are expected go all the same."""
    driver = Driver(2)
    run(driver, "s", [0, 1], next_use=NextUse.SOON)
    assert driver.put([5, 6]) == [m.Reserved.GRANTED] * 2


@pytest.mark.parametrize("next_use", [NextUse.SOON, NextUse.HUMAN, NextUse.CLOSED])
def test_the_next_use_ends_what_was_said_of_it(next_use: NextUse) -> None:
    """An access, but not a report that comes late, makes a block one like any other again."""
    driver = Driver(8)
    run(driver, "s", [0], next_use=next_use)
    driver.step(m.Observe(SESSION, "s", np.array([0.5], np.float32)))
    assert driver.describe(0).next_use == next_use
    driver.release(driver.acquire([0]))
    assert (driver.describe(0).next_use, driver.describe(0).expected_s) == (NextUse.NONE, 0.0)


def test_two_tool_calls_are_waited_for_to_the_later_end() -> None:
    """A block of two sequences is expected until the later of both times."""
    driver = Driver(8)
    run(driver, "a", [0, 1], next_use=NextUse.SOON, expected_s=50.0)
    driver.step(m.OpenSequence(SESSION, "b", ids_of([0, 1], chain=True)))
    driver.step(m.CloseSequence(SESSION, "b", NextUse.SOON, 10.0))
    driver.now += 30.0
    assert driver.describe(0).expected_s == 20.0


@pytest.mark.parametrize("expected_s", [-1.0, 601.0, float("nan")])
def test_a_time_that_cannot_be_is_refused_and_nothing_closed(expected_s: float) -> None:
    """A tool call that is longer than the longest is refused by name; the sequence stays open."""
    driver = Driver(8)
    driver.step(m.OpenSequence(SESSION, "s", ids_of([0])))
    with pytest.raises(InvalidInput, match="expected_ms"):
        driver.step(m.CloseSequence(SESSION, "s", NextUse.SOON, expected_s))
    driver.step(m.CloseSequence(SESSION, "s"))


def test_priority_and_next_use_survive_a_restart() -> None:
    """After a kill -9 priorities are as they were, and so is what waits for a human or has ended; nothing is
    expected any more."""
    driver = Driver(8)
    put(driver, 0, Priority.HIGH)
    run(driver, "a", [1], next_use=NextUse.HUMAN)
    run(driver, "b", [2], next_use=NextUse.CLOSED)
    run(driver, "c", [3], next_use=NextUse.SOON)
    later = Driver(8, tables=driver.tables)
    assert later.describe(0).priority == Priority.HIGH
    assert [later.describe(number).next_use for number in (1, 2, 3)] == [NextUse.HUMAN, NextUse.CLOSED, 0]
    assert order(later) == [2, 1, 3, 0]


def test_a_restart_does_not_forget_records_without_hints() -> None:
    """A table of a daemon that knew no hints, all flags but the first zero, is one of normal blocks."""
    driver = Driver(4)
    driver.put([0])
    assert driver.tables.catalog["flags"].max() == 1
    assert driver.describe(0).priority == Priority.NORMAL


def test_an_explanation_tells_the_standing() -> None:
    """Explain has the standing among its terms, and the time for which a block is expected."""
    driver = Driver(8)
    run(driver, "s", [0], next_use=NextUse.SOON, expected_s=25.0)
    put(driver, 1, Priority.LOW)
    reply = driver.step(m.Explain(ids_of([0, 1]).ids, Tier.HOST))
    assert isinstance(reply, m.Explained)
    soon, low = (one.terms for one in reply.blocks)
    assert (soon["standing"], soon["expected_s"], soon["priority"]) == (4, 25.0, 2)
    assert (low["standing"], low["priority"]) == (1, 1) and "expected_s" not in low


# --- touches ------------------------------------------------------------------------------------------


def touch(driver: Driver, numbers: list[int], counts: list[int], sequence: str = "") -> m.Touched:
    reply = driver.step(m.Touch(SESSION, ids_of(numbers), np.array(counts), sequence))
    assert isinstance(reply, m.Touched)
    return reply


@pytest.mark.parametrize("policy", POLICIES)
def test_touches_are_accesses(policy: str) -> None:
    """A block touched for three requests has the record, to the bit, of one that was read by three in that step."""
    touched, read = Driver(8, policy=policy), Driver(8, policy=policy)
    for driver in (touched, read):
        driver.put([0])
    # Three sequences that were opened before: their reads come in one step.
    touched.engine.state.clock.step += 2
    touch(touched, [0], [3])
    for name in "abc":
        read.step(m.OpenSequence(SESSION, name, ids_of([0])))
    for name in "abc":
        read.acquire([0], sequence=name)
    assert touched.describe(0).record == read.describe(0).record


def test_a_ghost_is_touched_where_it_lies() -> None:
    """A block that is gone and was used elsewhere comes back with those accesses."""
    driver = Driver(1)
    driver.put([0])
    driver.put([1])
    assert touch(driver, [0, 1, 9], [2, 1, 5]) == m.Touched(driver.engine.state.clock.step, 1, 1)
    view = driver.describe(0)
    assert view.ghost and view.record.touches == 3 and view.record.last == driver.engine.state.clock.step
    driver.put([0])
    assert driver.describe(0).record.touches == 4


def test_in_a_sequence_a_block_is_touched_once() -> None:
    """Touches and reads of one sequence are one access to each block, of ghosts, too."""
    driver = Driver(1)
    driver.put([0])
    driver.put([1])
    driver.step(m.OpenSequence(SESSION, "s", ids_of([0, 1])))
    assert (touch(driver, [0, 1], [1, 1], "s").blocks, touch(driver, [0, 1], [1, 1], "s").blocks) == (1, 0)
    driver.acquire([1], sequence="s")
    assert (driver.describe(0).record.touches, driver.describe(1).record.touches) == (2, 2)


def test_a_batch_of_touches_is_one_tick() -> None:
    """A Touch outside a sequence moves the request clock by one, in a sequence not at all."""
    driver = Driver(4)
    driver.put([0])
    before = driver.engine.state.clock.step
    assert touch(driver, [0, 5], [7, 7]).step == before + 1
    driver.step(m.OpenSequence(SESSION, "s", ids_of([0])))
    assert touch(driver, [0], [1], "s").step == before + 2


def test_touching_needs_a_session() -> None:
    """A session that is not open can touch nothing."""
    driver = Driver(4, max_sequences=1)
    driver.step(m.OpenSequence(SESSION, "s", ids_of([0])))
    with pytest.raises(LimitReached):
        driver.step(m.OpenSequence(SESSION, "t", ids_of([0])))
    with pytest.raises(Exception, match="session 99 is unknown"):
        driver.step(m.Touch(99, ids_of([0]), np.ones(1, np.int64)))
