"""The ring of ghosts: how many it keeps, in which order they go, and what closing holes changes."""

from __future__ import annotations

import numpy as np
from engine_driver import identity

from tierd.core.ghosts import WORD_CLOSING_HOLES, Ghosts, Records
from tierd_client.format import GHOST_MAGIC, Table, U8Array, ghost_columns


def table(places: int) -> Table:
    return Table.create(GHOST_MAGIC, ghost_columns(places))


def packed(*numbers: int) -> U8Array:
    return np.frombuffer(b"".join(map(identity, numbers)), np.uint8).reshape(-1, 32)


def records(*numbers: int) -> Records:
    """A record per number that says the number."""
    n = np.array(numbers)
    return Records(
        n.astype(np.uint32) + 1, n.astype(np.int64), n.astype(np.float64), n / 1000.0, n / 10.0, n % 2 == 0,
        (n % 200).astype(np.uint8),
    )


def add(ghosts: Ghosts, *numbers: int, limit: int = 1 << 30) -> None:
    ghosts.add(packed(*numbers), records(*numbers), limit)


def take(ghosts: Ghosts, *numbers: int) -> None:
    ghosts.take(packed(*numbers), ghosts.places(packed(*numbers)))


def known(ghosts: Ghosts, *numbers: int) -> list[int]:
    """Which of these are remembered, each with its own record."""
    found, got = ghosts.peek(packed(*numbers))
    want = records(*(numbers[i] for i in found))
    assert (got.touches == want.touches).all() and (got.ema == want.ema).all() and (got.unit == want.unit).all()
    return [numbers[i] for i in found]


def test_the_limit_counts_ghosts_and_not_the_holes_of_those_that_came_back() -> None:
    """With four allowed and two come back, two more fit before the oldest goes."""
    ghosts = Ghosts(table(64))
    add(ghosts, 0, 1, 2, 3, limit=4)
    take(ghosts, 1, 2)
    add(ghosts, 4, 5, limit=4)
    assert known(ghosts, *range(7)) == [0, 3, 4, 5] and len(ghosts) == 4
    add(ghosts, 6, limit=4)
    assert known(ghosts, *range(7)) == [3, 4, 5, 6]


def test_more_than_fit_keeps_the_youngest() -> None:
    """Of a batch over the limit the last ones stay."""
    ghosts = Ghosts(table(8))
    add(ghosts, *range(20))
    assert known(ghosts, *range(20)) == list(range(12, 20))
    add(ghosts, 30, limit=0)
    assert len(ghosts) == 0


def test_closing_holes_forgets_nobody_and_keeps_the_order() -> None:
    """A ring whose places ran out, half of them holes, goes on with all its ghosts, the oldest still first."""
    ghosts = Ghosts(table(8))
    add(ghosts, *range(8))
    take(ghosts, 0, 2, 4, 6)
    add(ghosts, 10, 11)
    assert known(ghosts, *range(12)) == [1, 3, 5, 7, 10, 11]
    add(ghosts, 12, 13, 14)
    assert known(ghosts, *range(15)) == [3, 5, 7, 10, 11, 12, 13, 14]


def test_ghosts_are_taken_where_they_stand_now() -> None:
    """Of those whose places were asked for, one that moved meanwhile is found, and one that was forgotten is not,
    whoever stands there now."""
    ghosts = Ghosts(table(8))
    add(ghosts, *range(8))
    asked = packed(1, 3, 7, 9)
    stood = ghosts.places(asked)
    take(ghosts, 0, 2, 4, 6)
    add(ghosts, 10, 11)
    add(ghosts, 12, 13, 14)
    found, records_ = ghosts.take(asked, stood)
    assert found.tolist() == [1, 2] and records_.touches.tolist() == [4, 8]
    assert known(ghosts, *range(15)) == [5, 10, 11, 12, 13, 14]


def test_few_holes_are_not_worth_closing() -> None:
    """With one hole in many places the oldest goes instead."""
    ghosts = Ghosts(table(32))
    add(ghosts, *range(32))
    take(ghosts, 9)
    add(ghosts, 40)
    assert len(ghosts) == 31 and known(ghosts, 0, 1, 40) == [1, 40]


def test_a_restart_finds_the_same_ghosts() -> None:
    """Ghosts, holes and order are read back from the table."""
    kept = table(16)
    ghosts = Ghosts(kept)
    add(ghosts, *range(12))
    take(ghosts, 3, 5)
    add(ghosts, *range(20, 26))
    again = Ghosts(kept)
    assert known(again, *range(30)) == known(ghosts, *range(30)) and len(again) == len(ghosts)
    add(again, 30, limit=len(again))
    assert 0 not in known(again, *range(31))


def test_a_kill_while_holes_are_closed_gives_the_ghosts_up() -> None:
    """Entries that may be half one record and half another are not believed."""
    kept = table(16)
    add(Ghosts(kept), 1, 2, 3)
    kept.words[WORD_CLOSING_HOLES] = 1
    again = Ghosts(kept)
    assert len(again) == 0 and known(again, 1, 2, 3) == []
    add(again, 4)
    assert known(Ghosts(kept), 1, 4) == [4]
