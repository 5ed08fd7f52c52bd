"""What it costs vLLM's scheduler to look up a prompt of 256 blocks, with the real manager and a running daemon.

usage: lookup_cost.py ADDRESS, in vLLM's environment. Prints medians as JSON: CPU of the scheduler's thread for all
questions of a prompt, CPU of the process with the search behind them, and calls to the daemon, by the scheduler's
thread and by all; for prompts whose blocks are all in host, and for those of which none is known.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections import Counter
from statistics import median
from types import SimpleNamespace
from typing import Any

import numpy as np

from tierd_client.integrations.keys import Run
from tierd_client.integrations.options import Options
from tierd_client.integrations.vllm.geometry import layouts_of
from tierd_client.integrations.vllm.offloading import TierdOffloadingManager
from tierd_client.integrations.vllm.versions import GROUP_BYTES, LookupResult, ReqContext
from tierd_client.session import Session

BLOCKS, BLOCK_BYTES, PROMPTS = 256, 4096, 30
CONFIG: Any = SimpleNamespace(
    groups=(SimpleNamespace(tokens_per_block=16, layer_names=("a", "b"), group_id=0),),
    worker_kv_bytes_per_block=BLOCK_BYTES, enable_kv_cache_events=False, engine_id="cost",
    model=SimpleNamespace(name="lookup-cost", dtype="bfloat16"), cache=SimpleNamespace(
        tokens_per_hash=16, blocks_per_chunk=1), replicated_layout=False, canonical_layout=False,
    kv_cache_layout="LBHNC", parallel=SimpleNamespace(
        rank=0, world_size=1, tp_size=1, pp_size=1, pcp_size=1, dcp_size=1))
RANDOM = np.random.default_rng(0)
CALLS: Counter[bool] = Counter()
"""To the daemon, for a prompt: by the scheduler's thread, and by others."""


def main(address: str) -> None:
    count_calls()
    options = Options(address=address, answer_ms=10_000, revision="none")
    manager = TierdOffloadingManager(CONFIG, options)
    assert manager._link.wait_up(10.0)
    (layout,) = layouts_of(CONFIG, options)
    prompts = [[RANDOM.bytes(32) + bytes(GROUP_BYTES) for _ in range(BLOCKS)] for _ in range(2 * PROMPTS)]
    namespace = manager._link.namespace(layout)
    for keys in prompts[:PROMPTS]:
        namespace.put(Run(tuple(keys)).identities(layout), np.zeros((BLOCKS, BLOCK_BYTES), np.uint8))
    for name, some in (("all_local", prompts[:PROMPTS]), ("none_known", prompts[PROMPTS:])):
        results = [looked_up(manager, f"{name}{number}", keys) for number, keys in enumerate(some)]
        print(json.dumps({"prompts": name} | {key: median(one[key] for one in results) for key in results[0]}))
    manager.shutdown()


def looked_up(manager: Any, name: str, keys: list[bytes]) -> dict[str, float]:
    context = ReqContext(name)
    manager.on_new_request(context)
    for number, key in enumerate(keys):
        context.set_offload_key_position(key, 16 * (number + 1))
    CALLS.clear()
    thread, process = time.thread_time(), time.process_time()
    hits = passed(manager, context, keys)
    asked_ms, answered_ms = (time.thread_time() - thread) * 1e3, 0.0
    while hits is None:
        threading.Event().wait(0.001)
        thread_again = time.thread_time()
        hits = passed(manager, context, keys)
        answered_ms = (time.thread_time() - thread_again) * 1e3
    process_ms = (time.process_time() - process) * 1e3
    calls = dict(CALLS)
    manager.on_request_finished(context)
    return {
        "hits": hits, "scheduler_cpu_ms": asked_ms + answered_ms, "process_cpu_ms": process_ms,
        "scheduler_rpcs": calls.get(True, 0), "rpcs": sum(calls.values()),
    }


def passed(manager: Any, context: Any, keys: list[bytes]) -> int | None:
    """One pass of vLLM's scheduler over a prompt's keys: the leading hits, None where it is to ask again."""
    hits, again = 0, False
    for key in keys:
        result = manager.lookup(key, context)
        if result is LookupResult.MISS:
            break
        again |= result is LookupResult.RETRY
        hits += 1
    return None if again else hits


def count_calls() -> None:
    call = Session.call

    def counted(self: Session, method: str, *arguments: Any, **named: Any) -> Any:
        if method in ("Lookup", "Acquire"):  # the request before may still be giving back
            CALLS[threading.current_thread() is threading.main_thread()] += 1
        return call(self, method, *arguments, **named)

    Session.call = counted  # type: ignore[method-assign]


if __name__ == "__main__":
    main(sys.argv[1])
