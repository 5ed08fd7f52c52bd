"""Which reservations a Commit ends, and which it leaves as they were."""

from __future__ import annotations

import numpy as np
from engine_driver import SESSION, Driver, ids_of

from tierd.core import messages as m


def reserved(driver: Driver, numbers: list[int]) -> m.ReserveReply:
    reply = driver.reserve(ids_of(numbers))
    assert (reply.outcomes == m.Reserved.GRANTED).all()
    return reply


def commit(driver: Driver, numbers: list[int], generations: list[int]) -> list[int]:
    ids = ids_of(numbers).ids
    command = m.Commit(SESSION, ids, np.array(generations, np.uint64), np.zeros(len(ids), np.uint64))
    reply = driver.step(command)
    assert isinstance(reply, m.Outcomes)
    return list(reply.outcomes.tolist())


def test_a_commit_under_a_wrong_identity_leaves_the_reservation_where_it_was() -> None:
    """It is STALE, and what the session still has to write, in the order of its reservations, is as before."""
    driver = Driver(host=8)
    generations = reserved(driver, [0, 1, 2]).generations.tolist()
    assert commit(driver, [9, 9], generations[:2]) == [m.Committed.STALE] * 2
    assert list(driver.engine.state.sessions.get(SESSION).reservations) == generations
    assert commit(driver, [0, 1, 2], generations) == [m.Committed.COMMITTED] * 3


def test_a_generation_named_twice_is_committed_once_under_its_own_identity() -> None:
    """Whichever place names the identity that the slot was reserved for; a second such place is STALE."""
    driver = Driver(host=8)
    generation = reserved(driver, [0]).generations.tolist()[0]
    outcomes = commit(driver, [9, 0, 0], [generation] * 3)
    assert outcomes == [m.Committed.STALE, m.Committed.COMMITTED, m.Committed.STALE]
    assert driver.present() == [0]
