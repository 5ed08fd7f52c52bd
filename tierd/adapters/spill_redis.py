"""The spill tier on a Redis or Valkey server: one string value per block, moved without a copy in Python."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import redis.exceptions as rx

from tierd.adapters.envelope import (
    HEADER_BYTES,
    block_key,
    decode_header,
    encode_header,
    encode_statistics,
    latest_statistics,
    marker_key,
    statistics_key,
)
from tierd.adapters.redis_pool import RedisAddress, RedisPool
from tierd.adapters.resp import CRLF, Deadline, ProtocolError, ReplyError, Wire, command
from tierd.core.errors import BlockDamaged, BlockVanished, InvalidInput, SpillDown, SpillError, SpillFull
from tierd.core.messages import Record
from tierd.ports import SpillHealth, StoredBlock
from tierd_client.format import U8Array

UNLINK_BATCH = 256
"""Keys of one UNLINK: about 40 KB of command."""
MARKER_BYTES = 16
EPOCH_BYTES = 8
LOOK_COMMANDS = 3
# "$4294967551" and its line end: the longest first line of a reply to GET.
_LENGTH_LINE_BYTES = 16


@dataclass(frozen=True, slots=True)
class Fault:
    """What a failure of the server or of the way to it means to the daemon."""

    error: type[SpillError]
    reason: str
    drop_pool: bool = False


_UNREACHABLE = Fault(SpillDown, "the server cannot be reached")
_LATE = Fault(SpillDown, "no answer within the deadline")
_LOADING = Fault(SpillDown, "the server is loading its data")
_READ_ONLY = Fault(SpillDown, "the server is a read-only replica", drop_pool=True)
_MASTER_DOWN = Fault(SpillDown, "the server has lost its primary", drop_pool=True)
_LOGIN = Fault(SpillDown, "the server refuses user or password")
_FORBIDDEN = Fault(SpillDown, "the user may not run this command or touch these keys")
_CLUSTER = Fault(SpillDown, "the server is part of a cluster, which is not supported")
_REFUSED = Fault(SpillDown, "the server refuses the command")
_OUT_OF_MEMORY = Fault(SpillFull, "the server has no memory left (maxmemory)")
_NOT_REDIS = Fault(SpillDown, "what answers does not speak the protocol")

FAULTS: Mapping[type[Exception] | str, Fault] = {
    # Error replies, by their first word; any other word counts as ERR.
    "ERR": _REFUSED,
    "OOM": _OUT_OF_MEMORY,
    "LOADING": _LOADING,
    "READONLY": _READ_ONLY,
    "MASTERDOWN": _MASTER_DOWN,
    "NOAUTH": _LOGIN,
    "WRONGPASS": _LOGIN,
    "NOPERM": _FORBIDDEN,
    "MOVED": _CLUSTER,
    "ASK": _CLUSTER,
    "TRYAGAIN": _CLUSTER,
    "CROSSSLOT": _CLUSTER,
    "CLUSTERDOWN": _CLUSTER,
    "MISCONF": Fault(SpillDown, "the server refuses writes because it cannot save its data"),
    "NOREPLICAS": Fault(SpillDown, "the server refuses writes because it has too few replicas"),
    "BUSY": Fault(SpillDown, "the server is busy with a script"),
    "WRONGTYPE": Fault(BlockDamaged, "the key holds something that is not a block"),
    # Exceptions, by the nearest class.
    rx.RedisError: _REFUSED,
    rx.ConnectionError: _UNREACHABLE,
    rx.TimeoutError: _LATE,
    rx.AuthenticationError: _LOGIN,
    rx.AuthorizationError: _LOGIN,
    rx.AuthenticationWrongNumberOfArgsError: _LOGIN,
    rx.ExternalAuthProviderError: _LOGIN,
    rx.NoPermissionError: _FORBIDDEN,
    rx.BusyLoadingError: _LOADING,
    rx.ReadOnlyError: _READ_ONLY,
    rx.MasterDownError: _MASTER_DOWN,
    rx.OutOfMemoryError: _OUT_OF_MEMORY,
    rx.ClusterError: _CLUSTER,
    rx.ClusterDownError: _CLUSTER,
    rx.ClusterCrossSlotError: _CLUSTER,
    rx.AskError: _CLUSTER,
    rx.TryAgainError: _CLUSTER,
    rx.RedisClusterException: _CLUSTER,
    rx.InvalidResponse: _NOT_REDIS,
    ProtocolError: _NOT_REDIS,
    TimeoutError: _LATE,
    OSError: _UNREACHABLE,
}

_FAILURES: tuple[type[Exception], ...] = (ReplyError, *(key for key in FAULTS if isinstance(key, type)))


def fault_of(error: Exception) -> Fault:
    """The row of the table that an error belongs to."""
    if isinstance(error, ReplyError):
        return FAULTS.get(error.code, _REFUSED)
    return next(FAULTS[kind] for kind in type(error).__mro__ if kind in FAULTS)


class RedisSpillStore:
    """Blocks as string values of a Redis or Valkey server (docs/format.md, section 6).

    url: `redis://`, `rediss://` or `unix://`, user and password percent-encoded. prefix: begins every key.
    instance, marker: 16 bytes each; the id of this instance, and what its marker key must begin with; `epoch`
    follows there, and `save_epoch` is told of each new one. shared: other instances write there too, so that a
    put looks first whether the block is there. pool_size: most connections, so also most calls at a time;
    further ones wait. connect_timeout_s: for one connection with its handshake.
    """

    def __init__(
        self, url: str, *, instance: bytes, marker: bytes, prefix: str = "tierd", pool_size: int = 8,
        connect_timeout_s: float = 2.0, wall_clock: Callable[[], float] = time.time, shared: bool = False,
        epoch: int = 0, save_epoch: Callable[[int], None] = lambda _: None,
    ) -> None:
        """Connects to nothing yet. Raises InvalidInput."""
        if not prefix or not prefix.isprintable() or set(prefix) & set("{}"):
            raise InvalidInput("spill_prefix", "must be printable, not empty, and without braces")
        if len(marker) != MARKER_BYTES:
            raise InvalidInput("marker", f"{len(marker)} bytes, not {MARKER_BYTES}")
        self._prefix = prefix.encode()
        self._instance = instance
        self._shared = shared
        self._epoch, self._save_epoch = epoch, save_epoch
        self._marker_key = marker_key(self._prefix, instance)
        self._marker = marker
        self._wall_clock = wall_clock
        self._address = RedisAddress(url)
        self._pool = RedisPool(self._address, pool_size, connect_timeout_s)

    def __repr__(self) -> str:
        return f"RedisSpillStore({self._address}, prefix {self._prefix.decode()})"

    def put(self, block: StoredBlock, payload: U8Array, deadline_s: float) -> bool:
        data = _exactly(payload, block.size)
        key = self._key(block.fingerprint, block.identity)
        value_bytes = HEADER_BYTES + block.size
        head = b"*3\r\n$3\r\nSET\r\n$%d\r\n%b\r\n$%d\r\n" % (len(key), key, value_bytes)
        header = encode_header(block, self._wall_clock(), self._instance)
        with self._exchange(deadline_s) as (wire, deadline):
            there = self._there(wire, block, deadline) if self._shared else None
            if there is None:
                wire.send([head + header, data, CRLF], deadline)
                _expect_ok(wire.reply(deadline))
        return there is None or there.own

    def look(
        self, fingerprint: bytes, identities: Sequence[bytes], deadline_s: float
    ) -> list[StoredBlock | None]:
        if not identities:
            return []
        with self._exchange(deadline_s) as (wire, deadline):
            return self._look(wire, fingerprint, identities, deadline)

    def restate(self, fingerprint: bytes, records: Mapping[bytes, Record], deadline_s: float) -> None:
        if not records:
            return
        with self._exchange(deadline_s) as (wire, deadline):
            blocks = self._look(wire, fingerprint, list(records), deadline)
            older = [block for block in blocks if block and block.record.wall < records[block.identity].wall]
            pairs = [(self._key(fingerprint, block.identity), records[block.identity]) for block in older]
            _set_statistics(wire, pairs, deadline)

    def get(self, fingerprint: bytes, identity: bytes, out: U8Array, deadline_s: float) -> StoredBlock:
        view = _exactly(out, out.nbytes)
        key = self._key(fingerprint, identity)
        with self._exchange(deadline_s) as (wire, deadline):
            wire.send([command(b"GET", key)], deadline)
            value_bytes = wire.value_length(deadline, HEADER_BYTES + _LENGTH_LINE_BYTES)
            if value_bytes is None:
                raise BlockVanished(f"block {identity.hex()} is not on {self._address}")
            header = bytearray(min(HEADER_BYTES, value_bytes))
            wire.fill(memoryview(header), deadline)
            block = decode_header(
                bytes(header), fingerprint, identity, value_bytes - HEADER_BYTES, self._instance
            )
            if block.size != view.nbytes:
                raise BlockDamaged(f"payload bytes: found {block.size}, expected {view.nbytes}")
            wire.fill_last(view, deadline)
            return block

    def unlink(self, fingerprint: bytes, identities: Sequence[bytes], deadline_s: float) -> None:
        keys = [self._key(fingerprint, identity) for identity in identities]
        keys = [name for key in keys for name in (key, statistics_key(key))]
        with self._exchange(deadline_s) as (wire, deadline):
            for first in range(0, len(keys), UNLINK_BATCH):
                wire.send([command(b"UNLINK", *keys[first : first + UNLINK_BATCH])], deadline)
                wire.reply(deadline)

    def probe(self, deadline_s: float) -> SpillHealth:
        with self._exchange(deadline_s) as (wire, deadline):
            wire.send([command(b"GET", self._marker_key)], deadline)
            found = wire.reply(deadline)
            notes = [_eviction_note(wire, deadline)]
            same = found == self._marker_value()
            if not same:
                notes.append(self._begin_epoch(found, wire, deadline))
        return SpillHealth(same=same, detail="; ".join(filter(None, notes)))

    def close(self) -> None:
        self._pool.close()

    def _key(self, fingerprint: bytes, identity: bytes) -> bytes:
        return block_key(self._prefix, fingerprint, identity)

    def _there(self, wire: Wire, block: StoredBlock, deadline: Deadline) -> StoredBlock | None:
        """The stored block, if it has the same content; its statistics become the newer ones."""
        found = self._look(wire, block.fingerprint, [block.identity], deadline)[0]
        if found is None or (found.size, found.checksum) != (block.size, block.checksum):
            return None
        if found.record.wall < block.record.wall:
            _set_statistics(wire, [(self._key(block.fingerprint, block.identity), block.record)], deadline)
        return found

    def _look(
        self, wire: Wire, fingerprint: bytes, identities: Sequence[bytes], deadline: Deadline
    ) -> list[StoredBlock | None]:
        keys = [self._key(fingerprint, identity) for identity in identities]
        wire.send([b"".join(map(_look_commands, keys))], deadline)
        replies = wire.replies(LOOK_COMMANDS * len(keys), deadline)
        return [
            self._seen(fingerprint, identity, *replies[LOOK_COMMANDS * n : LOOK_COMMANDS * (n + 1)])
            for n, identity in enumerate(identities)
        ]

    def _seen(
        self, fingerprint: bytes, identity: bytes, header: object, value_bytes: object, statistics: object
    ) -> StoredBlock | None:
        """What the replies to `_look_commands` tell. A refusal is a ReplyError: raised, but for a wrong type."""
        for reply in (header, value_bytes, statistics):
            if isinstance(reply, ReplyError) and fault_of(reply).error is not BlockDamaged:
                raise reply
        if not isinstance(header, bytes) or not isinstance(value_bytes, int) or not value_bytes:
            return None
        try:
            block = decode_header(header, fingerprint, identity, value_bytes - HEADER_BYTES, self._instance)
        except BlockDamaged:
            return None
        return latest_statistics(block, statistics if isinstance(statistics, bytes) else None)

    def _marker_value(self) -> bytes:
        return self._marker + self._epoch.to_bytes(EPOCH_BYTES, "little")

    def _begin_epoch(self, found: bytes | int | None, wire: Wire, deadline: Deadline) -> str:
        """Marks the server as this instance's in a new epoch, unless another one's marker is there. What is said
        of that. The server is told first: a kill before the state directory is means one more new epoch."""
        marker = found if isinstance(found, bytes) else b""
        if marker and not marker.startswith(self._marker):
            return "another marker is there: a second daemon has this instance id, or state was restored"
        epoch = int.from_bytes(marker[MARKER_BYTES : MARKER_BYTES + EPOCH_BYTES], "little")
        self._epoch = max(epoch, self._epoch) + 1
        wire.send([command(b"SET", self._marker_key, self._marker_value())], deadline)
        _expect_ok(wire.reply(deadline))
        self._save_epoch(self._epoch)
        if not marker:
            return "the marker was absent: a new or flushed server"
        return "the marker is of another epoch: the server is one of before, or was restored"

    @contextmanager
    def _exchange(self, deadline_s: float) -> Iterator[tuple[Wire, Deadline]]:
        """A wire for commands, and errors in the words of the daemon."""
        deadline = Deadline(deadline_s)
        try:
            with self._pool.borrow(deadline) as wire:
                yield wire, deadline
        except _FAILURES as error:
            fault = fault_of(error)
            if fault.drop_pool:
                self._pool.drop_all()
            raise fault.error(f"{self._address}: {fault.reason} ({error})") from error


def _exactly(array: U8Array, size: int) -> memoryview:
    """The array's bytes; ValueError when they are not `size` contiguous ones, which is the caller's bug."""
    if array.nbytes != size or not array.flags.c_contiguous:
        raise ValueError(f"{array.nbytes} bytes, contiguous: {array.flags.c_contiguous}; the block has {size}")
    return array.data.cast("B")


def _expect_ok(reply: bytes | int | None) -> None:
    if reply != b"OK":
        raise ProtocolError(f"{reply!r} where OK was expected")


def _look_commands(key: bytes) -> bytes:
    """Header, bytes of the value, and the statistics beside it: no payload."""
    header = command(b"GETRANGE", key, b"0", b"%d" % (HEADER_BYTES - 1))
    return header + command(b"STRLEN", key) + command(b"GET", statistics_key(key))


def _set_statistics(wire: Wire, pairs: Sequence[tuple[bytes, Record]], deadline: Deadline) -> None:
    """Writes statistics beside the blocks of keys."""
    if not pairs:
        return
    commands = [command(b"SET", statistics_key(key), encode_statistics(record)) for key, record in pairs]
    wire.send([b"".join(commands)], deadline)
    for reply in wire.replies(len(commands), deadline):
        if isinstance(reply, ReplyError):
            raise reply


def _eviction_note(wire: Wire, deadline: Deadline) -> str:
    """A server that evicts by itself makes misses that nobody decided on; it is named."""
    wire.send([command(b"INFO", b"memory")], deadline)
    try:
        text = wire.reply(deadline)
    except ReplyError:
        return ""
    lines = text.decode("utf-8", "replace").splitlines() if isinstance(text, bytes) else []
    info = dict(line.split(":", 1) for line in lines if ":" in line)
    policy = info.get("maxmemory_policy", "noeviction")
    if policy == "noeviction" or info.get("maxmemory") == "0":
        return ""
    return f"the server evicts by itself (maxmemory-policy {policy}): blocks may vanish"
