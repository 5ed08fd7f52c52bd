"""Policies of other packages: tried before they are in force, and replaced by LRU once they fail while they are.

A policy is asked in the middle of commands. An error there would leave a command half done: blocks without slots,
slots without blocks. So what it raises, and what is no answer, is caught here and told once. From then on blocks go
by their last access.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from tierd.core.policy.base import (
    CLASS_BITS,
    ByClass,
    ByKey,
    ByNeighbours,
    Common,
    FloatArray,
    GivenStats,
    IntArray,
    Moment,
    Policy,
    Stats,
)
from tierd.core.policy.queues import ByQueues, Counts, Queues, Spot

T = TypeVar("T")
Tell = Callable[[str], None]

MOST_REASON_CHARACTERS = 200
MOST_LOOKS = 64
"""At each block, before one goes: a policy that passes over all of them would never end."""
_FAILURES = (Exception, SystemExit)


def reason_of(error: BaseException) -> str:
    """What was raised, in a line of bounded length."""
    return f"{type(error).__name__}: {error}"[:MOST_REASON_CHARACTERS]


def try_out(policy: Policy) -> None:
    """Asks a policy what it will be asked while it serves, of a few records. Raises what is wrong with it."""
    _text(policy.rule, "rule")
    _text(policy.spec, "spec")
    if not isinstance(policy.common, Common):
        raise TypeError(f"common is a {type(policy.common).__name__}, not a Common")
    ask = Asking(policy)
    for touches in (np.array([1]), np.array([1, 1, 2, 7, 1 << 20])):
        stats, now = _records(touches), Moment(9, 9.0, 50.0)
        ask.ranks(stats, now)
        if policy.index == "classes":
            ask.classes(stats)
        elif policy.index == "keys":
            ask.keys(stats)
    ask.terms(_records(np.array([1])), now)
    if policy.index == "queues":
        _try_queues(AskingQueues(cast(ByQueues, policy).queues()))


def _records(touches: IntArray) -> GivenStats:
    """Records with so many accesses of weight 1, but for the last one's."""
    last = np.arange(len(touches))
    ema, unit = 1.0 - 0.5 ** touches.astype(np.float64), last < max(1, len(touches) - 1)
    return GivenStats(touches, last, last.astype(np.float64), ema, np.ones(len(touches)), unit)


def _try_queues(queues: AskingQueues) -> None:
    counts, identity = Counts([0] * queues.count), bytes(32)
    spot = queues.enter_at_start(identity, 1)
    queues.expect(identity, counts)
    spot = queues.accessed(queues.enter(identity, counts))
    counts.lengths[spot.queue], counts.most = 1, 1
    queues.look_in(counts, b"")
    while (onward := queues.pass_over(spot)) is not None:
        spot = onward
        queues.look_in(counts, b"")
    queues.terms(spot)
    queues.left(identity, spot, counts, b"")


