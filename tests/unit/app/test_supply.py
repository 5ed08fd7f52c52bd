"""Moves as a spill store draws them."""

from __future__ import annotations

from app_moves import block, move

from tierd.app.supply import Supply
from tierd.core.messages import Move, Tier


def moves(count: int) -> list[Move]:
    return [move(op, Tier.HOST, Tier.SPILL, data=block(0)) for op in range(count)]


def prepare(one: Move) -> str:
    if one.op == 1:
        raise OSError("no such slot")
    return f"block {one.op}"


def test_what_cannot_be_prepared_is_left_out() -> None:
    """The store is given what could be prepared, numbered without gaps, and each other move has its reason."""
    given = moves(4)
    supply = Supply(iter(given), prepare)
    assert list(supply) == ["block 0", "block 2", "block 3"]
    assert supply.answered(1) == (given[2], "block 2")
    assert [(one.op, str(error)) for one, error in supply.unprepared] == [(1, "no such slot")]
    assert [one.op for one, _ in supply.left_open()] == [0, 3]
    assert supply.left_open() == []


def test_a_store_that_raises_leaves_open_what_it_drew() -> None:
    """What was not drawn stays where it was: another call carries it out."""
    coming = iter(moves(4))
    supply = Supply(coming, prepare)
    drawn = iter(supply)
    next(drawn)
    assert [one.op for one, _ in supply.left_open()] == [0]
    assert [one.op for one in coming] == [1, 2, 3]


def test_a_store_that_draws_nothing_leaves_all_open() -> None:
    """A call that fails before it begins is the answer to every move: none waits for ever."""
    supply = Supply(iter(moves(4)), prepare)
    assert [one.op for one, _ in supply.left_open()] == [0, 2, 3]
    assert [one.op for one, _ in supply.unprepared] == [1]


def test_what_comes_after_the_end_is_not_drawn() -> None:
    """A call that found the store down takes no more moves, which another one carries out when it is up again."""
    coming = iter(moves(4))
    supply = Supply(coming, prepare)
    drawn = iter(supply)
    next(drawn)
    supply.end()
    assert list(drawn) == []
    assert [one.op for one in coming] == [1, 2, 3]
