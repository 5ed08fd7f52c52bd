"""Policies over tokens: worked cases, to the last bit."""

from __future__ import annotations

import math
import tomllib
from pathlib import Path
from typing import Any

import pytest
import torch
from token_runs import after, evicted

from tierd_client.tokens import H2O, GuideCache, HeldTokens, block_mass, policy_of, pyramid_budgets
from tierd_client.tokens.presets import POLICIES

CASES = tomllib.loads((Path(__file__).parent / "token_cases.toml").read_text())


def case_name(case: dict[str, Any]) -> str:
    return "-".join(str(value) for value in (*case["policy"].values(), case["run"]))


@pytest.mark.parametrize("case", CASES["case"], ids=case_name)
def test_keys_and_victims(case: dict[str, Any]) -> None:
    """After the run each token's key is the written one, and those go that are written, in order of position."""
    policy, rows = policy_of(**case["policy"]), CASES["runs"][case["run"]]
    held = after(policy, rows)
    expected = [math.inf if key < 0 else key for key in case["keys"]]
    keys = held.keys()[0, 0].tolist()
    free = len(keys) - policy.recent
    assert keys[:free] == expected[:free]
    assert keys[free:] == [math.inf] * policy.recent
    assert policy.keys(held._slots)[0, 0].tolist() == expected
    for target, victims in case["victims"].items():
        assert evicted(after(policy, rows), int(target)) == victims


@pytest.mark.parametrize("case", CASES["blocks"]["order"], ids=lambda case: str(case["policy"]))
def test_order_of_blocks(case: dict[str, Any]) -> None:
    """Policies disagree about four blocks of eight steps as written, none of them protected."""
    held = HeldTokens(policy_of(**case["policy"]), 1, 1)
    held.append(6)
    for row in CASES["blocks"]["masses"]:
        held.observe(torch.tensor(row)[None, None] / 32)
    order = held.keys()[0, 0].argsort(stable=True).tolist()
    assert [block for block in order if block in (1, 2, 3, 4)] == case["victims"]


def test_an_average_that_fades_orders_as_sums_that_fade() -> None:
    """A moving average of weight a is a times H2O's score that forgets by 1 - a."""
    held = HeldTokens(H2O(6, forgetting=0.75), 1, 1)
    held.append(6)
    average = torch.zeros(6, dtype=torch.float64)
    for row in CASES["blocks"]["masses"]:
        held.observe(torch.tensor(row)[None, None] / 32)
        average = 0.25 * torch.tensor(row) / 32 + 0.75 * average
    assert 0.25 * held.keys()[0, 0] == pytest.approx(average)


def test_blocks_of_attention() -> None:
    """A row of all layers and heads becomes masses of blocks by the aggregation's name, of sum 1 at most."""
    rows = torch.tensor(CASES["lift"]["sixteenths"]) / 16
    assert block_mass(rows, 4).tolist() == CASES["lift"]["mean"]
    for over in ("max", "per_token"):
        expected = torch.tensor(CASES["lift"][over])
        assert block_mass(rows, 4, over=over).tolist() == pytest.approx((expected / expected.sum()).tolist())


def test_every_policy_with_a_score_has_a_case() -> None:
    """Each policy that looks at attention is among the cases."""
    assert {name for name, kind in POLICIES.items() if kind.needs_attention} <= {
        case["policy"]["name"] for case in CASES["case"]
    }


def test_pyramid() -> None:
    """32 layers share 512 tokens each as written; floors take half a token off the mean."""
    case = dict(CASES["pyramid"])
    budgets = case.pop("budgets")
    made = pyramid_budgets(case["budget"], case["layers"], ratio=case["ratio"], recent=case["recent"])
    assert made == budgets
    assert sum(made) == 16368


@pytest.mark.parametrize("case", CASES["guide"])
def test_the_guides_cache(case: dict[str, Any]) -> None:
    """Four slots end with the written tokens and scores, keys and values where their tokens are."""
    cache = GuideCache(1, 2, 3, max_budget=case["budget"])
    for position, row in enumerate(case["rows"]):
        token = torch.full((1, 2, 3), float(position))
        cache.update(token, -token, None if row == "null" else torch.tensor(row)[None, None])
    assert cache.positions.tolist() == [case["slots"]]
    assert cache.scores.tolist() == [case["scores"]]
    assert cache.keys[0, 1, :, 2].tolist() == [float(one) for one in case["slots"]]
    assert torch.equal(cache.values, -cache.keys)
    assert sorted(set(range(len(case["rows"]))) - set(case["slots"])) == case["gone"]


def test_what_the_guide_says_is_not_what_it_does() -> None:
    """H2O by the guide's text, window 2, lets another token go than its cache, which does as window 3."""
    case = CASES["guide"][0]
    said = after(H2O(budget=4, recent=2), case["rows"][1:])
    assert evicted(said, 4) == case["gone_by_its_text"]
    assert evicted(after(H2O(budget=4, recent=3), case["rows"][1:]), 4) == case["gone"]