class Asking:
    """Asks a policy; raises where what it says is no answer."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy

    def ranks(self, stats: Stats, now: Moment) -> FloatArray:
        return _numbers(self.policy.ranks(stats, replace(now)), len(stats.last), "ranks")

    def keys(self, stats: Stats) -> FloatArray:
        return _numbers(cast(ByKey, self.policy).keys(stats), len(stats.last), "keys")

    def classes(self, stats: Stats) -> IntArray:
        classes = _array(cast(ByClass, self.policy).classes(stats), len(stats.last), "classes", "iu")
        if not ((classes >= 0) & (classes < 1 << CLASS_BITS)).all():
            raise ValueError(f"classes are not all from 0 below 2^{CLASS_BITS}")
        return classes.astype(np.int64)

    def near(self, windows: FloatArray) -> FloatArray:
        return _numbers(cast(ByNeighbours, self.policy).near(windows), len(windows), "near")

    def terms(self, stats: Stats, now: Moment) -> dict[str, float]:
        return _terms(self.policy.terms(stats, replace(now)))


class AskingQueues:
    """The same of queues."""

    def __init__(self, queues: Queues) -> None:
        self.queues = queues
        self.count = queues.count
        if type(self.count) is not int or not 1 <= self.count < 1 << CLASS_BITS:
            raise ValueError(f"count is {self.count!r}, not a number of queues")
        self._looks = 0

    def expect(self, identity: bytes, counts: Counts) -> None:
        self.queues.expect(identity, counts)

    def enter(self, identity: bytes, counts: Counts) -> Spot:
        return self._spot(self.queues.enter(identity, counts))

    def enter_at_start(self, identity: bytes, touches: int) -> Spot:
        return self._spot(self.queues.enter_at_start(identity, touches))

    def accessed(self, spot: Spot) -> Spot:
        return self._spot(self.queues.accessed(spot))

    def look_in(self, counts: Counts, newcomer: bytes) -> tuple[int, ...]:
        self._looks += 1
        if self._looks > MOST_LOOKS * (1 + sum(counts.lengths)):
            raise RuntimeError("pass_over lets no block go")
        order = tuple(self.queues.look_in(counts, newcomer))
        if sorted(order) != list(range(self.count)):
            raise ValueError(f"look_in gave {order!r}, not each of the {self.count} queues once")
        return order

    def pass_over(self, spot: Spot) -> Spot | None:
        onward = self.queues.pass_over(spot)
        if onward is None:
            self._looks = 0
            return None
        return self._spot(onward)

    def left(self, identity: bytes, spot: Spot, counts: Counts, newcomer: bytes) -> None:
        self.queues.left(identity, spot, counts, newcomer)

    def terms(self, spot: Spot) -> dict[str, float]:
        return _terms(self.queues.terms(spot))

    def _spot(self, spot: Any) -> Spot:
        queue, mark, key = spot
        if not 0 <= int(queue) < self.count or np.isnan(float(key)):
            raise ValueError(f"{spot!r} is no place in {self.count} queues")
        return Spot(int(queue), int(mark), float(key))


class Failing:
    """Whether a policy has failed, and why; told once."""

    def __init__(self, tell: Tell) -> None:
        self.why = ""
        self._tell = tell

    def ask(self, question: Callable[[], T], otherwise: Callable[[], T]) -> T:
        """The answer to a question, the other one from the first failure on."""
        if not self.why:
            try:
                return question()
            except _FAILURES as error:
                self.why = reason_of(error)
                self._tell(self.why)
        return otherwise()


class Guarded:
    """A policy that was tried out, and LRU from its first failure on."""

    def __init__(self, policy: Policy, tell: Tell) -> None:
        self.name, self.index, self.common, self.spec = policy.name, policy.index, policy.common, policy.spec
        self._rule, self._asking, self._failing = policy.rule, Asking(policy), Failing(tell)
        if isinstance(policy, ByNeighbours):
            self.near = self._near

    @property
    def rule(self) -> str:
        why = self._failing.why
        return f"idle, in steps, since {self.name} failed ({why})" if why else self._rule

    def ranks(self, stats: Stats, now: Moment) -> FloatArray:
        def idle() -> FloatArray:
            return (now.step - stats.last).astype(np.float64)

        return self._failing.ask(lambda: self._asking.ranks(stats, now), idle)

    def keys(self, stats: Stats) -> FloatArray:
        return self._failing.ask(lambda: self._asking.keys(stats), lambda: stats.last.astype(np.float64))

    def classes(self, stats: Stats) -> IntArray:
        return self._failing.ask(lambda: self._asking.classes(stats), lambda: np.zeros(len(stats.last), np.int64))

    def terms(self, stats: Stats, now: Moment) -> dict[str, float]:
        def idle() -> dict[str, float]:
            return {"idle_steps": float(now.step - stats.last[0])}

        return self._failing.ask(lambda: self._asking.terms(stats, now), idle)

    def queues(self) -> GuardedQueues:
        made = self._failing.ask(lambda: AskingQueues(cast(ByQueues, self._asking.policy).queues()), lambda: None)
        return GuardedQueues(made, self._failing)

    def _near(self, windows: FloatArray) -> FloatArray:
        return self._failing.ask(lambda: self._asking.near(windows), lambda: np.zeros(len(windows)))


class GuardedQueues:
    """Queues of such a policy; one LRU list, the first queue, behind all others from the first failure on."""

    def __init__(self, asking: AskingQueues | None, failing: Failing) -> None:
        self._asking, self._failing = asking, failing
        self.count = 1 if asking is None else asking.count

    @property
    def moves_when_accessed(self) -> bool:
        return self._ask(lambda asking: bool(asking.queues.moves_when_accessed), True)

    @property
    def turn(self) -> int:
        return self._ask(lambda asking: asking.queues.turn, 0)

    @turn.setter
    def turn(self, turn: int) -> None:
        self._ask(lambda asking: setattr(asking.queues, "turn", turn), None)

    def expect(self, identity: bytes, counts: Counts) -> None:
        self._ask(lambda asking: asking.expect(identity, counts), None)

    def enter(self, identity: bytes, counts: Counts) -> Spot:
        return self._ask(lambda asking: asking.enter(identity, counts), Spot(0))

    def enter_at_start(self, identity: bytes, touches: int) -> Spot:
        return self._ask(lambda asking: asking.enter_at_start(identity, touches), Spot(0))

    def accessed(self, spot: Spot) -> Spot:
        return self._ask(lambda asking: asking.accessed(spot), Spot(0))

    def look_in(self, counts: Counts, newcomer: bytes) -> tuple[int, ...]:
        return self._ask(lambda asking: asking.look_in(counts, newcomer), tuple(reversed(range(self.count))))

    def pass_over(self, spot: Spot) -> Spot | None:
        return self._ask(lambda asking: asking.pass_over(spot), None)

    def left(self, identity: bytes, spot: Spot, counts: Counts, newcomer: bytes) -> None:
        self._ask(lambda asking: asking.left(identity, spot, counts, newcomer), None)

    def terms(self, spot: Spot) -> dict[str, float]:
        return self._ask(lambda asking: asking.terms(spot), {})

    def _ask(self, question: Callable[[AskingQueues], T], otherwise: T) -> T:
        asking = self._asking
        return otherwise if asking is None else self._failing.ask(lambda: question(asking), lambda: otherwise)


def _array(given: Any, count: int, what: str, kinds: str) -> NDArray[Any]:
    array = np.asarray(given)
    if array.shape != (count,) or array.dtype.kind not in kinds:
        raise TypeError(f"{what} of {count} records are of shape {array.shape} and dtype {array.dtype}")
    return array


def _numbers(given: Any, count: int, what: str) -> FloatArray:
    array = _array(given, count, what, "iuf").astype(np.float64)
    if not (array > -np.inf).all():
        raise ValueError(f"{what} are NaN or infinitely low")
    return array


def _terms(given: Any) -> dict[str, float]:
    if not isinstance(given, dict) or not all(isinstance(name, str) for name in given):
        raise TypeError("terms are not a dict of numbers by name")
    return {name: float(value) for name, value in given.items()}


def _text(given: Any, what: str) -> None:
    if not isinstance(given, str):
        raise TypeError(f"{what} is a {type(given).__name__}, not text")
