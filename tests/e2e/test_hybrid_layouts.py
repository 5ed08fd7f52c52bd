"""Layouts of several groups and of several ranks, with a real daemon: right hits, right bytes, one copy."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tierd_client import Client, Group, Layout, Part, PutOutcome, Tier, Tiers, chain_ids

FULL = Group("full", 16, (Part("k", "float16", (2, 16, 2, 8)), Part("v", "float16", (2, 16, 2, 8))))
WINDOW = Group("swa", 16, (Part("kv", "float16", (2, 16, 64)),), "window", 128)
STATE = Group("ssm", 64, (Part("conv", "uint8", (96,)), Part("state", "float32", (4, 16))), "boundary")
GROUPS = (FULL, WINDOW, STATE)
TOKENS = 64 * 6 + 5
"""24 blocks of the full and the window group, 6 states."""


@pytest.fixture(scope="module")
def server(module_daemon: Any) -> Any:
    server = module_daemon(
        host_bytes="64MiB", catalog_rows=65536, max_ids=100, spill="embedded", spill_bytes_max="64MiB")
    server.event("spill_up")
    return server


@pytest.fixture(scope="module")
def client(server: Any) -> Iterator[Client]:
    with Client(server.address) as client:
        yield client


def prompt(seed: int, tokens: int = TOKENS) -> Any:
    return np.random.default_rng(seed).integers(0, 50_000, tokens)


def bytes_of(layout: Layout, group: int, count: int, seed: int) -> Any:
    size = layout.groups[group].block_bytes
    return np.random.default_rng([seed, group]).integers(0, 256, (count, size), np.uint8)


def supports(layout: Layout, stored: list[set[int]], tokens: int) -> bool:
    """Whether every group has what a hit of `tokens` needs, token by token."""
    for group, there in zip(layout.groups, stored, strict=True):
        first = {"prefix": 0, "window": tokens - group.window_tokens, "boundary": tokens - 1}[group.rule]
        first = max(0, first)
        if tokens % group.block_tokens or not {t // group.block_tokens for t in range(first, tokens)} <= there:
            return False
    return True


fresh_seeds = itertools.count(100)
lost_blocks = st.tuples(st.sets(st.integers(0, 23)), st.sets(st.integers(0, 23)), st.sets(st.integers(0, 5)))


@settings(max_examples=25, deadline=None)
@given(lost=lost_blocks)
def test_a_hybrid_layout_round_trips(client: Client, lost: tuple[set[int], ...]) -> None:
    """Whichever blocks are missing, the hit is the longest that full attention, the window of 128 and the state
    at its end all support, and what it needs comes back as it went in."""
    layout, seed = Layout.of_groups(GROUPS, model="hybrid"), next(fresh_seeds)
    ns = client.namespace(layout)
    chains = ns.chains(prompt(seed))
    assert [len(ids) for ids in chains] == [24, 24, 6]
    data = [bytes_of(layout, group, len(ids), seed) for group, ids in enumerate(chains)]
    stored = [set(range(len(ids))) - gone for ids, gone in zip(chains, lost, strict=True)]
    for ids, values, there in zip(chains, data, stored, strict=True):
        chosen = sorted(there)
        outcomes = ns.put(ids.take(chosen), values[chosen]) if chosen else []
        assert set(outcomes) <= {PutOutcome.STORED, PutOutcome.EXISTS}
    hit = ns.lookup_chains(chains)
    assert hit.tokens == max(t for t in range(TOKENS + 1) if supports(layout, stored, t))
    for group, needed in enumerate(hit.needed):
        stop = hit.tokens // layout.groups[group].block_tokens
        got = ns.get(needed)
        for one, value in zip(got, data[group][stop - len(needed) : stop], strict=True):
            assert one.tobytes() == value.tobytes()
    if hit.tokens:
        assert [len(needed) for needed in hit.needed] == [hit.tokens // 16, min(8, hit.tokens // 16), 1]


def test_each_group_has_its_own_hit(client: Client) -> None:
    """`lookup` of one group's chain goes by that group's rule."""
    layout = Layout.of_groups(GROUPS, model="own hits")
    ns = client.namespace(layout)
    full, window, state = ns.chains(prompt(1))
    ns.put(full[:5], bytes_of(layout, 0, 5, 1))
    ns.put(window[12:22], bytes_of(layout, 1, 10, 1))
    ns.put(state[2:4], bytes_of(layout, 2, 2, 1))
    assert (ns.lookup(full).prefix, ns.lookup(window).prefix, ns.lookup(state).prefix) == (5, 22, 4)
    assert ns.lookup_chains([window, state]).tokens == 0
    ns.put(state[4:5], bytes_of(layout, 2, 1, 1))
    assert ns.lookup_chains([window, state]).tokens == 5 * 64


def test_a_block_counts_where_all_ranks_have_it(client: Client) -> None:
    """Over the ranks of a model the hit is what each of them can give back."""
    layout = Layout.of_groups(GROUPS, model="ranks", tp_size=4)
    world = [client.namespace(layout.replace(tp_rank=rank)) for rank in range(4)]
    tokens = prompt(2)
    have = [24, 24, 20, 24]
    for rank, ns in enumerate(world):
        for group, ids in enumerate(ns.chains(tokens)):
            count = have[rank] * 16 // layout.groups[group].block_tokens
            ns.put(ids[:count], bytes_of(layout, group, count, rank))
    asked = [(ns, ids) for ns in world for ids in ns.chains(tokens)]
    assert [ns.lookup_chains(ns.chains(tokens)).tokens for ns in world] == [384, 384, 320, 384]
    hit = client.lookup_chains(asked)
    assert hit.tokens == 320 and len(hit.needed) == 12
    assert [len(needed) for needed in hit.needed] == [20, 8, 1] * 4


def test_a_prompt_of_more_blocks_than_a_call_takes(client: Client) -> None:
    """Chains that are longer than `max_ids` are asked for in several calls, with the same answer."""
    ns = client.namespace(Layout.opaque(block_bytes=64, model="long"))
    most = client.connection.current().info.max_ids
    ids = chain_ids(ns, np.arange(2 * most + 10))
    ns.put(ids[: most + 3], np.zeros((most + 3, 64), np.uint8), timeout_s=20.0)
    assert ns.lookup_chains([ids]).tokens == ns.lookup(ids).prefix == most + 3


def test_mla_is_stored_once_for_eight_ranks(server: Any, client: Client) -> None:
    """Eight ranks that put the same latents at once take one slot a block, and each reads them back, also from the
    spill tier; a group that is not replicated takes one a rank."""
    layout = Layout.mla(model="mla", dtype="bfloat16", layers=2, latent_dim=576, block_tokens=16, tp_size=8)
    size, before = layout.block_bytes, client.admin.occupancy().tiers[Tier.HOST]
    tokens = prompt(3, 16 * 12)
    data = np.random.default_rng(3).integers(0, 256, (12, size), np.uint8)

    def put(client: Client, rank: int) -> list[PutOutcome]:
        ns = client.namespace(layout.replace(tp_rank=rank))
        return list(ns.put(chain_ids(ns, tokens), data))

    clients = [Client(server.address, name=f"rank {rank}") for rank in range(8)]
    try:
        with ThreadPoolExecutor(8) as pool:
            outcomes = list(pool.map(put, clients, range(8)))
        for block in zip(*outcomes, strict=True):
            assert block.count(PutOutcome.STORED) == 1, block
            assert set(block) <= {PutOutcome.STORED, PutOutcome.EXISTS, PutOutcome.BUSY}
        after = client.admin.occupancy().tiers[Tier.HOST]
        assert after.blocks - before.blocks == 12
        assert after.used_bytes - before.used_bytes == 12 * -(-size // 4096) * 4096
        world = [one.namespace(layout.replace(tp_rank=rank)) for rank, one in enumerate(clients)]
        ids = chain_ids(world[5], tokens)
        world[2].evict(ids, to="spill")
        assert world[7].lookup(ids).tiers == [Tiers.SPILL] * 12
        for ns in world:
            got = ns.get(chain_ids(ns, tokens))
            assert [one.tobytes() for one in got] == [one.tobytes() for one in data]
            assert client.lookup_chains([(client.namespace(ns.layout), ids)]).tokens == 16 * 12
    finally:
        for one in clients:
            one.close()


def test_a_replicated_group_beside_one_that_is_not(client: Client) -> None:
    """Of a layout with both, ranks share the replicated group's blocks and nothing else."""
    own = Group("kv", 16, (Part("k", "uint8", (512,)),))
    shared = Group("latent", 16, (Part("latent", "uint8", (256,)),), replicated=True)
    layout = Layout.of_groups([own, shared], model="both", tp_size=2)
    zero, one = [client.namespace(layout.replace(tp_rank=rank)) for rank in (0, 1)]
    tokens = prompt(4, 64)
    for group in (0, 1):
        one.put(one.chains(tokens)[group], bytes_of(layout, group, 4, 4))
    assert [zero.lookup(ids).prefix for ids in zero.chains(tokens)] == [0, 4]
    assert [one.lookup(ids).prefix for ids in one.chains(tokens)] == [4, 4]
    records = client.admin.describe(one.chains(tokens)[1])
    assert {record.namespace for record in records if record} == {
        record.namespace for record in client.admin.describe(zero.chains(tokens)[1]) if record}
    assert zero.get(zero.chains(tokens)[0]) == [None] * 4
