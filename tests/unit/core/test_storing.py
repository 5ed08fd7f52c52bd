"""When blocks go to the spill store: by mode, within a rate, and down to the watermarks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from engine_driver import BLOCK, SESSION, Driver, ids_of
from hypothesis import given
from hypothesis import strategies as st

from tierd.core import messages as m
from tierd.core.allowance import Allowance
from tierd.core.loans import FIRST_POOL


def spill_row(driver: Driver) -> m.TierOccupancy:
    reply = driver.step(m.Occupancy())
    assert isinstance(reply, m.OccupancyReply)
    return next(one for one in reply.tiers if one.tier == m.Tier.SPILL)


def shed(driver: Driver) -> dict[str, int]:
    return {reason: count for reason, count in spill_row(driver).shed_total.items() if count}


def driver_of(host: int, spill: int, **settings: Any) -> Driver:
    return Driver(host, spill=spill, **settings)


def stored(driver: Driver) -> list[int]:
    """Numbers of the blocks whose store waits."""
    return [int.from_bytes(move.identity[:8], "big") - 1 for move in driver.moves if move.target == m.Tier.SPILL]


# --- modes ----------------------------------------------------------------------------------------------


def test_through() -> None:
    """Each block is stored as soon as it is committed, stays above, and is evicted without another write."""
    driver = driver_of(2, 8, spill_write="through")
    driver.put([1, 2])
    assert stored(driver) == [1, 2]
    driver.carry_out()
    assert driver.tiers(1) == {m.Tier.HOST, m.Tier.SPILL}
    assert driver.put([3]) == [m.Reserved.GRANTED]
    assert stored(driver) == [3]
    driver.release(driver.acquire([3]))
    assert stored(driver) == [3]


def test_on_reuse() -> None:
    """A block is stored at its second access; one that is evicted before that is dropped, and counted."""
    driver = driver_of(2, 8, spill_write="on_reuse")
    driver.put([1, 2])
    assert stored(driver) == []
    driver.release(driver.acquire([1]))
    assert stored(driver) == [1]
    driver.carry_out()
    driver.put([3])
    assert driver.tiers(2) == set() and shed(driver) == {"unused": 1}
    driver.put([4])
    assert driver.tiers(1) == {m.Tier.SPILL}


def test_next_victims_are_stored_ahead() -> None:
    """Of a full tier the next victims are stored and stay; puts of so many find room while the store hangs."""
    driver = driver_of(6, 16, spill_ahead=2)
    driver.put([1, 2, 3, 4])
    assert stored(driver) == []
    driver.put([5, 6])
    assert stored(driver) == [1, 2]
    driver.carry_out()
    assert driver.tiers(1) == driver.tiers(2) == {m.Tier.HOST, m.Tier.SPILL}
    assert driver.put([7, 8]) == [m.Reserved.GRANTED] * 2
    assert driver.tiers(1) == driver.tiers(2) == {m.Tier.SPILL}
    assert stored(driver) == [3, 4]


def test_no_room_while_all_are_being_stored_is_to_be_waited_for() -> None:
    """A put that finds every block of a full tier being stored ahead is PENDING, and finds room once they are."""
    driver = driver_of(1, 8, spill_write="through")
    driver.put([1])
    assert stored(driver) == [1]
    assert driver.put([2]) == [m.Reserved.PENDING]
    driver.carry_out()
    assert driver.put([2]) == [m.Reserved.GRANTED]


def test_lent_pages_are_not_stored_ahead() -> None:
    """A block that an engine only lends is not stored by itself: its page may be taken back at any moment."""
    driver = Driver(4, spill=4, lends=True, spill_write="through")
    lent = m.Adopt(SESSION, ids_of([1]), BLOCK, FIRST_POOL, np.zeros(1, np.uint64), np.zeros(1, np.uint64))
    driver.step(lent)
    assert driver.tiers(1) == {m.Tier.HBM} and not driver.moves


def test_what_failed_is_stored_later() -> None:
    """A store ahead that fails changes nothing; the block's next access, or its eviction, stores it."""
    driver = driver_of(1, 8, spill_write="on_reuse")
    driver.put([1])
    driver.release(driver.acquire([1]))
    driver.carry_out(ok=False)
    assert driver.tiers(1) == {m.Tier.HOST}
    driver.release(driver.acquire([1]))
    assert stored(driver) == [1]
    driver.carry_out(ok=False)
    driver.put([2])
    assert stored(driver) == [1]


def test_stores_ahead_leave_moves_to_others() -> None:
    """Stores ahead take a quarter of the moves at most; what is left out is counted and stored when evicted."""
    driver = driver_of(16, 32, spill_write="through", max_moves=8)
    driver.put(range(16))
    assert len(stored(driver)) == 2
    assert shed(driver) == {"busy": 14}
    driver.carry_out()
    driver.put([20])
    driver.put([21, 22])
    assert driver.tiers(0) == driver.tiers(1) == {m.Tier.SPILL}
    assert 2 in stored(driver)


def test_nothing_is_stored_ahead_while_down() -> None:
    """With the store down or gone blocks come in as ever, and nothing is kept to be stored later."""
    driver = driver_of(4, 8, spill_write="through")
    driver.step(m.SpillState(up=False))
    driver.put([1])
    driver.step(m.SpillState(up=False, attached=False))
    driver.put([2])
    assert not driver.moves and not driver.engine.state.storing.touched
    driver.step(m.SpillState(up=True, attached=True))
    driver.put([3])
    assert stored(driver) == [3]


