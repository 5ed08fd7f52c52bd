"""How many block accesses a minute the engine alone replays, through `tierd sim`'s own code."""

from __future__ import annotations

import time

import numpy as np

from tierd.bench.measuring import Measured, Result, Scale
from tierd.sim.replay import parse_capacities, replay
from tierd.sim.traces import Trace, build_trace

FIGURE = "sim_accesses_per_minute"
SPECS = ("lru", "lrfu", "gab", "gittins")
CAPACITY = "5%"
REQUESTS_PER_REPETITION = 100
CHATS_OPEN, NEW_CHAT = 200, 0.3


def rate(scale: Scale) -> Measured:
    """Accesses a minute of process time by each policy, and of the policy where they are fewest."""
    trace = conversations(REQUESTS_PER_REPETITION * scale.repetitions)
    capacity = parse_capacities(CAPACITY, trace.distinct)[0]
    rates: dict[str, Result] = {}
    for spec in SPECS:
        began = time.process_time()
        row = replay(trace, spec, capacity)
        rates[f"{FIGURE}_{spec}"] = Result(60 * row.accesses / (time.process_time() - began), 0.0)
    return rates | {FIGURE: min(rates.values(), key=lambda one: one.value)}


def conversations(requests: int, seed: int = 1) -> Trace:
    """Conversations of a few turns: each request is the one before it and some blocks more."""
    rng = np.random.default_rng(seed)
    chats: list[list[int]] = []
    asked: list[list[int]] = []
    next_block = 0
    for _ in range(requests):
        if not chats or rng.random() < NEW_CHAT:
            chats.append([])
        at = int(rng.integers(max(0, len(chats) - CHATS_OPEN), len(chats)))
        grown = int(rng.integers(2, 40))
        chats[at] = chats[at] + list(range(next_block, next_block + grown))
        next_block += grown
        asked.append(chats[at])
    lengths = np.array([len(request) for request in asked], np.int64)
    blocks = np.array([block for request in asked for block in request], np.int64)
    return build_trace("conversations", blocks, lengths, np.arange(requests, dtype=np.float64))
