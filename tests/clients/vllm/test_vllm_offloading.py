"""The real vLLM with the real SmolLM2: the same answers wherever a prompt's KV comes from."""

from __future__ import annotations

from vllm_answers import FULL, PROMPT, TOLERANCE, again, differ, same, spec, stored, wait_for, zero
from vllm_process import StartEngine

from tierd.testing.serve import StartDaemon
from tierd.testing.valkey import ExternalValkey
from tierd_client import Client, EvictOutcome, Tier


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
        assert wait_for(lambda: client.admin.occupancy().tiers[Tier.HOST].blocks >= FULL // 32)
        external = again(engine)
        assert external["cached"] == FULL and same(external, cold)
        namespace, ids = stored(client, server)
        assert set(namespace.evict(ids, timeout_s=30.0)) == {EvictOutcome.MOVED}
        promoted = again(engine)
        assert promoted["cached"] == FULL and same(promoted, cold)
        zero(namespace, ids[3:4])
        wrong = again(engine)
        assert wrong["cached"] == FULL and differ(wrong, cold) > 100 * TOLERANCE
        assert namespace.evict(ids[3:4], to=None, allow_drop=True) == [EvictOutcome.DROPPED]
        mended = again(engine)
        assert mended["cached"] == 3 * 32 and same(mended, cold)
        assert wait_for(lambda: client.admin.occupancy().tiers[Tier.HOST].blocks >= FULL // 32)
    server.restart()
    new = start_engine(spec(server), processes=True).generate(*PROMPT)
    assert new["cached"] == FULL and same(new, cold)
