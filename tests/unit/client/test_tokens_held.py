"""What is held under a policy over tokens: shapes, heads, padding, bytes, and what is refused."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from token_runs import attention, decisions, positions, started

from tierd_client.errors import FailedPrecondition, InvalidArgument
from tierd_client.tokens import (
    GROUPINGS,
    H2O,
    GuideCache,
    HeldTokens,
    Random,
    Scissorhands,
    SlidingWindow,
    SnapKV,
    StreamingLLM,
    Strided,
    Tova,
    adaptive_budgets,
    block_mass,
    group_heads,
    guide_recents,
    kept_of,
    policy_of,
    pyramid_budgets,
)
from tierd_client.tokens.presets import POLICIES

BYTES = {
    "h2o": 12, "tova": 8, "snapkv": 4 + 4 * 16, "scissorhands": 8,
    "streaming": 4, "sliding_window": 4, "strided": 4, "random": 4,
}


@pytest.mark.parametrize("name", POLICIES)
def test_bytes_per_slot(name: str) -> None:
    """A policy's state takes the bytes per held token and head that it says, to the byte."""
    policy = policy_of(name)
    held = HeldTokens(policy, 2, 3)
    held.append(40)
    state = sum(column.nbytes for column in held._slots.columns.values())
    assert policy.bytes_per_slot == BYTES[name] == state / (2 * 3 * 40)


def test_presets() -> None:
    """The guide's and the registry's defaults are to be had by name, and parameters come before them."""
    assert policy_of("h2o", "guide") == H2O(1024, recent=512)
    assert policy_of("snapkv") == SnapKV(512, recent=32, obs=16, pool=7, pooling="max")
    assert policy_of("streaming", "guide", sinks=2) == StreamingLLM(1024, sinks=2)


@pytest.mark.parametrize("name", POLICIES)
def test_every_policy_keeps_its_budget(name: str) -> None:
    """Decoding holds the budget after every step, and the newest token, unless the policy may let it go."""
    policy = policy_of(name, budget=6, **({"recent": 2} if "recent" in POLICIES[name].__dataclass_fields__ else {}))
    seen = decisions(policy, 3, 40)
    assert [len(one) for one in seen] == [min(6, 2 + step) for step in range(40)]
    assert all({*range(step + 2 - policy.recent, step + 2)} <= {*one} for step, one in enumerate(seen))


def test_strided_keeps_every_kth() -> None:
    """Multiples of the stride stay, the newest of them where not all fit, and the recent window."""
    assert decisions(Strided(8, recent=2, stride=5), 0, 31)[-1] == [0, 5, 10, 15, 20, 25, 30, 31]
    assert decisions(Strided(5, recent=1, stride=4), 0, 40)[-1] == [24, 28, 32, 36, 40]


def test_random_is_a_function_of_its_seed() -> None:
    """The same seed gives the same choices, another one others, and heads choose for themselves."""
    assert decisions(Random(8), 0, 60) == decisions(Random(8), 1, 60)
    assert decisions(Random(8, seed=1), 0, 60) != decisions(Random(8), 0, 60)
    held = started(Random(8), 1, 2)
    held.append(99)
    held.evict()
    assert held.positions[0, 0].tolist() != held.positions[0, 1].tolist()


def test_random_favours_no_position() -> None:
    """Over many heads every position of a hundred stays about as often."""
    held = HeldTokens(Random(50), 40, 50)
    held.append(100)
    held.evict()
    stays = torch.bincount(held.positions.flatten(), minlength=100) / 2000
    assert float(stays.min()) > 0.44
    assert float(stays.max()) < 0.56


def test_what_is_kept_moves_with_its_token() -> None:
    """Keys taken by `evict`'s indices belong to the positions that are held, per head."""
    held, draw = started(H2O(5, recent=2), 2, 3), random.Random(4)
    held.append(19)
    cache = torch.arange(20.0).expand(2, 3, 20)[..., None].repeat(1, 1, 1, 4)
    held.observe(attention(draw, (2, 3), 20))
    cache = kept_of(cache, held.evict())
    assert torch.equal(cache[..., 3].int(), held.positions)


