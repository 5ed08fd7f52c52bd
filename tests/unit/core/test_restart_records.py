"""Records after a restart or a new policy: of copies and of ghosts alike."""

from __future__ import annotations

from engine_driver import BLOCK, SESSION, Driver, ids_of

from tierd.core import messages as m
from tierd.core.engine import Tables


def restarted(tables: Tables, host: int, **settings: object) -> Driver:
    driver = Driver(host, tables=tables, **settings)
    driver.step(m.OpenSession(SESSION))
    return driver


def ema(driver: Driver, number: int) -> float:
    view = driver.describe(number)
    assert view is not None
    return view.record.ema


def twice(driver: Driver, number: int) -> None:
    driver.put([number])
    driver.release(driver.acquire([number]))


def test_a_new_alpha_holds_for_ghosts_too() -> None:
    """After SetPolicy with another alpha a ghost has the ema that this alpha would have given it, as blocks have:
    within a class of victims ema is a function of touches."""
    driver = Driver(1, policy="lrfu(alpha=0.5)")
    twice(driver, 0)
    driver.put([1])
    driver.step(m.SetPolicy("lrfu(alpha=0.25)"))
    assert (ema(driver, 0), ema(driver, 1)) == (0.4375, 0.25)


def test_a_new_alpha_in_the_settings_holds_for_what_survived() -> None:
    """A boot with another alpha rescales blocks and ghosts; one with the same alpha changes no bit of them."""
    tables = Tables.private(64)
    driver = restarted(tables, 1, policy="lrfu(alpha=0.3)")
    twice(driver, 0)
    twice(driver, 1)
    before = [driver.describe(number) for number in (0, 1)]
    driver = restarted(tables, 1, policy="lrfu(alpha=0.3)")
    after = [driver.describe(number) for number in (0, 1)]
    assert [view.record for view in after if view] == [view.record for view in before if view]
    driver = restarted(tables, 1, policy="lrfu(alpha=0.25)")
    assert (ema(driver, 0), ema(driver, 1)) == (0.4375, 0.4375)


def test_no_step_lies_before_that_of_a_ghost() -> None:
    """When only ghosts survive, the clock goes on from the last of them."""
    tables = Tables.private(64)
    driver = restarted(tables, 1)
    for number in range(20):
        driver.put([number])
    driver.step(m.Evict(ids_of([19]), None, allow_drop=True))
    assert restarted(tables, 1).engine.state.clock.step == 20


def test_a_wall_clock_goes_on_at_another_speed() -> None:
    """Fewer steps a second after a restart: steps go on, and records stand where the new scale puts them."""
    tables = Tables.private(64)
    driver = restarted(tables, 1, clock="wall", steps_per_second=10.0)
    driver.put([0])
    driver.put([1])
    driver = restarted(tables, 1, clock="wall", steps_per_second=1.0)
    lasts = [view.record.last for view in map(driver.describe, (0, 1)) if view]
    assert lasts == [1000, 1000]
    driver.now += 5
    driver.put([2])
    assert driver.engine.state.clock.step == 1005


def test_a_lower_limit_of_the_spill_tier_holds_from_the_start() -> None:
    """After a restart with a smaller spill tier what ranks highest there is dropped, from the server too."""
    tables = Tables.private(64)
    driver = restarted(tables, 2, spill=8)
    for number in range(8):
        driver.put([number])
        while driver.carry_out():
            driver.put([number])
    driver = restarted(tables, 2, spill=2)
    assert driver.present(m.Tier.SPILL) == [4, 5]
    assert len(driver.unlinked) == 4


def test_holds_that_overlap_take_a_place_once() -> None:
    """Of two holds of a survivor over the same bytes one is kept aside; the start goes on, and its place is free
    again when the session ends."""
    tables = Tables.private(64)
    driver = restarted(tables, 4)
    driver.reserve(ids_of([0, 1]))
    sessions = tables.sessions
    held = sessions["hold_session"].nonzero()[0]
    sessions["hold_bytes"][held[sessions["hold_address"][held].argmin()]] = 2 * BLOCK
    again = Driver(4, tables=tables, survivors=frozenset([SESSION]))
    assert again.engine.state.tiers[m.Tier.HOST].copies.quarantined == 2 * BLOCK
    again.step(m.EndSession(SESSION, settled=True))
    again.step(m.OpenSession(SESSION))
    assert again.put(range(4)) == [m.Reserved.GRANTED] * 4
