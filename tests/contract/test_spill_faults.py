"""What the Redis spill does when the server, or the way to it, is unwell. Every fault is a real one on a wire."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from tierd.adapters.envelope import block_key, marker_key
from tierd.adapters.spill_redis import RedisSpillStore
from tierd.core.errors import BlockDamaged, BlockVanished, SpillDown, SpillError, SpillFull, SpillLate, SpillRefused
from tierd.ports import SpillStore, Wanted
from tierd.testing.redis_proxy import Mode, RedisProxy
from tierd.testing.spill_contract import FINGERPRINT, block_of, get_new, identity_of, payload_of, put_random
from tierd.testing.valkey import ExternalValkey

INSTANCE, MARKER = bytes(range(16)), bytes(range(16, 32))
GRACE_S = 0.1
BUSY_S = 1.0
"""Where a call is made once: a busy machine may be late by so much, and what waits wrongly takes longer."""
"""By so much a call may pass its deadline (ports.py)."""
BIG = 5 << 20


def new_store(url: str, pool_size: int = 8, instance: bytes = INSTANCE, marker: bytes = MARKER) -> RedisSpillStore:
    return RedisSpillStore(url, instance=instance, marker=marker, prefix="faults", pool_size=pool_size)


@pytest.fixture
def proxy(valkey: ExternalValkey) -> Iterator[RedisProxy]:
    with RedisProxy(valkey.unix_url) as proxy:
        yield proxy


@pytest.fixture
def store(proxy: RedisProxy) -> Iterator[RedisSpillStore]:
    store = new_store(proxy.url)
    yield store
    store.close()


@pytest.fixture
def direct(valkey: ExternalValkey) -> Iterator[RedisSpillStore]:
    store = new_store(valkey.unix_url)
    yield store
    store.close()


def all_calls(store: SpillStore, deadline_s: float) -> dict[str, Callable[[], object]]:
    payload = payload_of(1, BIG)
    return {
        "put": lambda: store.put(block_of(1, payload), payload, deadline_s),
        "get": lambda: store.get(FINGERPRINT, identity_of(1), np.empty(BIG, np.uint8), deadline_s),
        "unlink": lambda: store.unlink(FINGERPRINT, [identity_of(1)], deadline_s),
        "probe": lambda: store.probe(deadline_s),
    }


def assert_down_in_time(
    store: SpillStore, fail: Callable[[], None], heal: Callable[[], None], call: Callable[[], object],
    deadline_s: float,
) -> None:
    """Each of three calls begins on a connection that worked. The best counts: the machine itself may be late."""
    took = []
    for _ in range(3):
        store.probe(5.0)
        put_random(store, 9)
        fail()
        start = time.monotonic()
        with pytest.raises(SpillDown):
            call()
        took.append(time.monotonic() - start)
        heal()
    assert min(took) < deadline_s + GRACE_S


def put_random_within(store: SpillStore, deadline_s: float) -> None:
    payload = payload_of(1, BIG)
    store.put(block_of(1, payload), payload, deadline_s)


def ping_count(proxy: RedisProxy) -> int:
    """Connections made so far: each begins with one PING."""
    return proxy.commands[b"PING"]


# --- time ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["put", "get", "unlink", "probe"])
def test_black_hole(proxy: RedisProxy, store: RedisSpillStore, name: str) -> None:
    """A server that takes everything and answers nothing holds no call beyond its deadline, nor the next one."""
    call = all_calls(store, 0.2)[name]
    assert_down_in_time(
        store, lambda: proxy.switch(Mode.BLACK_HOLE), lambda: proxy.switch(Mode.PASS), call, 0.2
    )
    _, payload = put_random(store, 5)
    assert np.array_equal(get_new(store, 5)[1], payload)


def test_black_hole_from_the_start(proxy: RedisProxy, store: RedisSpillStore) -> None:
    """A server that does not even answer the handshake holds no call beyond its deadline."""
    proxy.switch(Mode.BLACK_HOLE)
    start = time.monotonic()
    with pytest.raises(SpillDown, match="deadline"):
        put_random_within(store, 0.2)
    assert time.monotonic() - start < 0.2 + BUSY_S


def test_connect_timeout(proxy: RedisProxy) -> None:
    """A connection gets no more than its own time limit, however patient the call is."""
    proxy.switch(Mode.BLACK_HOLE)
    store = RedisSpillStore(proxy.url, instance=INSTANCE, marker=MARKER, connect_timeout_s=0.2)
    start = time.monotonic()
    with pytest.raises(SpillDown, match="deadline"):
        store.probe(30.0)
    assert time.monotonic() - start < 5.0
    store.close()


@pytest.mark.parametrize("name", ["put", "get"])
def test_frozen_server(valkey: ExternalValkey, direct: RedisSpillStore, name: str) -> None:
    """A stopped server process, whose socket buffers fill up, holds no call beyond its deadline."""
    put_random(direct, 1, BIG)
    try:
        assert_down_in_time(direct, valkey.freeze, valkey.thaw, all_calls(direct, 0.2)[name], 0.2)
    finally:
        valkey.thaw()
    assert np.array_equal(get_new(direct, 1, BIG)[1], payload_of(1, BIG))


def test_trickle(proxy: RedisProxy, store: RedisSpillStore) -> None:
    """A reply that keeps coming in small pieces does not stretch the deadline."""
    put_random(store, 1, BIG)
    assert_down_in_time(
        store, lambda: proxy.switch(Mode.TRICKLE, count=4096, delay_s=0.02), lambda: proxy.switch(Mode.PASS),
        all_calls(store, 0.3)["get"], 0.3,
    )


def test_late_reply_is_nobody_elses(proxy: RedisProxy, store: RedisSpillStore) -> None:
    """A reply that comes after its caller gave up is not read by the next call."""
    put_random(store, 1)
    _, payload = put_random(store, 2)
    proxy.switch(Mode.DELAY, delay_s=0.2)
    with pytest.raises(SpillDown, match="deadline"):
        store.get(FINGERPRINT, identity_of(1), np.empty(4096, np.uint8), 0.05)
    proxy.switch(Mode.PASS)
    for _ in range(10):
        assert np.array_equal(get_new(store, 2)[1], payload)


def stored(store: RedisSpillStore, count: int) -> list[Wanted]:
    """So many blocks, each a portion of a pipeline of its own."""
    for number in range(count):
        put_random(store, number, BIG)
    return [Wanted(FINGERPRINT, identity_of(number), np.empty(BIG, np.uint8)) for number in range(count)]


def test_each_has_its_own_deadline(proxy: RedisProxy, store: RedisSpillStore) -> None:
    """Blocks that are got together may take longer than the deadline, as long as none alone does."""
    wanted = stored(store, 5)
    proxy.switch(Mode.DELAY, delay_s=0.2)
    began = time.monotonic()
    found = dict(store.get_all(wanted, 0.8))
    assert time.monotonic() - began > 0.8
    assert [type(found[n]) for n in range(5)] == [int] * 5


def test_what_came_before_the_end(proxy: RedisProxy, store: RedisSpillStore) -> None:
    """What a server answered before it fell silent is known before the others have failed, by one deadline."""
    wanted = stored(store, 5)
    answers = store.get_all(wanted, 0.3)
    first, checksum = next(answers)
    proxy.switch(Mode.BLACK_HOLE)
    began = time.monotonic()
    left = dict(answers)
    assert time.monotonic() - began < 2 * 0.3 + BUSY_S
    assert (first, type(checksum), set(left)) == (0, int, {1, 2, 3, 4})
    assert [type(left[n]) for n in (3, 4)] == [SpillLate] * 2
    assert np.array_equal(wanted[0].out, payload_of(0, BIG))


def test_blocks_are_drawn_when_they_can_be_begun(store: RedisSpillStore) -> None:
    """A call draws no more blocks than it has under way, and one; each that it draws is answered."""
    wanted = stored(store, 5)
    drawn: list[int] = []

    def supply() -> Iterator[Wanted]:
        for number, one in enumerate(wanted):
            drawn.append(number)
            yield one

    answers = store.get_all(supply(), 5.0)
    found = dict([next(answers)])
    assert drawn == [0, 1, 2]
    found.update(answers)
    assert [type(found[n]) for n in range(5)] == [int] * 5


def test_pool_exhausted(proxy: RedisProxy) -> None:
    """A block that finds every connection lent waits no longer than its deadline and says what it waited for."""
    store = new_store(proxy.url, pool_size=1)
    put_random(store, 1, BIG)
    proxy.switch(Mode.BLACK_HOLE)
    with ThreadPoolExecutor(1) as pool:
        holder = pool.submit(all_calls(store, 2.0)["get"])
        assert proxy.wait_for(b"GET", 1, 5.0)
        start = time.monotonic()
        with pytest.raises(SpillDown, match="pool exhausted"):
            all_calls(store, 0.1)["get"]()
        assert time.monotonic() - start < 0.1 + BUSY_S
        assert isinstance(holder.exception(), SpillDown)
    proxy.switch(Mode.PASS)
    get_new(store, 1, BIG)


def test_small_commands_do_not_wait_for_blocks(proxy: RedisProxy) -> None:
    """While blocks keep all connections for blocks busy, probes and looks are answered: who is busy is not down."""
    store = new_store(proxy.url, pool_size=1)
    store.probe(5.0)
    block, payload = put_random(store, 1, BIG)
    proxy.switch(Mode.TRICKLE, count=128 << 10, delay_s=0.05)
    with ThreadPoolExecutor(1) as pool:
        holder = pool.submit(get_new, store, 1, BIG)
        assert proxy.wait_for(b"GET", 2, 5.0)
        assert store.probe(5.0).same
        assert store.look(FINGERPRINT, [identity_of(1)], 5.0) == [block]
        assert not holder.done()
        assert np.array_equal(holder.result()[1], payload)
    store.close()


def test_name_that_does_not_resolve_in_time(valkey: ExternalValkey, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hanging name server holds no call beyond its deadline, and never more threads than the pool is large."""
    resolve, answer, asked = socket.getaddrinfo, threading.Event(), []

    def hang(*args: object, **named: object) -> object:
        asked.append(1)
        assert answer.wait(30.0)
        return resolve("127.0.0.1", valkey.port, 0, socket.SOCK_STREAM)

    monkeypatch.setattr(socket, "getaddrinfo", hang)
    store = new_store(f"redis://spill.example:{valkey.port}", pool_size=2)
    for problem in ("deadline", "deadline", "pool exhausted"):
        start = time.monotonic()
        with pytest.raises(SpillDown, match=problem):
            store.get(FINGERPRINT, identity_of(1), np.empty(8, np.uint8), 0.1)
        assert time.monotonic() - start < 0.1 + BUSY_S
    assert len(asked) == 2
    answer.set()
    put_random(store, 1)
    store.close()