def test_one_set_for_all_heads() -> None:
    """Indices of one head serve every head of the cache, by the mean of all query heads."""
    held = HeldTokens(Tova(2), 1, 1)
    held.append(3)
    held.observe(torch.tensor([[[0.6, 0.1, 0.3], [0.0, 0.3, 0.7]]]))
    keep = held.evict()
    assert keep.tolist() == [[[0, 2]]]
    assert kept_of(torch.arange(12).reshape(1, 4, 3, 1), keep)[0, 3, :, 0].tolist() == [9, 11]


def test_heads_with_budgets_of_their_own_are_padded() -> None:
    """A head that holds less has padding in front, of position -1, which later goes before any token."""
    held = started(H2O(6, recent=1), 1, 2)
    held.append(5)
    keep = held.evict(torch.tensor([[2, 5]]))
    assert keep.tolist() == [[[-1, -1, -1, 4, 5], [1, 2, 3, 4, 5]]]
    assert held.positions.tolist() == [[[-1, -1, -1, 4, 5], [1, 2, 3, 4, 5]]]
    held.append()
    held.evict(4)
    assert held.positions.tolist() == [[[-1, 4, 5, 6], [3, 4, 5, 6]]]


def test_padding_weighs_nothing() -> None:
    """Padding is no neighbour, and does not count among the keys that a row could see."""
    snapkv = started(SnapKV(9, recent=0, obs=1, pool=3, pooling="average"), 1, 2)
    snapkv.append(3)
    snapkv.evict(torch.tensor([[2, 4]]))
    snapkv.observe(torch.tensor([[[0.0, 0.0, 0.25, 0.5], [0.25, 0.25, 0.25, 0.25]]]))
    assert snapkv.keys()[0, 0, 2:].tolist() == [0.375, 0.375]
    votes = started(Scissorhands(9), 1, 2)
    votes.append(3)
    votes.evict(torch.tensor([[2, 4]]))
    votes.observe(torch.tensor([[[0.0, 0.0, 0.375, 0.625], [0.375, 0.125, 0.25, 0.25]]]))
    assert votes.keys()[0].tolist() == [[float("-inf")] * 2 + [0, 1], [1, 0, 0, 0]]


@pytest.mark.parametrize(
    ("grouping", "expected"),
    [("mean", [0.375, 0.25]), ("sum", [0.75, 0.5]), ("max", [0.5, 0.5]), ("first", [0.5, 0.0]),
     ("squares", [0.3125, 0.25])],
)
def test_query_heads_are_grouped_by_name(grouping: str, expected: list[float]) -> None:
    """Two query heads of a group become one as the grouping's name says."""
    weights = torch.tensor([[[0.5, 0.0], [0.25, 0.5], [0.0, 1.0], [0.0, 1.0]]])
    assert group_heads(weights, 2, grouping)[0, 0].tolist() == expected
    assert grouping in GROUPINGS


def test_forgetting_fades_by_rows() -> None:
    """With forgetting 0.5 a row counts half of the next one, in turn or together."""
    held = HeldTokens(H2O(9, forgetting=0.5), 1, 1)
    held.append(2)
    held.observe(torch.tensor([[[[0.5, 0.0], [0.25, 0.75]]]]))
    assert held.keys().tolist() == [[[0.5, 0.75]]]
    held.observe(torch.tensor([[[1.0, 0.0]]]))
    assert held.keys().tolist() == [[[1.25, 0.375]]]


def test_null_attention_changes_nothing() -> None:
    """Rows that nobody saw leave every key as it was, whatever the policy."""
    for name in POLICIES:
        held = started(policy_of(name))
        held.append(5)
        held.observe(attention(random.Random(1), (1, 1), 6))
        before = held.keys()
        held.observe(None)
        assert torch.equal(held.keys(), before)


