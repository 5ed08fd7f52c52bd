"""What can be set on the daemon: every setting with its unit, range, default and the reason for it."""

from __future__ import annotations

import os
import re
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SecretStr,
    field_validator,
    model_validator,
)

from tierd_client.places import SOCKET_NAME, default_state_dir

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
ATTACH_NAME = "attach.sock"
PAGE_BYTES = 4096
SOCKET_PATH_BYTES_MAX = 107
SEGMENTS_MAX = 64
SEGMENT_BYTES_DEFAULT = 256 * MIB
EXPECTED_BLOCK_BYTES = 16 * KIB
"""What a small block takes: catalog rows are planned for tiers full of such. A block of 16 tokens of a model of
135 million parameters has 360 KiB; only latent caches of few layers come near."""

_UNITS = {
    "": 1, "b": 1, "k": KIB, "kib": KIB, "m": MIB, "mib": MIB, "g": GIB, "gib": GIB, "t": 1 << 40, "tib": 1 << 40,
    "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12,
}
_SPILL_URL = re.compile(r"(unix|rediss?(\+sentinel|\+cluster)?)://\S+")
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-zA-Z]*)\s*")


def parse_size(value: object) -> object:
    """Bytes of "1GiB", "512 MiB", "1.5GB" or a number; anything else is left for pydantic to refuse."""
    if not isinstance(value, str):
        return value
    match = _SIZE.fullmatch(value)
    if match is None or match[2].lower() not in _UNITS:
        raise ValueError(f"{value!r} is no size; write bytes or a number with KiB, MiB, GiB, TiB, kB, MB, GB or TB")
    unit = _UNITS[match[2].lower()]
    return int(float(match[1]) * unit) if "." in match[1] else int(match[1]) * unit


def _split(value: object) -> object:
    """A comma-separated text as a tuple, so that the environment can hold a list."""
    return tuple(part.strip() for part in value.split(",") if part.strip()) if isinstance(value, str) else value


Size = Annotated[int, BeforeValidator(parse_size)]

Directory = Annotated[Path, AfterValidator(Path.absolute)]
"""Others are told it, who stand elsewhere: as an absolute path."""


class Clock(StrEnum):
    REQUEST = "request"
    DECODE = "decode"
    WALL = "wall"


class SpillWrite(StrEnum):
    ON_EVICT = "on_evict"
    ON_WORTH = "on_worth"
    ON_REUSE = "on_reuse"
    THROUGH = "through"


class SpillScope(StrEnum):
    LOCAL = "local"
    SHARED = "shared"


class LogFormat(StrEnum):
    CONSOLE = "console"
    JSON = "json"


