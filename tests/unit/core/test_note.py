"""Note: a block of which nothing but the identity is known comes in as one does that is reserved and committed."""

from __future__ import annotations

import random

import numpy as np
import pytest
from engine_driver import BLOCK, SESSION, Driver, ids_of

from tierd.core import messages as m


def note(driver: Driver, blocks: m.Ids) -> list[int]:
    reply = driver.step(m.Note(SESSION, blocks, BLOCK))
    assert isinstance(reply, m.Outcomes)
    return reply.outcomes.tolist()


def state_of(driver: Driver, among: int) -> tuple[object, ...]:
    views = [driver.describe(number) for number in range(among)]
    seen = [view and (view.record, view.ghost, view.parent, view.position, len(view.copies)) for view in views]
    tiers = driver.step(m.Occupancy()).tiers
    return seen, [(tier.used_bytes, tier.evicted_total, tier.stored_total) for tier in tiers]


@pytest.mark.parametrize("policy", ["lru", "lrfu", "lrfu(ranking=decayed)", "lrfu(ghost_factor=1,leaf_only=false)"])
def test_a_note_is_a_reserve_and_its_commit(policy: str) -> None:
    """Over a random stream of chains, larger than the tier too, outcomes, records, ghosts, links and what is
    evicted are the same."""
    draw = random.Random(3)
    noted, stored = Driver(host=9, policy=policy), Driver(host=9, policy=policy)
    for _ in range(40):
        start = draw.choice([0, 0, 12, 24])
        blocks = ids_of(range(start, start + draw.randint(1, 12)), chain=True)
        noted.now = stored.now = noted.now + draw.choice([0.0, 1.0])
        assert note(noted, blocks) == stored.put_ids(blocks, checksum=0)
        assert state_of(noted, 36) == state_of(stored, 36)


def test_a_note_takes_nothing_that_is_in_use() -> None:
    """Of three blocks one finds room beside a leased one; one named twice is stored once."""
    driver = Driver(host=2)
    driver.put([9])
    lease = driver.acquire([9])
    outcomes = note(driver, ids_of([0, 0, 1, 9]))
    assert outcomes == [m.Reserved.GRANTED, m.Reserved.DUPLICATE, m.Reserved.FULL, m.Reserved.EXISTS]
    assert driver.present() == [0, 9] and np.array_equal(driver.acquire([9]).addresses, lease.addresses)
