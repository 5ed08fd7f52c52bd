"""Logging in to a server: user, password, database and TLS from the URL, and no secret in what is shown."""

from __future__ import annotations

import re
import socket
import time
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import quote

import numpy as np
import pytest
from tls_files import TlsFiles

from tierd.adapters.spill_redis import RedisSpillStore
from tierd.core.errors import InvalidInput, SpillDown
from tierd.core.messages import Record
from tierd.testing.redis_proxy import Mode, RedisProxy
from tierd.testing.spill_contract import FINGERPRINT, block_of, get_new, identity_of, payload_of, put_random
from tierd.testing.valkey import ExternalValkey, SentinelProcess
from tierd.testing.valkey_groups import ValkeyCluster

PASSWORD = "p@ss/w:rd?#%20[é]"
ESCAPED = quote(PASSWORD, safe="")


def new_store(url: str) -> RedisSpillStore:
    return RedisSpillStore(url, instance=bytes(16), marker=bytes(16), prefix="login")


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ExternalValkey]:
    """A server that wants PASSWORD, and knows a user `tierd` with it who may only touch keys of ours."""
    with ExternalValkey(tmp_path_factory.mktemp("locked"), requirepass=PASSWORD) as server:
        rules = [b"on", b">" + PASSWORD.encode(), b"~{login:*", b"+@all", b"-@dangerous"]
        server.run(b"ACL", b"SETUSER", b"tierd", *rules)
        yield server


def test_password_and_database(locked: ExternalValkey) -> None:
    """A percent-encoded password logs in, and the database of the URL is the one that is used."""
    urls = [
        f"redis://:{ESCAPED}@127.0.0.1:{locked.port}/3",
        f"redis://default:{ESCAPED}@127.0.0.1:{locked.port}/3",
        f"redis://tierd:{ESCAPED}@127.0.0.1:{locked.port}/3",
        f"unix://:{ESCAPED}@{locked.socket_path}?db=3",
        f"unix://tierd:{ESCAPED}@{locked.socket_path}?db=3",
    ]
    for number, url in enumerate(urls):
        store = new_store(url)
        put_random(store, number)
        get_new(store, number)
        store.probe(5.0)
        store.close()
    keyspace = locked.run(b"INFO", b"keyspace")
    assert isinstance(keyspace, bytes)
    assert b"db3:keys=6," in keyspace
    assert b"db0:" not in keyspace


def test_user_without_info(locked: ExternalValkey) -> None:
    """A user who may not read the server's settings can use it all the same."""
    store = new_store(f"redis://tierd:{ESCAPED}@127.0.0.1:{locked.port}/4")
    store.probe(5.0)
    assert store.probe(5.0).same
    store.close()


@pytest.mark.parametrize("login", ["", f":wrong{ESCAPED}@", f"nobody:{ESCAPED}@"])
@pytest.mark.parametrize("kind", ["tcp", "unix"])
def test_refused_login(locked: ExternalValkey, login: str, kind: str) -> None:
    """A login that the server refuses is SpillDown and says so, at the start and not in the middle of a block."""
    place = f"127.0.0.1:{locked.port}" if kind == "tcp" else str(locked.socket_path)
    store = new_store(f"{'redis' if kind == 'tcp' else 'unix'}://{login}{place}")
    with pytest.raises(SpillDown, match="user or password"):
        put_random(store, 1, 5 << 20)
    store.close()


def test_least_rights(cluster: ValkeyCluster) -> None:
    """The access list that docs/redis.md gives is enough for all that the daemon does, on a cluster."""
    document = (Path(__file__).parents[2] / "docs" / "redis.md").read_text()
    (line,) = re.findall(r"^ACL SETUSER .*$", document, flags=re.MULTILINE)
    words = [word.replace("PASSWORD", "secret").encode() for word in line.split()]
    for node in cluster.nodes:
        node.run(*words)
    url = cluster.url.replace("://", "://tierd:secret@")
    store = RedisSpillStore(url, instance=bytes(16), marker=bytes(16), shared=True)
    blocks = [put_random(store, number)[0] for number in range(20)]
    put_random(store, 0)
    get_new(store, 1)
    store.restate(FINGERPRINT, {blocks[0].identity: Record(touches=9, wall=2.0e9)}, 5.0)
    assert store.look(FINGERPRINT, [blocks[0].identity], 5.0)[0].record.touches == 9  # type: ignore[union-attr]
    assert all(store.footprints(FINGERPRINT, [block.identity for block in blocks], 5.0))
    store.unlink(FINGERPRINT, [block.identity for block in blocks], 5.0)
    store.probe(5.0)
    assert "no maxmemory" in store.probe(5.0).detail
    store.close()


