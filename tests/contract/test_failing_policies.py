"""Policies of other packages that are no good: refused where a trial shows it, else replaced by LRU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import pytest

from tierd.core import invariants
from tierd.core.messages import Occupancy, OccupancyReply, SetPolicy
from tierd.core.policy import registry
from tierd.core.policy.base import Common, Parameters, common_spec
from tierd.core.policy.guarded import try_out
from tierd.core.policy.queues import Spot
from tierd.core.policy.registry import POLICIES, parse
from tierd.testing.policy_contract import Driver

Answer = Callable[[int], Any]


def _raise(count: int) -> Any:
    raise OSError(f"no answer for {count}")


class Late:
    """LRU by any index, until `bad` is set: from then on one method answers otherwise."""

    name: ClassVar[str] = "late"
    rule: ClassVar[str] = "idle"
    bad: ClassVar[dict[str, Answer]] = {}
    index: ClassVar[str] = "classes"

    def __init__(self, parameters: Parameters) -> None:
        self.common: Common = parameters.common(alpha=0.5)

    @property
    def spec(self) -> str:
        return f"late({','.join(common_spec(self.common))})"

    def _or(self, method: str, count: int, answer: Any) -> Any:
        return Late.bad[method](count) if method in Late.bad else answer

    def ranks(self, stats: Any, now: Any) -> Any:
        return self._or("ranks", len(stats.last), (now.step - stats.last).astype(np.float64))

    def classes(self, stats: Any) -> Any:
        return self._or("classes", len(stats.last), np.minimum(stats.touches, 5))

    def keys(self, stats: Any) -> Any:
        return self._or("keys", len(stats.last), stats.last.astype(np.float64))

    def terms(self, stats: Any, now: Any) -> Any:
        return self._or("terms", 1, {"idle_steps": float(now.step - stats.last[0])})

    def queues(self) -> LateQueues:
        return LateQueues()


class LateQueues:
    """What came once, and what came again."""

    count, turn, moves_when_accessed = 2, 0, True

    def _or(self, method: str, answer: Any) -> Any:
        return Late.bad[method](1) if method in Late.bad else answer

    def expect(self, identity: bytes, counts: Any) -> None: ...

    def enter(self, identity: bytes, counts: Any) -> Any:
        return self._or("enter", Spot(0))

    def enter_at_start(self, identity: bytes, touches: int) -> Any:
        return self._or("enter_at_start", Spot(1))

    def accessed(self, spot: Spot) -> Any:
        return self._or("accessed", Spot(1))

    def look_in(self, counts: Any, newcomer: bytes) -> Any:
        return self._or("look_in", (0, 1))

    def pass_over(self, spot: Spot) -> Any:
        return self._or("pass_over", None)

    def left(self, *about: Any) -> Any:
        return self._or("left", None)

    def terms(self, spot: Spot) -> dict[str, float]:
        return {"again": float(spot.queue)}


BAD: list[tuple[str, str, Answer]] = [
    ("classes", "ranks", _raise), ("classes", "ranks", lambda count: np.full(count, np.nan)),
    ("classes", "ranks", lambda count: np.full(count, -np.inf)),
    ("classes", "ranks", lambda count: np.zeros(count + 1)),
    ("classes", "classes", _raise), ("classes", "classes", lambda count: np.full(count, -1)),
    ("classes", "classes", lambda count: np.full(count, 1 << 20)), ("classes", "classes", lambda count: 3),
    ("keys", "keys", _raise), ("keys", "keys", lambda count: ["a"] * count),
    ("keys", "keys", lambda count: np.zeros(count + 1)), ("queues", "enter", _raise),
    ("queues", "enter", lambda _: Spot(2)), ("queues", "accessed", lambda _: Spot(0, 0, float("nan"))),
    ("queues", "look_in", lambda _: (0,)), ("queues", "look_in", _raise), ("queues", "left", _raise),
    ("queues", "pass_over", lambda _: Spot(0)), ("queues", "pass_over", _raise),
]


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Late is offered; what is told of its failures."""
    failures: list[str] = []
    monkeypatch.setattr(registry, "_offered", {})
    monkeypatch.setattr(Late, "bad", {})
    registry.offer("late", lambda: Late, lambda name, why: failures.append(f"{name}: {why}"))
    return failures


@pytest.mark.parametrize(("index", "method", "answer"), BAD)
def test_a_policy_that_fails_gives_way_to_lru(
    told: list[str], monkeypatch: pytest.MonkeyPatch, index: str, method: str, answer: Answer
) -> None:
    """Requests are served once a policy fails, whatever it does wrong: no command is left half done, and it is told
    once."""
    monkeypatch.setattr(Late, "index", index)
    driver = Driver("late", seed=4)
    for _ in range(30):
        driver.request(driver.draw())
    Late.bad = {method: answer}
    for _ in range(30):
        driver.request(driver.draw())
        invariants.check(driver.engine)
    assert len(told) == 1
    assert told[0].startswith("late: ")
    driver.engine.step(SetPolicy("lru"), driver.now)
    driver.request(driver.draw())
    invariants.check(driver.engine)


@pytest.mark.parametrize(("index", "method", "answer"), BAD)
@pytest.mark.usefixtures("told")
def test_a_policy_that_fails_at_once_is_refused(
    monkeypatch: pytest.MonkeyPatch, index: str, method: str, answer: Answer
) -> None:
    """What a trial shows is refused, and the policy in force stays."""
    driver = Driver("lfu")
    monkeypatch.setattr(Late, "index", index)
    Late.bad = {method: answer}
    with pytest.raises(registry.InvalidInput, match="late"):
        driver.engine.step(SetPolicy("late"), driver.now)
    reply = driver.engine.step(Occupancy(), driver.now).reply
    assert isinstance(reply, OccupancyReply)
    assert (reply.policy.split("(")[0], reply.policy_epoch) == ("lfu", 0)


@pytest.mark.parametrize("name", sorted(POLICIES))
def test_the_trial_asks_nothing_that_policies_need_not_answer(name: str) -> None:
    """Each policy of the registry passes the trial."""
    try_out(parse(name))
