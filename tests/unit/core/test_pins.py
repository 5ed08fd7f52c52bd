"""Pins: what is pinned is not dropped, until its time; everything else about it is as without."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from engine_driver import BLOCK, SESSION, Driver, ids_of

from tierd.core import deadlines
from tierd.core import messages as m
from tierd.core.deadlines import Deadlines
from tierd.core.errors import InvalidInput, LimitReached
from tierd.core.messages import Tier

PINNED, MISS = m.Pinned.PINNED, m.Pinned.MISS


def pin(driver: Driver, *numbers: int, ttl_s: float = 100.0) -> list[int]:
    reply = driver.step(m.Pin(ids_of(numbers), ttl_s))
    assert isinstance(reply, m.PinReply)
    return reply.outcomes.tolist()


def pinned_s(driver: Driver, number: int) -> float:
    view = driver.describe(number)
    assert view is not None
    return view.pinned_s


def test_a_pinned_block_outlives_all_others() -> None:
    """Under pressure every other block goes before one that is pinned, however old it is."""
    driver = Driver(4)
    driver.put([0])
    assert pin(driver, 0, 9) == [PINNED, MISS]
    for number in range(1, 30):
        assert driver.put([number]) == [m.Reserved.GRANTED]
    assert 0 in driver.present()


def test_a_pin_ends_on_time_and_reading_does_not_extend_it() -> None:
    """A pin of 1 s is over after 1 s though the block is read meanwhile; the block is still there, and goes by its
    rank. Pinning it anew protects it anew."""
    driver = Driver(2)
    driver.put([0])
    pin(driver, 0, ttl_s=1.0)
    driver.now += 0.5
    driver.release(driver.acquire([0]))
    assert pinned_s(driver, 0) == 0.5
    driver.now += 0.5
    driver.release(driver.acquire([0]))
    assert pinned_s(driver, 0) == 0.0 and driver.present() == [0]
    driver.put([1])
    driver.put([2])
    assert driver.present() == [1, 2]
    pin(driver, 1, ttl_s=1.0)
    driver.put([3])
    assert driver.present() == [1, 3]


def test_of_two_pins_the_later_end_counts() -> None:
    """A shorter pin does not shorten a longer one; a longer one extends it."""
    driver = Driver(4)
    driver.put([0])
    pin(driver, 0, ttl_s=50.0)
    pin(driver, 0, ttl_s=10.0)
    assert pinned_s(driver, 0) == 50.0
    pin(driver, 0, ttl_s=80.0)
    driver.now += 60.0
    assert pinned_s(driver, 0) == 20.0


def test_unpin_ends_it_at_once() -> None:
    """After Unpin a block is evicted like any other; of those that were not pinned it says nothing."""
    driver = Driver(2)
    driver.put([0, 1])
    pin(driver, 0)
    reply = driver.step(m.Unpin(ids_of([0, 1, 9])))
    assert isinstance(reply, m.Done) and reply.count == 1
    driver.put([2, 3])
    assert driver.present() == [2, 3]


def test_pinned_blocks_are_demoted_but_stay_below() -> None:
    """A pinned block moves down when its rank says so, and stays in the lowest tier while others go from there."""
    driver = Driver(2, spill=4)
    driver.put([0])
    pin(driver, 0)
    for number in range(1, 12):
        driver.put([number])
        while driver.carry_out():
            pass
        driver.put([number])
    assert driver.tiers(0) == {Tier.SPILL}


@pytest.mark.parametrize("policy", ["lru", "lrfu", "lrfu(ranking=decayed)", "lru(leaf_only=false)"])
def test_a_spill_tier_that_stays_down_costs_only_others(policy: str) -> None:
    """When victims are dropped because the spill tier has been down for long, pinned ones are kept; once it is back
    they can be demoted again."""
    driver = Driver(3, spill=8, policy=policy, spill_grace_s=60.0)
    driver.put([0])
    pin(driver, 0, ttl_s=1000.0)
    driver.step(m.SpillState(up=False))
    driver.now += 61.0
    for number in range(1, 10):
        assert driver.put([number]) == [m.Reserved.GRANTED]
    assert driver.present() == [0, 8, 9]
    driver.step(m.SpillState(up=True))
    driver.put([10, 11, 12])
    driver.carry_out()
    assert Tier.SPILL in driver.tiers(0)


@pytest.mark.parametrize("settings", [{"spill_write": "on_reuse"}, {"spill_bytes_per_s": 0.01}])
def test_what_sheds_stores_sheds_none_of_pinned_blocks(settings: dict[str, Any]) -> None:
    """Where victims are dropped because they were never used again, or for the limit of bytes a second, pinned ones
    are stored."""
    driver = Driver(2, spill=8, **settings)
    driver.put([0])
    pin(driver, 0)
    for number in range(1, 12):
        driver.put([number])
        while driver.carry_out():
            pass
    assert driver.tiers(0) & {Tier.HOST, Tier.SPILL}


def test_what_fits_nowhere_below_is_kept_if_it_is_pinned() -> None:
    """With a spill server that has no room for one block, unpinned victims are dropped and pinned ones stay."""
    driver = Driver(3, spill=8)
    driver.put([0])
    pin(driver, 0)
    driver.put([1, 2])
    driver.step(m.Evict(ids_of([1]), Tier.SPILL))
    driver.carry_out(ok=False, full=True)
    for number in range(3, 9):
        assert driver.put([number]) == [m.Reserved.GRANTED]
    assert driver.present() == [0, 7, 8]


def test_a_full_catalog_takes_no_pinned_rows() -> None:
    """When rows run out before bytes do, blocks that are pinned are not what goes."""
    driver = Driver(16, spill=32, rows=6)
    driver.put(list(range(6)))
    pin(driver, 0, 1)
    driver.put([6, 7, 8])
    assert [number for number in range(9) if driver.tiers(number)] == [0, 1, 5, 6, 7, 8]


def test_nobody_s_word_drops_a_pinned_block() -> None:
    """Evict that would drop it says IN_USE, Clear leaves it, a failed move down leaves it whatever `allow_drop`
    says; damage takes it all the same."""
    driver = Driver(4, spill=4)
    driver.put([0, 1])
    pin(driver, 0)
    dropped = driver.step(m.Evict(ids_of([0, 1]), None, allow_drop=True))
    assert isinstance(dropped, m.Outcomes) and dropped.outcomes.tolist() == [m.Evicted.IN_USE, m.Evicted.DROPPED]
    cleared = driver.step(m.Clear(m.BlockFilter()))
    assert isinstance(cleared, m.Cleared) and (cleared.copies[Tier.HOST], cleared.in_use) == (0, 1)
    driver.step(m.Evict(ids_of([0]), Tier.SPILL, allow_drop=True))
    driver.carry_out(ok=False)
    again = driver.step(m.Evict(ids_of([0]), Tier.SPILL, allow_drop=True, retry=True))
    assert isinstance(again, m.Outcomes) and again.outcomes.tolist() == [m.Evicted.FAILED]
    driver.step(m.SpillState(up=False))
    down = driver.step(m.Evict(ids_of([0]), Tier.SPILL, allow_drop=True))
    assert isinstance(down, m.Outcomes) and down.outcomes.tolist() == [m.Evicted.FAILED]
    generation = driver.describe(0).copies[0].generation
    driver.step(m.DropDamaged(Tier.HOST, ids_of([0]).ids, np.array([generation], np.uint64)))
    assert driver.present() == []


def test_more_than_their_share_is_refused_by_name() -> None:
    """Pins may keep a share of the lowest tier; what is over it is refused as a whole, until others end."""
    driver = Driver(8, pin_share=0.5)
    driver.put(list(range(8)))
    assert pin(driver, 0, 1, 2) == [PINNED] * 3
    with pytest.raises(LimitReached, match=r"pin_share: 20480 bytes would be pinned, more than 16384.*host"):
        pin(driver, 3, 4)
    assert pinned_s(driver, 3) == 0.0
    assert pin(driver, 0, 1, 2, 3) == [PINNED] * 4
    reply = driver.step(m.Occupancy())
    assert isinstance(reply, m.OccupancyReply)
    assert (reply.pinned_blocks, reply.pinned_bytes, reply.pinned_bytes_max) == (4, 4 * BLOCK, 4 * BLOCK)
    driver.now += 101.0
    assert pin(driver, 4, 5, 6, 7) == [PINNED] * 4


@pytest.mark.parametrize("ttl_s", [-1.0, 101.0, float("nan"), float("inf")])
def test_a_time_that_cannot_be_is_refused(ttl_s: float) -> None:
    """A pin that is longer than the longest, or no number, is refused by name; 0 is the default."""
    driver = Driver(2, pin_ttl_s=7.0, pin_ttl_max_s=100.0)
    driver.put([0])
    with pytest.raises(InvalidInput, match="ttl_ms"):
        pin(driver, 0, ttl_s=ttl_s)
    assert pin(driver, 0, ttl_s=0.0) == [PINNED] and pinned_s(driver, 0) == 7.0


def test_pins_survive_a_restart() -> None:
    """After a kill -9 a pinned block is pinned for what was left of its time; what lay only in hbm is gone."""
    driver = Driver(4, hbm=2)
    driver.put([0])
    driver.put([1], tier=Tier.HBM)
    pin(driver, 0, 1, ttl_s=100.0)
    driver.tables.catalog["state"][Tier.HBM - 1] = 0
    later = Driver(4, hbm=2, tables=driver.tables)
    later.now = driver.now + 30.0
    assert later.describe(0) is not None and pinned_s(later, 0) == 70.0
    view = later.describe(1)
    assert view is not None and view.ghost and view.pinned_s == 0.0
    later.step(m.OpenSession(SESSION))
    for number in range(2, 12):
        later.put([number])
    assert 0 in later.present()


def test_a_smaller_share_after_a_restart_keeps_the_longest() -> None:
    """Pins that are over the share of the new settings end, those with the least time left first."""
    driver = Driver(8, pin_share=0.5)
    driver.put(list(range(8)))
    for number in range(4):
        pin(driver, number, ttl_s=10.0 + number)
    later = Driver(8, pin_share=0.25, tables=driver.tables)
    assert [pinned_s(later, number) for number in range(4)] == [0.0, 0.0, 12.0, 13.0]


def test_a_block_that_comes_back_is_not_pinned() -> None:
    """A pin ends with the last copy: one that was lost and is stored again is like any other."""
    driver = Driver(2, spill=2)
    driver.put([0])
    pin(driver, 0)
    driver.step(m.Evict(ids_of([0]), Tier.SPILL))
    driver.carry_out()
    driver.step(m.SpillState(up=True, forgotten=True))
    driver.put([0])
    assert pinned_s(driver, 0) == 0.0


def test_listing_and_explanation_tell_of_pins() -> None:
    """A listing can be of pinned blocks alone, and says how long; an explanation says what a pin protects from."""
    driver = Driver(4)
    driver.put([0, 1, 2])
    pin(driver, 1, ttl_s=30.0)
    page = driver.step(m.ListBlocks(m.BlockFilter(pinned=True), 10))
    assert isinstance(page, m.BlockPage)
    assert [block.pinned_s for block in page.blocks if block is not None] == [30.0]
    rest = driver.step(m.ListBlocks(m.BlockFilter(pinned=False), 10))
    assert isinstance(rest, m.BlockPage) and len(rest.blocks) == 2
    reply = driver.step(m.Explain(ids_of([1]).ids, Tier.HOST))
    assert isinstance(reply, m.Explained)
    assert (reply.blocks[0].protected_by, reply.blocks[0].terms["pinned_s"]) == ("pinned for 30 s", 30.0)
    above = Driver(4, spill=4)
    above.put([1])
    pin(above, 1, ttl_s=30.0)
    reply = above.step(m.Explain(ids_of([1]).ids, Tier.HOST))
    assert isinstance(reply, m.Explained)
    assert (reply.blocks[0].protected_by, reply.blocks[0].terms["pinned_s"]) == ("", 30.0)


def test_pinning_again_and_again_takes_no_more_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """However often rows are given a time, ended and given another one, the heap stays in proportion to them."""
    monkeypatch.setattr(deadlines, "COMPACT_ABOVE", 8)
    made = Deadlines(np.zeros(16))
    rows = np.arange(5)
    for until in range(1, 400):
        made.extend(rows, float(until))
        if until % 3 == 0:
            made.end(rows[:2])
        assert len(made.entries()) <= 2 * len(made) + 8 + len(rows)
    assert made.due(398.0).tolist() == []
    assert sorted(made.due(399.0).tolist()) == [2, 3, 4]
    assert len(made) == 0
