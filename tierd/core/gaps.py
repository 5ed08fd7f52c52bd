"""For how long blocks stay away: the gaps between accesses, by class of the block, and the index made of them.

The index G of a block of a class that has been idle for so long is the best ratio that waiting on offers,

    G = max over b of  P(it is accessed within b more steps) / E(steps until then, at most b),

which is Gittins' index of a job of unknown length (Gittins, "Bandit processes and dynamic allocation indices",
J. R. Stat. Soc. B 41(2), 1979). Gaps are those between accesses of identities, whether a copy was there or not.

A class is the length of the gap that the last access ended (0: it was the first; then by GAP_EDGES) and the number
of tokens that its request brought (NEW_EDGES); for blocks from which two chains go on, the number of accesses.
Beside these, the same gaps are counted by the number of accesses alone, 1 to MOST_COUNTED. Of two blocks that have
been idle for as long, the one with more accesses is never worth less by that.

What a record keeps of this is one byte, `learnt`: the class at its last access + 1 (0: none) in the lower six bits,
the number of blocks known to follow it (2: two or more) in the upper two.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tierd.core.arrays import constant, some
from tierd_client.format import LEARNT_BINS, LEARNT_CLASSES, LEARNT_TOUCHES, I64Array, U8Array

GAP_EDGES = np.array([4, 16, 64, 256])
NEW_EDGES = (1, 1024, 4096, 16384)
"""Steps; tokens. A value is in the class that begins at the last edge that is not above it."""
MOST_COUNTED = LEARNT_TOUCHES
_NEW_CLASSES = len(NEW_EDGES) + 1
_COUNT_CLASS = _NEW_CLASSES * (len(GAP_EDGES) + 2)
CLASSES = LEARNT_CLASSES
ROWS = CLASSES + MOST_COUNTED
"""Of the index: one for each class, then one for each number of accesses."""
_ROW_OF = np.maximum(np.arange(MOST_COUNTED + 1), 1) + (CLASSES - 1)
CLASS_MASK, FOLLOWERS_SHIFT, MOST_FOLLOWERS = 63, 6, 2

BINS = LEARNT_BINS
EDGES = np.array([0.0, *(2.0 ** (np.arange(BINS) / 4))])
"""Steps at which the bins of gaps begin, and where the last one ends."""
_FIRST_GAPS = np.array([math.ceil(2.0 ** ((number - 1) / 4)) for number in range(1, BINS)])
_FIRST_GAP_LIST: list[int] = _FIRST_GAPS.tolist()
_CLASS_OF = np.maximum(np.arange(256) & CLASS_MASK, 1) - 1
_CLASS_AFTER = (GAP_EDGES.searchsorted(np.arange(GAP_EDGES[-1] + 1), "right") + 1) * _NEW_CLASSES
"""By the length of the gap; all longer ones are as the last."""
_CELLS = np.where(np.arange(256) & CLASS_MASK, _CLASS_OF * (BINS + 1), -BINS)
"""Where the gaps of a record's class are counted, by its `learnt`; with any bin below 0 if it has none."""
_TOUCH_CELLS = _ROW_OF * (BINS + 1)
"""Where those of its number of accesses are."""
_ENTERED = np.arange(ROWS) * (BINS + 1) + BINS
"""Where the accesses are counted after which a record stands in each row of the index."""
_ENTERED_NEXT = _ENTERED[np.append(_ROW_OF[1:], _ROW_OF[-1])]
"""The same by the number of accesses before."""
_LEARNT_OF = (np.arange(CLASSES) + 1).astype(np.uint8)
_ZERO = constant(0, np.int64)
_NEVER = constant(0, np.uint32)
_SHARED = constant(MOST_FOLLOWERS << FOLLOWERS_SHIFT, np.uint8)
_FOLLOWERS_MASK = constant(~CLASS_MASK & 0xFF, np.uint8)
PRIOR_WEIGHT = 50.0
"""Accesses of all classes together that stand for what a class has not met yet."""
MEMORY = 0.97
"""What is left of the counts after each LEARN_EVERY requests: about 6,700 requests are remembered."""
LEARN_EVERY = 200
_ENOUGH = 50
"""Accesses before the first index is made; one block at least must have been accessed again."""
LIKE_LRU = np.tile(1.0 / (EDGES[:BINS] + 1.0), (ROWS, 1))


def bin_of(gap: int) -> int:
    return bisect_right(_FIRST_GAP_LIST, gap)


def bins_of(gaps: I64Array) -> I64Array:
    """Bin of each gap in steps: 0 below 1, then four for each doubling."""
    bins: I64Array = _FIRST_GAPS.searchsorted(gaps, "right")
    return bins


def new_class(tokens: int) -> int:
    """What the number of tokens that a request brings adds to the class of its blocks."""
    return bisect_right(NEW_EDGES, tokens)


def never_seen(count: int, chain: bool) -> U8Array:
    """`learnt` of `count` identities, each of which but the last is followed by the next if they are a `chain`."""
    learnt = np.zeros(count, np.uint8)
    learnt[: count - 1 if chain else 0] = 1 << FOLLOWERS_SHIFT
    return learnt


