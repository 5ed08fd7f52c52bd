"""A daemon over a cluster, or over a primary under sentinels, that loses a primary under load."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from spill_load import (
    BUSY_S,
    LAYOUT,
    NOT_SERVING,
    SERVING,
    assert_readable,
    await_health,
    put_and_spill,
    under_load,
)

from tierd.adapters.resp import Deadline
from tierd.testing.serve import StartDaemon
from tierd.testing.valkey import ExternalValkey
from tierd.testing.valkey_groups import SentinelGroup, ValkeyCluster, await_true
from tierd_client import Client

SPILLED = range(1_000_000, 1_000_060)
NOTICED_WITHIN_S = 5.0 + BUSY_S
FAILS_OVER_WITHIN_S = 20.0
BACK_WITHIN_S = 5.0 + BUSY_S

Group = ValkeyCluster | SentinelGroup


@pytest.fixture(params=[ValkeyCluster, SentinelGroup], ids=["cluster", "sentinels"])
def group(request: pytest.FixtureRequest) -> Iterator[Group]:
    directory = Path(tempfile.mkdtemp(prefix="tierd-group-"))
    with request.param(directory) as group:
        yield group
    shutil.rmtree(directory, ignore_errors=True)


def pair_of(group: Group) -> tuple[ExternalValkey, ExternalValkey]:
    """A primary and its replica, of a group that has not failed over."""
    members = group.servers if isinstance(group, SentinelGroup) else group.nodes
    return members[0], members[-1]


@pytest.mark.slow
def test_a_lost_primary_costs_hits_and_nothing_else(daemon: StartDaemon, group: Group) -> None:
    """When a primary is killed under load health says so, each call ends in its time and with the right bytes;
    within five seconds of its replica's taking over the tier serves what was spilled before, and takes more."""
    server = daemon(
        spill=group.url, host_bytes="4MiB", spill_bytes_max="1GiB", catalog_rows=1 << 16, spill_grace_s=300)
    with Client(server.address) as client:
        ns = client.namespace(LAYOUT)
        await_health(server, SERVING, NOTICED_WITHIN_S)
        put_and_spill(ns, SPILLED)
        primary, heir = pair_of(group)
        with under_load(server) as loads:
            for load in loads:
                load.progress(100)
            primary.stop()
            await_health(server, NOT_SERVING, NOTICED_WITHIN_S)
            await_true(lambda: group.takes_over(heir), Deadline(FAILS_OVER_WITHIN_S))
            await_health(server, SERVING, BACK_WITHIN_S)
            for load in loads:
                load.progress(50)
        assert_readable(ns, list(SPILLED), least=len(SPILLED))
        put_and_spill(ns, range(SPILLED.stop, SPILLED.stop + 60))