def test_login_at_sentinels(tmp_path: Path) -> None:
    """Sentinels and servers may want different logins; a wrong one at the sentinels is SpillDown that says so."""
    word = tmp_path / "word"
    word.write_text("of sentinels")
    (tmp_path / "s").mkdir()
    with ExternalValkey(tmp_path / "s", requirepass=PASSWORD) as server:
        sentinel = SentinelProcess(tmp_path / "t", "kv", 500, "requirepass \"of sentinels\"")
        sentinel.watch(server.port)
        with sentinel:
            url = f"redis+sentinel://:{ESCAPED}@127.0.0.1:{sentinel.port}/kv?sentinel_password_file={word}"
            store = new_store(url)
            assert becomes_usable(store)
            get_new(store, 1)
            store.close()
            word.write_text("other")
            store = new_store(url)
            with pytest.raises(SpillDown, match="user or password"):
                put_random(store, 1)
            store.close()


def becomes_usable(store: RedisSpillStore, within_s: float = 10.0) -> bool:
    """The sentinel may just be starting."""
    limit = time.monotonic() + within_s
    while time.monotonic() < limit:
        try:
            put_random(store, 1)
        except SpillDown:
            continue
        return True
    return False


def test_forbidden_keys(locked: ExternalValkey) -> None:
    """A user without rights on our keys is SpillDown with that reason."""
    url = f"redis://tierd:{ESCAPED}@127.0.0.1:{locked.port}"
    store = RedisSpillStore(url, instance=bytes(16), marker=bytes(16), prefix="elsewhere")
    with pytest.raises(SpillDown, match="may not"):
        put_random(store, 1)
    store.close()


@pytest.mark.parametrize(
    "url",
    [
        f"redis://user:{ESCAPED}@127.0.0.1:1/0",
        f"redis://user:{ESCAPED}@no-such-host.invalid/0",
        f"unix://user:{ESCAPED}@/no/such/socket",
        f"rediss://user:{ESCAPED}@127.0.0.1:1/0",
        f"redis+cluster://user:{ESCAPED}@127.0.0.1:1,127.0.0.1:2",
        f"rediss+sentinel://user:{ESCAPED}@127.0.0.1:1,127.0.0.1:2/kv",
    ],
)
def test_secrets_are_not_shown(url: str) -> None:
    """Neither user nor password appears in repr, in an error, or in a traceback with its causes."""
    store = new_store(url)
    try:
        store.probe(2.0)
        raise AssertionError("nothing listens there")
    except SpillDown as error:
        shown = [repr(store), str(store), str(error), *traceback.format_exception(error)]
    for text in shown:
        assert not any(secret in text for secret in (PASSWORD, ESCAPED, "user:", "p@ss"))


@pytest.mark.parametrize("login", ["user:{}", ":{}"])
def test_a_server_that_repeats_the_login(login: str) -> None:
    """What a server without AUTH answers holds the password, and is shown neither in an error nor in its causes."""

    def answer(server: socket.socket) -> None:
        peer, _ = server.accept()
        with peer:
            said = peer.recv(1000).decode().split("\r\n")[4::2]
            peer.sendall(f"-ERR unknown command 'AUTH', with args beginning with: {said}\r\n".encode())
            peer.recv(1000)

    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor(1) as pool:
        answered = pool.submit(answer, server)
        store = new_store(f"redis://{login.format('secret')}@127.0.0.1:{server.getsockname()[1]}")
        with pytest.raises(SpillDown, match="may repeat the password") as caught:
            store.probe(5.0)
        answered.result(5.0)
        store.close()
    assert "secret" not in "".join(traceback.format_exception(caught.value))


def test_password_file(locked: ExternalValkey, tmp_path: Path) -> None:
    """A password is taken from its file at each login, so that it can be changed while the daemon runs."""
    file = tmp_path / "pass word"
    file.write_text("old\n")
    urls = [f"redis://127.0.0.1:{locked.port}/5?", f"redis://tierd@127.0.0.1:{locked.port}/5?",
            f"unix://tierd@{locked.socket_path}?db=5&"]
    for url in urls:
        store = new_store(f"{url}password_file={quote(str(file))}")
        file.write_text("old\n")
        with pytest.raises(SpillDown, match="user or password"):
            put_random(store, 1)
        file.write_text(PASSWORD + "\n")
        put_random(store, 1)
        get_new(store, 1)
        store.close()
    file.unlink()
    with pytest.raises(InvalidInput, match=r"^spill: password_file: cannot be read"):
        new_store(f"{urls[0]}password_file={quote(str(file))}")


