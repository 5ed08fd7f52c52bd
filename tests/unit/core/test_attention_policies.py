"""Policies over blocks that go by attention: what is noted of reports, and who goes first by it."""

from __future__ import annotations

import random
import tomllib
from pathlib import Path

import numpy as np
import pytest

from tierd.core.attention import Attention
from tierd.core.messages import Evict, Observe, SetPolicy, Tier
from tierd.core.policy.base import Attended, GivenStats
from tierd.core.policy.registry import parse
from tierd.core.policy.snapkv import SnapKV
from tierd.testing.policy_contract import KIND, SESSION, Driver, refused_field
from tierd.testing.prompts import Prompt, draw_prompt

CASES = tomllib.loads((Path(__file__).parents[1] / "client/token_cases.toml").read_text())["blocks"]
SPECS = {"h2o": "h2o", "tova": "tova", "snapkv": "snapkv(obs=4,pool={pool})", "scissorhands": "scissorhands"}


def prompt_of(blocks: int) -> Prompt:
    """A prompt of so many blocks."""
    draw = random.Random(1)
    return next(one for one in iter(lambda: draw_prompt(draw, KIND, 9), None) if len(one.chain) == blocks)


def reported(spec: str, *reports: list[float]) -> tuple[Driver, Prompt]:
    """An engine in which one sequence stored its blocks and reported these masses, and is closed."""
    driver, prompt = Driver(spec), prompt_of(len(reports[0]))
    driver.open("one", prompt)
    driver.store("one", prompt)
    for mass in reports:
        driver.now += 1.0
        driver.engine.step(Observe(SESSION, "one", np.array(mass, np.float32)), driver.now)
    driver.close("one")
    return driver, prompt


def noted(driver: Driver, prompt: Prompt) -> Attended:
    return driver.attention({one: driver.blocks()[one] for one in prompt.chain})


def stats_of(seen: Attended) -> GivenStats:
    """Records that differ in attention alone."""
    zeros = np.zeros(len(seen.known))
    none = zeros.astype(np.int64)
    return GivenStats(none, none, zeros, zeros, zeros, none == 0, attention=seen)


LIFTED = [one for one in CASES["order"] if "forgetting" not in one["policy"]]


@pytest.mark.parametrize("case", LIFTED, ids=lambda one: str(one["policy"]))
def test_blocks_go_as_tokens_would(case: dict) -> None:
    """By the shares as they are reported, blocks go in the order of the same policy over tokens."""
    given = case["policy"]
    policy = parse(SPECS[given["name"]].format(pool=given.get("pool")))
    attention, rows = Attention(np.ones(6, np.uint32)), np.arange(6)
    near = policy.near if isinstance(policy, SnapKV) else None
    for mass in CASES["masses"]:
        attention.report(rows, np.array(mass) * 6 / 32, 5 - rows, near)
    order = policy.keys(stats_of(attention.of(rows))).argsort(kind="stable").tolist()
    assert [block for block in order if block in (1, 2, 3, 4)] == case["victims"]


def test_a_report_is_noted_in_even_shares() -> None:
    """A mass counts by how many even shares it is, and a block never for less than what follows it."""
    driver, prompt = reported("h2o", [0.5, 0.0, 0.25, 0.125], [0.25, 0.25, 0.0, 0.0])
    seen = noted(driver, prompt)
    assert seen.total.tolist() == [3.0, 2.0, 1.0, 0.5]
    assert seen.latest.tolist() == [1.0, 1.0, 0.0, 0.0]
    assert seen.window[0, :3].tolist() == [1.0, 2.0, 0.0]
    assert seen.votes.tolist() == [1, 0, 0, 0]
    assert seen.reports.tolist() == [2] * 4
    assert seen.behind.tolist() == [3, 2, 1, 0]


def test_what_is_noted_does_not_depend_on_the_policy() -> None:
    """What reports gave under one policy counts under the next."""
    driver, prompt = reported("lru", [0.5, 0.25, 0.125])
    driver.engine.step(SetPolicy("h2o"), driver.now)
    assert noted(driver, prompt).total.tolist() == [1.5, 0.75, 0.375]


def test_an_identity_that_left_is_not_remembered() -> None:
    """A block that went and came back, and one that got its place, begin with nothing."""
    driver, prompt = reported("h2o", [0.5, 0.25])
    driver.engine.step(Evict(prompt.ids(), None, allow_drop=True), driver.now)
    driver.request(prompt)
    assert not noted(driver, prompt).known.any()


