"""What a policy is: a total order of eviction over the statistics of records.

A policy changes no record. The engine updates the same statistics whatever the policy
(tierd/core/statistics.py), so that changing the policy loses nothing.

Order of victims: lowest standing first (tierd/core/standing.py); then highest rank; on equal ranks the older
access, then the deeper block, then the smaller identity. A policy says only the rank, and how to find its
maximum without looking at all blocks:

* `index = "classes"`: it sorts records into classes within which the rank depends on the last access alone, never
  falling with idleness, so that the least recently used of each class is its candidate (`classes`);
* `index = "keys"`: the order does not change while records are idle, and a number per record states it
  (`keys`, lowest first);
* `index = "queues"`: the order is that of queues which it keeps for each tier (queues.py), and the rank serves only
  to compare blocks that stand in none.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar, Literal, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from tierd.core.arrays import constant
from tierd.core.errors import InvalidInput
from tierd.core.gaps import LIKE_LRU
from tierd_client.format import U8Array

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

_ZERO = constant(0, np.int64)
ADMISSIONS = ("none", "learned")
FALLBACKS = ("none", "lru")
CLASS_BITS = 20
"""Classes are numbers of so many bits."""

WINDOW_REPORTS = 16
"""Last reports of attention of which each block's share is kept."""

MOST_GHOSTS_PER_BLOCK = 1 << 40
"""More are as many as ghosts have room."""
LEAST_HALF_LIFE_S = 1e-3

MOST_TOUCHES = 1 << 16
"""Records with more accesses count as equal in frequency: from alpha = 0.0006 on 1 - ema is 0 to the last bit."""


@dataclass(frozen=True, slots=True)
class Attended:
    """What reports of attention gave to several records (core/attention.py): shares in sum, in the last report, and
    in each of the last ones (records, WINDOW_REPORTS), the latest first; reports, and of them those of a share
    above 1; what a policy made of neighbours; blocks behind in the chain; whether any report named it at all."""

    total: FloatArray
    latest: FloatArray
    votes: IntArray
    reports: IntArray
    window: FloatArray
    near: FloatArray
    behind: IntArray
    known: NDArray[np.bool_]

    @classmethod
    def nothing(cls, records: int) -> Attended:
        """Of records that no report named."""
        zeros, none = np.zeros(records), np.zeros(records, np.int64)
        return cls(
            zeros, zeros, none, none, np.zeros((records, WINDOW_REPORTS)), zeros, none, np.zeros(records, bool)
        )


class Stats(Protocol):
    """Statistics of several records, as parallel arrays. Those in a catalog are gathered when they are asked for,
    anew each time. `unit`: each access so far had weight 1. `position`: place in the chain, from 0. `learnt`: see
    gaps.py."""

    @property
    def touches(self) -> IntArray: ...
    @property
    def last(self) -> IntArray: ...
    @property
    def wall(self) -> FloatArray: ...
    @property
    def ema(self) -> FloatArray: ...
    @property
    def crf(self) -> FloatArray: ...
    @property
    def unit(self) -> NDArray[np.bool_]: ...
    @property
    def position(self) -> IntArray: ...
    @property
    def learnt(self) -> U8Array: ...
    @property
    def attention(self) -> Attended: ...


@dataclass(frozen=True, slots=True)
class GivenStats:
    """Statistics as they are given; positions, what was learnt and attention are 0 where they are not."""

    touches: IntArray
    last: IntArray
    wall: FloatArray
    ema: FloatArray
    crf: FloatArray
    unit: NDArray[np.bool_]
    position: IntArray = field(default_factory=lambda: np.empty(0, np.int64))
    learnt: U8Array = field(default_factory=lambda: np.empty(0, np.uint8))
    attention: Attended = field(default_factory=lambda: Attended.nothing(0))

    def __post_init__(self) -> None:
        if not len(self.attention.known):
            object.__setattr__(self, "attention", Attended.nothing(len(self.touches)))
        for name in ("position", "learnt"):
            given = getattr(self, name)
            if not len(given):
                object.__setattr__(self, name, np.zeros(len(self.touches), given.dtype))


