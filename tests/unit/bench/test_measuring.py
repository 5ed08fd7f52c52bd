"""Repetitions and their ratios, and the buffers that blocks are read into."""

from __future__ import annotations

import numpy as np
import pytest

from tierd.bench.blocks import POISON, Destinations, Rotation, random_blocks
from tierd.bench.measuring import Result, WrongBytes, alternate, ratio


def test_result_is_median_and_distance_of_quartiles() -> None:
    """One repetition that was held up changes neither median nor spread."""
    assert Result.of([1.0, 2.0, 3.0, 4.0, 1000.0]) == Result(3.0, 2.0)


def test_ratio_is_taken_within_each_repetition() -> None:
    """A slow moment that hit both sides of a repetition leaves its ratio as it was."""
    assert ratio([1.0, 10.0, 1.0], [2.0, 20.0, 2.0]) == Result(0.5, 0.0)


def test_things_take_turns() -> None:
    """Each repetition begins with another thing, and the first round does not count."""
    order: list[str] = []

    def thing(name: str) -> float:
        order.append(name)
        return float(len(order))

    seconds = alternate({"a": lambda: thing("a"), "b": lambda: thing("b")}, 2)
    assert "".join(order) == "abbaab"
    assert seconds == {"a": [4.0, 5.0], "b": [3.0, 6.0]}


def test_rotation_comes_back_only_after_all() -> None:
    """Whatever is drawn, no number comes twice within a round, and each round has all of them."""
    rotation = Rotation(10, seed=3)
    drawn = np.concatenate([rotation.next(4), rotation.next(6), rotation.next(10)])
    assert sorted(drawn[:10]) == sorted(drawn[10:]) == list(range(10))


def test_buffers_are_poisoned_and_compared() -> None:
    """A buffer holds poison until it is written, and what differs from its block in one byte is told."""
    data = random_blocks(4, 4096)
    destinations = Destinations(data)
    out = destinations.take(np.array([2, 0]))
    assert (out == POISON).all()
    np.copyto(out, data[[2, 0]])
    destinations.check()
    assert (destinations.take(np.array([1])) == POISON).all()
    np.copyto(out[0], data[1])
    out[0, 77] ^= 1
    with pytest.raises(WrongBytes, match="block 1"):
        destinations.check()


def test_used_up_buffers_are_compared_before_they_are_used_again() -> None:
    """More blocks than buffers: those that were not written are found out when their turn comes again."""
    destinations = Destinations(random_blocks(4, 4096))
    destinations.take(np.arange(3))
    with pytest.raises(WrongBytes):
        destinations.take(np.arange(2))
