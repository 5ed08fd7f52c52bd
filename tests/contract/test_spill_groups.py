"""The Redis spill passes the contract on a cluster, on a primary under sentinels and over TLS, and bears what is
peculiar to each: slots that move, sentinels that do not answer, certificates of others."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import pytest
from redis.crc import key_slot
from redis_contract import PREFIX, RedisContract, new_store
from tls_files import TlsFiles

from tierd.adapters.envelope import block_key, statistics_key
from tierd.adapters.resp import Deadline
from tierd.adapters.spill_redis import RedisSpillStore
from tierd.core.errors import BlockVanished, SpillDown
from tierd.core.messages import Record
from tierd.ports import SpillStore
from tierd.testing.redis_proxy import RedisProxy
from tierd.testing.spill_contract import FINGERPRINT, get_new, identity_of, payload_of, put_random
from tierd.testing.valkey import ExternalValkey, SentinelProcess, free_port
from tierd.testing.valkey_groups import SentinelGroup, ValkeyCluster, await_true

DEADLINE_S = 5.0


def key_of(number: int) -> bytes:
    return block_key(PREFIX.encode(), FINGERPRINT, identity_of(number))


@pytest.fixture
def cluster_store(cluster: ValkeyCluster) -> Iterator[RedisSpillStore]:
    store = new_store(cluster.url)
    yield store
    store.close()


@pytest.fixture
def sentinel_store(sentinels: SentinelGroup) -> Iterator[RedisSpillStore]:
    store = new_store(sentinels.url)
    yield store
    store.close()


class TestCluster(RedisContract):
    @pytest.fixture
    def store(self, cluster: ValkeyCluster, cluster_store: RedisSpillStore) -> SpillStore:
        self.run = cluster.run
        return cluster_store


class TestSentinel(RedisContract):
    @pytest.fixture
    def store(self, sentinels: SentinelGroup, sentinel_store: RedisSpillStore) -> SpillStore:
        self.run = sentinels.primary().run
        return sentinel_store


class TestTls(RedisContract):
    """With a certificate on both sides, and fewer connections than threads."""

    @pytest.fixture
    def store(self, valkey: ExternalValkey, tmp_path: Path) -> Iterator[SpillStore]:
        self.run = valkey.run
        files = TlsFiles(tmp_path)
        with RedisProxy(valkey.unix_url, tls=files.server_context()) as proxy:
            store = new_store(f"{proxy.url}?{files.options()}", pool_size=2)
            yield store
            store.close()


# --- cluster ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", range(100))
def test_one_slot_for_a_block_and_its_statistics(number: int) -> None:
    """A block and its statistics lie in one hash slot, and so on one server."""
    assert key_slot(key_of(number)) == key_slot(statistics_key(key_of(number)))


def test_blocks_lie_on_all_nodes(cluster: ValkeyCluster, cluster_store: RedisSpillStore) -> None:
    """Blocks are spread over the primaries, one call asks about them all, in the order asked, and deletes them."""
    blocks = [put_random(cluster_store, number, 100)[0] for number in range(1, 61)]
    records = {block.identity: Record(touches=9, wall=2.0e9) for block in blocks}
    cluster_store.restate(FINGERPRINT, records, DEADLINE_S)
    sizes = [node.run(b"DBSIZE") for node in cluster.primaries()]
    assert len(sizes) == 3 and all(isinstance(size, int) and size > 5 for size in sizes)
    asked = [identity_of(number) for number in range(62)]
    found = cluster_store.look(FINGERPRINT, asked, DEADLINE_S)
    assert found[0] is None and found[-1] is None
    assert [one.identity for one in found if one] == asked[1:-1]
    assert {one.record.touches for one in found if one} == {9}
    cluster_store.unlink(FINGERPRINT, asked, DEADLINE_S)
    assert [node.run(b"DBSIZE") for node in cluster.primaries()] == [0, 0, 0]


def test_slot_that_moves(cluster: ValkeyCluster, cluster_store: RedisSpillStore) -> None:
    """Blocks of a slot are found and stored before, while and after it moves to another node, also by one that
    learnt of the nodes before."""
    put_random(cluster_store, 1)
    _, payload = put_random(cluster_store, 2)
    slot = b"%d" % key_slot(key_of(2))
    source, target = owner_and_other(cluster, int(slot))
    names = {node: node.run(b"CLUSTER", b"MYID") for node in (source, target)}
    target.run(b"CLUSTER", b"SETSLOT", slot, b"IMPORTING", names[source])  # type: ignore[arg-type]
    source.run(b"CLUSTER", b"SETSLOT", slot, b"MIGRATING", names[target])  # type: ignore[arg-type]
    assert np.array_equal(get_new(cluster_store, 2)[1], payload)
    source.run(b"MIGRATE", b"127.0.0.1", b"%d" % target.port, key_of(2), b"0", b"5000")
    assert np.array_equal(get_new(cluster_store, 2)[1], payload), "by ASK"
    assert cluster_store.look(FINGERPRINT, [identity_of(1), identity_of(2)], DEADLINE_S).count(None) == 0
    cluster_store.unlink(FINGERPRINT, [identity_of(2)], DEADLINE_S)
    with pytest.raises(BlockVanished):
        get_new(cluster_store, 2)
    _, payload = put_random(cluster_store, 2, 5 << 20)
    for node in (target, source):
        node.run(b"CLUSTER", b"SETSLOT", slot, b"NODE", names[target])  # type: ignore[arg-type]
    assert np.array_equal(get_new(cluster_store, 2, 5 << 20)[1], payload), "by MOVED"
    assert cluster_store.look(FINGERPRINT, [identity_of(2)], DEADLINE_S) != [None]
    put_random(cluster_store, 2)
    assert cluster_store.probe(DEADLINE_S).detail.count("down") == 0


def owner_and_other(cluster: ValkeyCluster, slot: int) -> tuple[ExternalValkey, ExternalValkey]:
    owner = next(node for node in cluster.primaries() if holds(node, slot))
    return owner, next(node for node in cluster.primaries() if node is not owner)


def holds(node: ExternalValkey, slot: int) -> bool:
    found = node.run(b"CLUSTER", b"COUNTKEYSINSLOT", b"%d" % slot)
    return isinstance(found, int) and found > 0


def test_one_node_is_enough_to_begin_with(cluster: ValkeyCluster) -> None:
    """A URL may name any node, and nodes that are not there."""
    for node in cluster.nodes:
        store = new_store(f"redis+cluster://127.0.0.1:1,127.0.0.1:{node.port}")
        put_random(store, 1)
        get_new(store, 1)
        store.close()


def test_cluster_by_the_url_of_one_server(cluster: ValkeyCluster) -> None:
    """A node of a cluster under a redis:// URL is SpillDown that says how the URL begins."""
    store = new_store(cluster.primaries()[0].tcp_url)
    with pytest.raises(SpillDown, match=r"redis\+cluster://"):
        for number in range(50):
            put_random(store, number, 100)
    store.close()


