"""What the pool relies on in redis-py, and how addresses are shown."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from tierd.adapters.redis_pool import RedisPool
from tierd.adapters.redis_url import FILE_OPTIONS, RedisAddress, parse_redis_url, refuse_files
from tierd.adapters.resp import Deadline, Wire, command
from tierd.core.errors import InvalidInput
from tierd.testing.valkey import ExternalValkey


def address_of(url: str) -> RedisAddress:
    return parse_redis_url(url).server


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://localhost", "redis://localhost:6379 db 0"),
        ("redis://", "redis://localhost:6379 db 0"),
        ("redis://u:secret@10.0.0.1:7000/2", "redis://10.0.0.1:7000 db 2"),
        ("redis://:secret@[::1]:7000?db=4", "redis://[::1]:7000 db 4"),
        ("rediss://u:secret@cache.example/1", "rediss://cache.example:6379 db 1"),
        ("unix:///run/a%20b.sock?db=5", "unix:///run/a b.sock db 5"),
        ("unix://u:secret@/run/valkey.sock", "unix:///run/valkey.sock db 0"),
        ("redis+cluster://u:secret@a:1,[::1]:2,b", "cluster a:1,[::1]:2,b:6379"),
        ("rediss+sentinel://u:secret@a,b:2/kv/3", "sentinel kv@a:26379,b:2"),
    ],
)
def test_addresses(url: str, shown: str) -> None:
    """An address shows where it leads and neither user nor password."""
    assert str(parse_redis_url(url)) == shown


def test_login_of_servers_and_of_sentinels(tmp_path: Path) -> None:
    """User, password and database are the servers'; sentinels get their own login, TLS is the same for both."""
    (tmp_path / "word").write_text("s")
    url = "rediss+sentinel://u:p@a,b/kv/3?sentinel_username=w&ssl_check_hostname=false&client_name=c"
    parsed = parse_redis_url(f"{url}&sentinel_password_file={tmp_path}/word")
    assert parsed.master == "kv"
    server = parsed.server.at("10.0.0.1", 6380).connection(1.0)
    assert (server.host, server.port, server.db) == ("10.0.0.1", 6380, 3)
    assert (server.username, server.password, server.credential_provider) == ("u", "p", None)
    for seed, host in zip(parsed.seeds, ("a", "b"), strict=True):
        sentinel = seed.connection(1.0)
        assert (sentinel.host, sentinel.port, sentinel.db) == (host, 26379, 0)
        assert sentinel.credential_provider.get_credentials() == ("w", "s")
        assert (sentinel.check_hostname, sentinel.client_name) == (server.check_hostname, "c") == (False, "c")
    plain = parse_redis_url("redis+sentinel://u:p@a/kv").seeds[0].connection(1.0)
    assert (plain.username, plain.password, plain.credential_provider) == (None, None, None)


def test_what_redis_py_gives(tmp_path: Path) -> None:
    """A connection of redis-py has, after its handshake, a socket on which nothing is left to read, and that the
    kernel keeps alive: an idle one that a firewall forgot is found out before it is used."""
    with ExternalValkey(tmp_path) as server:
        connection = address_of(server.tcp_url + "/1").connection(5.0)
        connection.connect()
        assert connection._get_socket() is connection._sock
        assert not connection.can_read(0)
        assert connection._sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        assert connection.retry.get_retries() == 0
        assert connection.get_protocol() == 2
        connection.disconnect()
        assert connection._get_socket() is None


def test_connections_are_kept(tmp_path: Path) -> None:
    """Calls one after another use one connection, at most `size` ever exist, and `close` ends them."""
    with ExternalValkey(tmp_path) as server:
        pool = RedisPool(address_of(server.unix_url), 2, 2.0)
        for _ in range(10):
            with pool.borrow(Deadline(5.0)) as wire:
                _client_id(wire)
        with pool.borrow(Deadline(5.0)), pool.borrow(Deadline(5.0)):
            assert _clients(server) == 2
        pool.close()
        assert _clients(server) == 0


def test_connection_that_owes_a_reply_is_closed(tmp_path: Path) -> None:
    """A wire that comes back in the middle of a reply is closed there and then."""
    with ExternalValkey(tmp_path) as server:
        pool = RedisPool(address_of(server.unix_url), 2, 2.0)
        with pool.borrow(Deadline(5.0)) as wire:
            wire.send([command(b"PING")], Deadline(5.0))
        assert _clients(server) == 0
        pool.close()


def test_dropped_while_lent(tmp_path: Path) -> None:
    """After `drop_all` no connection of before is lent, also not the one that was lent meanwhile."""
    with ExternalValkey(tmp_path) as server:
        pool = RedisPool(address_of(server.unix_url), 2, 2.0)
        with pool.borrow(Deadline(5.0)) as wire:
            before = _client_id(wire)
            pool.drop_all()
        with pool.borrow(Deadline(5.0)) as wire:
            assert _client_id(wire) != before
        pool.close()


def _client_id(wire: Wire) -> bytes | int | None:
    wire.send([command(b"CLIENT", b"ID")], Deadline(5.0))
    return wire.reply(Deadline(5.0))


def _clients(server: ExternalValkey) -> int:
    """Connections that the server has beside the one that asks."""
    text = server.run(b"INFO", b"clients")
    assert isinstance(text, bytes)
    lines = dict(line.split(":", 1) for line in text.decode().splitlines() if ":" in line)
    return int(lines["connected_clients"]) - 1


@pytest.mark.parametrize("host", ["[::1", "ho\u2100st"])
def test_a_host_that_cannot_be_read_quotes_no_login(host: str) -> None:
    """What is wrong with a URL's host is said without its user and password."""
    with pytest.raises(InvalidInput, match="its host cannot be read") as caught:
        parse_redis_url(f"redis://user:secret@{host}/0")
    assert caught.value.__suppress_context__ and "secret" not in str(caught.value)


@pytest.mark.parametrize("option", [*FILE_OPTIONS, "ssl_ca_path"])
@pytest.mark.parametrize("place", ["redis://h/0?{}=/x", "rediss+cluster://u:p@a,b?db=0&{}=/x", "unix:///s?{}\n=/x"])
def test_urls_that_name_files_are_known(option: str, place: str) -> None:
    """Each option that makes the daemon read a file is refused by its name, wherever it stands."""
    half = len(option) // 2
    with pytest.raises(InvalidInput, match=f"{option} names a file"):
        refuse_files(place.format(option))
    with pytest.raises(InvalidInput, match=f"{option} names a file"):
        refuse_files(place.format(f"{option[:half]}\t{option[half:]}"))
    refuse_files("rediss://user:password_file=@host/0?db=3")


def test_a_pipe_is_no_file_of_a_url(tmp_path: Path) -> None:
    """A pipe under the name of a password file is refused at once: reading it would wait for a writer."""
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InvalidInput, match="password_file: cannot be read: not a regular file"):
        parse_redis_url(f"redis://h/0?password_file={tmp_path}/pipe")
