"""A vLLM engine on SmolLM2 as a process of its own, in its own environment; it answers prompts, a line each.

usage: vllm_engine.py MODEL KV_TRANSFER_CONFIG
`generate FIRST COUNT`: prompt of COUNT tokens of a text from token FIRST on; answers the greedy tokens, their
log-probabilities, how many prompt tokens were cached, and the seconds. `reset`: drops what the engine itself
caches; `reset all`: and what it has in tierd.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

os.environ |= {
    "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_CPU_KVCACHE_SPACE": "1", "OMP_NUM_THREADS": "1",
    "VLLM_TARGET_DEVICE": "cpu", "VLLM_LOGGING_LEVEL": "WARNING",
}
NEW_TOKENS = 8
TEXT = Path("/usr/share/common-licenses/GPL-3")


def main(model: str, transfer: str) -> None:
    from tokenizers import Tokenizer
    from vllm import LLM, SamplingParams
    from vllm.config import KVTransferConfig

    text = Tokenizer.from_file(f"{model}/tokenizer.json").encode(TEXT.read_text()).ids
    engine = LLM(
        model=model, max_model_len=1024, max_num_seqs=8, enforce_eager=True, dtype="float32", block_size=32, seed=0,
        skip_tokenizer_init=True, disable_hybrid_kv_cache_manager=True,
        kv_transfer_config=KVTransferConfig(**json.loads(transfer)) if transfer else None)
    say(ready=True)
    for line in sys.stdin:
        command, *arguments = line.split()
        if command == "reset":
            say(reset=engine.reset_prefix_cache(reset_connector=arguments == ["all"]))
            continue
        first, count = map(int, arguments[:2])
        hints = json.loads(" ".join(arguments[2:]) or "{}")
        sampling = SamplingParams(
            temperature=0, max_tokens=NEW_TOKENS, ignore_eos=True, logprobs=1, detokenize=False,
            extra_args={"kv_transfer_params": hints} if hints else None)
        say(generate=_generated(engine, text[first : first + count], sampling))


def _generated(engine: Any, tokens: list[int], sampling: Any) -> dict[str, Any]:
    began_at = time.monotonic()
    (answer,) = engine.generate([{"prompt_token_ids": tokens}], sampling, use_tqdm=False)
    ids = list(answer.outputs[0].token_ids)
    logprobs = [step[token].logprob for step, token in zip(answer.outputs[0].logprobs, ids, strict=True)]
    return {
        "tokens": ids, "logprobs": logprobs, "cached": answer.num_cached_tokens,
        "seconds": time.monotonic() - began_at,
    }


def say(**values: Any) -> None:
    print(json.dumps(values), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
