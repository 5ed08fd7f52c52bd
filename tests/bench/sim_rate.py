"""How many block accesses a minute the engine alone replays, through `tierd sim`'s own code.

Uses the traces in the folder that TIERD_TRACES names; without them a trace that is made up: requests that
share prefixes, over as many blocks.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import numpy as np

from tierd.sim.replay import parse_capacities, replay
from tierd.sim.traces import Trace, build_trace, read_trace

FOLDER = os.environ.get("TIERD_TRACES", "")
FILES = ("mooncake_conversation.jsonl", "lmcache_agent.npz")
SPECS = ("lru", "lrfu")
CAPACITY = "5%"
LEAST_PER_MINUTE = 2_000_000


def traces() -> list[Trace]:
    found = [Path(FOLDER) / name for name in FILES if FOLDER]
    return [read_trace(path) for path in found] or [made_up()]


def made_up(requests: int = 4_000, seed: int = 1) -> Trace:
    """Conversations of a few turns: each request is the one before it and some blocks more."""
    rng = np.random.default_rng(seed)
    open_chats: list[list[int]] = []
    asked: list[list[int]] = []
    next_block = 0
    for _ in range(requests):
        if not open_chats or rng.random() < 0.3:
            open_chats.append([])
        at = int(rng.integers(max(0, len(open_chats) - 200), len(open_chats)))
        grown = int(rng.integers(2, 40))
        open_chats[at] = open_chats[at] + list(range(next_block, next_block + grown))
        next_block += grown
        asked.append(open_chats[at])
    lengths = np.array([len(request) for request in asked], np.int64)
    blocks = np.array([block for request in asked for block in request], np.int64)
    return build_trace("made-up", blocks, lengths, np.arange(requests, dtype=np.float64))


def run() -> list[dict[str, Any]]:
    return [measure(trace, policy) for trace in traces() for policy in SPECS]


def measure(trace: Trace, policy: str) -> dict[str, Any]:
    """One replay; the rate counts process time."""
    capacity = parse_capacities(CAPACITY, trace.distinct)[0]
    start = time.process_time()
    row = replay(trace, policy, capacity)
    spent_s = time.process_time() - start
    rate = round(60 * row.accesses / spent_s)
    return {
        "trace": trace.name, "policy": policy, "capacity_blocks": capacity, "accesses": row.accesses,
        "cpu_s": round(spent_s, 2), "accesses_per_minute": rate, "least": LEAST_PER_MINUTE,
        "fast_enough": rate >= LEAST_PER_MINUTE,
    }
