"""The Redis spill passes the contract of spill stores: over a Unix socket, over TCP, and through a proxy."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tierd.adapters.envelope import block_key
from tierd.adapters.spill_embedded import EmbeddedValkey
from tierd.adapters.spill_redis import RedisSpillStore
from tierd.ports import SpillStore
from tierd.testing.redis_proxy import RedisProxy
from tierd.testing.spill_contract import FINGERPRINT, SpillContract, identity_of
from tierd.testing.valkey import ExternalValkey, run_command

INSTANCE, MARKER = bytes(range(16)), bytes(range(16, 32))


def new_store(url: str, pool_size: int = 8) -> RedisSpillStore:
    return RedisSpillStore(url, instance=INSTANCE, marker=MARKER, prefix="contract", pool_size=pool_size)


class RedisContract(SpillContract):
    """`socket_path`: a second way to the server, past the store."""

    socket_path: Path

    @pytest.fixture(autouse=True)
    def _way_in(self, valkey: ExternalValkey) -> None:
        self.socket_path = valkey.socket_path

    def tamper(self, store: SpillStore, number: int, change: Callable[[bytes], bytes]) -> None:
        key = block_key(b"contract", FINGERPRINT, identity_of(number))
        value = run_command(self.socket_path, b"GET", key)
        assert isinstance(value, bytes)
        run_command(self.socket_path, b"SET", key, change(value))


class TestUnixSocket(RedisContract):
    @pytest.fixture
    def store(self, valkey: ExternalValkey) -> Iterator[SpillStore]:
        store = new_store(valkey.unix_url)
        yield store
        store.close()


class TestTcp(RedisContract):
    @pytest.fixture
    def store(self, valkey: ExternalValkey) -> Iterator[SpillStore]:
        store = new_store(valkey.tcp_url)
        yield store
        store.close()


class TestFewerConnectionsThanThreads(RedisContract):
    @pytest.fixture
    def store(self, valkey: ExternalValkey) -> Iterator[SpillStore]:
        store = new_store(valkey.unix_url, pool_size=2)
        yield store
        store.close()


class TestThroughProxy(RedisContract):
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
        self.socket_path = Path(urlsplit(embedded.url).path)
        run_command(self.socket_path, b"FLUSHALL")

    @pytest.fixture
    def store(self, embedded: EmbeddedValkey) -> Iterator[SpillStore]:
        store = new_store(embedded.url)
        yield store
        store.close()
