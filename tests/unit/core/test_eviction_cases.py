"""Worked examples of policies, request by request, through the engine: eviction_cases.json."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tierd.core.catalog import Catalog
from tierd.core.messages import BlockFilter, BlockPage, ListBlocks
from tierd.core.policy.base import Moment
from tierd.core.policy.registry import parse
from tierd.core.shadow import Requests
from tierd.core.statistics import StatsOf, access_weighted
from tierd_client.format import CATALOG_MAGIC, Table, U8Array, catalog_columns

CASES = json.loads(Path(__file__).with_name("eviction_cases.json").read_text())
SINGLE = [(case, policy) for case in CASES["one_block_a_request"] for policy in case["policies"]]


def ids(names: str) -> U8Array:
    """Blocks with letters for identities."""
    packed = np.zeros((len(names), 32), np.uint8)
    packed[:, 0] = [ord(name) for name in names]
    return packed


def resident(requests: Requests) -> set[str]:
    page = requests.engine.step(ListBlocks(BlockFilter(), 100), 0.0).reply
    assert isinstance(page, BlockPage)
    return {chr(block.identity[0]) for block in page.blocks if block is not None}


@pytest.mark.parametrize(("case", "policy"), SINGLE, ids=lambda one: one if isinstance(one, str) else "")
def test_each_request_evicts_what_the_rule_says(case: dict[str, Any], policy: str) -> None:
    """Of one block a request, each evicts the block that was worked out by hand, and the hits are as many."""
    requests, evicted, hits = Requests(policy, case["capacity"], 26, 16), "", 0
    for step, name in enumerate(case["requests"]):
        before = resident(requests)
        hits += int(requests.serve(ids(name), float(step)).sum())
        evicted += "".join(before - resident(requests)) or "-"
    assert (evicted, hits) == (case["evicted"], case["hits"])


@pytest.mark.parametrize("case", CASES["turns_of_a_conversation"], ids=lambda case: f"{case['policy']}")
def test_blocks_of_a_turn_do_not_push_one_another_out(case: dict[str, Any]) -> None:
    """Turns abc, abc, de, de, de in three blocks: with all of a turn protected LFU adapts; block by block its
    newcomers evict one another for ever, unless counts survive."""
    requests, hits, step = Requests(case["policy"], 3, 26, 16), [], 0
    for turn in ("abc", "abc", "de", "de", "de"):
        hits.append(0)
        for part in [turn] if case["whole"] else turn:
            step += 1
            hits[-1] += int(requests.serve(ids(part), float(step)).sum())
    assert hits == case["hits"]


def test_ema_of_attention_over_blocks() -> None:
    """Eight steps of attention over six blocks: scores and order of the four between sink and window."""
    case, policy = CASES["attention"], parse("ema(alpha=0.25,leaf_only=false)")
    catalog = Catalog(Table.create(CATALOG_MAGIC, catalog_columns(16, 64)))
    rows = catalog.insert(ids("abcdef"))
    for step, text in enumerate(case["in_32nds"], 1):
        mass = np.array([int(one) for one in text.split()]) / 32
        access_weighted(catalog, rows, mass, 1, step, float(step), policy.common)
    expected = case["ema_at_alpha_quarter"]
    middle = np.setdiff1d(rows, case["sinks"] + case["recent"])
    assert np.allclose(catalog.ema[middle], expected["scores"], rtol=0, atol=1e-10)
    order = middle[np.argsort(-policy.ranks(StatsOf(catalog, middle), Moment(8, 8.0, 50.0)), kind="stable")]
    assert order.tolist() == expected["order"]
