"""Budgets of sequences: both twins of the client, by shared memory and by streams, and a real daemon with hbm."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import Any

import numpy as np
import pytest
from twins import TWINS, client_of

from tierd.testing.serve import ServeProcess, StartDaemon
from tierd_client import Budget, Layout, PutOutcome, Tiers, chain_ids, errors, private_ids

SIZE, TOKENS = 4096, 16
REVISION = count(1)
"""Each test has blocks of its own: one daemon serves them all."""


@pytest.fixture(scope="module")
def server(module_daemon: StartDaemon) -> ServeProcess:
    """A daemon with hbm, on the CPU, and host."""
    return module_daemon(hbm_bytes="4MiB", host_bytes="16MiB", spill="none")


@pytest.fixture(params=[("sync", "require"), ("async", "require"), ("sync", "never")], ids="-".join)
def client(server: ServeProcess, request: pytest.FixtureRequest) -> Iterator[Any]:
    assert request.param[0] in TWINS
    with client_of(request.param[0], server.address, shared_memory=request.param[1]) as client:
        yield client


@pytest.fixture
def layout() -> Layout:
    return Layout.opaque(block_bytes=SIZE, block_tokens=TOKENS, revision=str(next(REVISION)))


def _data(blocks: int) -> Any:
    return np.random.default_rng(3).integers(0, 256, (blocks, SIZE), np.uint8)


def _in_hbm(ns: Any, ids: Any) -> list[int]:
    return [place for place, tiers in enumerate(ns.lookup(ids).tiers) if tiers & Tiers.HBM]


def test_a_lossless_sequence_decodes_within_its_budget(client: Any, layout: Layout) -> None:
    """Of twelve blocks that a sequence stores in hbm, one by one, the sink and the last ones are there, the others
    in host, and all come back to the byte."""
    ns, data = client.namespace(layout), _data(12)
    ids = chain_ids(ns, range(12 * TOKENS))
    budget = Budget(5 * TOKENS, recent_tokens=TOKENS, sink_tokens=4)
    with ns.sequence("decode", ids[:1], budget=budget) as sequence:
        for place in range(12):
            assert ns.put(ids[place : place + 1], data[place : place + 1], tier="hbm") == [PutOutcome.STORED]
        assert _in_hbm(ns, ids) == [0, 8, 9, 10, 11]
        assert sequence.set_budget().kept.tolist() == [0, 8, 9, 10, 11]
        assert all(np.array_equal(got, sent) for got, sent in zip(ns.get(ids), data, strict=True))
        wider = sequence.set_budget(Budget(8 * TOKENS))
        assert (wider.budget_blocks, wider.recent_blocks, wider.done) == (8, 4, True)
    assert all(np.array_equal(got, sent) for got, sent in zip(ns.get(ids), data, strict=True))


def test_a_long_put_goes_in_pieces(client: Any, layout: Layout) -> None:
    """A put of more blocks than the budget has comes in, piece by piece, and the last ones are in hbm."""
    ns, data = client.namespace(layout), _data(11)
    ids = chain_ids(ns, range(11 * TOKENS))
    with ns.sequence("long", ids, budget=Budget(4 * TOKENS)):
        assert ns.put(ids, data, tier="hbm") == [PutOutcome.STORED] * 11
        assert _in_hbm(ns, ids) == [7, 8, 9, 10]
        assert all(np.array_equal(got, sent) for got, sent in zip(ns.get(ids), data, strict=True))


def test_a_lossy_prompt_is_compressed_before_generation(client: Any, layout: Layout) -> None:
    """A prompt of 16 blocks, scored once by its window, keeps its heavy blocks and the last; reports while it
    decodes decide what goes next, and what has gone is nowhere."""
    ns, data = client.namespace(layout), _data(18)
    ids = chain_ids(ns, range(16 * TOKENS))
    decoded = private_ids(ids, 2)
    with ns.sequence("prompt", ids) as sequence:
        assert ns.put(ids, data[:16], tier="hbm") == [PutOutcome.STORED] * 16
        mass = np.zeros(16)
        mass[[2, 5, 11]] = 0.25, 0.125, 0.5
        resident = sequence.compress(mass, Budget(4 * TOKENS, recent_tokens=2 * TOKENS, lossy=True))
        assert resident.kept.tolist() == [2, 11, 14, 15] and resident.done
        assert np.flatnonzero(ns.lookup(ids).tiers).tolist() == [2, 11, 14, 15]
        sequence.observe([0.0] * 14 + [0.75], steps=32)
        assert ns.put(decoded[:1], data[16:17], tier="hbm") == [PutOutcome.STORED]
        assert ns.put(decoded[1:], data[17:], tier="hbm") == [PutOutcome.STORED]
        assert sequence.set_budget().kept.tolist() == [11, 14, 16, 17]
        assert ns.get(ids[2:3]) == [None]
        record = next(one for one in client.admin.sequences() if one.sequence == "prompt")
        assert (record.blocks, record.kept_blocks, record.given_up_blocks, record.lossy) == (18, 4, 14, True)
        (why,) = client.admin.explain(ids[2:3], tier="hbm").blocks
        assert why.rule == "over the budget of sequence 'prompt': worth least to h2o"


def test_what_a_budget_cannot_be_is_told_by_its_field(client: Any, layout: Layout) -> None:
    """Here and from the daemon; a sequence whose budget is refused is not open."""
    ns = client.namespace(layout)
    ids = chain_ids(ns, range(4 * TOKENS))
    for budget, field in (
        (Budget(15), r"budget\.tokens: 15 are 0 whole blocks of 16"), ("h2o", "none of guide, registry"),
        (Budget(64, recent_tokens=48, sink_tokens=17), r"budget\.tokens: 4 blocks are less than 2 of sink_tokens"),
        (Budget(64, policy="lru"), r"budget\.policy: lru does not go by attention"),
    ):
        with pytest.raises(errors.InvalidArgument, match=field):
            ns.sequence("refused", ids, budget=budget)
    with ns.sequence("refused", ids) as sequence:
        with pytest.raises(errors.FailedPrecondition, match="has no budget yet"):
            sequence.set_budget()
        preset = sequence.set_budget("registry")
        assert (preset.budget_blocks, preset.recent_blocks, preset.sink_blocks) == (32, 2, 0)
        preset = sequence.set_budget("guide")
        assert (preset.budget_blocks, preset.recent_blocks) == (64, 32)
    for wrong in ({"recent_share": 0.0}, {"recent_tokens": 0}, {"sink_tokens": -1}, {"tokens": 0},
                  {"lossy": "no"}, {"lossy": 1}):
        with pytest.raises(errors.InvalidArgument, match=f"budget.{next(iter(wrong))}"):
            Budget(**{"tokens": 64, **wrong})


def test_a_budget_outlives_the_daemon(daemon: StartDaemon, layout: Layout) -> None:
    """After kill -9 and a restart the client's open sequence has its budget again, hbm is empty, what had gone to
    host is there, and decoding goes on."""
    server = daemon(hbm_bytes="4MiB", host_bytes="16MiB", spill="none")
    with client_of("sync", server.address, connect_timeout_s=20.0) as client:
        ns, data = client.namespace(layout), _data(5)
        ids = chain_ids(ns, range(5 * TOKENS))
        with ns.sequence("decode", ids[:1], budget=Budget(2 * TOKENS)) as sequence:
            for place in range(4):
                ns.put(ids[place : place + 1], data[place : place + 1], tier="hbm")
            assert sequence.set_budget().kept.tolist() == [2, 3]
            server.kill()
            server.restart()
            resident = sequence.set_budget()
            assert (resident.budget_blocks, resident.kept.tolist(), len(resident.residency)) == (2, [], 4)
            assert ns.lookup(ids).prefix == 2
            assert ns.put(ids[4:], data[4:], tier="hbm") == [PutOutcome.STORED]
            assert sequence.set_budget().kept.tolist() == [4]