def test_no_cluster(valkey: ExternalValkey) -> None:
    """One server under a redis+cluster:// URL is SpillDown in the server's own words."""
    store = new_store(valkey.tcp_url.replace("redis://", "redis+cluster://"))
    with pytest.raises(SpillDown, match="cluster support disabled"):
        put_random(store, 1)
    store.close()


# --- sentinel ---------------------------------------------------------------------------------------------


def test_sentinels_that_do_not_answer(sentinels: SentinelGroup) -> None:
    """One sentinel that answers is enough, whichever it is, beside one that nobody listens for."""
    for sentinel in sentinels.sentinels:
        store = new_store(f"redis+sentinel://127.0.0.1:1,127.0.0.1:{sentinel.port}/kv")
        put_random(store, 1)
        get_new(store, 1)
        store.close()


def test_unknown_primary(sentinels: SentinelGroup) -> None:
    """A name that the sentinels do not know is SpillDown with the name."""
    store = new_store(sentinels.url.replace("/kv", "/other"))
    with pytest.raises(SpillDown, match="no primary called other"):
        put_random(store, 1)
    store.close()


def test_database_under_sentinel(sentinels: SentinelGroup) -> None:
    """The second part of the path is the number of the database."""
    store = new_store(f"{sentinels.url}/3")
    _, payload = put_random(store, 1)
    assert sentinels.primary().run(b"DBSIZE") == 0
    assert np.array_equal(get_new(store, 1)[1], payload)
    store.close()


