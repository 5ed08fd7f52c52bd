"""The Redis spill passes the contract of spill stores: over a Unix socket, over TCP, and through a proxy."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from redis_contract import RedisContract, new_store

from tierd.adapters.spill_embedded import EmbeddedValkey
from tierd.ports import SpillStore
from tierd.testing.redis_proxy import RedisProxy
from tierd.testing.valkey import ExternalValkey, run_command


class ServerContract(RedisContract):
    """On one server."""

    @pytest.fixture(autouse=True)
    def _way_in(self, valkey: ExternalValkey) -> None:
        self.run = valkey.run


class TestUnixSocket(ServerContract):
    @pytest.fixture
    def store(self, valkey: ExternalValkey) -> Iterator[SpillStore]:
        store = new_store(valkey.unix_url)
        yield store
        store.close()


class TestTcp(ServerContract):
    @pytest.fixture
    def store(self, valkey: ExternalValkey) -> Iterator[SpillStore]:
        store = new_store(valkey.tcp_url)
        yield store
        store.close()


class TestFewerConnectionsThanThreads(ServerContract):
    @pytest.fixture
    def store(self, valkey: ExternalValkey) -> Iterator[SpillStore]:
        store = new_store(valkey.unix_url, pool_size=2)
        yield store
        store.close()


class TestThroughProxy(ServerContract):
    @pytest.fixture
    def store(self, valkey: ExternalValkey) -> Iterator[SpillStore]:
        with RedisProxy(valkey.unix_url) as proxy:
            store = new_store(proxy.url)
            yield store
            store.close()


@pytest.fixture(scope="module")
def embedded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedValkey]:
    with EmbeddedValkey(tmp_path_factory.mktemp("embedded"), 256 << 20) as server:
        yield server


class TestEmbedded(RedisContract):
    """The server that the daemon starts for itself."""

    @pytest.fixture(autouse=True)
    def _way_in(self, embedded: EmbeddedValkey) -> None:
        self.run = partial(run_command, Path(urlsplit(embedded.url).path))
        self.run(b"FLUSHALL")

    @pytest.fixture
    def store(self, embedded: EmbeddedValkey) -> Iterator[SpillStore]:
        store = new_store(embedded.url)
        yield store
        store.close()
