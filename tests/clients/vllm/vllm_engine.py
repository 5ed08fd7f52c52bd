"""A vLLM engine on SmolLM2 as a process of its own, in its own environment; it answers prompts, a line each.

usage: vllm_engine.py MODEL KV_TRANSFER_CONFIG ENGINE_OPTIONS
`generate FIRST COUNT`: prompt of COUNT tokens of a text from token FIRST on; answers the greedy tokens, their
log-probabilities, how many prompt tokens were cached, and the seconds. `together COUNT NEW FIRST...`: several such
prompts at once, NEW tokens each. `timed SEED COUNT TOKENS NEW`: so many prompts of random tokens at once, NEW
tokens each; answers the seconds, and how many prompt tokens were cached. `reset`: drops what the engine itself
caches; `reset all`: and what it has in tierd. `lose`: the connector's worker loses its daemon and what it mapped
of it; of an engine in one process. `metric NAME`: one of vLLM's metrics.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from pathlib import Path
from typing import Any

os.environ |= {
    "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_CPU_KVCACHE_SPACE": "1", "OMP_NUM_THREADS": "1",
    "VLLM_TARGET_DEVICE": "cpu", "VLLM_LOGGING_LEVEL": "WARNING",
    "VLLM_CPU_NUM_OF_RESERVED_CPU": "1",  # else vLLM computes with another number of threads with a connector
}
NEW_TOKENS = 8
VOCABULARY = range(1000, 40_000)
TEXT = Path("/usr/share/common-licenses/GPL-3")


def main(model: str, transfer: str, options: str) -> None:
    from tokenizers import Tokenizer
    from vllm import LLM
    from vllm.config import KVTransferConfig

    config = json.loads(transfer)
    text = Tokenizer.from_file(f"{model}/tokenizer.json").encode(TEXT.read_text()).ids
    defaults = {"max_model_len": 1024, "max_num_seqs": 8, "dtype": "float32", "block_size": 32, "seed": 0}
    engine = LLM(
        model=model, enforce_eager=True, skip_tokenizer_init=True, disable_hybrid_kv_cache_manager=True,
        kv_transfer_config=KVTransferConfig(**config) if config else None,
        **defaults | json.loads(options))
    say(ready=True)
    for line in sys.stdin:
        command, *arguments = line.split()
        if command == "reset":
            say(reset=engine.reset_prefix_cache(reset_connector=arguments == ["all"]))
        elif command == "timed":
            say(timed=_timed(engine, *map(int, arguments)))
        elif command == "lose":
            say(lose=_lose_daemon())
        elif command == "metric":
            say(metric=sum(one.value for one in engine.get_metrics() if one.name == arguments[0]))
        elif command == "together":
            count, new, *firsts = map(int, arguments)
            say(together=_generated(engine, [text[first : first + count] for first in firsts], new, {}))
        else:
            first, count = map(int, arguments[:2])
            hints = json.loads(" ".join(arguments[2:]) or "{}")
            say(generate=_generated(engine, [text[first : first + count]], NEW_TOKENS, hints)[0])


def _generated(engine: Any, prompts: list[list[int]], new: int, hints: dict[str, Any]) -> list[dict[str, Any]]:
    from vllm import SamplingParams

    sampling = SamplingParams(
        temperature=0, max_tokens=new, ignore_eos=True, logprobs=1, detokenize=False,
        extra_args={"kv_transfer_params": hints} if hints else None)
    began_at = time.monotonic()
    answers = engine.generate([{"prompt_token_ids": one} for one in prompts], sampling, use_tqdm=False)
    seconds = time.monotonic() - began_at
    return [_said(answer) | {"seconds": seconds} for answer in answers]


def _timed(engine: Any, seed: int, count: int, tokens: int, new: int) -> dict[str, Any]:
    from vllm import SamplingParams

    draw = random.Random(seed)
    prompts = [{"prompt_token_ids": draw.choices(VOCABULARY, k=tokens)} for _ in range(count)]
    sampling = SamplingParams(temperature=0, max_tokens=new, ignore_eos=True, detokenize=False)
    began_at = time.monotonic()
    answers = engine.generate(prompts, sampling, use_tqdm=False)
    return {"seconds": time.monotonic() - began_at, "cached": sum(one.num_cached_tokens for one in answers)}


def _said(answer: Any) -> dict[str, Any]:
    ids = list(answer.outputs[0].token_ids)
    logprobs = [step[token].logprob for step, token in zip(answer.outputs[0].logprobs, ids, strict=True)]
    return {"tokens": ids, "logprobs": logprobs, "cached": answer.num_cached_tokens}


def _lose_daemon() -> bool:
    from vllm.distributed.kv_transfer import get_kv_transfer_group

    from tierd_client.integrations import transfers

    worker = get_kv_transfer_group()._worker
    worker._link.close()
    worker._transfers._reader, transfers.LOAD_WITHIN_S = None, 0.0
    return True


def say(**values: Any) -> None:
    print(json.dumps(values), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
