"""Conversations that take turns on one daemon: how much of their prompts it still has, by policy.

Agents share a system prompt, and each turn asks with the whole conversation so far, as engines see it. The
daemon's memory is a share of what all of it takes, so that something must go; policies differ in what goes.
Blocks here are 4 KiB of random bytes: what is counted is which are found, not what computes them.

    python examples/agent_sessions/agent_sessions.py                          # starts daemons of its own
    python examples/agent_sessions/agent_sessions.py --policies lru,gab --memory 0.2 --agents 40
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Iterator

import numpy as np

from tierd.bench.stage import serving
from tierd_client import Client, Layout, chain_ids

BLOCK_TOKENS = 16
BLOCK_BYTES = 4096
SYSTEM_TOKENS = 1024
TURN_TOKENS = 192
VOCABULARY = 32_000
LAYOUT = Layout.opaque(block_bytes=BLOCK_BYTES, block_tokens=BLOCK_TOKENS, model="agents")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--policies", default="lru,lrfu,gab")
    parser.add_argument("--agents", type=int, default=24)
    parser.add_argument("--turns", type=int, default=10)
    parser.add_argument("--memory", type=float, default=0.15, help="of all that the conversations take")
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    prompts = list(conversations(asked.agents, asked.turns, asked.seed))
    distinct = len({bytes(one) for prompt in prompts for one in chain_ids(LAYOUT, prompt)})
    host_bytes = int(distinct * BLOCK_BYTES * asked.memory)
    print(f"{len(prompts)} prompts of {asked.agents} agents, {distinct:,} blocks, memory for {asked.memory:.0%}")
    print(f"{'policy':24} {'prefix hits':>12}")
    for policy in asked.policies.split(","):
        with serving(host_bytes=host_bytes, policy=policy) as daemon, daemon.client() as client:
            print(f"{policy:24} {replay(client, prompts):12.1%}", flush=True)


def conversations(agents: int, turns: int, seed: int) -> Iterator[list[int]]:
    """Token ids of each prompt, in the order in which they come: some agents talk often, others come back late."""
    draw = random.Random(seed)
    system = [draw.randrange(VOCABULARY) for _ in range(SYSTEM_TOKENS)]
    histories = [list(system) for _ in range(agents)]
    waits = [draw.paretovariate(1.0) for _ in range(agents)]
    for _ in range(agents * turns):
        agent = draw.choices(range(agents), weights=[1 / wait for wait in waits])[0]
        tokens = draw.randint(TURN_TOKENS // 2, TURN_TOKENS * 2)
        histories[agent] += [draw.randrange(VOCABULARY) for _ in range(tokens)]
        yield list(histories[agent])


def replay(client: Client, prompts: list[list[int]]) -> float:
    """Serves all prompts; the share of their blocks that were found before they were computed."""
    namespace = client.namespace(LAYOUT)
    block = np.random.default_rng(0).integers(0, 256, (1, BLOCK_BYTES), np.uint8)
    found = asked = 0
    for number, prompt in enumerate(prompts):
        ids = chain_ids(namespace, prompt)
        with namespace.sequence(f"request-{number}", ids) as sequence:
            hit = sequence.lookup().prefix
            namespace.get(ids[:hit])
            namespace.put(ids[hit:], np.repeat(block, len(ids) - hit, axis=0))
        found, asked = found + hit, asked + len(ids)
    return found / asked


if __name__ == "__main__":
    main()
