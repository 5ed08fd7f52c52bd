"""Policies that go by place in the chain: the order that each states."""

from __future__ import annotations

import numpy as np
import pytest

from tierd.core.policy.base import GivenStats, Moment, Stats
from tierd.core.policy.registry import parse

NOW = Moment(100, 100.0, 50.0)


def chain(last: list[int], position: list[int]) -> Stats:
    """Records last accessed at these steps, at these places."""
    count = len(last)
    ones = np.ones(count)
    return GivenStats(
        np.ones(count, np.int64), np.array(last), ones, ones, ones, np.ones(count, bool), np.array(position)
    )


def order(spec: str, stats: Stats) -> list[int]:
    return np.argsort(-parse(spec).ranks(stats, NOW), kind="stable").tolist()


@pytest.mark.parametrize(
    ("spec", "victims"),
    [
        ("sliding_window", [0, 1, 2, 3, 4, 5, 6, 7]),
        ("streaming", [1, 2, 3, 5, 6, 7, 0, 4]),
        ("streaming(sink_blocks=2)", [2, 3, 6, 7, 0, 1, 4, 5]),
        ("streaming(sink_blocks=0)", [0, 1, 2, 3, 4, 5, 6, 7]),
        ("strided(stride=2)", [1, 3, 5, 7, 0, 2, 4, 6]),
        ("strided(stride=1)", [0, 1, 2, 3, 4, 5, 6, 7]),
    ],
)
def test_places_go_front_first_and_the_kept_ones_last(spec: str, victims: list[int]) -> None:
    """Of two requests of four blocks the older goes first, each from its front, what the policy keeps last."""
    assert order(spec, chain([10] * 4 + [11] * 4, [0, 1, 2, 3] * 2)) == victims


def test_places_are_ordered_far_down_and_late() -> None:
    """At the largest step and depth that keys tell apart, neighbours still differ, and sinks still go last."""
    step, deep = (1 << 35) - 1, (1 << 18) - 1
    assert order("streaming", chain([step, step, step, step - 1], [deep, deep - 1, 0, 5])) == [3, 1, 0, 2]
    assert order("streaming", chain([1 << 50, 0, 1 << 50], [0, 0, 9])) == [2, 1, 0]