# --- connections that break -----------------------------------------------------------------------------


@pytest.mark.parametrize("after_bytes", [0, 1, 100, 255, 256, 257, 4096, BIG + 255])
def test_cut_in_the_middle_of_a_reply(proxy: RedisProxy, store: RedisSpillStore, after_bytes: int) -> None:
    """Half a reply is SpillDown, never a block, and the next call gets its own whole reply."""
    _, payload = put_random(store, 1, BIG)
    proxy.switch(Mode.CUT_DOWNLOAD, count=after_bytes)
    with pytest.raises(SpillDown):
        get_new(store, 1, BIG)
    proxy.switch(Mode.PASS)
    assert np.array_equal(get_new(store, 1, BIG)[1], payload)


@pytest.mark.parametrize("after_bytes", [0, 1, 256, 4096, BIG])
def test_cut_in_the_middle_of_an_upload(proxy: RedisProxy, store: RedisSpillStore, after_bytes: int) -> None:
    """Half an uploaded block is SpillDown, and no block is there afterwards."""
    store.probe(5.0)
    proxy.switch(Mode.CUT_UPLOAD, count=after_bytes)
    with pytest.raises(SpillDown):
        put_random(store, 1, BIG)
    proxy.switch(Mode.PASS)
    with pytest.raises(BlockVanished):
        get_new(store, 1, BIG)