@pytest.mark.parametrize("spec", ["h2o(", "tova(", "snapkv(", "snapkv(pool=3,"])
def test_what_no_report_named_goes_first(spec: str) -> None:
    """Of two sequences the one without attention goes before the other, though it came later."""
    driver, _ = reported(f"{spec}leaf_only=false)", [0.6, 0.4])
    other = Prompt(KIND, (bytes([7]) * 32, bytes([8]) * 32))
    driver.request(other)
    assert set(victims(driver, 2)) == set(other.chain)


def victims(driver: Driver, count: int) -> list[bytes]:
    """The next victims, found by need."""
    before = driver.blocks()
    room = 12 - len(before)
    fresh = Prompt(KIND, tuple(bytes([100 + place]) * 32 for place in range(room + count)))
    driver.request(fresh)
    return [one for one in before if one not in driver.blocks()]


def test_two_pools_of_a_sequence() -> None:
    """With two recent blocks what goes is the lightest of the others, in the middle of the chain."""
    masses = [0.4, 0.1, 0.1, 0.05, 0.05]
    driver, prompt = reported("h2o(recent_blocks=2,leaf_only=false)", masses)
    assert victims(driver, 1) == [prompt.chain[2]]
    driver, prompt = reported("h2o(leaf_only=false)", masses)
    assert victims(driver, 1) == [prompt.chain[4]]


def test_normalised_sums_forget_age() -> None:
    """Per report, a block that was named once may be worth more than one that was named often."""
    attention = Attention(np.ones(2, np.uint32))
    for _ in range(5):
        attention.report(np.array([0]), np.array([1.0]), np.array([0]), None)
    attention.report(np.array([1]), np.array([2.0]), np.array([0]), None)
    stats = stats_of(attention.of(np.array([0, 1])))
    assert parse("h2o").keys(stats).tolist() == [5.0, 2.0]
    assert parse("h2o(normalise=true)").keys(stats).tolist() == [1.0, 2.0]


def test_neighbours_count_by_their_best_or_on_average() -> None:
    """A block between others counts by the pooled sums of both sides, at the ends by what there is."""
    windows = np.zeros((4, 16))
    windows[:, 0], windows[:, 1] = [4.0, 0.0, 1.0, 3.0], 100.0
    assert SnapKV(parse("lru").common, obs=1, pool=3).near(windows).tolist() == [4.0, 4.0, 3.0, 3.0]
    averaged = SnapKV(parse("lru").common, obs=1, pool=3, pooling="average").near(windows)
    assert averaged == pytest.approx([2.0, 5 / 3, 4 / 3, 2.0])


def test_a_pool_counts_from_the_next_report_on() -> None:
    """After a change to a policy that pools, blocks count alone until a report names them."""
    driver, prompt = reported("lru", [0.4, 0.3, 0.05])
    driver.engine.step(SetPolicy("snapkv(pool=3)"), driver.now)
    policy, seen = driver.engine.state.policy, noted(driver, prompt)
    assert policy.keys(stats_of(seen)) == pytest.approx([1.2, 0.9, 0.15])  # type: ignore[attr-defined]
    driver.open("two", prompt)
    driver.engine.step(Observe(SESSION, "two", np.array([0.4, 0.3, 0.05], np.float32)), driver.now)
    seen = noted(driver, prompt)
    assert policy.keys(stats_of(seen)) == pytest.approx([2.4, 2.4, 1.8])  # type: ignore[attr-defined]


def test_parameters_are_refused_by_name() -> None:
    """A pool that is even, a window longer than what is kept, and what another policy has, are named."""
    wrong = {
        "snapkv(pool=2)": "policy.pool", "snapkv(pool=35)": "policy.pool", "snapkv(obs=17)": "policy.obs",
        "snapkv(obs=0)": "policy.obs", "snapkv(pooling=median)": "policy.pooling",
        "h2o(normalise=1)": "policy.normalise", "h2o(recent_blocks=-1)": "policy.recent_blocks",
        "tova(recent_blocks=1)": "policy.recent_blocks", "scissorhands(obs=1)": "policy.obs",
    }
    assert {spec: refused_field(spec) for spec in wrong} == wrong


def test_explain_shows_what_counts() -> None:
    """The terms behind a rank are the block's worth and the reports that it comes from."""
    policy = parse("h2o")
    driver, prompt = reported("h2o", [0.5, 0.25])
    terms = policy.terms(stats_of(noted(driver, prompt)), driver.moment())
    assert (terms["worth"], terms["reports"], terms["blocks_behind"]) == (1.0, 1.0, 1.0)
    assert driver.engine.state.tiers[Tier.HOST].children.any()
