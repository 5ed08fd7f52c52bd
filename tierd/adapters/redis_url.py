"""URLs of Redis and Valkey: one server, a primary under Sentinel, a cluster; with login, TLS and database.

    redis://USER:PASSWORD@HOST:PORT/DB            rediss:// the same over TLS
    unix://USER:PASSWORD@/PATH?db=DB
    redis+sentinel://USER:PASSWORD@HOST:PORT,HOST:PORT/MASTER/DB         rediss+sentinel://
    redis+cluster://USER:PASSWORD@HOST:PORT,HOST:PORT                    rediss+cluster://
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from stat import S_ISREG
from typing import Any
from urllib.parse import SplitResult, unquote, urlsplit

from redis.connection import Connection, SSLConnection, UnixDomainSocketConnection, parse_url
from redis.credentials import CredentialProvider
from redis.exceptions import AuthenticationError

from tierd.adapters.secret_files import read_secret
from tierd.core.errors import InvalidInput

FIELD = "spill"
"""The setting that errors name."""
SERVER_PORT = 6379
SENTINEL_PORT = 26379
SEEDS_MAX = 64
OWN_OPTIONS = frozenset(("password_file", "sentinel_username", "sentinel_password_file"))
FILE_OPTIONS = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile", "password_file", "sentinel_password_file")
URL_OPTIONS = OWN_OPTIONS | {
    "client_name", "db", "ssl_ca_certs", "ssl_ca_path", "ssl_cert_reqs", "ssl_certfile", "ssl_check_hostname",
    "ssl_ciphers", "ssl_keyfile", "ssl_min_version",
}
"""What may follow the `?` of a URL; docs/redis.md says what each means. Those that are not our own are
redis-py's."""
SCHEMES = (
    "redis://", "rediss://", "unix://", "redis+sentinel://", "rediss+sentinel://", "redis+cluster://",
    "rediss+cluster://",
)
_SCHEME = re.compile(r"(rediss?|unix(?=:))(?:\+(sentinel|cluster))?://")
_HOST = re.compile(r"(?:\[[^\]]+\]|[^:\[\]]+)(:\d{1,5})?")
_SCHEME_OF = {Connection: "redis", SSLConnection: "rediss", UnixDomainSocketConnection: "unix"}


class Topology(Enum):
    ONE = ""
    SENTINEL = "sentinel"
    CLUSTER = "cluster"


