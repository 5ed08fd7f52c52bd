"""A host tier that is simulated of requests: what it counts is what `tierd sim` counts."""

from __future__ import annotations

import numpy as np
import pytest

from tierd.core.shadow import Figures, ShadowTier
from tierd.sim.replay import replay
from tierd.sim.traces import Trace, build_trace, identities_of
from tierd.sim.workloads import make_trace

CHATS = make_trace("chained-zipf(requests=600,prompts=40,most_prompt_blocks=24,most_turn_blocks=12)")


def shadowed(trace: Trace, policy: str, capacity: int, blocks_max: int, served: int = 0) -> Figures:
    """What a tier says of a trace; the engine has `served` blocks of each request itself."""
    tier, ids = ShadowTier(policy, capacity, blocks_max, trace.block_tokens), identities_of(trace.distinct)
    for number, asked in enumerate(trace.asked.tolist()):
        tier.serve(ids[trace.request(number)], asked, min(served, asked), trace.times_s[number])
    return tier.figures()


@pytest.mark.parametrize("policy", ["lru", "lrfu", "s3fifo"])
def test_without_a_sample_it_is_the_simulator(policy: str) -> None:
    """Where all blocks are simulated, hits are those of a replay of the same requests, to the block."""
    capacity = CHATS.distinct // 5
    row, found = replay(CHATS, policy, capacity), shadowed(CHATS, policy, capacity, capacity)
    assert (found.block_hits.blocks, found.prefix_hits.blocks) == (row.block_hits, row.prefix_hits)
    assert (found.sampled_share, found.prefix_hits.error, found.held_blocks) == (1.0, 0, capacity)


@pytest.mark.parametrize("policy", ["lru", "lrfu"])
@pytest.mark.parametrize("fraction", [2, 8])
def test_a_sample_is_as_near_as_it_says(policy: str, fraction: int) -> None:
    """A sample of a half, or an eighth, of the blocks is off by no more than twice the error that it states, and
    that is at most 8 points."""
    capacity = CHATS.distinct // 5
    row, found = replay(CHATS, policy, capacity), shadowed(CHATS, policy, capacity, -(-capacity // fraction))
    assert found.sampled_share == 1 / fraction
    assert abs(found.prefix_hits.blocks - row.prefix_hits) <= 2 * found.prefix_hits.error
    assert 0 < found.prefix_hits.error <= 0.08 * row.accesses


def test_a_block_that_all_requests_share_may_be_in_the_sample_or_not() -> None:
    """One block that makes up half of all accesses moves no figure, wherever the hash puts it."""
    requests = [np.array([number, 1_000 + index]) for number in range(4) for index in range(400)]
    for shared in range(4):
        mine = requests[400 * shared : 400 * (shared + 1)]
        trace = build_trace("shared", np.concatenate(mine), np.full(400, 2), np.arange(400.0))
        found = shadowed(trace, "lru", 1_024, 256)
        assert found.sampled_share == 1 / 4
        assert abs(found.prefix_hits.blocks - 399) <= 2 * found.prefix_hits.error + 4


def test_what_the_engine_had_itself_saves_nothing() -> None:
    """Of a request's leading run only what lies behind the engine's own blocks would not have been computed."""
    trace = build_trace("twice", np.array([1, 2, 3, 4] * 2), np.full(2, 4), np.arange(2.0))
    found = shadowed(trace, "lru", 8, 8, served=3)
    assert (found.prefix_hits.blocks, found.saved.blocks) == (4, 1)
    cut = shadowed(trace, "lru", 2, 2, served=3)
    assert (cut.prefix_hits.blocks, cut.saved.blocks) == (2, 0)


def test_answers_are_stored_and_not_asked_for() -> None:
    """Blocks of an answer are no misses of their request, and hits of the next that begins with them."""
    tier, ids = ShadowTier("lru", 8, 8, 16), identities_of(4)
    tier.serve(ids[:3], 2, 0, 0.0)
    tier.serve(ids, 4, 0, 1.0)
    found = tier.figures()
    assert (found.block_hits.blocks, found.prefix_hits.blocks, found.held_blocks) == (3, 3, 4)


def by_hand(requests: list[tuple[list[int], int, int]], capacity: int) -> tuple[int, int, int]:
    """Block hits, prefix hits and saved blocks of an LRU of whole requests, without the engine: each block of a
    request that is there is moved to the end, those that are not come behind, and what is over the capacity goes in
    front."""
    held: list[int] = []
    hits = prefix = saved = 0
    for blocks, asked, served in requests:
        present = [block in held for block in blocks]
        run = next((place for place, one in enumerate(present[:asked]) if not one), asked)
        hits, prefix, saved = hits + sum(present[:asked]), prefix + run, saved + max(0, run - served)
        held = [block for block in held if block not in blocks] + blocks[::-1]
        held = held[max(0, len(held) - capacity) :]
    return hits, prefix, saved


@pytest.mark.parametrize("seed", range(6))
def test_counts_are_those_of_a_list(seed: int) -> None:
    """Of free-standing prompts, hits, leading hits and what is saved behind the engine's own blocks are those of an
    LRU that was written down as a list."""
    draw = np.random.default_rng(seed)
    tier, ids = ShadowTier("lru(leaf_only=false)", 24, 24, 16), identities_of(400)
    requests = []
    for now in range(120):
        start, count = 8 * int(draw.integers(0, 12)), int(draw.integers(1, 9))
        asked = int(draw.integers(0, count + 1))
        requests.append((list(range(start, start + count)), asked, int(draw.integers(0, asked + 1))))
        tier.serve(ids[start : start + count], *requests[-1][1:], float(now))
    found = tier.figures()
    assert (found.block_hits.blocks, found.prefix_hits.blocks, found.saved.blocks) == by_hand(requests, 24)


def test_requests_beside_the_sample_are_ticks() -> None:
    """A policy that forgets by requests is told of those too of which no block was sampled."""
    tier, ids = ShadowTier("lrfu", 1 << 16, 1 << 8, 16), identities_of(256)
    for number in range(256):
        tier.serve(ids[number : number + 1], 1, 0, float(number))
    assert tier._requests.engine.state.clock.step == 256
    assert tier.figures().sampled_share == 1 / 256


@pytest.mark.parametrize("capacity", [1, 255, 256, 257, 512, 513, 1 << 20])
def test_no_more_is_simulated_than_may_be(capacity: int) -> None:
    """The share is the largest power of two at which the tier's blocks are within the bound."""
    found = shadowed(build_trace("one", np.array([1]), np.array([1]), np.zeros(1)), "lru", capacity, 256)
    assert capacity * found.sampled_share <= 256
    assert found.sampled_share == 1.0 or 2 * capacity * found.sampled_share > 256