# --- TLS --------------------------------------------------------------------------------------------------


def test_without_a_certificate(valkey: ExternalValkey, tmp_path: Path) -> None:
    """A server that wants a client's certificate gets no block from one that has none."""
    files = TlsFiles(tmp_path)
    with RedisProxy(valkey.unix_url, tls=files.server_context()) as proxy:
        store = new_store(f"{proxy.url}?ssl_ca_certs={files.ca}")
        with pytest.raises(SpillDown):
            put_random(store, 1)
        assert not proxy.commands[b"SET"]
        store.close()


@pytest.mark.parametrize("checked", [True, False])
def test_name_in_the_certificate(valkey: ExternalValkey, tmp_path: Path, checked: bool) -> None:
    """A certificate of another host is refused, unless ssl_check_hostname=false says that it may be."""
    files = TlsFiles(tmp_path, host="elsewhere.example")
    with RedisProxy(valkey.unix_url, tls=files.server_context()) as proxy:
        store = new_store(f"{proxy.url}?{files.options()}" + ("" if checked else "&ssl_check_hostname=false"))
        if checked:
            with pytest.raises(SpillDown, match="certificate"):
                put_random(store, 1)
        else:
            assert np.array_equal(put_random(store, 1, 5 << 20)[1], payload_of(1, 5 << 20))
            assert np.array_equal(get_new(store, 1, 5 << 20)[1], payload_of(1, 5 << 20))
        store.close()


def test_tls_in_a_cluster(tmp_path: Path) -> None:
    """The nodes that a cluster names are spoken to over TLS as the first one is."""
    files = TlsFiles(tmp_path)
    with (
        ExternalValkey(tmp_path, cluster_enabled="yes", cluster_port=str(free_port())) as node,
        RedisProxy(node.unix_url, tls=files.server_context()) as first,
        RedisProxy(node.unix_url, tls=files.server_context()) as named,
    ):
        node.run(b"CLUSTER", b"ADDSLOTSRANGE", b"0", b"16383")
        node.run(b"CONFIG", b"SET", b"cluster-announce-port", b"%d" % port_of(named))
        await_true(lambda: b"cluster_state:ok" in node.run(b"CLUSTER", b"INFO"), Deadline(10.0))  # type: ignore[operator]
        store = new_store(f"rediss+cluster://127.0.0.1:{port_of(first)}?{files.options()}")
        assert np.array_equal(put_random(store, 1, 1 << 20)[1], get_new(store, 1, 1 << 20)[1])
        assert (first.commands[b"SET"], named.commands[b"SET"]) == (0, 1)
        store.close()


def test_tls_under_sentinel(tmp_path: Path) -> None:
    """Sentinels, and the primary that they name, are spoken to over TLS."""
    files = TlsFiles(tmp_path)
    sentinel = SentinelProcess(tmp_path / "sentinel", "kv", 500)
    with (
        ExternalValkey(tmp_path) as server,
        RedisProxy(server.unix_url, tls=files.server_context()) as primary,
        RedisProxy(f"redis://127.0.0.1:{sentinel.port}", tls=files.server_context()) as door,
    ):
        sentinel.watch(port_of(primary))
        with sentinel:
            await_true(lambda: bool(sentinel.about()), Deadline(10.0))
            store = new_store(f"rediss+sentinel://127.0.0.1:{port_of(door)}/kv?{files.options()}")
            assert np.array_equal(put_random(store, 1, 1 << 20)[1], get_new(store, 1, 1 << 20)[1])
            assert door.commands[b"SENTINEL"] == primary.commands[b"SET"] == 1
            store.close()


def port_of(proxy: RedisProxy) -> int:
    port = urlsplit(proxy.url).port
    assert port is not None
    return port