class LogLevel(StrEnum):
    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class Settings(BaseModel):
    """Everything that can be set, frozen. Each field: what it is, unit, reason of range and default."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)

    # Where it lives.
    state_dir: Directory = Field(
        default_factory=default_state_dir,
        description="Directory of sockets, lock and instance id; one daemon each. Default: /run/tierd as root, "
        "else $XDG_RUNTIME_DIR/tierd, else /tmp/tierd-UID.",
    )
    shm_dir: Directory = Field(
        Path("/dev/shm"),
        description="Directory of the shared-memory files. Default: /dev/shm. Should be a tmpfs: elsewhere each "
        "write goes to disk.",
    )
    listen: Annotated[tuple[str, ...], BeforeValidator(_split)] = Field(
        (),
        description="gRPC addresses, unix:///PATH or HOST:PORT; repeatable (comma-separated in the environment). "
        "Default: unix://STATE_DIR/tierd.sock. TCP beyond loopback needs TLS, tokens or `insecure`.",
    )
    insecure: bool = Field(
        False,
        description="Allow TCP addresses beyond loopback without TLS and tokens: who connects may read all blocks. "
        "Default: refused.",
    )
    data_token_file: Path | None = Field(
        None,
        description="File of bearer tokens, one a line, 16 to 512 characters each, that allow the data plane over "
        "TCP. Default: none. With tokens of either kind every call over TCP but a check of health needs one.",
    )
    admin_token_file: Path | None = Field(
        None, description="File of bearer tokens that allow everything over TCP, the control plane included.",
    )
    tls_cert_file: Path | None = Field(
        None, description="PEM file of the certificate chain for TCP. Default: no TLS. Read at the start.",
    )
    tls_key_file: Path | None = Field(None, description="PEM file of the certificate's key.")
    tls_client_ca_file: Path | None = Field(
        None,
        description="PEM file of authorities: clients over TCP must show a certificate that one of them signed.",
    )

    http_address: str = Field(
        "",
        description='HTTP of /metrics, /healthz and /readyz: HOST:PORT, unix:///PATH, or "off". Default: '
        "127.0.0.1:9400, or where another process has that port a free one, which the log names. It shows counts "
        "and names of namespaces, never blocks.",
    )

    # Tiers.
    host_bytes: Size = Field(
        GIB, ge=PAGE_BYTES, le=1 << 46,
        description="Bytes of the host tier, in shared memory; at least one page. Default 1GiB: a first try fits "
        "any machine; in production most of the memory that workers leave.",
    )
    hbm_bytes: Size = Field(
        0, ge=0, le=1 << 46,
        description="Bytes of the hbm tier that the daemon owns; 0 is off (default: an engine's own pool is better "
        "lent than doubled), else at least one page.",
    )
    hbm_device: str = Field(
        "cpu", pattern=r"^(cpu|cuda:\d{1,2})$",
        description='"cuda:N", or "cpu": the twin in shared memory (default, runs anywhere).',
    )
    max_lent_pools: int = Field(
        0, ge=0, le=4096,
        description="Most pools of engines' own KV memory that may be lent at once, one per worker and group; 0 "
        "(default): lending is off. A pool on a GPU gives the daemon a CUDA context there, about 0.5 GB.",
    )
    lent_fence_timeout_ms: int = Field(
        2000, ge=1, le=600_000,
        description="How long a copy from a lent page waits for the page to be ready, ms; then it has failed and "
        "the block stays where it is. Default 2000: many times a forward pass.",
    )
    segment_bytes: Size = Field(
        0, ge=0, le=1 << 40,
        description="Bytes of one segment of an arena, a multiple of 4 KiB; at most 64 segments in all. "
        "0 (default): 256MiB, doubled until 64 are enough.",
    )
    spill: SecretStr = Field(
        SecretStr("embedded"),
        description='Spill tier: a URL of Redis or Valkey (production): redis://, rediss://, unix://, '
        'redis[s]+sentinel://, redis[s]+cluster://, as docs/redis.md has them; "embedded" (default: a Valkey '
        'child that keeps nothing), "memory", or "none".',
    )
    spill_bytes_max: Size = Field(
        GIB, ge=PAGE_BYTES, le=1 << 50,
        description="Most bytes of the spill server's memory that this daemon's blocks take, as the server tells "
        "how much one of each size does (docs/redis.md). Default 1GiB.",
    )
    spill_write: SpillWrite = Field(
        SpillWrite.ON_EVICT,
        description="When a block goes to the spill store: when it is evicted (default), unless what would be "
        "deleted there for it is worth more (`on_worth`), at its second access (`on_reuse`: what is evicted before "
        "is dropped), or as soon as it is stored (`through`: others find it at once, and an eviction writes "
        "nothing).",
    )
    spill_bytes_per_s: Size = Field(
        0, ge=0, le=1 << 40,
        description="Most bytes a second to and from the spill store, over seconds; 0 (default) is no limit. At "
        "the limit stores are left out, and what is evicted is dropped; loads and what is asked for are made.",
    )
    spill_high_watermark: float = Field(
        0.95, gt=0, le=1,
        description="Share of `spill_bytes_max` above which the lowest ranked blocks are deleted in the "
        "background; 1 is off. Default 0.95: a store seldom has to wait for a delete.",
    )
    spill_low_watermark: float = Field(
        0.9, gt=0, le=1,
        description="Share of `spill_bytes_max` down to which they are; at most the high one. Default 0.9.",
    )
    spill_ahead_blocks: int = Field(
        64, ge=0, le=4096,
        description="How many of the blocks to be evicted next are stored while they are in memory, once little is "
        "free there; 0 is off. Default 64: puts of so many find room without waiting for the spill store.",
    )
    spill_read_ahead_bytes: Size = Field(
        64 << 20, ge=0, le=1 << 40,
        description="How much of a chain, behind the blocks that a request reads, is brought up from the spill "
        "store before it is asked for: at most 64 blocks, into memory that nobody else needs; 0 is off. Default "
        "64MiB: some 60 ms of a local server's time.",
    )
    spill_prefix: str = Field(
        "tierd", pattern=r"^[A-Za-z0-9_.:-]{1,64}$",
        description="First part of every key in the spill store; daemons that share blocks share it. Default: "
        "tierd.",
    )
    spill_scope: SpillScope = Field(
        SpillScope.SHARED,
        description="Whether blocks that this daemon does not know are looked for in the spill store, where others "
        "or an earlier life of it may have put them. Default shared: costs what is not found one round trip. "
        "Means nothing for `embedded` and `memory`, which nobody else writes to.",
    )
    spill_lookup_ms: int = Field(
        100, ge=1, le=60_000,
        description="Most that a call waits for the spill store to say whether it holds blocks that are not known "
        "here, ms. Default 100: the answer about 1,000 of them takes some 20.",
    )
    spill_miss_ttl_ms: int = Field(
        1000, ge=0, le=600_000,
        description="How long a block that was not in the spill store is not asked for again, ms; of 65,536 blocks "
        "at most. Default 1000: what others store is found within a second.",
    )
    spill_statistics_s: float = Field(
        5.0, ge=0.1, le=3600,
        description="How often changed statistics of spilled blocks are written beside them for others, seconds; "
        "1,024 a time. Default 5: what a crash may lose of them.",
    )
    spill_timeout_ms: int = Field(
        2000, ge=10, le=600_000,
        description="Deadline of one spill operation, ms. Default 2000: a 64 MiB block over 1 Gbit/s takes 540.",
    )
    spill_connect_timeout_ms: int = Field(
        1000, ge=10, le=60_000,
        description="Deadline of one connection to the spill store, look-up of its name, TLS and login included, "
        "ms; within spill_timeout_ms. Default 1000: a lost SYN is sent again after a second, and that is a sick "
        "network.",
    )
    spill_probe_ms: int = Field(
        500, ge=50, le=60_000,
        description="How often the spill store is asked whether it is there, ms. Default 500: an end or a return "
        "is noticed within a second.",
    )
    spill_connections: int = Field(
        4, ge=1, le=64,
        description="Most connections to each server of the spill store that carry blocks, each for a thread: of "
        "those there are at most mover_threads, and as many as processors, but two. Up to eight more connections "
        "are for small commands. Default 4: measured, more gain nothing on one machine.",
    )
    spill_grace_s: float = Field(
        60.0, ge=0, le=86_400,
        description="How long after the spill store went away blocks that cannot be spilled are kept, seconds: "
        "a put without room is FULL then; later the lowest ranked are dropped for newcomers. Default 60: a "
        "restart of the store takes less.",
    )

    # Policy and clock.
    policy: str = Field(
        "lrfu", min_length=1, max_length=512,
        description='Eviction policy: "lrfu" (default), "lru", or with arguments: "lrfu(ranking=auto)".',
    )
    clock: Clock = Field(
        Clock.REQUEST,
        description="What a step is: a new sequence or request (default: needs no reports), a decode step, or "
        "wall time.",
    )
    steps_per_second: float = Field(
        10.0, ge=0.001, le=1e6,
        description="Steps per second of the wall clock. Default 10: the magnitude of a decode step.",
    )

    # Limits.
    catalog_rows: int = Field(
        0, ge=0, le=16 << 20,
        description="Most identities with a copy, about 190 bytes of shared memory each. 0 (default): enough for "
        "tiers full of 16 KiB blocks, at least 65,536, at most 16,777,216.",
    )
    ghost_rows: int = Field(
        0, ge=0, le=64 << 20,
        description="Most records without a copy, 64 bytes each. 0 (default): four per catalog row, at most "
        "16,777,216.",
    )
    max_sessions: int = Field(1024, ge=1, le=16_384, description="Most client processes at once. Default 1024.")
    max_ids: int = Field(
        8192, ge=1, le=65_536,
        description="Most identities of one call. Default 8192: 131,072 tokens in blocks of 16, in one message.",
    )
    max_held: int = Field(
        16_384, ge=1, le=1 << 20,
        description="Most leases and reservations of one session, in blocks. Default 16384: two calls of max_ids.",
    )
    max_holds: int = Field(
        131_072, ge=1024, le=16 << 20,
        description="Most leases and reservations of all sessions, in blocks, 30 bytes each. Default 131072.",
    )
    stock_bytes: Size = Field(
        128 << 20, ge=0, le=1 << 40,
        description="Most bytes of slots that one session holds ahead of its next puts, which then take one call "
        "each. Default 128MiB: as much as a put writes before its first call. 0: none; a put reserves and commits.",
    )
    stock_share: float = Field(
        1 / 16, ge=0, le=0.5,
        description="Share of an arena that all sessions together hold ahead. Default 0.0625: what it costs of "
        "the cache at most.",
    )
    pin_share: float = Field(
        0.5, ge=0, le=1,
        description="Share of the lowest tier that is on which pins may keep from being dropped, in bytes of "
        "slots. Default 0.5: the other half still serves whoever pins nothing. 0 refuses every pin.",
    )
    pin_ttl_s: float = Field(
        3600.0, ge=0.001, le=2_592_000,
        description="How long a pin lasts that does not say it, seconds. Default 3600: one that is forgotten is "
        "gone within the hour.",
    )
    pin_ttl_max_s: float = Field(
        86_400.0, ge=0.001, le=2_592_000,
        description="The longest pin, seconds. Default 86400, a day: it can be renewed.",
    )
    tool_call_s: float = Field(
        30.0, ge=0.001, le=3600,
        description="How long a tool call is expected to run whose sequence does not say it, seconds. Default 30.",
    )
    tool_call_max_s: float = Field(
        600.0, ge=0.001, le=3600, description="The longest that can be said, seconds. Default 600."
    )
    max_prefetches: int = Field(
        64, ge=1, le=4096, description="Most prefetches of one session under way. Default 64: of waiting requests."
    )
    max_prefetch_moves: int = Field(
        32, ge=1, le=4096,
        description="Most blocks that all prefetches bring up at once. Default 32, of 256 `max_moves`: a request "
        "that runs must not wait behind those that are to come.",
    )
    max_sequences: int = Field(
        4096, ge=1, le=1 << 20, description="Most running requests at once, over all sessions. Default 4096."
    )
    max_moves: int = Field(
        256, ge=1, le=65_536,
        description="Most moves of blocks between tiers under way. Default 256: each pins a slot at both ends.",
    )
    mover_threads: int = Field(
        4, ge=1, le=64,
        description="Threads that copy between tiers. Default 4: spill I/O waits, copies saturate memory with two.",
    )

    # Running it.
    stop_timeout_s: float = Field(
        10.0, ge=0, le=15.0,
        description="How long a stop waits for calls under way, seconds. Default 10; at most 15: the exit is "
        "within 20.",
    )
    record_bytes: Size = Field(
        0, ge=0, le=1 << 40,
        description="Record which blocks requests name, as a trace for `tierd sim`, in files of so many bytes "
        "together, at least 1 MiB. 0 (default) is off. Numbers of blocks are salted anew at each start.",
    )
    record_dir: Directory | None = Field(
        None, description="Directory of that trace. Default: `trace` in state_dir, which may be in memory.",
    )
    shadow_sizes_bytes: Annotated[tuple[Size, ...], BeforeValidator(_split)] = Field(
        (64 * GIB, 256 * GIB, 1024 * GIB), min_length=1, max_length=8,
        description="Sizes of host memory of which `tierd stats --shadow` says what they would save clients in "
        "shadow mode, comma-separated, 1 to 8. Default 64GiB, 256GiB, 1024GiB: what machines for inference have.",
    )
    shadow_blocks_max: int = Field(
        16_384, ge=256, le=1 << 22,
        description="Most blocks that are simulated of each of these sizes, about 1.5 kB of memory each; of a "
        "larger one a sample, and the figures say how far off they may be. Default 16384: 64 GiB of 5 MiB blocks "
        "are exact.",
    )
    shadow_namespaces_max: int = Field(
        4, ge=1, le=64,
        description="Most namespaces with such figures, those that were reported last. Default 4: models served "
        "from one machine.",
    )
    shadow_cpu_percent: int = Field(
        25, ge=1, le=100,
        description="Most of one processor that these figures take, percent; what comes faster is left out, and "
        "is counted. Default 25: some ten thousand blocks a second.",
    )
    log_level: LogLevel = Field(
        LogLevel.INFO, description="Least level that is logged: debug, info (default), warning or error.",
    )
    log_format: LogFormat = Field(
        LogFormat.CONSOLE, description="console (default): lines for people; json: one object a line.",
    )

    @field_validator("hbm_bytes")
    @classmethod
    def _off_or_a_page(cls, value: int) -> int:
        return _page_or_zero(value)

    @field_validator("segment_bytes")
    @classmethod
    def _whole_pages(cls, value: int) -> int:
        if value % PAGE_BYTES:
            raise ValueError(f"{value} is not a multiple of {PAGE_BYTES}")
        return _page_or_zero(value)

    @field_validator("record_bytes")
    @classmethod
    def _enough_to_record(cls, value: int) -> int:
        if 0 < value < MIB:
            raise ValueError(f"{value} is too small: at least 1 MiB, or 0 for none")
        return value

    @field_validator("shadow_sizes_bytes")
    @classmethod
    def _possible_sizes(cls, value: tuple[int, ...]) -> tuple[int, ...]:
        for size in value:
            if not PAGE_BYTES <= size <= 1 << 46:
                raise ValueError(f"{size} is not from {PAGE_BYTES} to {1 << 46} bytes; write sizes such as 64GiB")
        return tuple(sorted(set(value)))

    @field_validator("catalog_rows")
    @classmethod
    def _enough_rows(cls, value: int) -> int:
        if 0 < value < 64:
            raise ValueError(f"{value} is too small: at least 64, or 0 for the default")
        return value

    @field_validator("spill")
    @classmethod
    def _known_spill(cls, value: SecretStr) -> SecretStr:
        text = value.get_secret_value()
        if text not in ("embedded", "memory", "none") and not _SPILL_URL.fullmatch(text):
            raise ValueError('not "embedded", "memory", "none" or a URL such as redis://, rediss://, unix://, '
                             'redis+sentinel:// or redis+cluster://')
        return value

    @field_validator("listen")
    @classmethod
    def _known_addresses(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for address in value:
            _check_address(address)
        return value

    @field_validator("http_address")
    @classmethod
    def _known_http_address(cls, value: str) -> str:
        if value not in ("", "off"):
            _check_address(value)
        return value

    @model_validator(mode="after")
    def _together(self) -> Self:
        _check_tcp(self)
        if len(os.fsencode(self.attach_path)) > SOCKET_PATH_BYTES_MAX:
            raise ValueError(f"state_dir: its sockets' paths would be longer than {SOCKET_PATH_BYTES_MAX} bytes")
        if self.segment_bytes and len(self.host_segments) + len(self.hbm_segments) > SEGMENTS_MAX:
            raise ValueError(f"segment_bytes: {self.segment_bytes} cuts the arenas into more than {SEGMENTS_MAX}")
        if self.pin_ttl_s > self.pin_ttl_max_s:
            raise ValueError(f"pin_ttl_s: {self.pin_ttl_s:g} is more than pin_ttl_max_s, {self.pin_ttl_max_s:g}")
        if self.tool_call_s > self.tool_call_max_s:
            raise ValueError(f"tool_call_s: {self.tool_call_s:g} is more than tool_call_max_s")
        if self.spill_low_watermark > self.spill_high_watermark:
            raise ValueError(f"spill_low_watermark: {self.spill_low_watermark} is above spill_high_watermark")
        if self.max_held > self.max_holds:
            raise ValueError(f"max_held: {self.max_held} is more than max_holds, {self.max_holds}")
        return self

    @property
    def addresses(self) -> tuple[str, ...]:
        """What gRPC listens on."""
        return self.listen or (f"unix://{self.state_dir}/{SOCKET_NAME}",)

    @property
    def exposed(self) -> tuple[str, ...]:
        """Addresses that other machines can reach."""
        return tuple(address for address in self.listen if not _is_local(address))

    @property
    def has_tokens(self) -> bool:
        return self.data_token_file is not None or self.admin_token_file is not None

    @property
    def attach_path(self) -> Path:
        """Of the attach socket."""
        return self.state_dir / ATTACH_NAME

    @property
    def host_segments(self) -> tuple[tuple[int, int], ...]:
        """(number, bytes) of the host arena's segments."""
        return _cut(self.host_bytes, self._segment_bytes(), 1)

    @property
    def hbm_segments(self) -> tuple[tuple[int, int], ...]:
        return _cut(self.hbm_bytes, self._segment_bytes(), 0x4000)

    @property
    def rows(self) -> int:
        """Rows of the catalog."""
        if self.catalog_rows:
            return self.catalog_rows
        spill = 0 if self.spill.get_secret_value() == "none" else self.spill_bytes_max
        expected = (self.host_bytes + self.hbm_bytes + spill) // EXPECTED_BLOCK_BYTES
        return min(max(expected, 65_536), 16 << 20)

    @property
    def ghosts(self) -> int:
        """Rows of the ghost table."""
        return self.ghost_rows or min(4 * self.rows, 16 << 20)

    def _segment_bytes(self) -> int:
        if self.segment_bytes:
            return self.segment_bytes
        size = SEGMENT_BYTES_DEFAULT
        while _count(self.host_bytes, size) + _count(self.hbm_bytes, size) > SEGMENTS_MAX:
            size *= 2
        return size

    def public(self) -> dict[str, Any]:
        """For listings and logs: everything as it is in force, with credentials masked."""
        return self.model_dump(mode="json") | {
            "spill": masked_url(self.spill.get_secret_value()), "listen": list(self.addresses),
            "segment_bytes": self._segment_bytes(), "catalog_rows": self.rows, "ghost_rows": self.ghosts,
        }


