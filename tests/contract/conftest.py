"""Real Valkey servers for all contract tests of a run: one alone, a cluster, a primary under sentinels. A test
finds them empty and whole."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tierd.testing.valkey import ExternalValkey
from tierd.testing.valkey_groups import SentinelGroup, ValkeyCluster


@pytest.fixture(scope="session")
def valkey_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ExternalValkey]:
    directory: Path = tmp_path_factory.mktemp("valkey")
    with ExternalValkey(directory, maxmemory="512mb") as server:
        yield server


@pytest.fixture
def valkey(valkey_process: ExternalValkey) -> ExternalValkey:
    valkey_process.run(b"FLUSHALL")
    return valkey_process


@pytest.fixture(scope="session")
def cluster_processes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ValkeyCluster]:
    with ValkeyCluster(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


@pytest.fixture
def cluster(cluster_processes: ValkeyCluster) -> ValkeyCluster:
    cluster_processes.flush()
    return cluster_processes


@pytest.fixture(scope="session")
def sentinel_processes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SentinelGroup]:
    with SentinelGroup(tmp_path_factory.mktemp("sentinel")) as group:
        yield group


@pytest.fixture
def sentinels(sentinel_processes: SentinelGroup) -> SentinelGroup:
    sentinel_processes.flush()
    return sentinel_processes