def test_refused_and_back(proxy: RedisProxy, store: RedisSpillStore) -> None:
    """A server that is gone is SpillDown at once; when it is back the next call uses it."""
    _, payload = put_random(store, 1)
    proxy.switch(Mode.REFUSE)
    for _ in range(10):  # more often than the pool has connections
        with pytest.raises(SpillDown, match="cannot be reached"):
            get_new(store, 1)
    proxy.switch(Mode.PASS)
    assert np.array_equal(get_new(store, 1)[1], payload)


def test_idle_connections_that_the_server_closed(proxy: RedisProxy, store: RedisSpillStore) -> None:
    """A connection that ended while nobody used it costs no call."""
    _, payload = put_random(store, 1)
    for _ in range(3):
        proxy.cut_connections()
        assert np.array_equal(get_new(store, 1)[1], payload)


def test_restarted_server(tmp_path_factory: pytest.TempPathFactory) -> None:
    """A server that lost everything is used again at once, and a probe tells that it is not the same."""
    with ExternalValkey(tmp_path_factory.mktemp("restart")) as server:
        store = new_store(server.unix_url)
        store.probe(5.0)
        assert store.probe(5.0).same
        put_random(store, 1)
        server.stop()
        with pytest.raises(SpillDown):
            store.probe(1.0)
        server.start()
        assert not store.probe(5.0).same
        with pytest.raises(BlockVanished):
            get_new(store, 1)
        put_random(store, 1)
        store.close()


