"""What tierd costs a vLLM whose prompts it never has: requests with and without it by turns, in one engine.

usage: no_harm.py MODEL ADDRESS DAEMON_PID, in vLLM's environment. Prints as JSON, for a daemon that works and one
that is stopped (SIGSTOP): median seconds of a request with tierd and without, their ratio, and the longest with it
over the longest without. Without tierd means that its link counts as down: nothing is searched, nothing stored.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from statistics import median
from typing import Any

os.environ |= {
    "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_CPU_KVCACHE_SPACE": "1", "OMP_NUM_THREADS": "1",
    "VLLM_TARGET_DEVICE": "cpu", "VLLM_LOGGING_LEVEL": "ERROR", "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
}
PROMPT_TOKENS, NEW_TOKENS, PAIRS = 256, 4, 16
VOCABULARY = range(1000, 40000)


def main(model: str, address: str, daemon: str) -> None:
    import numpy as np
    from vllm import LLM, SamplingParams
    from vllm.config import KVTransferConfig

    engine = LLM(
        model=model, max_model_len=1024, max_num_seqs=8, enforce_eager=True, dtype="float32", block_size=32, seed=0,
        skip_tokenizer_init=True, disable_hybrid_kv_cache_manager=True, kv_transfer_config=KVTransferConfig(
            kv_connector="OffloadingConnector", kv_role="kv_both", kv_connector_extra_config={
                "spec_name": "TierdOffloadingSpec",
                "spec_module_path": "tierd_client.integrations.vllm.offloading", "tierd": {"address": address}}))
    sampling = SamplingParams(temperature=0, max_tokens=NEW_TOKENS, ignore_eos=True, detokenize=False)
    draw = np.random.default_rng(time.time_ns())

    def request() -> float:
        tokens = draw.integers(VOCABULARY.start, VOCABULARY.stop, PROMPT_TOKENS).tolist()
        began_at = time.perf_counter()
        engine.generate([{"prompt_token_ids": tokens}], sampling, use_tqdm=False)
        return time.perf_counter() - began_at

    for link in links_of(engine):
        assert link.wait_up(10.0)
    request()
    say("works", compared(engine, request))
    os.kill(int(daemon), signal.SIGSTOP)
    try:
        say("stopped", compared(engine, request))
    finally:
        os.kill(int(daemon), signal.SIGCONT)


def compared(engine: Any, request: Any) -> tuple[list[float], list[float]]:
    """Seconds of requests with tierd and without, by turns."""
    links, with_it, without = links_of(engine), [], []
    for _ in range(PAIRS):
        with_it.append(request())
        up = [link for link in links if link.is_up]
        for link in up:
            link._up.clear()
        without.append(request())
        for link in up:
            link._up.set()
    return with_it, without


def links_of(engine: Any) -> list[Any]:
    """Of the scheduler and of the worker."""
    from vllm.distributed.kv_transfer import get_kv_transfer_group

    scheduler = engine.llm_engine.engine_core.engine_core.scheduler
    return [
        scheduler.connector.connector_scheduler.manager._link,
        get_kv_transfer_group().connector_worker.worker._link,
    ]


def say(name: str, seconds: tuple[list[float], list[float]]) -> None:
    with_it, without = seconds
    print(json.dumps({
        "daemon": name, "with_s": round(median(with_it), 4), "without_s": round(median(without), 4),
        "ratio": round(median(with_it) / median(without), 4),
        "longest_ratio": round(max(with_it) / max(without), 4),
        "first_with_s": round(with_it[0], 4),
    }), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
