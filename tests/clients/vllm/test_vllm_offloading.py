"""The real vLLM with the real SmolLM2: the same answers wherever a prompt's KV comes from."""

from __future__ import annotations

from vllm_answers import (
    FULL,
    PROMPT,
    TOLERANCE,
    differ,
    drop,
    from_tierd,
    knows_its_daemon,
    same,
    spec,
    stored,
    wait_for,
    zero,
)
from vllm_process import StartEngine

from tierd.testing.serve import StartDaemon
from tierd.testing.valkey import ExternalValkey
from tierd_client import Client, Tier


def test_one_answer_from_wherever_the_blocks_come(
    daemon: StartDaemon, valkey: ExternalValkey, start_engine: StartEngine,
) -> None:
    """Computed, out of the engine's own cache, out of tierd in the same process, promoted from Redis, and in a new
    engine of several processes after kill -9 of the daemon: one answer. One zeroed block changes it."""
    server = daemon(host_bytes="256MiB", spill=valkey.unix_url)
    engine = start_engine(spec(server))
    cold = engine.generate(*PROMPT)
    local = engine.generate(*PROMPT)
    assert cold["cached"] == 0 and local["cached"] == FULL and same(local, cold)
    with Client(server.address) as client:
        assert same(from_tierd(engine), cold)
        namespace, ids = stored(client, server)
        promoted = from_tierd(engine, lambda: namespace.evict(ids, timeout_s=30.0))
        assert same(promoted, cold) and client.admin.occupancy().tiers[Tier.HOST].promoted_total
        zero(namespace, ids[3:4])
        assert differ(from_tierd(engine), cold) > 100 * TOLERANCE
        assert same(from_tierd(engine, lambda: drop(namespace, ids[3:4]), tokens=3 * 32), cold)
        assert wait_for(lambda: client.admin.occupancy().tiers[Tier.HOST].blocks >= FULL // 32)
    server.restart()
    engine.end()
    engine = start_engine(spec(server), processes=True)
    assert knows_its_daemon(engine, server)
    new = engine.generate(*PROMPT)
    assert new["cached"] == FULL and same(new, cold)
