"""Free, used, reserved and quarantined bytes add up to the capacity of each tier, whenever somebody looks."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import pytest
from load_worker import LAYOUT, SHARED_CHAINS, ids_of_chain
from test_kill import HELD_CHAIN, SETTINGS, put_chain
from worker_process import WorkerProcess

from tierd.testing.serve import ServeProcess, StartDaemon
from tierd.testing.valkey import ExternalValkey
from tierd_client import Client

SNAPSHOTS = 400
CLI_SNAPSHOTS = 5
"""Each costs the start of an interpreter."""
WITHIN_S = 120.0
CLEAR_EVERY = 20
SHARES = ("free_bytes", "used_bytes", "reserved_bytes", "quarantined_bytes")
TIERS = ("hbm", "host", "spill")


@pytest.fixture
def loaded(daemon: StartDaemon, valkey: ExternalValkey) -> Iterator[ServeProcess]:
    """A daemon with three tiers under the load of two workers, after a restart over which a third one kept
    half-written slots, which are in quarantine since."""
    server = daemon(spill=valkey.unix_url, hbm_bytes="1MiB", **SETTINGS)
    with Client(server.address) as client:
        put_chain(client, HELD_CHAIN)
    workers = [WorkerProcess("kill_holder.py", server.address, HELD_CHAIN)]
    workers[0].wait_for(lambda: workers[0].lines)
    server.restart()
    workers += [WorkerProcess("load_worker.py", server.address, number) for number in range(2)]
    for worker in workers[1:]:
        worker.wait_for(lambda worker=worker: len(worker.lines) > 10)
    yield server
    for worker in workers[1:]:
        worker.finish()
        assert sum(line.get("wrong", 0) for line in worker.lines) == 0
        assert sum("failed" in line for line in worker.lines) == 0
    for worker in workers:
        worker.kill()


def assert_conserved(name: str, tier: dict[str, Any], seen: Counter[str]) -> None:
    """One tier of one snapshot; counts in `seen` which shares were not empty."""
    shares = {share: tier[share] for share in SHARES}
    assert min(shares.values()) >= 0, (name, tier)
    assert sum(shares.values()) == tier["capacity_bytes"], (name, tier)
    seen.update(f"{share} of {name}" for share, size in shares.items() if size)


class CliSnapshots(threading.Thread):
    """Runs `tierd stats --json` again and again, as a process of its own each time."""

    def __init__(self, address: str) -> None:
        super().__init__(daemon=True)
        self.outputs: list[str] = []
        self._command = [sys.executable, "-m", "tierd.cli", "stats", "--json", "--address", address]
        self._stopping = threading.Event()

    def run(self) -> None:
        while not self._stopping.is_set():
            done = subprocess.run(self._command, capture_output=True, text=True, timeout=60, check=False)
            self.outputs.append(done.stdout if done.returncode == 0 else f"{done.returncode}: {done.stderr}")

    def stop(self) -> list[str]:
        self._stopping.set()
        self.join(60)
        return self.outputs


@pytest.mark.slow
def test_every_snapshot_adds_up(loaded: ServeProcess) -> None:
    """While blocks are put, read, leased, evicted, re-admitted and cleared, no snapshot, by gRPC or by the
    command line, has a tier whose shares are negative or do not add up to its capacity."""
    cli = CliSnapshots(loaded.address)
    cli.start()
    seen: Counter[str] = Counter()
    with Client(loaded.address) as client:
        ns = client.namespace(LAYOUT)
        number, ends_at = 0, time.monotonic() + WITHIN_S
        while number < SNAPSHOTS or len(cli.outputs) < CLI_SNAPSHOTS:
            assert time.monotonic() < ends_at
            number += 1
            occupancy = client.admin.occupancy()
            assert set(occupancy.tiers) == {1, 2, 3}
            for tier in occupancy.tiers.values():
                assert_conserved(tier.tier.name.lower(), asdict(tier), seen)
            if number % CLEAR_EVERY == 0:
                first = next(iter(ids_of_chain(ns, number // CLEAR_EVERY % SHARED_CHAINS)))
                client.admin.clear(prefix=first[:1], tier=[None, *TIERS][number // CLEAR_EVERY % 4])
        assert occupancy.tiers[3].demoted_total + occupancy.tiers[2].demoted_total > 0
        assert occupancy.tiers[1].promoted_total + occupancy.tiers[2].promoted_total > 0
    for output in cli.stop():
        for name, tier in json.loads(output)["tiers"].items():
            assert_conserved(name, tier, seen)
    print(f"{number} snapshots by gRPC, {len(cli.outputs)} by the command line", dict(seen))
    assert seen["quarantined_bytes of host"] == number + len(cli.outputs)
    for share in ("used_bytes", "reserved_bytes"):
        assert seen[f"{share} of host"] and seen[f"{share} of spill"], seen
