"""Hits by rule: against an oracle that asks, token by token, whether what a hit needs is there."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tierd_client import Group, Layout, Part, chain_ids
from tierd_client.chains import CHAINS_MAX, Question
from tierd_client.errors import InvalidArgument
from tierd_client.hits import HitRule, hit_blocks, hit_tokens

PART = (Part("x", "uint8", (8,)),)

groups = st.builds(
    lambda tokens, rule, window: Group("g", tokens, PART, rule, window if rule == "window" else 0),
    st.integers(1, 6), st.sampled_from(["prefix", "window", "boundary"]), st.integers(1, 20),
)
presences = st.lists(st.booleans(), max_size=24)


def needs(group: Group, tokens: int) -> set[int]:
    """The blocks that a hit of `tokens` needs, by what the rule says of tokens."""
    if group.rule == "boundary":
        return {tokens // group.block_tokens - 1} if tokens else set()
    first = max(0, tokens - group.window_tokens) if group.rule == "window" else 0
    return {token // group.block_tokens for token in range(first, tokens)}


def longest(chains: list[tuple[Group, list[bool]]]) -> int:
    """The largest number of tokens, whole blocks of each chain, for which each has all that it needs."""
    most = min(len(present) * group.block_tokens for group, present in chains)
    return max(
        tokens for tokens in range(most + 1)
        if all(tokens % group.block_tokens == 0 for group, _ in chains)
        and all(present[block] for group, present in chains for block in needs(group, tokens)))


@given(groups, presences)
def test_the_hit_of_one_chain(group: Group, present: list[bool]) -> None:
    """It is the longest for which every token that the rule needs lies in a block that is there."""
    rule = group.hit_rule
    blocks = hit_blocks(np.array(present, bool), rule.tail)
    assert blocks * group.block_tokens == longest([(group, present)])
    needed = rule.needed(blocks * group.block_tokens)
    assert set(range(*needed.indices(len(present)))) == needs(group, blocks * group.block_tokens)


@given(st.lists(st.tuples(groups, presences), min_size=1, max_size=4))
def test_the_hit_of_several_chains(chains: list[tuple[Group, list[bool]]]) -> None:
    """It is the longest that every chain supports, whatever the sizes of their blocks."""
    asked = [(np.array(present, bool), group.hit_rule) for group, present in chains]
    assert hit_tokens(asked) == longest(chains)


def test_rules_of_a_hybrid_model() -> None:
    """A window of 128 tokens is 8 blocks of 16, 9 when it is one token more; a boundary is one block."""
    assert Group("w", 16, PART, "window", 128).hit_rule == HitRule(16, 8)
    assert Group("w", 16, PART, "window", 129).hit_rule == HitRule(16, 9)
    assert Group("w", 16, PART, "window", 1).hit_rule == HitRule(16, 1)
    assert Group("s", 512, PART, "boundary").hit_rule == HitRule(512, 1)
    assert Group("k", 16, PART).hit_rule.whole and not Group("s", 1, PART, "boundary").hit_rule.whole


# --- chains that are looked up together -----------------------------------------------------------------


def ask(question: Question, stored: set[bytes], most: int) -> list[int]:
    """Answers all calls from a set of stored blocks; the identities of each call."""
    sizes = []
    for call in question.calls(most):
        sizes.append(sum(len(run) for _, run in call))
        question.answered(call, [bytes(2 * (one in stored) for one in run) for _, run in call], len(sizes))
    return sizes


@given(st.lists(st.tuples(groups, presences), min_size=1, max_size=4), st.integers(1, 30))
def test_a_question_is_cut_into_calls(chains: list[tuple[Group, list[bool]]], most: int) -> None:
    """However small the calls are, the answer is that of one call, and no call is larger than it may be."""
    layout = Layout.of_groups([group for group, _ in chains])
    tokens = range(24 * 6)
    ids = [
        chain_ids(layout, tokens, number)[: len(present)] for number, (_, present) in enumerate(chains)
    ]
    stored = {one for of, (_, present) in zip(ids, chains, strict=True)
              for one, there in zip(of, present, strict=True) if there}
    question = Question(ids, [group.hit_rule for group in layout.groups])
    assert all(0 < size <= most for size in ask(question, stored, most))
    hit = question.hit()
    assert hit.tokens == longest(chains)
    for needed, of, group in zip(hit.needed, ids, layout.groups, strict=True):
        assert list(needed) == [of[block] for block in sorted(needs(group, hit.tokens))]


def test_ranks_ask_once_for_what_they_share() -> None:
    """Eight ranks of an MLA model make one chain, which is asked for once and counts for each."""
    layout = Layout.mla(model="m", dtype="bfloat16", layers=2, latent_dim=576, block_tokens=16, tp_size=8)
    ids = [chain_ids(layout.replace(tp_rank=rank), range(64)) for rank in range(8)]
    question = Question(ids, [HitRule(16)] * 8)
    assert ask(question, set(ids[0][:3]), 1000) == [4]
    hit = question.hit()
    assert hit.tokens == 48 and [list(needed) for needed in hit.needed] == [list(ids[0][:3])] * 8


def test_what_cannot_be_a_hit_is_not_asked_for() -> None:
    """Blocks past the end of the shortest chain are left out; a chain without a block needs no call."""
    layout = Layout.of_groups([Group("kv", 4, PART), Group("state", 16, PART, "boundary")])
    rules = [group.hit_rule for group in layout.groups]
    long, short = [[chain_ids(layout, range(count), group) for group in (0, 1)] for count in (30, 12)]
    assert ask(Question(long, rules), set(), 1000) == [4 + 1]
    question = Question(short, rules)
    assert ask(question, set(), 1000) == []
    assert question.hit().tokens == 0 and question.hit().ready_in_ms == 0


def test_calls_have_a_limit_of_chains() -> None:
    """A call names at most CHAINS_MAX chains, however short they are."""
    layout = Layout.opaque(block_bytes=8)
    ids = [chain_ids(layout, [number]) for number in range(CHAINS_MAX + 1)]
    assert ask(Question(ids, [HitRule()] * len(ids)), set(), 10**6) == [CHAINS_MAX, 1]


def test_only_chains_from_the_start_can_be_asked_for() -> None:
    """A slice that begins later, free-standing blocks and no chain at all are refused by their place."""
    ids = chain_ids(Layout.opaque(block_bytes=8), range(8))
    for wrong in (ids[1:], ids.take([0, 1])):
        with pytest.raises(InvalidArgument, match=r"chains\[1\]: not the chain of a prompt"):
            Question([ids, wrong], [HitRule()] * 2)
    with pytest.raises(InvalidArgument, match="chains: none"):
        Question([], [])
