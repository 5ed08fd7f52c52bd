"""An example worker: answers prompts with shared beginnings, taking from tierd the blocks that are there.

Stands for an inference server: what a model would compute is made up from the tokens here, so that every block that
comes back can be compared. Needs the package tierd-client and $TIERD_ADDRESS. $ROUNDS: how often the same prompts
are answered, by default 2. Prints one JSON object a round; exits 1 on a wrong byte.
"""

import hashlib
import json
import os
import sys

import numpy as np

from tierd_client import Client, Layout, chain_ids

BLOCK_TOKENS = 16
LAYOUT = Layout(
    model="example", engine="example", dtype="bfloat16", layers=4, kv_heads=2, head_dim=64,
    block_tokens=BLOCK_TOKENS,
)
SYSTEM_PROMPT = list(range(1024))
"""Tokens that all prompts begin with."""
PROMPTS = [SYSTEM_PROMPT + [5000 + 97 * user + place for place in range(512)] for user in range(8)]
DEADLINE_S = 10.0


def computed(tokens, block):
    """The KV of a block as a model would compute it: a function of all tokens up to the block's end."""
    end = (block + 1) * BLOCK_TOKENS
    seed = hashlib.blake2b(np.array(tokens[:end], np.int64).tobytes(), digest_size=8).digest()
    return np.random.default_rng(int.from_bytes(seed, "little")).bytes(LAYOUT.block_bytes)


def answer(ns, name, tokens):
    """Answers one prompt. Returns (blocks, blocks taken, blocks stored, wrong blocks)."""
    ids = chain_ids(ns, tokens)
    with ns.sequence(name, ids) as sequence:
        there = sequence.lookup().prefix
        wrong = 0
        with ns.acquire(ids[:there], timeout_s=DEADLINE_S) as lease:
            views = lease.arrays()
            taken = next((n for n, view in enumerate(views) if view is None), len(views))
            for block in range(taken):
                wrong += bytes(views[block]) != computed(tokens, block)
            del views
        fresh = [computed(tokens, block) for block in range(taken, len(ids))]
        outcomes = ns.put(ids[taken:], fresh, timeout_s=DEADLINE_S)
        stored = sum(outcome.name == "STORED" for outcome in outcomes)
    return len(ids), taken, stored, wrong


def main():
    total_wrong = 0
    with Client(os.environ["TIERD_ADDRESS"], name="example worker") as client:
        ns = client.namespace(LAYOUT)
        for number in range(int(os.environ.get("ROUNDS", "2"))):
            results = [answer(ns, f"{number}-{user}", tokens) for user, tokens in enumerate(PROMPTS)]
            blocks, taken, stored, wrong = (sum(column) for column in zip(*results, strict=True))
            total_wrong += wrong
            told = {"round": number, "blocks": blocks, "taken": taken, "stored": stored, "wrong": wrong}
            print(json.dumps(told), flush=True)
    return 1 if total_wrong else 0


if __name__ == "__main__":
    sys.exit(main())
