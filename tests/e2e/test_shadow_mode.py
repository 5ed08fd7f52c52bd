"""Shadow mode: requests are reported, nothing is stored, and the daemon says what memory would have saved."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tierd.sim.replay import replay
from tierd.sim.traces import Trace, read_trace
from tierd.sim.workloads import make_trace
from tierd.testing.serve import ServeProcess, StartDaemon
from tierd_client import Client, InvalidArgument, Layout, Namespace, chain_ids, plain_ids
from tierd_client.identity import Identities
from tierd_client.shadow import ShadowNamespace

LAYOUT = Layout.opaque(block_bytes=8192, block_tokens=16)
CHATS = make_trace("chained-zipf(requests=300,prompts=40,most_prompt_blocks=24,most_turn_blocks=12)")
PAUSE = threading.Event()


def report(namespace: Namespace, trace: Trace) -> None:
    """Each request of a trace, of which the engine measured 1,000 tokens a second."""
    keys = [number.to_bytes(8, "little") for number in range(trace.distinct)]
    for number, asked in enumerate(trace.asked.tolist()):
        ids = plain_ids(LAYOUT, [keys[block] for block in trace.request(number).tolist()])
        chain = Identities(ids.array, ids.fingerprint, chain=True)
        namespace.shadow(chain, asked, prefill_tokens_per_s=1_000.0)


def once(client: Client, known: Callable[[tuple[ShadowNamespace, ...]], bool]) -> tuple[ShadowNamespace, ...]:
    """The figures, once they are as wanted."""
    until = time.monotonic() + 60.0
    while not known(found := client.admin.shadow_stats().namespaces):
        assert time.monotonic() < until, f"not all requests are played: {found}"
        PAUSE.wait(0.05)
    return found


def figures(client: Client, requests: int) -> ShadowNamespace:
    """Of the one namespace, once so many requests are played."""
    (found,) = once(client, lambda found: bool(found) and found[0].requests == requests)
    return found


def shown(serving: ServeProcess, *options: str) -> str:
    command = [sys.executable, "-m", "tierd.cli", "stats", "--shadow", "--address", serving.address, *options]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout


def test_figures_are_those_of_the_recorded_trace(daemon: StartDaemon, tmp_path: Path) -> None:
    """What the daemon says of each size is what `tierd sim` makes of the trace that it recorded meanwhile, nothing
    is stored, and saved tokens are seconds by the engine's own rate."""
    blocks = [CHATS.distinct // 10, CHATS.distinct // 3]
    serving = daemon(
        shadow_sizes_bytes=",".join(str(8192 * one) for one in blocks), shadow_cpu_percent=100,
        record_bytes="16MiB", record_dir=tmp_path / "traffic")
    with Client(serving.address) as client:
        report(client.namespace(LAYOUT), CHATS)
        found = figures(client, CHATS.requests)
        assert client.admin.occupancy().identities == 0
    printed = json.loads(shown(serving, "--json"))["namespaces"][0]
    table = shown(serving, "--prefill-tokens-per-s", "500")
    assert serving.terminate() == 0
    trace = read_trace(tmp_path / "traffic" / "trace.jsonl")
    assert (trace.accesses, found.asked_blocks) == (CHATS.accesses, CHATS.accesses)
    for capacity, size, one in zip(blocks, found.sizes, printed["sizes"], strict=True):
        row = replay(trace, found.policy, capacity)
        assert (size.capacity_blocks, size.block_hits.blocks, size.prefix_hits.blocks, size.saved.error) == (
            capacity, row.block_hits, row.prefix_hits, 0)
        assert one["saved_prefill_s"] == pytest.approx(16 * row.prefix_hits / 1_000)
        assert f"{16 * row.prefix_hits / 500:,.1f}" in table


def test_a_request_in_parts(daemon: StartDaemon) -> None:
    """What goes on with a request is of it, also in calls of more identities than one takes; another is another."""
    with Client(daemon(max_ids=8, shadow_sizes_bytes="1MiB").address) as client:
        namespace = client.namespace(LAYOUT)
        prompt, answer = chain_ids(LAYOUT, range(16 * 20)), chain_ids(LAYOUT, range(16 * 24))[20:]
        namespace.shadow(prompt, served=10, ended=False)
        namespace.shadow(answer, 0, continued=True)
        namespace.shadow(chain_ids(LAYOUT, range(16 * 24)), served=12)
        found = figures(client, 2)
        assert (found.asked_blocks, found.served_blocks) == (44, 22)
        (size,) = found.sizes
        assert (size.prefix_hits.blocks, size.saved.blocks, size.held_blocks) == (24, 12, 24)


def test_bounds(daemon: StartDaemon) -> None:
    """Of more namespaces than are kept the one that was reported first is forgotten; a daemon that was told of
    nothing says so; another policy begins anew."""
    serving = daemon(shadow_namespaces_max=2, shadow_sizes_bytes="1MiB")
    assert "No request was reported" in shown(serving)
    with Client(serving.address) as client:
        layouts = [LAYOUT.replace(revision=str(number)) for number in range(3)]
        for layout in layouts:
            client.namespace(layout).shadow(chain_ids(layout, range(32)))
        once(client, lambda found: [one.namespace for one in found] == [2, 3])
        policy = client.admin.set_policy("lru").policy
        client.namespace(layouts[2]).shadow(chain_ids(layouts[2], range(32)), block_bytes=4096)
        found = once(client, lambda found: found[1].policy == policy)[1]
        assert (found.requests, found.block_bytes, found.sizes[0].capacity_blocks) == (1, 4096, 256)


def test_bad_reports(daemon: StartDaemon) -> None:
    """A report that makes no sense is refused by the client, naming the argument, before anything is sent."""
    with Client(daemon().address) as client:
        namespace, ids = client.namespace(LAYOUT), chain_ids(LAYOUT, range(32))
        for name, given in {
            "asked": {"asked": 3}, "served": {"asked": 1, "served": 2}, "block_bytes": {"block_bytes": -1},
            "prefill_tokens_per_s": {"prefill_tokens_per_s": np.nan},
        }.items():
            with pytest.raises(InvalidArgument, match=f"^{name}: "):
                namespace.shadow(ids, **given)
        assert client.admin.shadow_stats().namespaces == ()
