"""A daemon that records its traffic as a trace."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tierd.sim.replay import replay
from tierd.sim.traces import read_trace
from tierd.testing.serve import StartDaemon
from tierd_client import Client, Layout, chain_ids

SIZE = 4096


def test_traffic_becomes_a_trace(daemon: StartDaemon, tmp_path: Path) -> None:
    """What clients stored is a trace that the simulator replays: prompts that share a prefix share blocks."""
    serving = daemon(record_bytes="1MiB", record_dir=tmp_path / "traffic", host_bytes="8MiB")
    with Client(serving.address) as client:
        ns = client.namespace(Layout.opaque(block_bytes=SIZE, block_tokens=16))
        for number, tail in enumerate(([], [1], [2], [1])):
            ids = chain_ids(ns.layout, [*range(64), *(token for one in tail for token in [one] * 16)])
            with ns.sequence(f"request {number}", ids):
                ns.put(ids, np.zeros((len(ids), SIZE), np.uint8))
    assert serving.terminate() == 0
    trace = read_trace(tmp_path / "traffic" / "trace.jsonl")
    assert (trace.requests, trace.accesses, trace.distinct, trace.block_tokens) == (4, 19, 6, 16)
    assert replay(trace, "lru", 6).prefix_hits == 19 - 6


def test_nothing_is_recorded_unless_it_is_wanted(daemon: StartDaemon) -> None:
    """By default a daemon writes no trace."""
    serving = daemon()
    with Client(serving.address) as client:
        ns = client.namespace(Layout.opaque(block_bytes=SIZE, block_tokens=16))
        ns.put(chain_ids(ns.layout, range(16)), np.zeros((1, SIZE), np.uint8))
    assert serving.terminate() == 0
    assert not (serving.state_dir / "trace").exists()
