"""Policies over tokens: which are equal, when, and each against plain lists."""

from __future__ import annotations

import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from token_runs import PlainHead, Score, attention, decisions, positions, started

from tierd_client.tokens import (
    H2O,
    GuideCache,
    Scissorhands,
    SlidingWindow,
    SnapKV,
    StreamingLLM,
    TokenPolicy,
    Tova,
    adaptive_budgets,
)

seeds = st.integers(0, 2**32)
budgets = st.integers(3, 12)
few = settings(max_examples=25, deadline=None)


def total(history: list) -> float:
    return sum(weight for weight, _ in history)


def window(rows: int) -> Score:
    return lambda history: total(history[-rows:])


ORACLES: dict[str, tuple[TokenPolicy, PlainHead]] = {
    "h2o": (H2O(8, recent=3), PlainHead(total, 3)),
    "normalised": (H2O(8, recent=3, normalise=True), PlainHead(lambda h: total(h) / max(1, len(h)), 3)),
    "scissorhands": (
        Scissorhands(8, recent=2), PlainHead(lambda h: sum(weight > 1 / slots for weight, slots in h), 2)),
    "snapkv": (SnapKV(8, recent=2, obs=4, pool=3), PlainHead(window(4), 2, pool=3)),
    "snapkv, wide": (SnapKV(8, recent=1, obs=2, pool=7), PlainHead(window(2), 1, pool=7)),
    "tova": (Tova(8), PlainHead(window(1), 1)),
}


@pytest.mark.parametrize("name", ORACLES)
def test_heads_decide_as_plain_lists(name: str) -> None:
    """Each head of each sequence of a batch holds, after every step, what lists of its own history would."""
    policy, plain = ORACLES[name]
    batch, heads = 2, 3
    held, draw = started(policy, batch, heads), random.Random(name)
    plains = [PlainHead(plain.score, plain.recent, 2 * plain.reach + 1) for _ in range(batch * heads)]
    for _ in range(60):
        rows = attention(draw, (batch, heads), held.slots)
        held.step(rows)
        for one, row in zip(plains, rows.flatten(0, 1).tolist(), strict=True):
            one.step(row, policy.budget)
        assert held.positions.flatten(0, 1).tolist() == [one.held for one in plains]


@few
@given(seeds, budgets)
def test_snapkv_of_one_row_is_tova(seed: int, budget: int) -> None:
    """With a window of one row, no pooling and one recent token SnapKV decides as TOVA where every row is seen."""
    snapkv = SnapKV(budget, recent=1, obs=1, pool=1)
    assert decisions(snapkv, seed, 60) == decisions(Tova(budget), seed, 60)


def test_snapkv_of_one_row_is_not_tova_where_rows_are_missing() -> None:
    """A row that nobody saw leaves TOVA tokens that it may not choose, and SnapKV tokens of no weight."""
    snapkv = SnapKV(6, recent=1, obs=1, pool=1)
    assert decisions(snapkv, 1, 60, nulls=0.2) != decisions(Tova(6), 1, 60, nulls=0.2)


@few
@given(seeds, budgets, st.integers(1, 2), st.sampled_from([0.0, 0.2]))
def test_snapkv_of_all_rows_is_h2o(seed: int, budget: int, recent: int, nulls: float) -> None:
    """With a window longer than the run and no pooling SnapKV decides as H2O."""
    snapkv = SnapKV(budget, recent=recent, obs=60, pool=1)
    assert decisions(snapkv, seed, 60, nulls=nulls) == decisions(H2O(budget, recent=recent), seed, 60, nulls=nulls)


@few
@given(seeds, budgets)
def test_streaming_without_sinks_is_a_window(seed: int, budget: int) -> None:
    """StreamingLLM without sinks holds the newest tokens; with them, these and the first."""
    assert decisions(StreamingLLM(budget, sinks=0), seed, 30) == decisions(SlidingWindow(budget), seed, 30)
    last = decisions(StreamingLLM(budget, sinks=2), seed, 30)[-1]
    assert last == [0, 1, *range(33 - budget, 31)]


@few
@given(seeds, st.integers(2, 10), st.floats(0.01, 0.99))
def test_the_guides_cache_is_h2o_with_one_more_recent_token(seed: int, budget: int, ratio: float) -> None:
    """Of each sequence the guide's cache holds what H2O holds, whose window is one token longer."""
    ratio = min(max(ratio, 1 / budget), (budget - 1) / budget)
    cache, draw = GuideCache(2, 1, 1, budget, ratio), random.Random(seed)
    if cache.heavy < 2:
        return  # the longer window would be all of H2O's budget
    held = started(H2O(budget, recent=cache.recent + 1), 2)
    token = torch.zeros(2, 1, 1)
    cache.update(token, token, None)
    for _ in range(40):
        rows = attention(draw, (2, 1), held.slots)
        places = torch.searchsorted(held.positions[:, 0].long().contiguous(), cache.positions.contiguous())
        cache.update(token, token, rows.gather(-1, places[:, None]))
        held.step(rows)
        assert held.positions[:, 0].tolist() == cache.positions.sort(-1).values.tolist()


@few
@given(seeds, st.integers(2, 9), st.floats(0, 1))
def test_adaptive_budgets_are_shared_whole(seed: int, budget: int, floor: float) -> None:
    """Heads together hold exactly their budgets, none less than its floor, each its own best tokens."""
    held, draw = started(H2O(budget, recent=1), 2, 4), random.Random(seed)
    held.append(14)
    held.observe(attention(draw, (2, 4), 15))
    keys = held.keys()
    shares = adaptive_budgets(keys, budget, floor=floor)
    assert shares.sum(-1).tolist() == [4 * budget] * 2
    assert int(shares.min()) >= int(budget * floor)
    held.evict(shares)
    for row, (share, head) in enumerate(zip(shares.flatten().tolist(), keys.flatten(0, 1), strict=True)):
        kept = [one for one in held.positions.flatten(0, 1)[row].tolist() if one >= 0]
        assert kept == sorted(head.argsort(descending=True, stable=True)[:share].tolist()) or share < 1


@few
@given(seeds)
def test_equal_budgets_per_head_are_one_budget(seed: int) -> None:
    """A budget given per head decides as the same one for all."""
    one, each, draw = started(H2O(5, recent=1), 2, 2), started(H2O(5, recent=1), 2, 2), random.Random(seed)
    for _ in range(20):
        rows = attention(draw, (2, 2), one.slots)
        one.step(rows)
        each.observe(rows)
        each.append()
        each.evict(torch.full((2, 2), 5))
        assert torch.equal(one.positions, each.positions)


@few
@given(seeds, st.integers(1, 5))
def test_rows_at_once_are_rows_in_turn(seed: int, rows: int) -> None:
    """A prompt's last rows observed together leave the same keys as one by one, each before the next token."""
    draw = random.Random(seed)
    for policy in (H2O(9), SnapKV(9, recent=1, obs=3, pool=1), Scissorhands(9), H2O(9, normalise=True), Tova(9)):
        together, turns = started(policy), started(policy)
        together.append(4 + rows - 1)
        turns.append(4 - 1)
        block = torch.zeros(1, 1, rows, 4 + rows)
        for row in range(rows):
            turns.append()
            weights = attention(draw, (1, 1), turns.slots)
            turns.observe(weights)
            block[:, :, row, : turns.slots] = weights
        together.observe(block)
        assert positions(together) == positions(turns)
        assert torch.equal(together.keys(), turns.keys())