def test_password_file_that_goes_away(locked: ExternalValkey, tmp_path: Path) -> None:
    """A file that is gone at a login is SpillDown that says so."""
    file = tmp_path / "password"
    file.write_text(PASSWORD)
    store = new_store(f"redis://127.0.0.1:{locked.port}?password_file={file}")
    file.unlink()
    with pytest.raises(SpillDown, match=r"no password: password_file: .*No such file"):
        put_random(store, 1)
    store.close()


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1",
        "redis://user:se/cret@host:6379",
        "redis://user:123/secret@host",
        "redis://user:123?secret@host",
        "redis://user:123#secret@host",
        "redis://user:12#secret",
        "redis://host:secret",
        "redis://host/secret",
        "redis://host?secret=1",
        "redis://host?socket_timeout=secret",
        "unix://secret/run/valkey.sock",
        "unix://",
        "unix+cluster:///secret",
        "redis+other://secret",
        "redis://a:1,secret:2",
        "redis+cluster://",
        "redis+cluster://a:1,",
        "redis+cluster://a:secret",
        "redis+cluster://a/1?client_name=secret",
        "redis+cluster://a?db=1",
        "redis+cluster://a?sentinel_username=secret",
        "redis+sentinel://secret",
        "redis+sentinel://secret/",
        "redis+sentinel://a/kv/secret",
        "redis+sentinel://a/kv/1/2?client_name=secret",
        "redis+sentinel://" + ",".join(["secret"] * 65) + "/kv",
        "redis://a?db=1&db=secret",
        "redis://:secret@a?password_file=/dev/null",
        "rediss://a?ssl_ca_certs=/no/secret",
    ],
)
def test_impossible_urls(url: str) -> None:
    """A URL that would be read as something else is refused without being quoted."""
    with pytest.raises(InvalidInput, match=r"^spill: ") as caught:
        new_store(url)
    assert "secret" not in "".join(traceback.format_exception(caught.value))


@pytest.fixture
def files(tmp_path: Path) -> TlsFiles:
    return TlsFiles(tmp_path)


@pytest.fixture
def tls_proxy(valkey: ExternalValkey, files: TlsFiles) -> Iterator[RedisProxy]:
    with RedisProxy(valkey.unix_url, tls=files.server_context(client_certificate=False)) as proxy:
        yield proxy


@pytest.fixture
def tls_store(tls_proxy: RedisProxy, files: TlsFiles) -> Iterator[RedisSpillStore]:
    store = new_store(f"{tls_proxy.url}?ssl_ca_certs={quote(str(files.ca))}")
    yield store
    store.close()


def test_tls(tls_proxy: RedisProxy, tls_store: RedisSpillStore) -> None:
    """Blocks of every size go over TLS, and a connection that ended meanwhile costs no call."""
    assert not tls_store.probe(5.0).same
    for number, size in enumerate((1, 4097, 5 << 20)):
        put_random(tls_store, number, size)
        assert np.array_equal(get_new(tls_store, number, size)[1], payload_of(number, size))
    connections = tls_proxy.commands[b"PING"]
    assert tls_store.probe(5.0).same
    assert tls_proxy.commands[b"PING"] == connections
    tls_proxy.cut_connections()
    get_new(tls_store, 0, 1)


def test_tls_of_a_stranger(tls_proxy: RedisProxy) -> None:
    """A server whose certificate nobody vouches for gets no login and no block."""
    store = new_store(tls_proxy.url)
    with pytest.raises(SpillDown, match="certificate"):
        put_random(store, 1)
    assert not tls_proxy.commands
    store.close()


def test_tls_deadline(tls_proxy: RedisProxy, tls_store: RedisSpillStore) -> None:
    """Over TLS, too, a server that answers nothing, or only in pieces, holds no call beyond its deadline."""
    payload = payload_of(1, 16 << 20)
    put_random(tls_store, 1, payload.size)
    calls: list[tuple[Mode, Callable[[], object]]] = [
        (Mode.BLACK_HOLE, lambda: tls_store.put(block_of(1, payload), payload, 0.3)),
        (Mode.BLACK_HOLE, lambda: tls_store.probe(0.3)),
        (Mode.STALL, lambda: tls_store.put(block_of(1, payload), payload, 0.3)),
        (Mode.TRICKLE, lambda: tls_store.get(FINGERPRINT, identity_of(1), payload.copy(), 0.3)),
    ]
    for mode, call in calls:
        took = []
        for _ in range(3):
            tls_store.probe(5.0)
            tls_proxy.switch(mode, count=4096, delay_s=0.02)
            start = time.monotonic()
            with pytest.raises(SpillDown):
                call()
            took.append(time.monotonic() - start)
            tls_proxy.switch(Mode.PASS)
        assert min(took) < 0.4
        assert np.array_equal(get_new(tls_store, 1, payload.size)[1], payload)