def test_what_may_not_go_stays() -> None:
    """Fewer go than should where the rest is recent or not seen, and padding never counts as kept."""
    held = started(H2O(9, recent=3))
    held.append(5)
    held.evict(1)
    assert positions(held) == [3, 4, 5]


def test_nothing_is_evicted_of_nothing() -> None:
    """A cache that holds no token has none to choose, and says so."""
    with pytest.raises(FailedPrecondition, match="nothing is held"):
        HeldTokens(SnapKV(64), 1, 1).evict()


@dataclass
class Refusal:
    parameter: str
    call: Callable[[], Any]


def observed(*shape: int, fill: float = 0.1, dtype: torch.dtype = torch.float32) -> Callable[[], None]:
    def call() -> None:
        held = HeldTokens(H2O(4), 1, 2)
        held.append(3)
        held.observe(torch.full(shape, fill, dtype=dtype))

    return call


def guide(attention_: torch.Tensor | None = None, **given: Any) -> Callable[[], None]:
    token = torch.zeros(1, 1, 1)

    def call() -> None:
        cache = GuideCache(1, 1, 1, **given)
        for _ in range(9):
            cache.update(token, token, attention_)

    return call


REFUSALS = [
    Refusal("budget", lambda: H2O(0)), Refusal("budget", lambda: Tova(True)), Refusal("budget", lambda: Tova(1.5)),
    Refusal("recent", lambda: H2O(4, recent=4)), Refusal("recent", lambda: Scissorhands(4, recent=-1)),
    Refusal("forgetting", lambda: H2O(4, forgetting=0.0)), Refusal("forgetting", lambda: H2O(4, forgetting=True)),
    Refusal("forgetting", lambda: H2O(4, forgetting=float("nan"))),
    Refusal("obs", lambda: SnapKV(64, obs=0)), Refusal("pool", lambda: SnapKV(64, pool=4)),
    Refusal("pool", lambda: SnapKV(64, pool=0)), Refusal("pooling", lambda: SnapKV(64, pooling="median")),
    Refusal("recent", lambda: SnapKV(32)), Refusal("sinks", lambda: StreamingLLM(4, sinks=4)),
    Refusal("stride", lambda: Strided(4, stride=0)), Refusal("seed", lambda: Random(4, seed=-1)),
    Refusal("name", lambda: policy_of("h3o")), Refusal("preset", lambda: policy_of("h2o", "paper")),
    Refusal("sinks", lambda: policy_of("h2o", sinks=3)),
    Refusal("batch", lambda: HeldTokens(Tova(4), 0, 1)), Refusal("heads", lambda: HeldTokens(Tova(4), 1, 0)),
    Refusal("grouping", lambda: HeldTokens(Tova(4), 1, 1, grouping="median")),
    Refusal("grouping", lambda: group_heads(torch.zeros(1, 2, 3), 1, "median")),
    Refusal("tokens", lambda: HeldTokens(Tova(4), 1, 1).append(0)),
    Refusal("target", lambda: started(Tova(4)).evict(0)),
    Refusal("target", lambda: started(Tova(4)).evict(torch.tensor([1]))),
    Refusal("weights", observed(1, 2, 4)), Refusal("weights", observed(2, 2, 3)),
    Refusal("weights", observed(1, 3, 3)),
    Refusal("weights", observed(1, 2, 0, 3)), Refusal("weights", observed(1, 2, 4, 3)),
    Refusal("weights", observed(1, 2, 3, fill=0.4)),
    Refusal("weights", observed(1, 2, 3, fill=-0.1)), Refusal("weights", observed(1, 2, 3, fill=float("nan"))),
    Refusal("weights", observed(1, 2, 3, fill=float("inf"))),
    Refusal("weights", observed(1, 2, 3, fill=0, dtype=torch.int64)),
    Refusal("budget", lambda: pyramid_budgets(0, 4)), Refusal("layers", lambda: pyramid_budgets(8, 0)),
    Refusal("ratio", lambda: pyramid_budgets(8, 4, ratio=0)),
    Refusal("recent", lambda: pyramid_budgets(8, 4, recent=8)),
    Refusal("first", lambda: guide_recents(8, 4, first=1.5)), Refusal("last", lambda: guide_recents(8, 4, last=-1)),
    Refusal("floor", lambda: adaptive_budgets(torch.zeros(1, 1, 4), 2, floor=2.0)),
    Refusal("keys", lambda: adaptive_budgets(torch.full((1, 1, 4), float("nan")), 2)),
    Refusal("weights", lambda: block_mass(torch.zeros(2, 3), 4)),
    Refusal("block_tokens", lambda: block_mass(torch.ones(1, 1, 3), 0)),
    Refusal("over", lambda: block_mass(torch.ones(1, 1, 3), 4, over="sum")),
    Refusal("max_budget", guide(max_budget=1)), Refusal("recent_ratio", guide(max_budget=8, recent_ratio=0.0)),
    Refusal("recent_ratio", guide(max_budget=8, recent_ratio=1.0)),
    Refusal("recent_ratio", guide(max_budget=8, recent_ratio=0.1)), Refusal("attention", guide(max_budget=4)),
    Refusal("attention", guide(torch.zeros(1, 1, 3), max_budget=4)),
    Refusal("key", lambda: GuideCache(1, 1, 2).update(torch.zeros(1, 1, 1), torch.zeros(1, 1, 2), None)),
]