@dataclass(slots=True)
class Moment:
    """When a rank is asked for: the step, the wall time (s), the tier's characteristic age T (steps), the index
    learnt of gaps (rows, bins; gaps.py), and whether LRU has taken over (fallback.py)."""

    step: int
    wall_s: float
    age: float
    index: FloatArray = field(default_factory=lambda: LIKE_LRU, repr=False, compare=False)
    fallen_back: bool = False


@dataclass(frozen=True, slots=True)
class Decay:
    """How the CRF of LRFU fades: by `per_step` (lambda) a step, or by half in `half_life_s` seconds.

    F(x) = 2^(-lambda x), Lee et al., "LRFU", IEEE TC 50(12), 2001: lambda 0 is LFU, 1 is LRU.
    """

    per_step: float = 0.001
    half_life_s: float = 0.0

    def factor(self, idle_steps: IntArray, idle_s: FloatArray) -> FloatArray:
        """What is left of a CRF after so long."""
        if self.half_life_s:
            faded: FloatArray = np.exp2(-np.maximum(idle_s, 0.0) / self.half_life_s)
        else:
            faded = np.exp2(-self.per_step * np.maximum(idle_steps, _ZERO))
        return faded

    def clock(self, last: IntArray, wall: FloatArray) -> FloatArray:
        """Time of an access in units of halvings: log2(CRF) + clock never changes while a record is idle."""
        if self.half_life_s:
            halvings: FloatArray = wall / self.half_life_s
        else:
            halvings = self.per_step * last.astype(np.float64)
        return halvings


@dataclass(frozen=True, slots=True)
class Common:
    """Parameters that every policy has.

    alpha: weight of an access in `ema`. persist: records survive as ghosts. ghost_factor: ghosts per
    resident block. leaf_only: a block with a resident child in the tier is no victim. admission: whether all
    blocks are stored (admission.py). fallback: what takes over where the policy does worse (fallback.py).
    """

    alpha: float = 0.5
    decay: Decay = field(default_factory=Decay)
    persist: bool = True
    ghost_factor: float = 4.0
    leaf_only: bool = True
    admission: str = "none"
    fallback: str = "none"

    def ghosts_for(self, blocks: int) -> int:
        """Most ghosts beside so many resident blocks."""
        return int(min(self.ghost_factor, MOST_GHOSTS_PER_BLOCK) * blocks) if self.persist else 0


class Policy(Protocol):
    """See the module. Arrays in, arrays out; pure. What else it has, `index` says."""

    name: ClassVar[str]

    @property
    def rule(self) -> str:
        """The formula of the rank, for people."""

    @property
    def index(self) -> Literal["classes", "keys", "queues"]:
        """How the order is kept, see the module."""

    @property
    def common(self) -> Common:
        """The parameters that every policy has."""

    @property
    def spec(self) -> str:
        """Text from which `parse` makes this policy again."""

    def ranks(self, stats: Stats, now: Moment) -> FloatArray:
        """Rank of each record: higher goes sooner."""

    def terms(self, stats: Stats, now: Moment) -> dict[str, float]:
        """The terms behind the rank of one record (arrays of length 1)."""


class ByClass(Policy, Protocol):
    """A policy whose index is "classes"."""

    def classes(self, stats: Stats) -> IntArray:
        """Class of each record, a number from 0 below 2^20."""


class ByKey(Policy, Protocol):
    """A policy whose index is "keys"."""

    def keys(self, stats: Stats) -> FloatArray:
        """Number of each record, lowest goes first."""


def ranks_of(policy: Policy, stats: Stats, now: Moment) -> FloatArray:
    """Rank of each record by the policy, or by its last access where LRU has taken over: higher goes sooner."""
    return (now.step - stats.last).astype(np.float64) if now.fallen_back else policy.ranks(stats, now)


