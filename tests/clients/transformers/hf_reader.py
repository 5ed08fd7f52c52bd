"""Another process on the same prompt: `python hf_reader.py ADDRESS IDS` says how many of all but the last of these
tokens it re-used, and which token comes next."""

from __future__ import annotations

import sys

import torch
from hf_models import llama

from tierd_client.integrations.transformers import PrefixStore


def main() -> None:
    ids = torch.tensor([[int(token) for token in sys.argv[2].split(",")][:-1]])
    model = llama()
    with PrefixStore(model, address=sys.argv[1]) as prefixes, torch.no_grad():
        cache = prefixes.cache(ids)
        answer = model.generate(ids, cache=cache, max_new_tokens=1, do_sample=False)
        print(cache.reused_tokens, int(answer[0, -1]))


if __name__ == "__main__":
    main()