def made_sound(learnt: I64Array) -> U8Array:
    """What others say, as far as it makes sense here."""
    makes_sense = (learnt & CLASS_MASK <= CLASSES) & (learnt >> FOLLOWERS_SHIFT <= MOST_FOLLOWERS)
    kept: U8Array = np.where(makes_sense, learnt, 0).astype(np.uint8)
    return kept


def classes_of(learnt: U8Array) -> I64Array:
    """Class of each record; those that have none count as first accesses of nothing new."""
    classes: I64Array = _CLASS_OF.take(learnt)
    return classes


def touch_rows(touches: NDArray[np.integer[Any]]) -> I64Array:
    """Row of the index for each number of accesses."""
    rows: I64Array = _ROW_OF.take(touches, mode="clip")
    return rows


class Gaps:
    """Counts by row and bin, in memory that survives the process, and the index made of them last."""

    def __init__(self, counts: NDArray[np.float64]) -> None:
        """`counts` (rows + 1, bins + 1): gaps by row and bin, and in the last column accesses after which blocks
        stood there; in the last row, first, the number of requests. What is no number there is forgotten."""
        if not np.isfinite(counts).all() or some(counts < 0):
            counts[:] = 0
        self._flat = counts.reshape(-1)
        self._gaps, self._entered = counts[:ROWS, :BINS], counts[:ROWS, BINS]
        self._requests = counts[ROWS]
        self._step = 0
        self.index = LIKE_LRU
        """G (rows, bins), never higher for a longer idle time."""
        self._learn()

    def access(self, touches: NDArray[np.uint32], gaps: I64Array, learnt: U8Array, new: int) -> U8Array:
        """Counts one access to each of these records, as they were before it: `gaps` steps after their last one, by
        a request of the new-class `new`. Their `learnt` from now on."""
        classes = self.classes(touches, gaps, learnt, new)
        bins = bins_of(gaps)
        ended = _CELLS.take(learnt) + bins
        classed = ended >= _ZERO
        cells = (
            ended[classed], (_TOUCH_CELLS.take(touches, mode="clip") + bins)[classed],
            _ENTERED.take(classes), _ENTERED_NEXT.take(touches, mode="clip"),
        )
        np.add.at(self._flat, np.concatenate(cells), 1.0)
        after: U8Array = _LEARNT_OF.take(classes) | (learnt & _FOLLOWERS_MASK)
        return after

    def classes(self, touches: NDArray[np.uint32], gaps: I64Array, learnt: U8Array, new: int) -> I64Array:
        """Class of each of these records after such an access."""
        classes: I64Array = _CLASS_AFTER.take(gaps, mode="clip") * (touches != _NEVER) + new
        if some(shared := learnt >= _SHARED):
            classes[shared] = _COUNT_CLASS + np.minimum(touches[shared], MOST_COUNTED - 1)
        return classes

    def tick(self, step: int) -> None:
        """At the end of a command: another request has been counted when the step moved. Learns now and then, more
        often at first."""
        if step == self._step:
            return
        self._step = step
        self._requests[0] += 1
        number = int(self._requests[0])
        if number % (25 if number <= 200 else 50 if number <= 1000 else LEARN_EVERY) == 0:
            self._learn()
            if number % LEARN_EVERY == 0:
                self._gaps *= MEMORY
                self._entered *= MEMORY

    def _learn(self) -> None:
        entered = self._entered[:CLASSES].sum()
        if entered < _ENOUGH or not self._gaps.any():
            return
        counts = self._gaps + PRIOR_WEIGHT * self._gaps[:CLASSES].sum(axis=0) / (entered + 1.0)
        left = np.empty((ROWS, BINS + 1))
        left[:, 0] = self._entered + PRIOR_WEIGHT + 1.0
        left[:, 1:] = left[:, :1] - np.cumsum(counts, axis=1)
        left[:, BINS] = np.maximum(left[:, BINS], 1.0)
        waited = np.maximum(0.5, (left[:, :-1] + left[:, 1:]) / 2) * np.diff(EDGES)
        index = np.minimum.accumulate(_best_ratios(counts + 0.001, waited), axis=1)
        index[CLASSES:] = np.maximum.accumulate(index[CLASSES:], axis=0)
        self.index = index


def _best_ratios(gained: NDArray[np.float64], waited: NDArray[np.float64]) -> NDArray[np.float64]:
    """For each bin, the best of sum(gained) / sum(waited) over the bins from it to any later one."""
    gains = np.concatenate([np.zeros((len(gained), 1)), np.cumsum(gained, axis=1)], axis=1)
    waits = np.concatenate([np.zeros((len(waited), 1)), np.cumsum(waited, axis=1)], axis=1)
    best = np.empty_like(gained)
    for start in range(gained.shape[1]):
        ahead = gains[:, start + 1 :] - gains[:, start : start + 1]
        best[:, start] = (ahead / (waits[:, start + 1 :] - waits[:, start : start + 1])).max(axis=1)
    return best
