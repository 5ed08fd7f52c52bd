"""Tasks that an engine polls for, and its locks, as LMCache's adapter has them."""

from __future__ import annotations

import os
import select
import threading

import pytest

from tierd_client.integrations.tasks import Finished, Locks


class Counted:
    """A lease that counts its releases."""

    def __init__(self) -> None:
        self.releases = 0

    def release(self) -> None:
        self.releases += 1


def test_a_result_is_told_once_and_waited_for_by_its_descriptor() -> None:
    """The descriptor becomes readable with the first result; each result is given out once, unknown ones never."""
    finished = Finished()
    assert not select.select([finished.event_fd], [], [], 0)[0]
    threading.Thread(target=finished.add, args=(7, "seven")).start()
    assert select.select([finished.event_fd], [], [], 10)[0]
    os.eventfd_read(finished.event_fd)
    assert finished.one(8) is None
    assert finished.one(7) == "seven"
    assert finished.one(7) is None
    finished.close()


def test_all_results_are_told_once() -> None:
    """What has come until now, and nothing of it again."""
    finished = Finished()
    finished.add(1, "one")
    finished.add(2, "two")
    assert finished.all() == {1: "one", 2: "two"}
    assert finished.all() == {}
    finished.close()


def test_closing_twice_closes_no_other_descriptor() -> None:
    """The number of a closed descriptor may be somebody else's by the second close."""
    finished = Finished()
    number = finished.event_fd
    finished.close()
    other = os.eventfd(0)
    finished.close()
    os.fstat(other)
    os.close(other)
    assert finished.event_fd == -1
    assert number >= 0


def test_a_lease_ends_with_the_last_of_its_keys() -> None:
    """Three keys under one lease: it is over when all are unlocked, in whatever order and number of calls."""
    locks, lease = Locks(), Counted()
    locks.add(lease, ["a", "b", "c"])
    assert len(locks) == 3
    assert locks.unlocked(["c"]) == []
    assert locks.unlocked(["a", "b"]) == [lease]
    assert len(locks) == 0


def test_a_key_locked_twice_is_unlocked_twice() -> None:
    """Two lookups lock one key by two leases: each unlock ends one of them, the older one first."""
    locks, first, second = Locks(), Counted(), Counted()
    locks.add(first, ["a"])
    locks.add(second, ["a", "b"])
    assert locks.unlocked(["a"]) == [first]
    assert locks.unlocked(["a"]) == []
    assert locks.unlocked(["b"]) == [second]


@pytest.mark.parametrize("keys", [["x"], ["a", "a", "a"]])
def test_what_is_not_locked_is_unlocked_without_harm(keys: list[str]) -> None:
    """Unknown keys, and more unlocks than locks, end nothing that is still held."""
    locks, lease, other = Locks(), Counted(), Counted()
    locks.add(lease, ["a"])
    locks.add(other, ["b"])
    ended = locks.unlocked(keys)
    assert other not in ended
    assert ended.count(lease) <= 1
    assert locks.all() == [one for one in (lease, other) if one not in ended]


def test_a_lease_of_nothing_is_given_back_at_once() -> None:
    """A lookup that found nothing holds nothing."""
    locks, lease = Locks(), Counted()
    locks.add(lease, [])
    assert lease.releases == 1
    assert locks.all() == []
