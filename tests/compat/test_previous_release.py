"""This release and the previous one together: either client with either daemon, and one daemon after the other on
the same shared memory, state directory and spill tier."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from make_previous import CLIENT, DAEMON, PREVIOUS, packed

from tierd.testing.serve import ServeProcess
from tierd.testing.valkey import ExternalValkey
from tierd_client import Client, Layout, chain_ids

BLOCKS = 24
WHOLE = {
    "prefix": BLOCKS, "get": True, "get_into": True, "lease": True, "observed": True, "readmit": ["READY"],
}
"""What a check finds when no block is lost and no byte is wrong."""

Start = Callable[..., ServeProcess]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts a daemon of this release, or with `previous=True` of the previous one; `beside` another one that has
    ended, on what that one left behind."""
    made: list[ServeProcess] = []
    directories: list[Path] = []

    def fresh(base: str | None) -> Path:
        directories.append(Path(tempfile.mkdtemp(prefix="tierd-compat-", dir=base)))
        return directories[-1]

    def started(*, previous: bool, beside: ServeProcess | None = None, **settings: Any) -> ServeProcess:
        state = beside.state_dir if beside else fresh(None)
        shm = beside.shm_dir if beside else fresh("/dev/shm")
        served = ServeProcess(state, shm, {"spill_bytes_max": "64MiB"} | settings)
        if previous:
            served.python_path = str(DAEMON) + os.pathsep + str(CLIENT)
            del served.settings["http_address"]
        made.append(served.start())
        return served

    yield started
    for one in made:
        if one.process is not None and one.process.poll() is None:
            one.kill()
        print(f"--- log of {one.state_dir}\n{one.log}")
    for directory in directories:
        shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture
def valkey() -> Iterator[ExternalValkey]:
    directory = Path(tempfile.mkdtemp(prefix="tierd-valkey-"))
    with ExternalValkey(directory) as server:
        yield server
    shutil.rmtree(directory, ignore_errors=True)


def exercise(server: ServeProcess, mode: str, seed: int, *verbs: str, previous: bool) -> dict[str, Any]:
    """What a worker with a client of this or the previous release finds."""
    environment = dict(os.environ)
    if previous:
        environment["PYTHONPATH"] = str(CLIENT)
    script = str(Path(__file__).with_name("exercise.py"))
    run = subprocess.run(
        [sys.executable, script, server.address, mode, str(seed), *verbs], env=environment, capture_output=True,
        text=True, timeout=120, check=False)
    assert run.returncode == 0, run.stderr
    results: dict[str, Any] = json.loads(run.stdout)
    assert results.pop("client").startswith(str(CLIENT)) is previous
    assert results.pop("maps") is (mode == "require")
    return results


@pytest.mark.parametrize("which", ["client", "daemon"])
def test_one_side_is_of_the_previous_release(start: Start, which: str) -> None:
    """A client of the previous release works with this daemon, and this client with the previous daemon: by shared
    memory and by streams, and each reads what the other's client stored."""
    server = start(previous=which == "daemon", hbm_bytes="16MiB", spill="embedded")
    server.event("spill_up")
    old = which == "client"
    stored = {"put": ["STORED"], "evict": ["MOVED"]}
    assert exercise(server, "require", 1, "store", "check", previous=old) == stored | WHOLE
    assert exercise(server, "never", 2, "store", "check", previous=old) == stored | WHOLE
    if old:
        assert exercise(server, "require", 1, "check", previous=False) == WHOLE
        assert exercise(server, "require", 3, "store", previous=False) == stored
        assert exercise(server, "require", 3, "check", previous=True) == WHOLE


def test_an_upgrade_keeps_every_block(start: Start, valkey: ExternalValkey) -> None:
    """After kill -9 of the previous release's daemon this one serves all that it held, in memory and spilled; a
    worker of the previous release goes on."""
    old = start(previous=True, spill=valkey.unix_url)
    old.event("spill_up")
    exercise(old, "require", 1, "store", previous=True)
    old.kill()
    new = start(previous=False, beside=old, spill=valkey.unix_url)
    new.event("spill_up")
    assert exercise(new, "require", 1, "check", previous=True) == WHOLE
    assert exercise(new, "require", 1, "check", previous=False) == WHOLE


def test_a_downgrade_reads_no_wrong_byte(start: Start, valkey: ExternalValkey) -> None:
    """After this release's daemon the previous one serves what it understands, or starts empty: what it gives out
    is right, and it takes new blocks."""
    new = start(previous=False, spill=valkey.unix_url)
    new.event("spill_up")
    exercise(new, "require", 1, "store", previous=False)
    new.kill()
    old = start(previous=True, beside=new, spill=valkey.unix_url)
    old.event("spill_up")
    found = exercise(old, "require", 1, "store", "check", previous=True)
    assert found["prefix"] == BLOCKS
    assert found["get"] and found["get_into"] and found["lease"]


def test_a_downgrade_leaves_alone_what_is_looked_at(start: Start) -> None:
    """The previous release's daemon, which knows nothing of hazard pages, starts empty where a process still looks
    at blocks: these keep their bytes while others fill it."""
    new = start(previous=False, host_bytes="4MiB")
    layout = Layout.opaque(block_bytes=64 << 10, block_tokens=16)
    data = np.random.default_rng(1).integers(0, 256, (BLOCKS, 64 << 10), np.uint8)
    with Client(new.address, connect_timeout_s=20.0) as client:
        ns = client.namespace(layout)
        ns.put(ids := chain_ids(ns, range(16 * BLOCKS)), data)
        views = (lease := ns.acquire(ids)).views()
        new.kill()
        start(previous=True, beside=new, host_bytes="4MiB").event("started_empty")
        for chain in range(1, 8):
            ns.put(chain_ids(ns, range(1000 * chain, 1000 * chain + 16 * BLOCKS)), np.zeros_like(data))
        assert all(np.array_equal(view, block) for view, block in zip(views, data, strict=True))
        lease.release()


def test_the_fixture_is_what_the_script_makes() -> None:
    """The zip files are those of the commit that the script names, to the byte."""
    try:
        made = packed(PREVIOUS, "clients/tierd_client", "clients/"), packed(PREVIOUS, "tierd")
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("no git, or not with that commit")
    assert made == (CLIENT.read_bytes(), DAEMON.read_bytes())
