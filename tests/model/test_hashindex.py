"""The index from identities to rows against a dictionary, one by one and in batches."""

from __future__ import annotations

import random

import numpy as np
import pytest

from tierd.core import hashindex
from tierd.core.hashindex import NO_ROW, HashIndex
from tierd_client.format import BUCKET_EMPTY, BUCKET_TOMBSTONE, words_of

ROWS = 40
BUCKETS = 64


def identities(crowded: bool) -> np.ndarray:
    """Identities of rows; crowded ones all start their probe in the same bucket."""
    made = np.random.default_rng(1).integers(0, 256, (ROWS, 32)).astype(np.uint8)
    if crowded:
        made[:, :16] = made[0, :16]
    return made


@pytest.mark.parametrize("crowded", [False, True])
@pytest.mark.parametrize("batch", [0, 3, 1000])
@pytest.mark.parametrize("seed", range(5))
def test_index_agrees_with_a_dictionary(
    seed: int, batch: int, crowded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After any insertions and removals each indexed identity finds its row, any other none, and the tombstones
    are counted."""
    monkeypatch.setattr("tierd_client.format.FEW_PROBES", batch)
    monkeypatch.setattr(hashindex, "FEW", batch)
    draw, ids = random.Random(seed), identities(crowded)
    buckets = np.zeros(BUCKETS, np.uint32)
    index = HashIndex(buckets, words_of(ids), salt=seed)
    inside: set[int] = set()
    for _ in range(60):
        adding = draw.random() < 0.5
        able = sorted(set(range(ROWS)) - inside) if adding else sorted(inside)
        rows = draw.sample(able, min(len(able), draw.randint(1, 8)))
        if adding:
            index.insert(np.array(rows, np.int64))
            inside |= set(rows)
        elif rows:
            index.remove(np.array(rows, np.int64))
            inside -= set(rows)
        if index.crowded:
            index.rebuild(np.array(sorted(inside), np.int64))
            assert index.tombstones == 0
        assert index.find(ids).tolist() == [row if row in inside else NO_ROW for row in range(ROWS)]
        assert index.tombstones == np.count_nonzero(buckets == BUCKET_TOMBSTONE)
        assert np.count_nonzero((buckets != BUCKET_EMPTY) & (buckets != BUCKET_TOMBSTONE)) == len(inside)


def test_a_probe_always_ends() -> None:
    """However rows come and go, an index that says when it is crowded keeps an empty bucket."""
    ids = identities(crowded=True)
    buckets = np.zeros(BUCKETS, np.uint32)
    index = HashIndex(buckets, words_of(ids))
    for turn in range(200):
        index.insert(np.array([turn % ROWS]))
        index.remove(np.array([turn % ROWS]))
        if index.crowded:
            index.rebuild(np.empty(0, np.int64))
        assert (buckets == BUCKET_EMPTY).any()
        assert index.find(ids).tolist() == [NO_ROW] * ROWS
