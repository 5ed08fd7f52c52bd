"""What is learnt of gaps between accesses, and the index made of it."""

from __future__ import annotations

import numpy as np
import pytest

from tierd.core.gaps import (
    BINS,
    CLASSES,
    EDGES,
    FOLLOWERS_SHIFT,
    LIKE_LRU,
    ROWS,
    Gaps,
    bin_of,
    bins_of,
    made_sound,
    touch_rows,
)

COUNTS = (ROWS + 1, BINS + 1)


def learner() -> Gaps:
    return Gaps(np.zeros(COUNTS))


def accessed(gaps: Gaps, touches: int, gap: int, learnt: int, new: int) -> int:
    """`learnt` of one record after an access."""
    columns = np.array([touches], np.uint32), np.array([gap]), np.array([learnt], np.uint8)
    return int(gaps.access(*columns, new)[0])


def test_bins_are_quarters_of_doublings() -> None:
    """A gap lies in the bin between whose edges it is, one by one and all at once; the last bin has no end."""
    gaps = np.array([0, 1, 2, 3, 4, 5, 8, 1000, 10**6, 2**40])
    bins = bins_of(gaps)
    assert bins.tolist() == [bin_of(gap) for gap in gaps.tolist()] == [0, 1, 5, 7, 9, 10, 13, 40, 80, BINS - 1]
    inside = gaps[:-1]
    assert ((EDGES[bins[:-1]] <= inside) & (inside < EDGES[bins[:-1] + 1])).all()


def test_classes_are_gaps_new_tokens_and_counts() -> None:
    """Each range of gaps and of new tokens is a class; of a block with two followers each number of accesses."""
    gaps = learner()
    assert [accessed(gaps, 0, 0, 0, new) for new in range(5)] == [1, 2, 3, 4, 5]
    assert [accessed(gaps, 1, gap, 1, 0) for gap in (3, 4, 15, 16, 64, 255, 256)] == [6, 11, 11, 16, 21, 21, 26]
    shared = 2 << FOLLOWERS_SHIFT
    assert [accessed(gaps, touches, 9, shared, 4) - shared for touches in (0, 1, 7, 99)] == [31, 32, 38, 38]


def test_index_prefers_classes_that_come_back_soon() -> None:
    """Blocks whose class came back after 2 steps are worth more than those of one that never did, and no block is
    worth more for waiting longer."""
    gaps = learner()
    for step in range(1, 201):
        accessed(gaps, 1, 2, 6, 0)
        accessed(gaps, 0, 0, 0, 4)
        gaps.tick(step)
    assert gaps.index[5, 0] > 5 * gaps.index[4, 0]
    assert (np.diff(gaps.index, axis=1) <= 0).all()


def test_gaps_count_for_the_number_of_accesses_before_them() -> None:
    """A gap counts in the row of the accesses so far, the access that ended it enters the next; 8 are the most."""
    counts = np.zeros(COUNTS)
    gaps = Gaps(counts)
    for touches in (0, 1, 7, 99):
        accessed(gaps, touches, 5, min(touches, 1), 0)
    assert (touch_rows(np.array([0, 1, 2, 8, 99])) - CLASSES).tolist() == [0, 0, 1, 7, 7]
    assert counts[CLASSES:ROWS, bin_of(5)].tolist() == [1, 0, 0, 0, 0, 0, 1, 1]
    assert counts[CLASSES:ROWS, BINS].tolist() == [1, 1, 0, 0, 0, 0, 0, 2]


def test_more_accesses_are_never_worth_less() -> None:
    """Blocks accessed once came back soon and those accessed twice never: after as long, twice is worth as much."""
    gaps = learner()
    for step in range(1, 201):
        accessed(gaps, 0, 0, 0, 0)
        accessed(gaps, 1, 2, 1, 0)
        gaps.tick(step)
    by_touches = gaps.index[CLASSES:]
    assert (np.diff(by_touches, axis=0) >= 0).all()
    assert by_touches[0, 0] == by_touches[1, 0] > gaps.index[4, 0]


def test_before_anything_is_learnt_the_order_is_that_of_lru() -> None:
    """With fewer than 50 accesses the index is the same for all classes, and falls with the idle time."""
    gaps = learner()
    for step in range(1, 26):
        accessed(gaps, 0, 0, 0, 0)
        gaps.tick(step)
    assert gaps.index is LIKE_LRU
    assert (np.diff(LIKE_LRU, axis=1) < 0).all()


def test_what_was_learnt_outlives_the_process() -> None:
    """Whoever opens the same memory again has the same index, of classes and of numbers of accesses."""
    counts = np.zeros(COUNTS)
    gaps = Gaps(counts)
    for step in range(1, 176):
        accessed(gaps, step % 9, step, 1, 0)
        gaps.tick(step)
    assert not np.array_equal(gaps.index, LIKE_LRU)
    assert np.array_equal(Gaps(counts).index, gaps.index)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -1.0])
def test_counts_that_are_none_are_forgotten(bad: float) -> None:
    """Memory that holds anything but counts is begun anew."""
    counts = np.ones(COUNTS)
    counts[3, 4] = bad
    Gaps(counts)
    assert not counts.any()


def test_what_others_say_is_kept_as_far_as_it_makes_sense() -> None:
    """Classes and numbers of followers that there are not count as none."""
    said = np.array([0, CLASSES, CLASSES + 1, 2 << FOLLOWERS_SHIFT, 3 << FOLLOWERS_SHIFT])
    assert made_sound(said).tolist() == [0, CLASSES, 0, 2 << FOLLOWERS_SHIFT, 0]
