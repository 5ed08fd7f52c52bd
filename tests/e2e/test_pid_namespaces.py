"""A daemon that cannot see its clients' processes: what they still look at is theirs all the same."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tierd.testing.serve import ServeProcess, StartDaemon
from tierd_client import Client, Layout, Tier, Unavailable, plain_ids
from tierd_client.deadline import Deadline
from tierd_client.namespace import Namespace

SIZE = 64 << 10
LAYOUT = Layout.opaque(block_bytes=SIZE, block_tokens=16)
APART = ("unshare", "--pid", "--fork", "--kill-child")


def _can_unshare() -> bool:
    return shutil.which("unshare") is not None and subprocess.run([*APART, "true"], check=False).returncode == 0


pytestmark = pytest.mark.skipif(not _can_unshare(), reason="pid namespaces cannot be made here")


@pytest.fixture
def server(daemon: StartDaemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ServeProcess:
    """A daemon in a pid namespace of its own."""
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec {" ".join(APART)} {sys.executable} "$@"\n')
    python.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(python))
    return daemon(host_bytes="1MiB", spill="none")


def _signal(server: ServeProcess, number: int) -> None:
    children = Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text().split()
    os.kill(int(children[0]), number)


def _overwrite(ns: Namespace, seed: int) -> None:
    """Puts more than fits."""
    for start in range(0, 32, 4):
        ids = plain_ids(ns.layout, [b"%d-%d" % (seed, start + place) for place in range(4)])
        ns.put(ids, np.full((4, SIZE), seed, np.uint8))


def test_a_socket_that_failed_is_not_the_end_of_its_process(server: ServeProcess) -> None:
    """A client that gives up waiting for the attach socket keeps what it looks at until it lets go; then all room
    is there again."""
    with Client(server.address, shared_memory="require") as other, Client(server.address) as client:
        ns, ids = client.namespace(LAYOUT), plain_ids(LAYOUT, [b"held"])
        ns.put(ids, np.full((1, SIZE), 7, np.uint8))
        lease = ns.acquire(ids)
        (view,) = lease.views()
        memory = client.connection.current().memory
        assert view is not None and memory is not None
        _signal(server, signal.SIGSTOP)
        with pytest.raises(Unavailable):
            memory.refresh(Deadline(0.2))
        _signal(server, signal.SIGCONT)
        for seed in (1, 2):
            _overwrite(other.namespace(LAYOUT), seed)
            assert (view == 7).all()
        assert ns.lookup(ids).prefix == 1  # in a session of its own
        lease.release()
        assert other.admin.occupancy().tiers[Tier.HOST].leased_blocks == 0
        assert other.admin.occupancy().sessions == 2


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL])
def test_what_is_looked_at_outlives_daemons(server: ServeProcess, end: signal.Signals) -> None:
    """After SIGTERM or kill -9 the next daemon hands out nothing that a client which it cannot see looks at; when
    the client has let go, all room is there again."""
    with Client(server.address, connect_timeout_s=20.0) as client:
        ns, ids = client.namespace(LAYOUT), plain_ids(LAYOUT, [b"held"])
        ns.put(ids, np.full((1, SIZE), 7, np.uint8))
        with ns.acquire(ids) as lease:
            (view,) = lease.views()
            _signal(server, end)
            server.wait()
            server.start()
            for seed in (1, 2):
                _overwrite(ns, seed)
                assert view is not None and (view == 7).all()
        assert client.admin.occupancy().sessions == 1
        assert client.admin.occupancy().tiers[Tier.HOST].leased_blocks == 0