class RedisAddress:
    """One server: where it is and how to log in there. Shows itself without user and password."""

    def __init__(self, connection_class: type[Any], settings: Mapping[str, Any]) -> None:
        """`settings` are arguments of the redis-py connection."""
        self._class = connection_class
        self._settings = dict(settings)
        place = settings.get("path") or self.place
        self._shown = f"{_SCHEME_OF[connection_class]}://{place} db {settings.get('db', 0)}"

    def __str__(self) -> str:
        return self._shown

    @property
    def host(self) -> str:
        return str(self._settings.get("host", "localhost"))

    @property
    def port(self) -> int:
        return int(self._settings.get("port", SERVER_PORT))

    @property
    def place(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def at(self, host: str, port: int) -> RedisAddress:
        """Another server with the same login, TLS and database."""
        return RedisAddress(self._class, self._settings | {"host": host, "port": port})

    def connection(self, timeout_s: float) -> Any:
        """A new redis-py connection, not yet connected."""
        # RESP2 works from Redis 5 on and brings no unasked messages; SETINFO would be two round trips.
        fixed = {"protocol": 2, "driver_info": None, "decode_responses": False}
        return self._class(
            **(self._settings | fixed), socket_timeout=timeout_s, socket_connect_timeout=timeout_s,
        )


@dataclass(frozen=True, slots=True)
class RedisUrl:
    """`server`: the one server; else what all servers have in common, at the place of the first seed.
    `seeds`: whom to ask for the servers, sentinels or nodes of the cluster. `master`: the name that the
    sentinels know the primary by."""

    topology: Topology
    server: RedisAddress
    seeds: tuple[RedisAddress, ...] = ()
    master: str = ""

    def __str__(self) -> str:
        if self.topology is Topology.ONE:
            return str(self.server)
        hosts = ",".join(seed.place for seed in self.seeds)
        return f"{self.topology.value} {self.master}{'@' if self.master else ''}{hosts}"


def parse_redis_url(url: str) -> RedisUrl:
    """Raises InvalidInput (`spill`), which does not quote the URL: it may hold a password."""
    known = _SCHEME.match(url)
    if known is None:
        raise InvalidInput(FIELD, f"must begin with one of {', '.join(SCHEMES)}")
    scheme, kind = known[1], known[2]
    parts, options = _split(f"{scheme}://{url[known.end():]}")
    if kind == "sentinel":
        return _sentinel(parts, options)
    if any(name.startswith("sentinel_") for name in options):
        raise InvalidInput(FIELD, "sentinel_username and sentinel_password_file belong to redis+sentinel://")
    if kind == "cluster":
        return _cluster(parts, options)
    _check_one(parts)
    return RedisUrl(Topology.ONE, _address(parts, parts.netloc, parts.path, options))


def refuse_files(url: str) -> None:
    """InvalidInput (`spill`) for a URL that names files of the daemon's machine."""
    names = [pair.partition("=")[0] for pair in _parts(url).query.split("&")]
    named = [name for name in names if name in (*FILE_OPTIONS, "ssl_ca_path")]
    if named:
        raise InvalidInput(
            FIELD, f"{named[0]} names a file of the daemon's machine, which only its Unix socket takes"
        )


def _split(url: str) -> tuple[SplitResult, dict[str, str]]:
    """Parts of a URL, and its options, still percent-encoded. Refuses what would be read as something else, such
    as `redis://:p/w@host`."""
    parts = _parts(url)
    if "@" in parts.path + parts.query + parts.fragment or parts.fragment:
        raise InvalidInput(FIELD, "percent-encode / ? # @ in user, password and path")
    pairs = [pair.partition("=") for pair in parts.query.split("&") if pair]
    options = {name: value for name, _, value in pairs}
    if options.keys() - URL_OPTIONS or len(options) < len(pairs):
        raise InvalidInput(FIELD, f"options, each once, are {', '.join(sorted(URL_OPTIONS))}")
    for name in FILE_OPTIONS:
        if name in options:
            _check_file(name, unquote(options[name]))
    return parts, options


def _parts(url: str) -> SplitResult:
    try:
        return urlsplit(url)
    except ValueError:  # its text quotes the login
        raise InvalidInput(FIELD, "is no URL: its host cannot be read") from None


def _check_file(name: str, path: str) -> None:
    try:
        with open(path, "rb", opener=_without_waiting) as file:
            problem = "" if S_ISREG(os.fstat(file.fileno()).st_mode) else "not a regular file"
    except (OSError, ValueError) as error:
        problem = error.strerror or "unknown" if isinstance(error, OSError) else "not a path"
    if problem:
        raise InvalidInput(FIELD, f"{name}: cannot be read: {problem}")


def _without_waiting(path: str, flags: int) -> int:
    """A pipe would be waited for until somebody writes into it."""
    return os.open(path, flags | os.O_NONBLOCK)


def _check_one(parts: SplitResult) -> None:
    if parts.scheme == "unix":
        if parts.netloc.rpartition("@")[2] or not parts.path.startswith("/"):
            raise InvalidInput(FIELD, "a socket is written unix:///path or unix://user:password@/path")
    elif "," in parts.netloc.rpartition("@")[2]:
        raise InvalidInput(FIELD, "several hosts need redis+sentinel:// or redis+cluster://")
    elif parts.path.strip("/") and not parts.path[1:].isdecimal():
        raise InvalidInput(FIELD, "the path of a redis:// URL is the number of the database")


def _sentinel(parts: SplitResult, options: dict[str, str]) -> RedisUrl:
    master, _, database = parts.path.removeprefix("/").partition("/")
    if not master or (database and not database.isdecimal()):
        raise InvalidInput(FIELD, "the path of a redis+sentinel:// URL is /MASTER or /MASTER/DATABASE")
    seeds = _hosts(parts, SENTINEL_PORT)
    server = _address(parts, parts.netloc.rpartition("@")[0] + f"@{seeds[0]}", f"/{database}", options)
    own = {name: value for name, value in options.items() if name.startswith("ssl_") or name == "client_name"}
    for name in ("username", "password_file"):
        if f"sentinel_{name}" in options:
            own[name] = options[f"sentinel_{name}"]
    user = f"{own.pop('username')}@" if "username" in own else ""
    asked = tuple(_address(parts, user + seed, "", own) for seed in seeds)
    return RedisUrl(Topology.SENTINEL, server, asked, unquote(master))


def _cluster(parts: SplitResult, options: dict[str, str]) -> RedisUrl:
    if parts.path not in ("", "/", "/0") or options.get("db", "0") != "0":
        raise InvalidInput(FIELD, "a cluster has no database but 0")
    login = parts.netloc.rpartition("@")[0] + "@"
    seeds = tuple(_address(parts, login + seed, "", options) for seed in _hosts(parts, SERVER_PORT))
    return RedisUrl(Topology.CLUSTER, seeds[0], seeds)


def _hosts(parts: SplitResult, default_port: int) -> list[str]:
    """`HOST:PORT` of each host of a list."""
    hosts = [(host, _HOST.fullmatch(host)) for host in parts.netloc.rpartition("@")[2].split(",")]
    if len(hosts) > SEEDS_MAX or not all(match for _, match in hosts):
        raise InvalidInput(FIELD, f"names 1 to {SEEDS_MAX} hosts, HOST:PORT,HOST:PORT")
    return [host if match and match[1] else f"{host}:{default_port}" for host, match in hosts]


def _address(parts: SplitResult, netloc: str, path: str, options: Mapping[str, str]) -> RedisAddress:
    """The address of one host, as redis-py reads it."""
    theirs = "&".join(f"{name}={value}" for name, value in options.items() if name not in OWN_OPTIONS)
    try:
        settings: dict[str, Any] = parse_url(  # type: ignore[no-untyped-call]
            f"{parts.scheme}://{netloc}{path}?{theirs}"
        )
        connection_class = settings.pop("connection_class", Connection)
        if "password_file" in options:
            if "password" in settings:
                raise InvalidInput(FIELD, "has both a password and a password_file")
            password_file = Path(unquote(options["password_file"]))
            settings["credential_provider"] = _FileLogin(settings.pop("username", ""), password_file)
        address = RedisAddress(connection_class, settings)
        address.connection(1.0)
    except (ValueError, TypeError):
        raise InvalidInput(FIELD, "an option or the port has a value that redis-py cannot use") from None
    return address


class _FileLogin(CredentialProvider):
    """User and password, the latter read at each login: it may be changed while the daemon runs."""

    def __init__(self, user: str, password_file: Path) -> None:
        self._user = user
        self._file = password_file

    def get_credentials(self) -> tuple[str] | tuple[str, str]:
        try:
            password = read_secret(self._file, "password_file").decode("utf-8", "replace").strip()
        except InvalidInput as error:
            raise AuthenticationError(f"no password: {error}") from None
        return (self._user, password) if self._user else (password,)
