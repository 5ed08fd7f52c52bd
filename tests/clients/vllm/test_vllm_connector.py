"""The KV connector in the real vLLM with the real SmolLM2: one answer wherever a prompt's KV comes from."""

from __future__ import annotations

from typing import Any

from vllm_answers import (
    FULL,
    PROMPT,
    TOLERANCE,
    again,
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

from tierd.testing.serve import ServeProcess, StartDaemon
from tierd_client import Client

PAGES = 20
"""Of the engine's own cache: two prompts of nine do not both fit with what is decoded of them."""

TOGETHER = (270, 24)


def connector(server: ServeProcess, *, load_async: bool) -> dict[str, Any]:
    options = spec(server)["kv_connector_extra_config"]["tierd"]
    return {
        "kv_connector": "TierdConnector", "kv_role": "kv_both",
        "kv_connector_module_path": "tierd_client.integrations.vllm.connector",
        "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": {"load_async": load_async, "tierd": options},
    }


def test_the_connector_answers_the_same(daemon: StartDaemon, start_engine: StartEngine) -> None:
    """Computed, out of the engine's own cache, loaded within a step, after a preemption, after a load that failed,
    and loaded between the steps of a new engine of several processes after kill -9 of the daemon: one answer. One
    zeroed block changes it."""
    server = daemon(host_bytes="256MiB")
    engine = start_engine(
        connector(server, load_async=False), num_gpu_blocks_override=PAGES, max_model_len=512,
        disable_log_stats=False)
    cold = engine.generate(*PROMPT)
    local = engine.generate(*PROMPT)
    assert cold["cached"] == 0 and local["cached"] == FULL and same(local, cold)
    with Client(server.address) as client:
        assert same(from_tierd(engine), cold)
        namespace, ids = stored(client, server)
        zero(namespace, ids[3:4])
        assert differ(from_tierd(engine), cold) > 100 * TOLERANCE
        assert same(from_tierd(engine, lambda: drop(namespace, ids[3:4]), tokens=3 * 32), cold)
        alone = [engine.together(*TOGETHER, first)[0] for first in (1000, 2000)]
        assert engine.ask("metric vllm:num_preemptions") == 0
        for answer, one in zip(engine.together(*TOGETHER, 1000, 2000), alone, strict=True):
            assert same(answer, one)
        assert engine.ask("metric vllm:num_preemptions") > 0
        assert wait_for(lambda: not client.admin.occupancy().leases)
        assert engine.ask("lose")
        assert same(again(engine), cold)
        assert any("blocks are computed again" in line for line in engine.log)
    engine.end()
    server.restart()
    engine = start_engine(connector(server, load_async=True), processes=True)
    assert knows_its_daemon(engine, server)
    new = engine.generate(*PROMPT)
    assert new["cached"] == FULL and same(new, cold)