@pytest.mark.parametrize("refusal", REFUSALS, ids=lambda one: one.parameter)
def test_what_is_wrong_is_named(refusal: Refusal) -> None:
    """A value outside its limits is refused with the name of its parameter first."""
    with pytest.raises(InvalidArgument, match=rf"^{refusal.parameter}: "):
        refusal.call()


def test_half_precision_rounds_above_one() -> None:
    """Weights of bfloat16 may sum to what their rounding adds, and no more."""
    held = HeldTokens(H2O(4), 1, 1)
    held.append(2)
    held.observe(torch.tensor([[[0.50390625, 0.5]]], dtype=torch.bfloat16))
    with pytest.raises(InvalidArgument, match="above 1"):
        held.observe(torch.tensor([[[0.53125, 0.5]]], dtype=torch.bfloat16))


def test_policies_without_attention_take_none() -> None:
    """What a policy does not look at is not looked at: weights of any shape pass."""
    held = started(SlidingWindow(2))
    held.observe(torch.zeros(7))
    held.append(3)
    held.evict()
    assert positions(held) == [2, 3]


def test_layers_split_as_the_guide_says() -> None:
    """Early layers have the longer recent windows; half of all is recent, and each pool has a token."""
    recents = guide_recents(64, 5)
    assert recents == [48, 40, 32, 24, 16]
    assert guide_recents(2, 3, first=1.0, last=0.0) == [1, 1, 1]


def test_the_guides_example() -> None:
    """Sixteen tokens through eight slots: the first, to which every row attends most, is still there."""
    cache, token = GuideCache(2, 4, 8, max_budget=8), torch.zeros(2, 4, 8)
    draw = torch.Generator().manual_seed(0)
    for step in range(16):
        weights = torch.rand(2, 4, min(step, 8), generator=draw) + 0.01
        if step:
            weights[cache.positions[:, None].expand_as(weights) == 0] += 3.0
        cache.update(token + step, token, weights / weights.sum(-1, keepdim=True) if step else None)
    assert cache.size == 8
    assert all(0 in held for held in cache.positions.tolist())
    assert [held[4:] for held in cache.positions.tolist()] == [[12, 13, 14, 15]] * 2


def test_sequences_of_a_batch_are_not_mixed() -> None:
    """A sequence of a batch holds what it would hold alone."""
    policy = H2O(4, recent=1)
    both, draw = started(policy, 2, 1), random.Random(7)
    alone = [started(policy), started(policy)]
    for _ in range(20):
        rows = attention(draw, (2, 1), both.slots)
        both.step(rows)
        for number, one in enumerate(alone):
            one.step(rows[number : number + 1])
    assert both.positions[:, 0].tolist() == [positions(one) for one in alone]
