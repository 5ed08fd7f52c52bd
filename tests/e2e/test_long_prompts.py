"""A prompt of 131,072 tokens in blocks of 16: 8,192 identities in one call of every verb, by default settings."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tierd_client import (
    AcquireOutcome,
    Client,
    EvictOutcome,
    Layout,
    PinOutcome,
    Presence,
    PutOutcome,
    ReadmitOutcome,
    chain_ids,
)

BLOCKS, BLOCK_BYTES = 8192, 512
LAYOUT = Layout.opaque(block_bytes=BLOCK_BYTES, block_tokens=16)
IDS = chain_ids(LAYOUT, range(16 * BLOCKS))
DATA = np.random.default_rng(5).integers(0, 256, (BLOCKS, BLOCK_BYTES), np.uint8)


@pytest.fixture(scope="module")
def server(module_daemon: Any) -> Any:
    return module_daemon(hbm_bytes="64MiB", host_bytes="64MiB", catalog_rows=2 * BLOCKS)


@pytest.mark.parametrize("shared_memory", ["require", "never"])
def test_every_verb_takes_a_long_prompt(server: Any, shared_memory: str) -> None:
    """8,192 blocks are stored, found, read, pinned, touched, moved up and down and dropped, each by one call."""
    with Client(server.address, shared_memory=shared_memory) as client:
        ns = client.namespace(LAYOUT)
        assert set(ns.lookup(IDS).presence) == {Presence.MISS}
        assert set(ns.put(IDS, DATA)) == {PutOutcome.STORED}
        assert set(ns.put(IDS, DATA)) == {PutOutcome.EXISTS}
        assert ns.lookup(IDS).prefix == ns.lookup_chains([IDS]).tokens // 16 == BLOCKS
        with ns.sequence("long", IDS) as sequence, ns.acquire(IDS) as lease:
            assert sequence.observe(np.full(BLOCKS, 1 / BLOCKS, np.float32)) > 0
            assert all(np.array_equal(got, sent) for got, sent in zip(lease.arrays(), DATA, strict=True))
        out = np.zeros_like(DATA)
        assert set(ns.get_into(IDS, out)) == {AcquireOutcome.LEASED} and np.array_equal(out, DATA)
        assert ns.touch(IDS) == BLOCKS
        assert ns.prefetch_status(ns.prefetch(IDS, to="hbm"), timeout_s=20).done
        assert set(ns.evict(IDS, to="host", timeout_s=20)) == {EvictOutcome.MOVED}
        assert set(ns.readmit(IDS, to="hbm", timeout_s=20)) == {ReadmitOutcome.READY}
        assert set(ns.pin(IDS)) == {PinOutcome.PINNED} and ns.unpin(IDS) == BLOCKS
        assert set(ns.evict(IDS, to=None, allow_drop=True)) == {EvictOutcome.DROPPED}
