"""How an access changes a record; the same under every policy.

    touches <- touches + 1
    ema     <- (1 - alpha) ema + alpha a            unchanged between accesses
    crf     <- a + crf F(now - last)                LRFU, Lee et al., IEEE TC 50(12), 2001
    last, wall <- now

with a = 1, or the attention that the block received (at most 1).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from tierd.core.arrays import constant
from tierd.core.catalog import FLAG_UNIT, Catalog
from tierd.core.clock import Clock
from tierd.core.fallback import Fallback
from tierd.core.gaps import Gaps
from tierd.core.ghosts import Ghosts, Records
from tierd.core.messages import Record
from tierd.core.policy.base import MOST_TOUCHES, Attended, Common, FloatArray, IntArray
from tierd_client.format import I64Array, U8Array

_ONE, _UNIT = constant(1, np.uint32), constant(FLAG_UNIT, np.uint8)


class StatColumns(Protocol):
    """Columns of statistics, of rows of a catalog or of others."""

    touches: NDArray[np.uint32]
    last: NDArray[np.int64]
    wall: NDArray[np.float64]
    ema: NDArray[np.float64]
    crf: NDArray[np.float64]
    flags: NDArray[np.uint8]
    position: NDArray[np.uint32]
    learnt: NDArray[np.uint8]
    attention: Any
    """Has the method `of` of Attention."""


class StatsOf:
    """Statistics of rows of a catalog, as a policy wants them: it seldom asks for more than two columns."""

    __slots__ = ("_catalog", "_rows")

    def __init__(self, catalog: StatColumns, rows: I64Array | slice) -> None:
        self._catalog = catalog
        self._rows = rows

    @property
    def touches(self) -> IntArray:
        touches: IntArray = self._catalog.touches[self._rows].astype(np.int64)
        return touches

    @property
    def last(self) -> IntArray:
        last: IntArray = self._catalog.last[self._rows]
        return last

    @property
    def wall(self) -> FloatArray:
        wall: FloatArray = self._catalog.wall[self._rows]
        return wall

    @property
    def ema(self) -> FloatArray:
        ema: FloatArray = self._catalog.ema[self._rows]
        return ema

    @property
    def crf(self) -> FloatArray:
        crf: FloatArray = self._catalog.crf[self._rows]
        return crf

    @property
    def unit(self) -> NDArray[np.bool_]:
        unit: NDArray[np.bool_] = (self._catalog.flags[self._rows] & _UNIT) == _UNIT
        return unit

    @property
    def position(self) -> IntArray:
        position: IntArray = self._catalog.position[self._rows].astype(np.int64)
        return position

    @property
    def learnt(self) -> U8Array:
        learnt: U8Array = self._catalog.learnt[self._rows]
        return learnt

    @property
    def attention(self) -> Attended:
        attended: Attended = self._catalog.attention.of(self._rows)
        return attended


def records_of(catalog: Catalog, rows: I64Array) -> Records:
    """The same as they are kept of ghosts."""
    return Records(
        catalog.touches[rows], catalog.last[rows], catalog.wall[rows], catalog.ema[rows], catalog.crf[rows],
        (catalog.flags[rows] & _UNIT).view(np.bool_), catalog.learnt[rows],
    )


def each_record(catalog: Catalog, rows: I64Array) -> list[Record]:
    """The statistics of rows, one by one."""
    weighted = catalog.flags[rows] & FLAG_UNIT == 0
    columns = (catalog.touches, catalog.last, catalog.wall, catalog.ema, catalog.crf)
    fields = (*(column[rows].tolist() for column in columns), weighted.tolist(), catalog.learnt[rows].tolist())
    return [Record(*one) for one in zip(*fields, strict=True)]


def record_of(catalog: Catalog, row: int) -> Record:
    """The statistics of one row."""
    return each_record(catalog, np.array([row]))[0]


def restore(catalog: Catalog, rows: I64Array, records: Records) -> None:
    """Gives new rows the records of their ghosts."""
    catalog.touches[rows], catalog.last[rows], catalog.wall[rows] = records.touches, records.last, records.wall
    catalog.ema[rows], catalog.crf[rows] = records.ema, records.crf
    catalog.flags[rows], catalog.learnt[rows] = np.where(records.unit, FLAG_UNIT, 0), records.learnt


@dataclass(frozen=True, slots=True)
class Access:
    """What accesses of weight 1 have in common. `new`: the class of their request by the tokens that it brings;
    `hit`: as Fallback.access has it."""

    step: int
    wall_s: float
    common: Common
    gaps: Gaps
    new: int
    fallback: Fallback | None = None
    hit: bool | None = None


def access(catalog: Catalog, rows: I64Array, by: Access) -> None:
    """One access to each of these rows, which are distinct."""
    step, wall_s, common = by.step, by.wall_s, by.common
    idle = step - catalog.last[rows]
    touches = catalog.touches[rows]
    catalog.learnt[rows] = by.gaps.access(touches, idle, catalog.learnt[rows], by.new)
    if by.fallback is not None:
        by.fallback.access(step, idle, by.hit)
    fade = common.decay.factor(idle, wall_s - catalog.wall[rows])
    catalog.crf[rows] = 1.0 + catalog.crf[rows] * fade
    catalog.ema[rows] = (1.0 - common.alpha) * catalog.ema[rows] + common.alpha
    catalog.touches[rows] = touches + _ONE
    catalog.last[rows], catalog.wall[rows] = step, wall_s


def access_ghosts(records: Records, which: NDArray[np.bool_], by: Access) -> None:
    """As `access`, to some of these records, in place."""
    step, wall_s, common = by.step, by.wall_s, by.common
    idle = step - records.last[which]
    records.learnt[which] = by.gaps.access(records.touches[which], idle, records.learnt[which], by.new)
    if by.fallback is not None:
        by.fallback.access(step, idle, by.hit)
    fade = common.decay.factor(idle, wall_s - records.wall[which])
    records.crf[which] = 1.0 + records.crf[which] * fade
    records.ema[which] = (1.0 - common.alpha) * records.ema[which] + common.alpha
    records.touches[which] += _ONE
    records.last[which], records.wall[which] = step, wall_s


def access_weighted(
    catalog: Catalog, rows: I64Array, weight: NDArray[np.float64], steps: int, step: int, wall_s: float,
    common: Common,
) -> None:
    """One report of the mean weight (0 to 1) over `steps` steps, to each of these rows, which are distinct.

    Folding is exact for a constant weight: ema <- (1 - alpha)^k ema + (1 - (1 - alpha)^k) a.
    """
    kept = (1.0 - common.alpha) ** steps
    fade = common.decay.factor(step - catalog.last[rows], wall_s - catalog.wall[rows])
    catalog.crf[rows] = weight + catalog.crf[rows] * fade
    taken = common.alpha if steps == 1 else 1.0 - kept
    catalog.ema[rows] = kept * catalog.ema[rows] + taken * weight
    catalog.touches[rows] += np.uint32(1)
    catalog.last[rows], catalog.wall[rows] = step, wall_s
    catalog.flags[rows[(weight != 1.0) | (steps != 1)]] &= np.uint8(~FLAG_UNIT & 0xFF)


def rescale(catalog: Catalog, ghosts: Ghosts, alpha: float) -> None:
    """Makes ema what it were, had alpha always had this value: exact where every access had weight 1, and
    there needed, because the order of victims takes ema for a function of touches. Changes nothing when alpha
    always had it."""
    rows = np.flatnonzero(catalog.used & ((catalog.flags & FLAG_UNIT) != 0))
    catalog.ema[rows] = unit_ema(catalog.touches[rows], alpha)
    places, records = ghosts.live()
    unit = records.unit
    ghosts.ema[places[unit]] = unit_ema(records.touches[unit], alpha)


def unit_ema(touches: NDArray[np.uint32], alpha: float) -> NDArray[np.float64]:
    """ema after so many accesses of weight 1, step by step as `access` does it; constant above MOST_TOUCHES."""
    values = [0.0]
    for _ in range(min(int(touches.max(initial=0)), MOST_TOUCHES)):
        values.append((1.0 - alpha) * values[-1] + alpha)
        if values[-1] == values[-2]:
            break
    table = np.array(values)
    return table[np.minimum(touches, len(table) - 1)]


def retell(catalog: Catalog, ghosts: Ghosts, rows: I64Array, clock: Clock) -> None:
    """Puts the steps of records on the scale of a clock that follows the wall, whatever clock they were made by."""
    if clock.mode != "wall":
        return
    catalog.last[rows] = clock.steps_at(catalog.wall[rows])
    places, records = ghosts.live()
    last = clock.steps_at(records.wall)
    off = np.abs(records.last - last) > clock.steps_per_second + 1  # the wall time of a ghost is in whole seconds
    ghosts.last[places[off]] = last[off]
