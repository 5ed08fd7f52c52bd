"""Moves as a spill store draws them, each with what was prepared for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from tierd.core.messages import Move
from tierd.ports import attempt

A = TypeVar("A")


class Supply(Generic[A]):
    """What a call of the store is given, drawn when it can begin it; numbered in the order of drawing."""

    def __init__(self, moves: Iterator[Move], prepare: Callable[[Move], A]) -> None:
        self._moves = moves
        self._prepare = prepare
        self._drawn = 0
        self._ended = False
        self._open: dict[int, tuple[Move, A]] = {}
        self.unprepared: list[tuple[Move, Exception]] = []
        """Moves that could not be prepared, and why; the store does not hear of them."""

    def __iter__(self) -> Iterator[A]:
        while not self._ended and (move := next(self._moves, None)) is not None:
            given = attempt(self._prepare, move)
            if isinstance(given, Exception):
                self.unprepared.append((move, given))
                continue
            self._open[self._drawn] = move, given
            self._drawn += 1
            yield given

    def end(self) -> None:
        """Nothing more is drawn: what still comes is for another call."""
        self._ended = True

    def answered(self, number: int) -> tuple[Move, A]:
        """The move of this number, which is over."""
        return self._open.pop(number)

    def left_open(self) -> list[tuple[Move, A]]:
        """All that was drawn and not answered, by a store that raised; where it drew nothing, all that there is."""
        if not self._drawn:
            list(self)
        left, self._open = list(self._open.values()), {}
        return left