@runtime_checkable
class ByNeighbours(Protocol):
    """A policy by which a block counts with its neighbours."""

    def near(self, windows: FloatArray) -> FloatArray:
        """A number per block of a sequence, from the windows (blocks, WINDOW_REPORTS) of all, in order."""


class Parameters:
    """Named parameters of a spec, taken one by one; what is left over is unknown."""

    def __init__(self, policy: str, given: dict[str, str]) -> None:
        self.policy = policy
        self._given = dict(given)

    def has(self, name: str) -> bool:
        return name in self._given

    def number(self, name: str, default: float, low: float, high: float, *, above_low: bool = False) -> float:
        """A number in [low, high], or (low, high]."""
        text = self._given.pop(name, None)
        if text is None:
            return default
        try:
            value = float(text)
        except ValueError:
            raise self._refused(name, f"{text!r} is not a number") from None
        if not (low <= value <= high) or (above_low and value == low):
            raise self._refused(name, f"{text} is outside {'(' if above_low else '['}{low:g}, {high:g}]")
        return value

    def integer(self, name: str, default: int, low: int, high: int) -> int:
        """An integer in [low, high]."""
        text = self._given.pop(name, str(default))
        if not text.isdecimal() or not low <= int(text) <= high:
            raise self._refused(name, f"{text!r} is not an integer from {low} to {high}")
        return int(text)

    def flag(self, name: str, default: bool) -> bool:
        text = self._given.pop(name, None)
        if text is None:
            return default
        if text not in ("true", "false"):
            raise self._refused(name, f"{text!r} is neither true nor false")
        return text == "true"

    def choice(self, name: str, default: str, allowed: tuple[str, ...]) -> str:
        text = self._given.pop(name, default)
        if text not in allowed:
            raise self._refused(name, f"{text!r} is not one of {', '.join(allowed)}")
        return text

    def common(
        self, alpha: float, *, leaf_only: bool = True, ghost_factor: float = 4.0, admission: str = "none",
        fallback: str = "none",
    ) -> Common:
        """The parameters of `Common`; the arguments are the policy's defaults."""
        if self.has("lambda") and self.has("half_life_s"):
            raise self._refused("half_life_s", "give lambda or half_life_s, not both")
        half_life_s = self.number("half_life_s", 0.0, LEAST_HALF_LIFE_S, 1e9)
        return Common(
            alpha=self.number("alpha", alpha, 0.0, 1.0, above_low=True),
            decay=Decay(self.number("lambda", 0.001, 0.0, 1.0), half_life_s),
            persist=self.flag("persist", True),
            ghost_factor=self.number("ghost_factor", ghost_factor, 0.0, math.inf),
            leaf_only=self.flag("leaf_only", leaf_only),
            admission=self.choice("admission", admission, ADMISSIONS),
            fallback=self.choice("fallback", fallback, FALLBACKS),
        )

    def finish(self) -> None:
        """Refuses what was not asked for."""
        for name in self._given:
            raise self._refused(name, f"{self.policy} has no such parameter")

    def _refused(self, name: str, problem: str) -> InvalidInput:
        return InvalidInput(f"policy.{name}", problem)


def in_spec(value: float) -> str:
    """A number as it stands in a spec: short, and the same number when it is read again."""
    short = f"{value:g}"
    return short if float(short) == value else repr(value)


def common_spec(common: Common) -> list[str]:
    """The common parameters as they stand in a spec."""
    decay = common.decay
    return [
        f"alpha={in_spec(common.alpha)}",
        f"half_life_s={in_spec(decay.half_life_s)}" if decay.half_life_s else f"lambda={in_spec(decay.per_step)}",
        f"persist={str(common.persist).lower()}",
        f"ghost_factor={in_spec(common.ghost_factor)}",
        f"leaf_only={str(common.leaf_only).lower()}",
        f"admission={common.admission}",
        f"fallback={common.fallback}",
    ]