def masked_url(url: str) -> str:
    """The URL with its user's password, and every value of its query, replaced by ***.

    Cut by hand: a password with a slash, which a URL parser takes for the path, must not slip through.
    """
    scheme, separator, rest = url.partition("://")
    body, mark, query = rest.partition("?")
    credentials, at, place = body.rpartition("@")
    if at:
        user, colon, _ = credentials.partition(":")
        body = f"{user}:***@{place}" if colon else f"***@{place}"
    return scheme + separator + body + mark + re.sub(r"=[^&]*", "=***", query)


def _page_or_zero(value: int) -> int:
    if 0 < value < PAGE_BYTES:
        raise ValueError(f"{value} is too small: 0 or at least {PAGE_BYTES} bytes; write sizes such as 512MiB")
    return value


def _check_address(address: str) -> None:
    if address.startswith("unix:"):
        path = address.removeprefix("unix:").removeprefix("//")
        if not path.startswith("/") or len(os.fsencode(path)) > SOCKET_PATH_BYTES_MAX:
            raise ValueError(f"{address!r} is not unix:///PATH, the path at most {SOCKET_PATH_BYTES_MAX} bytes")
        return
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65_535:
        raise ValueError(f"{address!r} is neither unix:///PATH nor HOST:PORT")


def _is_local(address: str) -> bool:
    host = address.rpartition(":")[0].strip("[]")
    return address.startswith("unix:") or host in ("localhost", "::1") or host.startswith("127.")


def _check_tcp(settings: Settings) -> None:
    if (settings.tls_cert_file is None) != (settings.tls_key_file is None):
        raise ValueError("tls_key_file: a certificate and its key are given together")
    if settings.tls_client_ca_file is not None and settings.tls_cert_file is None:
        raise ValueError("tls_client_ca_file: means nothing without tls_cert_file")
    if settings.exposed and not (settings.insecure or settings.has_tokens or settings.tls_cert_file):
        raise ValueError(
            f"listen: {settings.exposed[0]} can be reached by other machines, without encryption or a login; "
            "use a loopback address or a Unix socket, give tokens and a certificate, or say --insecure"
        )


def _count(size: int, segment: int) -> int:
    return -(-size // segment)


def _cut(size: int, segment: int, first: int) -> tuple[tuple[int, int], ...]:
    """Segments of an arena: whole ones and a smaller last one; less than a page at the end is left out."""
    whole = size // PAGE_BYTES * PAGE_BYTES
    return tuple((first + n, min(segment, whole - n * segment)) for n in range(_count(whole, segment)))
