"""One vLLM engine, in vLLM's environment: a prompt's token ids come as a line of JSON, the answer goes back as one.

usage: engine.py MODEL ADDRESS
"""

from __future__ import annotations

import json
import os
import sys
import time

os.environ |= {
    "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_LOGGING_LEVEL": "WARNING", "OMP_NUM_THREADS": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
}
NEW_TOKENS = 12
ANSWER_MS = 5_000
"""Engines and daemon share a few cores here; on a host of its own the default does."""


def main(model: str, address: str) -> None:
    from vllm import LLM, SamplingParams
    from vllm.config import KVTransferConfig

    engine = LLM(
        model=model, dtype="float32", block_size=32, max_model_len=2048, enforce_eager=True,
        skip_tokenizer_init=True, disable_hybrid_kv_cache_manager=True, kv_transfer_config=KVTransferConfig(
            kv_connector="OffloadingConnector", kv_role="kv_both", kv_connector_extra_config={
                "spec_name": "TierdOffloadingSpec",
                "spec_module_path": "tierd_client.integrations.vllm.offloading",
                "tierd": {"address": address, "answer_ms": ANSWER_MS}}))
    sampling = SamplingParams(temperature=0, max_tokens=NEW_TOKENS, ignore_eos=True, detokenize=False)
    say(ready=True)
    for line in sys.stdin:
        prompt = json.loads(line)
        began_at = time.perf_counter()
        (answer,) = engine.generate([{"prompt_token_ids": prompt}], sampling, use_tqdm=False)
        say(answer=list(answer.outputs[0].token_ids), found=answer.num_cached_tokens, prompt=len(prompt),
            seconds=time.perf_counter() - began_at)


def say(**values: object) -> None:
    print(json.dumps(values), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
