"""What is learnt of gaps between accesses, and the index made of it."""

from __future__ import annotations

import numpy as np
import pytest

from tierd.core.gaps import BINS, CLASSES, EDGES, FOLLOWERS_SHIFT, LIKE_LRU, Gaps, bin_of, bins_of, made_sound

COUNTS = (CLASSES + 1, BINS + 1)


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


def test_before_anything_is_learnt_the_order_is_that_of_lru() -> None:
    """With fewer than 50 accesses the index is the same for all classes, and falls with the idle time."""
    gaps = learner()
    for step in range(1, 26):
        accessed(gaps, 0, 0, 0, 0)
        gaps.tick(step)
    assert gaps.index is LIKE_LRU
    assert (np.diff(LIKE_LRU, axis=1) < 0).all()


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
