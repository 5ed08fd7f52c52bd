"""Prompts, answers and what they are compared by, and the blocks behind them, for the tests of vLLM."""

from __future__ import annotations

import itertools
import json
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from vllm_process import Engine

from tierd.children import DaemonChild
from tierd.testing.serve import ServeProcess
from tierd_client import Client, EvictOutcome, Identities, Namespace, PutOutcome, Tier
from tierd_client.layout import decode_canonical

PROMPT = (100, 340)
FULL = 320
"""Tokens of PROMPT in whole blocks of 32."""

TOLERANCE = 1e-4
PAUSE = threading.Event()


def spec(server: ServeProcess | DaemonChild, **options: Any) -> dict[str, Any]:
    return {
        "kv_connector": "OffloadingConnector", "kv_role": "kv_both", "kv_connector_extra_config": {
            "spec_name": "TierdOffloadingSpec", "spec_module_path": "tierd_client.integrations.vllm.offloading",
            "tierd": {"address": server.address, "answer_ms": 5_000, "promote_ms": 10_000} | options,
        },
    }


def same(answer: dict[str, Any], cold: dict[str, Any]) -> bool:
    """Whether tokens are identical and log-probabilities equal within the tolerance."""
    return answer["tokens"] == cold["tokens"] and differ(answer, cold) <= TOLERANCE


def differ(answer: dict[str, Any], cold: dict[str, Any]) -> float:
    """The largest difference of log-probabilities."""
    return float(np.abs(np.subtract(answer["logprobs"], cold["logprobs"])).max())


def wait_for(what: Callable[[], Any], within_s: float = 120.0) -> Any:
    """Stores are made beside the engine, and it tells nobody when."""
    until = time.monotonic() + within_s
    while not (found := what()) and time.monotonic() < until:
        PAUSE.wait(0.05)
    return found


def stored(client: Client, server: ServeProcess) -> tuple[Namespace, Identities]:
    """The engine's namespace and all blocks of it that the daemon has."""
    known = json.loads((server.state_dir / "namespaces.json").read_text())
    canonical = bytes.fromhex(known["namespaces"][0]["canonical"])
    blocks = sorted(client.admin.list_blocks(), key=lambda one: one.position)
    packed = b"".join(one.identity for one in blocks)
    ids = Identities(np.frombuffer(packed, np.uint8).reshape(-1, 32))
    return client.namespace(decode_canonical(canonical)), ids


def zero(namespace: Namespace, ids: Identities) -> None:
    """Stores zeros in place of a block."""
    assert namespace.evict(ids, to=None, allow_drop=True) == [EvictOutcome.DROPPED]
    size = namespace.layout.block_bytes
    assert namespace.put(ids, np.zeros((1, size), np.uint8)) == [PutOutcome.STORED]


def drop(namespace: Namespace, ids: Identities) -> None:
    namespace.evict(ids, to=None, allow_drop=True)


def again(engine: Engine) -> dict[str, Any]:
    """PROMPT once more, with nothing in the engine's own cache."""
    assert engine.ask("reset")
    return engine.generate(*PROMPT)


def from_tierd(engine: Engine, before: Callable[[], object] = lambda: None, tokens: int = FULL) -> dict[str, Any]:
    """PROMPT's answer once so many of its tokens come out of tierd; `before` is done before each attempt. An engine
    does not wait for a daemon that is slow, nor for its own stores."""
    def asked() -> dict[str, Any] | None:
        before()
        answer = again(engine)
        return answer if answer["cached"] == tokens else None

    found: dict[str, Any] | None = wait_for(asked)
    assert found is not None, f"{tokens} tokens were never found"
    return found


def knows_its_daemon(engine: Engine, server: ServeProcess) -> bool:
    """Waits until a new engine has stored something, each time of another prompt."""
    others = itertools.count(3000, 40)
    with Client(server.address) as client:
        def blocks() -> int:
            return client.admin.occupancy().tiers[Tier.HOST].blocks

        before = blocks()
        return bool(wait_for(lambda: engine.generate(next(others), 40) and blocks() > before))
