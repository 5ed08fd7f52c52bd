"""The proxy passes bytes on unchanged and fails exactly as it is told, in front of a real Valkey."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tierd.adapters.resp import Deadline, ReplyError, Wire, command
from tierd.testing.redis_proxy import Mode, RedisProxy
from tierd.testing.valkey import ExternalValkey

VALUE = bytes(range(256)) * 1000


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ExternalValkey]:
    with ExternalValkey(tmp_path_factory.mktemp("valkey")) as server:
        yield server


@pytest.fixture
def proxy(server: ExternalValkey) -> Iterator[RedisProxy]:
    server.run(b"FLUSHALL")
    with RedisProxy(server.unix_url) as proxy:
        yield proxy


class Client:
    """One connection to a proxy, with no patience."""

    def __init__(self, proxy: RedisProxy) -> None:
        parts = urlsplit(proxy.url)
        if parts.scheme == "unix":
            self.sock = socket.socket(socket.AF_UNIX)
            self.sock.connect(parts.path)
        else:
            self.sock = socket.create_connection((parts.hostname, parts.port), 5.0)
        self.wire = Wire(self.sock)

    def __call__(self, *words: bytes, deadline_s: float = 5.0) -> bytes | int | None:
        self.wire.send([command(*words)], Deadline(deadline_s))
        return self.wire.reply(Deadline(deadline_s))

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.sock.close()


@pytest.mark.parametrize("kind", ["tcp to unix", "unix to tcp"])
def test_pass(server: ExternalValkey, tmp_path: Path, kind: str) -> None:
    """Commands and replies of every kind go through unchanged, over both kinds of socket."""
    to_unix = kind == "tcp to unix"
    with (
        RedisProxy(server.unix_url) if to_unix else RedisProxy(server.tcp_url, tmp_path / "p.sock") as proxy,
        Client(proxy) as client,
    ):
        assert client(b"SET", b"k", VALUE) == b"OK"
        assert client(b"get", b"k") == VALUE
        assert client(b"GET", b"none") is None
        assert client(b"UNLINK", b"k", b"none") == 1
        with pytest.raises(ReplyError, match="unknown command"):
            client(b"NONSENSE")
        assert client(b"PING") == b"PONG"
        assert proxy.commands[b"GET"] == 2


def test_delay(proxy: RedisProxy) -> None:
    """A delayed reply comes late and whole."""
    with Client(proxy) as client:
        client(b"SET", b"k", VALUE)
        proxy.switch(Mode.DELAY, delay_s=0.2)
        client.wire.send([command(b"GET", b"k")], Deadline(5.0))
        with pytest.raises(TimeoutError):
            client.wire.reply(Deadline(0.05))
        assert client.wire.reply(Deadline(5.0)) == VALUE


@pytest.mark.parametrize("count", [0, 1, 1000, len(VALUE) - 1])
def test_cut_download(proxy: RedisProxy, count: int) -> None:
    """Exactly so many bytes of the value come before the end of the connection; other replies come whole."""
    with Client(proxy) as client:
        proxy.switch(Mode.CUT_DOWNLOAD, count=count)
        assert client(b"SET", b"k", VALUE) == b"OK"
        client.sock.settimeout(5.0)
        client.sock.sendall(command(b"GET", b"k"))
        received = b"".join(iter(lambda: client.sock.recv(1 << 20), b""))
        assert received == b"$%d\r\n" % len(VALUE) + VALUE[:count]


def test_cut_upload(proxy: RedisProxy, server: ExternalValkey) -> None:
    """A SET that is cut reaches the server in part and changes nothing there; one that is shorter goes through."""
    with Client(proxy) as client:
        proxy.switch(Mode.CUT_UPLOAD, count=1000)
        assert client(b"SET", b"short", VALUE[:1000]) == b"OK"
        with pytest.raises(OSError, match=r"closed|reset|pipe|Broken"):
            client(b"SET", b"long", VALUE)
        assert server.run(b"GET", b"long") is None
        assert server.run(b"STRLEN", b"short") == 1000


def test_fail_set(proxy: RedisProxy, server: ExternalValkey) -> None:
    """Each nth SET since the switch is answered with the error and is not stored."""
    with Client(proxy) as client:
        proxy.switch(Mode.FAIL_SET, count=2, error="ERR no")
        for number in range(6):
            if number % 2:
                with pytest.raises(ReplyError, match="ERR no"):
                    client(b"SET", b"%d" % number, b"x")
            else:
                client(b"SET", b"%d" % number, b"x")
        assert server.run(b"DBSIZE") == 3


@pytest.mark.parametrize(("mode", "code"), [(Mode.OUT_OF_MEMORY, "OOM"), (Mode.READ_ONLY, "READONLY")])
def test_refusing_servers(proxy: RedisProxy, mode: Mode, code: str) -> None:
    """A server that is full or a replica refuses writes as a real one words it, and serves reads."""
    with Client(proxy) as client:
        client(b"SET", b"k", b"x")
        proxy.switch(mode)
        with pytest.raises(ReplyError) as caught:
            client(b"SET", b"k", b"y")
        assert caught.value.code == code
        assert client(b"GET", b"k") == b"x"


def test_black_hole(proxy: RedisProxy, server: ExternalValkey) -> None:
    """Commands vanish, from old and from new connections; afterwards commands are answered again."""
    with Client(proxy) as old:
        old(b"PING")
        proxy.switch(Mode.BLACK_HOLE)
        with Client(proxy) as new:
            for client in (old, new):
                with pytest.raises(TimeoutError):
                    client(b"SET", b"k", VALUE, deadline_s=0.1)
            assert proxy.wait_for(b"SET", 2, 5.0)
        assert server.run(b"GET", b"k") is None
        proxy.switch(Mode.PASS)
        assert old(b"PING") == b"PONG"


def test_stall(proxy: RedisProxy, server: ExternalValkey) -> None:
    """A command that is larger than all buffers gets stuck on its way; after the stall commands pass again."""
    with Client(proxy) as client:
        client(b"PING")
        proxy.switch(Mode.STALL)
        pieces = [command(b"SET", b"k", bytes(32 << 20))]
        with pytest.raises(TimeoutError):
            client.wire.send(pieces, Deadline(0.2))
        assert server.run(b"DBSIZE") == 0
    proxy.switch(Mode.PASS)
    with Client(proxy) as client:
        assert client(b"PING") == b"PONG"


@pytest.mark.parametrize("kind", ["tcp", "unix"])
def test_refuse(server: ExternalValkey, tmp_path: Path, kind: str) -> None:
    """A proxy that refuses resets what is open and takes nothing new, until it is told otherwise."""
    with RedisProxy(server.unix_url, None if kind == "tcp" else tmp_path / "p.sock") as proxy:
        url = proxy.url
        with Client(proxy) as client:
            client(b"PING")
            proxy.switch(Mode.REFUSE)
            with pytest.raises(OSError, match=r"closed|reset|pipe|Broken"):
                client(b"PING")
        with pytest.raises((ConnectionRefusedError, FileNotFoundError)):
            Client(proxy)
        proxy.switch(Mode.PASS)
        assert proxy.url == url
        with Client(proxy) as client:
            assert client(b"PING") == b"PONG"


def test_trickle(proxy: RedisProxy) -> None:
    """A trickled reply comes whole, but not sooner than its pieces allow."""
    with Client(proxy) as client:
        client(b"SET", b"k", VALUE[:1000])
        proxy.switch(Mode.TRICKLE, count=100, delay_s=0.02)
        with pytest.raises(TimeoutError):
            client(b"GET", b"k", deadline_s=0.1)
    with Client(proxy) as client:
        assert client(b"GET", b"k") == VALUE[:1000]


def test_server_that_is_gone(tmp_path: Path) -> None:
    """In front of no server a connection ends at once."""
    with (
        RedisProxy(f"unix://{tmp_path}/nothing") as proxy,
        Client(proxy) as client,
        pytest.raises(OSError, match=r"closed|reset|pipe|Broken"),
    ):
        client(b"PING")
