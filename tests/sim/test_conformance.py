"""Policies whose exact rule others have implemented too: on one block a request, the same hits to the access.

The integers are those of libcachesim 0.3.5 (PyPI), which the last test asks again where it is installed. `s3fifo`
differs from it by less than a hundredth: here the length of the small queue decides anew after each block that goes
on to the main one, there it is emptied until a block leaves.
"""

from __future__ import annotations

import numpy as np
import pytest

from tierd.sim.replay import replay
from tierd.sim.traces import Trace

REQUESTS, BLOCKS = 5_000, 1_500
CLASSES = {"lru": "LRU", "lfu(persist=false)": "LFU", "arc": "ARC", "sieve": "Sieve"}
HITS = {
    ("lru", 60): 887, ("lru", 300): 1_980, ("lfu(persist=false)", 60): 723, ("lfu(persist=false)", 300): 1_747,
    ("arc", 60): 1_034, ("arc", 300): 1_992, ("sieve", 60): 818, ("sieve", 300): 1_747,
}


def stream() -> Trace:
    """A skewed choice of blocks that drifts, and a scan now and then; integers only, the same everywhere."""
    state, blocks = 1, []
    for step in range(REQUESTS):
        state = (state * 6364136223846793005 + 1442695040888963407) % (1 << 64)
        draw = state >> 34
        skewed = (draw * draw >> 30) * draw >> 30
        block = (skewed * BLOCKS >> 30) + step // 1000 * 97
        blocks.append((step if step % 1000 > 900 else block) % BLOCKS)
    numbers, dense = np.unique(np.array(blocks), return_inverse=True)
    times = np.arange(REQUESTS, dtype=np.float64)
    return Trace("stream", dense.astype(np.int64), np.arange(REQUESTS + 1), times, len(numbers))


@pytest.mark.parametrize(("policy", "capacity"), HITS)
def test_hits_are_those_of_another_implementation(policy: str, capacity: int) -> None:
    """LRU, in-cache LFU, ARC and SIEVE hit exactly as often as libcachesim's."""
    assert replay(stream(), policy, capacity).block_hits == HITS[policy, capacity]


@pytest.mark.parametrize(("policy", "capacity"), HITS)
def test_the_integers_are_those_of_the_other_implementation(policy: str, capacity: int) -> None:
    """What the test above expects is what libcachesim counts."""
    other = pytest.importorskip("libcachesim", reason="pip install libcachesim==0.3.5")
    cache, hits = getattr(other, CLASSES[policy])(cache_size=capacity), 0
    for block in stream().blocks.tolist():
        request = other.Request()
        request.obj_id, request.obj_size = block + 1, 1
        hits += cache.get(request)
    assert hits == HITS[policy, capacity]
