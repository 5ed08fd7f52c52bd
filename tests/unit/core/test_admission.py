"""What is worth less than the blocks that would have to go for it is not stored, and says so."""

from __future__ import annotations

import numpy as np
import pytest
from engine_driver import BLOCK, SESSION, Driver, ids_of

from tierd.core import messages as m
from tierd.core.errors import InvalidInput
from tierd.core.gaps import BINS, CLASSES
from tierd.core.policy.registry import parse

LEARNED = "lru(admission=learned)"
OLD, NEW = [0, 1, 2, 3], [10, 11, 12, 13]


def full(policy: str = LEARNED, worth: float = 0.1, **settings: object) -> Driver:
    """A host tier full of blocks that are worth 1 when newcomers are worth less."""
    driver = Driver(host=4, policy=policy, **settings)
    driver.put(OLD)
    driver.put(OLD)
    index = np.ones((CLASSES, BINS))
    index[:5] = worth
    driver.engine.state.gaps.index = index
    return driver


def shed(driver: Driver) -> int:
    reply = driver.step(m.Occupancy())
    assert isinstance(reply, m.OccupancyReply)
    return reply.tiers[0].shed_total["declined"]


def outcomes_of_store(driver: Driver, numbers: list[int]) -> list[int]:
    """Stores blocks out of a stock as large as the tier lets it be."""
    generations = np.zeros(len(numbers), np.uint64)
    reply = driver.step(m.Store(SESSION, ids_of(numbers, chain=True), BLOCK, generations, generations))
    assert isinstance(reply, m.StoreReply)
    return list(reply.outcomes.tolist())


def test_only_the_first_block_of_a_request_comes_in() -> None:
    """Newcomers are declined from the deepest on, but for the first, and what they would have cost stays."""
    driver = full()
    outcomes = driver.reserve(ids_of(NEW, chain=True)).outcomes.tolist()
    assert outcomes == [m.Reserved.GRANTED, *[m.Reserved.DECLINED] * 3]
    assert len(driver.present()) == 3
    assert shed(driver) == 3


@pytest.mark.parametrize(("worth", "granted"), [(1.42, 1), (1.43, 4)])
def test_a_newcomer_must_be_worth_more_by_a_margin(worth: float, granted: int) -> None:
    """A victim goes from the point on where its worth is at most 0.7 of the newcomer's."""
    outcomes = full(worth=worth).reserve(ids_of(NEW, chain=True)).outcomes.tolist()
    assert outcomes.count(m.Reserved.GRANTED) == granted


def test_a_declined_block_was_accessed() -> None:
    """It has a record as a ghost, once however often a sequence asks, and is worth more when it comes again."""
    driver = full()
    driver.step(m.OpenSequence(SESSION, "one", ids_of(NEW, chain=True)))
    for _ in range(2):
        driver.reserve(ids_of(NEW, chain=True), sequence="one")
    view = driver.describe(11)
    assert view is not None and view.ghost
    assert (view.record.touches, view.record.learnt & 63) == (1, 2)


def test_stores_are_weighed_before_they_cost_anything() -> None:
    """A Store in a full tier says DECLINED of what should not be written, keeps all victims, and counts."""
    driver = full()
    assert outcomes_of_store(driver, NEW) == [m.Stored.ABSENT, *[m.Stored.DECLINED] * 3]
    assert driver.present() == OLD
    assert shed(driver) == 3


def test_what_has_room_is_stored() -> None:
    """Nothing is declined while slots are free, or where victims go to a tier below."""
    driver = full()
    driver.step(m.Evict(ids_of(OLD), None, allow_drop=True))
    assert outcomes_of_store(driver, NEW) == [m.Stored.ABSENT] * 4
    assert m.Stored.DECLINED not in outcomes_of_store(full(spill=64), NEW)


def spilling(worth: float = 0.1, spill: int = 4, spill_write: str = "on_worth") -> Driver:
    """A spill tier that is full, or not, of blocks that are worth 1, and below a host tier full of blocks that are
    worth less."""
    driver = Driver(host=4, spill=spill, spill_write=spill_write)
    for numbers in (OLD, OLD, NEW):
        put_all(driver, numbers)
    index = np.ones((CLASSES, BINS))
    index[:5] = worth
    driver.engine.state.gaps.index = index
    return driver


def put_all(driver: Driver, numbers: list[int]) -> None:
    while m.Reserved.PENDING in driver.put(numbers):
        driver.carry_out()


def where(driver: Driver, numbers: list[int]) -> list[set[m.Tier]]:
    return [driver.tiers(number) for number in numbers]


def shed_below(driver: Driver) -> int:
    reply = driver.step(m.Occupancy())
    assert isinstance(reply, m.OccupancyReply)
    return reply.tiers[-1].shed_total["declined"]


def test_a_victim_worth_less_than_what_is_spilled_is_dropped() -> None:
    """Nothing is written to a full spill tier for it, what lies there stays, and it is counted there."""
    driver = spilling()
    put_all(driver, [20, 21])
    assert where(driver, [*OLD, 10, 11]) == [{m.Tier.SPILL}] * 4 + [set()] * 2
    assert shed_below(driver) == 2


@pytest.mark.parametrize(
    "driver", [spilling(spill_write="on_evict"), spilling(worth=1.43), spilling(spill=8)],
    ids=["mode", "worth", "room"],
)
def test_a_victim_is_spilled_where_it_is_worth_it(driver: Driver) -> None:
    """In the other mode, by the margin, and while the spill tier has room, victims are stored."""
    put_all(driver, [20, 21])
    assert where(driver, [10, 11]) == [{m.Tier.SPILL}] * 2
    assert shed_below(driver) == 0


def test_pinned_and_higher_victims_are_spilled_whatever_they_are_worth() -> None:
    """A pinned victim, and one of high priority, go down though what lies there is worth more."""
    driver = spilling()
    driver.step(m.Pin(ids_of([13]), 60.0))
    driver.step(m.Reserve(SESSION, ids_of([12]), BLOCK, priority=m.Priority.HIGH))
    put_all(driver, [20, 21, 22, 23])
    assert where(driver, NEW) == [set(), set(), {m.Tier.SPILL}, {m.Tier.SPILL}]


def test_what_stands_lower_goes_whatever_it_is_worth() -> None:
    """For blocks of high priority those of normal priority go: nothing is declined."""
    urgent = m.Reserve(SESSION, ids_of(NEW, chain=True), BLOCK, priority=m.Priority.HIGH)
    reply = full().step(urgent)
    assert isinstance(reply, m.ReserveReply)
    assert reply.outcomes.tolist() == [m.Reserved.GRANTED] * 4


def test_everything_is_stored_without_admission() -> None:
    """`none` declines nothing, whatever it is worth."""
    outcomes = full(policy="lru").reserve(ids_of(NEW, chain=True)).outcomes.tolist()
    assert outcomes == [m.Reserved.GRANTED] * 4


def test_an_explanation_says_what_a_block_is_worth() -> None:
    """Its class, followers, idle time and index are among the terms where newcomers are weighed by them."""
    reply = full().step(m.Explain(ids_of([0]).ids, m.Tier.HOST))
    assert isinstance(reply, m.Explained)
    terms = reply.blocks[0].terms
    assert (terms["index"], terms["admission_threshold"], terms["class"]) == (1.0, 0.7, 5.0)


def test_policies_by_queues_store_all() -> None:
    """Learned admission is refused by name where a policy goes by queues."""
    with pytest.raises(InvalidInput, match="admission"):
        parse("arc(admission=learned)")