# --- rate -----------------------------------------------------------------------------------------------


def test_stores_are_shed_before_loads() -> None:
    """At the limit of bytes a second victims are dropped without a write, and counted; loads and what is asked for
    go on, and are paid for before the next store."""
    driver = driver_of(2, 64, spill_bytes_per_s=2.0 * BLOCK)
    driver.put([1, 2])
    driver.step(m.Evict(ids_of([1, 2]), m.Tier.SPILL))
    driver.carry_out()
    driver.put([3, 4])
    driver.acquire([1])
    assert shed(driver) == {"rate": 1}
    assert [move.source for move in driver.moves] == [m.Tier.SPILL]
    driver.carry_out()
    driver.step(m.Evict(ids_of([4]), m.Tier.SPILL))
    assert stored(driver) == [4]
    driver.carry_out()
    driver.now += 1.0
    driver.put([5, 6])
    assert shed(driver) == {"rate": 1}
    driver.put([7])
    assert shed(driver) == {"rate": 2}
    driver.now += 5.0
    driver.put([8])
    assert shed(driver) == {"rate": 2} and len(stored(driver)) == 1


def test_a_chain_is_shed_from_its_end() -> None:
    """A parent is not dropped for want of rate while its child is only on its way down."""
    driver = driver_of(4, 64, spill_bytes_per_s=1.0 * BLOCK)
    driver.put([1, 2, 3, 4], chain=True)
    driver.put([5])
    assert stored(driver) == [4]
    driver.put([6])
    assert driver.tiers(3) == {m.Tier.HOST}
    driver.carry_out()
    driver.put([7])
    assert driver.tiers(1) == {m.Tier.HOST}


@given(
    st.floats(1.0, 1e9),
    st.lists(st.tuples(st.floats(0.0, 3.0), st.integers(1, 1 << 30)), max_size=40),
)
def test_the_rate_holds(rate: float, steps: list[tuple[float, int]]) -> None:
    """In any order of times and sizes no more goes, where something is spared, than the rate times the time, one
    second's worth at the start and one block."""
    allowance, now, gone, largest = Allowance(rate), 0.0, 0, 0
    allowance.tell(now)
    for pause, size in steps:
        now += pause
        allowance.tell(now)
        if allowance.spare:
            allowance.take(size)
            gone, largest = gone + size, max(largest, size)
    assert gone <= rate * (now + 1.0) * (1 + 1e-9) + largest


def test_no_rate_is_no_limit() -> None:
    """A rate of 0 limits nothing, and a clock that stands still or jumps back gives nothing away."""
    free, tight = Allowance(0.0), Allowance(10.0)
    free.take(10**12)
    assert free.spare
    tight.tell(100.0)
    tight.take(20)
    for now in (100.0, 50.0, 100.0):
        tight.tell(now)
    assert not tight.spare


# --- watermarks -----------------------------------------------------------------------------------------


def spill_all(driver: Driver, numbers: range) -> None:
    for number in numbers:
        driver.now += 1
        driver.put([number])
        driver.step(m.Evict(ids_of([number]), m.Tier.SPILL))
        driver.carry_out()


def test_watermarks() -> None:
    """Above the high watermark the lowest ranked copies are deleted down to the low one, and nothing before."""
    driver = driver_of(4, 20, spill_high=0.8, spill_low=0.5)
    spill_all(driver, range(16))
    assert spill_row(driver).used_bytes == 16 * BLOCK and not driver.unlinked
    spill_all(driver, range(16, 17))
    assert spill_row(driver).used_bytes == 10 * BLOCK
    assert driver.present(m.Tier.SPILL) == list(range(7, 17))
    assert len(driver.unlinked) == 7


def test_watermarks_leave_what_is_in_use() -> None:
    """What a running sequence holds is not deleted, however low it ranks, and the search for others ends."""
    driver = driver_of(4, 20, spill_high=0.8, spill_low=0.1)
    spill_all(driver, range(16))
    driver.step(m.OpenSequence(7, "running", ids_of(range(14))))
    spill_all(driver, range(16, 17))
    assert set(driver.present(m.Tier.SPILL)) >= set(range(14))
    assert set(driver.present(m.Tier.SPILL)) == {*range(14), 16}


def test_what_others_stored_does_not_count() -> None:
    """Copies of others neither reach the watermark nor are deleted for it."""
    from test_found import adopt

    driver = driver_of(4, 20, spill_high=0.5, spill_low=0.1)
    adopt(driver, range(100, 140))
    spill_all(driver, range(10))
    assert not driver.unlinked
    spill_all(driver, range(10, 11))
    assert spill_row(driver).used_bytes == 2 * BLOCK
    assert spill_row(driver).found_blocks == 40


@pytest.mark.parametrize(("mode", "words"), [("on_evict", "spill"), ("on_reuse", "dropped (never used again)")])
def test_explained(mode: str, words: str) -> None:
    """What would become of a block that was used once is said as it would be."""
    driver = driver_of(4, 4, spill_write=mode)
    driver.put([1])
    reply = driver.step(m.Explain(ids_of([1]).ids, m.Tier.HOST))
    assert isinstance(reply, m.Explained) and reply.blocks[0].destination == words
