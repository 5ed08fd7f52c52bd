"""From any policy to any other on an engine with blocks, ghosts and attention: nothing is lost."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from tierd.core.messages import Plan, Planned, SetPolicy, Tier
from tierd.core.policy.registry import POLICIES, parse
from tierd.core.statistics import unit_ema
from tierd.testing.policy_contract import Driver, brute_force
from tierd_client.format import PAGE_BYTES

SPECS = [*sorted(POLICIES), "lrfu(ranking=decayed,lambda=0.5)", "lfu(alpha=0.2,leaf_only=false)"]


def used_driver() -> Driver:
    driver = Driver("lru", unit=True, seed=4)
    for number in range(60):
        driver.unit = number % 3 > 0
        driver.request(driver.draw())
    return driver


def records(driver: Driver) -> dict[str, Any]:
    """Statistics of all that is known, resident or not, but for ema."""
    state = driver.engine.state
    rows = np.flatnonzero(state.catalog.used)
    _, ghosts = state.ghosts.live()
    columns = {name: getattr(state.catalog, name)[rows].tolist() for name in ("touches", "last", "wall", "crf")}
    gone = {name: getattr(ghosts, name).tolist() for name in ("touches", "last", "wall", "crf", "unit")}
    return {"resident": columns, "ghosts": gone}


def ema_of_attention(driver: Driver) -> list[float]:
    state = driver.engine.state
    rows = np.flatnonzero(state.catalog.used)
    unit = (state.catalog.flags[rows] & 1) != 0
    units = rows[unit]
    expected = unit_ema(state.catalog.touches[units], state.policy.common.alpha)
    assert state.catalog.ema[units].tolist() == expected.tolist()
    return state.catalog.ema[rows[~unit]].tolist()


def check_next_victims(driver: Driver, spec: str) -> None:
    """A plan lists what looking at all blocks would have chosen."""
    planned = driver.engine.step(Plan(Tier.HOST, 5 * PAGE_BYTES, 10), driver.now).reply
    assert isinstance(planned, Planned)
    listed = [one.identity for one in planned.victims]
    assert len(set(listed)) == len(listed) > 0
    if parse(spec).index != "queues":
        expected = brute_force(parse(spec), driver.blocks(), set(), driver.moment(), len(listed),
            driver.attention(driver.blocks()))
        assert listed == expected


@pytest.mark.parametrize("start", SPECS)
def test_any_change_of_policy_keeps_every_record(start: str) -> None:
    """From this policy to each other and back, records of blocks and ghosts stay, ema of unit accesses is what the
    alpha in force makes of them, and the next victims are those of the policy in force."""
    driver = used_driver()
    driver.engine.step(SetPolicy(start), driver.now)
    before, attention = records(driver), ema_of_attention(driver)
    assert attention
    assert before["ghosts"]["touches"]
    for spec in itertools.chain.from_iterable((other, start) for other in SPECS if other != start):
        driver.engine.step(SetPolicy(spec), driver.now)
        assert records(driver) == before
        assert ema_of_attention(driver) == attention
        check_next_victims(driver, spec)