# --- servers that refuse --------------------------------------------------------------------------------


def test_out_of_memory(tmp_path_factory: pytest.TempPathFactory) -> None:
    """A full server is SpillFull to puts, still serves what it holds, and takes puts again after an unlink."""
    with ExternalValkey(tmp_path_factory.mktemp("full"), maxmemory="32mb") as server:
        store = new_store(server.unix_url)
        with pytest.raises(SpillFull, match="maxmemory"):
            for number in range(100):
                put_random(store, number, 1 << 20)
        assert number > 20
        get_new(store, 0, 1 << 20)
        store.unlink(FINGERPRINT, [identity_of(0), identity_of(1)], 5.0)
        put_random(store, 500, 1 << 20)
        store.close()


def test_refusals_keep_the_connection(proxy: RedisProxy, store: RedisSpillStore) -> None:
    """A server that answers with an error is not connected to anew: only a broken reply costs a connection."""
    put_random(store, 2)
    connections = ping_count(proxy)
    proxy.switch(Mode.OUT_OF_MEMORY)
    for _ in range(5):
        with pytest.raises(SpillFull):
            put_random(store, 1, BIG)
        with pytest.raises(BlockVanished):
            get_new(store, 1, BIG)
    assert ping_count(proxy) == connections


def test_every_nth(proxy: RedisProxy, store: RedisSpillStore) -> None:
    """A put is acknowledged exactly when the server acknowledged it."""
    proxy.switch(Mode.FAIL_SET, count=3)
    outcomes = []
    for number in range(9):
        try:
            put_random(store, number)
        except SpillRefused:
            outcomes.append(number)
    assert outcomes == [2, 5, 8]
    for number in range(9):
        if number in outcomes:
            with pytest.raises(BlockVanished):
                get_new(store, number)
        else:
            get_new(store, number)


@pytest.mark.parametrize(
    ("line", "error", "words"),
    [
        ("LOADING Redis is loading the dataset in memory", SpillDown, "loading"),
        ("MISCONF Errors writing to the AOF file", SpillDown, "cannot save"),
        ("NOREPLICAS Not enough good replicas to write", SpillDown, "too few replicas"),
        ("MOVED 3999 127.0.0.1:6381", SpillDown, "cluster"),
        ("OOM command not allowed", SpillFull, "memory"),
        ("NOPERM User default has no permissions", SpillDown, "may not"),
        ("NEWWORD nobody knows it yet", SpillRefused, "NEWWORD nobody knows it yet"),
    ],
)
def test_error_replies(
    proxy: RedisProxy, store: RedisSpillStore, line: str, error: type[SpillError], words: str
) -> None:
    """Each error reply of a server is one of the five errors, and says what is wrong."""
    proxy.switch(Mode.FAIL_SET, error=line)
    with pytest.raises(error, match=words):
        put_random(store, 1)


def test_real_replica(valkey: ExternalValkey, proxy: RedisProxy, store: RedisSpillStore) -> None:
    """A server that became a replica is SpillDown, and all connections to it are made anew afterwards."""
    put_random(store, 1)
    with ThreadPoolExecutor(3) as pool:
        proxy.switch(Mode.DELAY, delay_s=0.05)
        list(pool.map(lambda _: get_new(store, 1), range(3)))
        proxy.switch(Mode.PASS)
    connections = ping_count(proxy)
    assert connections >= 2
    valkey.run(b"REPLICAOF", b"127.0.0.1", b"1")
    try:
        with pytest.raises(SpillDown, match="read-only replica"):
            put_random(store, 2)
        get_new(store, 1)
        assert ping_count(proxy) == connections + 1
        valkey.run(b"CONFIG", b"SET", b"replica-serve-stale-data", b"no")
        with pytest.raises(SpillDown, match="lost its primary"):
            get_new(store, 1)
    finally:
        valkey.run(b"CONFIG", b"SET", b"replica-serve-stale-data", b"yes")
        valkey.run(b"REPLICAOF", b"NO", b"ONE")
    put_random(store, 2)


