"""Policies over tokens on a GPU decide as on the CPU."""

from __future__ import annotations

import random

import pytest
import torch
from token_runs import attention

from tierd_client.tokens import GuideCache, HeldTokens, adaptive_budgets, policy_of
from tierd_client.tokens.presets import POLICIES

SHAPE = 2, 3


@pytest.mark.parametrize("name", POLICIES)
def test_decisions_are_those_of_the_cpu(name: str) -> None:
    """With the same attention, at one budget and then with one per head, the same tokens stay on both."""
    policy, draw = policy_of(name, budget=40), random.Random(name)
    here, there = HeldTokens(policy, *SHAPE), HeldTokens(policy, *SHAPE, device="cuda")
    for held in (here, there):
        held.append(60)
    for _ in range(30):
        weights = attention(draw, SHAPE, here.slots)
        assert torch.equal(here.step(weights), there.step(weights.cuda()).cpu())
    shares = adaptive_budgets(here.keys(), 20)
    assert torch.equal(here.evict(shares), there.evict(shares.cuda()).cpu())
    assert torch.equal(here.positions, there.positions.cpu())


def test_the_guides_cache_decides_as_on_the_cpu() -> None:
    """Tokens, keys and scores are the same on both."""
    draw = random.Random(1)
    here, there = GuideCache(2, 3, 4, 8), GuideCache(2, 3, 4, 8, device="cuda")
    for step in range(20):
        token = torch.full((2, 3, 4), float(step))
        weights = attention(draw, SHAPE, here.size) if here.size else None
        here.update(token, -token, weights)
        there.update(token.cuda(), -token.cuda(), None if weights is None else weights.cuda())
    assert torch.equal(here.positions, there.positions.cpu())
    assert torch.equal(here.keys, there.keys.cpu())
    assert torch.equal(here.scores, there.scores.cpu())