def test_probe_of_a_server_that_only_reads(valkey: ExternalValkey, direct: RedisSpillStore) -> None:
    """A server that knows our marker and takes no writes is down to a probe already, not from store to store; one
    that is full is up, for what it holds."""
    direct.probe(5.0)
    put_random(direct, 1)
    valkey.run(b"REPLICAOF", b"127.0.0.1", b"1")
    try:
        with pytest.raises(SpillDown, match="read-only replica"):
            direct.probe(5.0)
    finally:
        valkey.run(b"REPLICAOF", b"NO", b"ONE")
    valkey.run(b"CONFIG", b"SET", b"maxmemory", b"1mb")
    try:
        with pytest.raises(SpillFull):
            put_random(direct, 2)
        assert direct.probe(5.0).same
        get_new(direct, 1)
    finally:
        valkey.run(b"CONFIG", b"SET", b"maxmemory", b"512mb")


def test_block_larger_than_the_server_takes(valkey: ExternalValkey, direct: RedisSpillStore) -> None:
    """A server that hangs up on a large block is quoted with its reason, and is not down for others."""
    valkey.run(b"CONFIG", b"SET", b"proto-max-bulk-len", b"1mb")
    try:
        with pytest.raises(SpillRefused, match="invalid bulk length"):
            put_random(direct, 1, BIG)
    finally:
        valkey.run(b"CONFIG", b"SET", b"proto-max-bulk-len", b"512mb")
    put_random(direct, 1, BIG)


def test_key_of_another_type(valkey: ExternalValkey, direct: RedisSpillStore) -> None:
    """A key that holds a list is a damaged block, and a put replaces it."""
    valkey.run(b"LPUSH", block_key(b"faults", FINGERPRINT, identity_of(1)), b"x")
    with pytest.raises(BlockDamaged, match="not a block"):
        get_new(direct, 1)
    put_random(direct, 1)
    get_new(direct, 1)


def test_put_that_is_not_acknowledged() -> None:
    """Whatever is answered to a put, only OK makes it a success."""

    def answer(server: socket.socket) -> None:
        peer, _ = server.accept()
        with peer:
            peer.recv(100)
            peer.sendall(b"+PONG\r\n")
            peer.recv(10_000)
            peer.sendall(b"+QUEUED\r\n")

    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor(1) as pool:
        answered = pool.submit(answer, server)
        store = new_store(f"redis://127.0.0.1:{server.getsockname()[1]}")
        with pytest.raises(SpillDown, match="QUEUED"):
            put_random(store, 1, 100)
        answered.result(5.0)
        store.close()


# --- marker ---------------------------------------------------------------------------------------------


def test_markers_of_two_instances(valkey: ExternalValkey) -> None:
    """Instances that share a server each find their own marker."""
    for instance in (b"a" * 16, b"b" * 16):
        store = new_store(valkey.unix_url, instance=instance, marker=instance)
        assert not store.probe(5.0).same
        assert store.probe(5.0).same
        store.close()


def test_foreign_marker(valkey: ExternalValkey, direct: RedisSpillStore) -> None:
    """A marker that is not this instance's own is reported and left alone."""
    other = b"x" * 16
    valkey.run(b"SET", marker_key(b"faults", INSTANCE), other)
    for _ in range(2):
        health = direct.probe(5.0)
        assert not health.same
        assert "another marker" in health.detail
    assert valkey.run(b"GET", marker_key(b"faults", INSTANCE)) == other


def test_flushed_server(valkey: ExternalValkey, direct: RedisSpillStore) -> None:
    """A flushed server is not the same any more, until it has the marker again."""
    direct.probe(5.0)
    assert direct.probe(5.0).same
    valkey.run(b"FLUSHALL")
    assert [direct.probe(5.0).same, direct.probe(5.0).same] == [False, True]


def test_evicting_server_is_named(valkey: ExternalValkey, direct: RedisSpillStore) -> None:
    """A server that evicts by itself is named with its policy, one without a limit with that, and both may be
    used."""
    direct.probe(5.0)
    assert not direct.probe(5.0).detail
    valkey.run(b"CONFIG", b"SET", b"maxmemory-policy", b"allkeys-lru")
    try:
        health = direct.probe(5.0)
        valkey.run(b"CONFIG", b"SET", b"maxmemory", b"0")
        unlimited = direct.probe(5.0)
    finally:
        valkey.run(b"CONFIG", b"SET", b"maxmemory-policy", b"noeviction")
        valkey.run(b"CONFIG", b"SET", b"maxmemory", b"512mb")
    assert health.same
    assert "maxmemory-policy allkeys-lru" in health.detail
    assert unlimited.same and "no maxmemory" in unlimited.detail and "evicts" not in unlimited.detail
