"""The spill tier on a Redis or Valkey server: one string value per block, moved without a copy in Python."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from typing import TypeVar

from tierd.adapters.envelope import (
    HEADER_BYTES,
    STATISTICS_BYTES,
    PayloadCheck,
    block_key,
    decode_checksum,
    decode_header,
    encode_header,
    encode_statistics,
    latest_statistics,
    marker_key,
    statistics_key,
)
from tierd.adapters.redis_client import Answer, Exchange, RedisClient, Words
from tierd.adapters.redis_faults import fault_of, spill_error
from tierd.adapters.resp import CRLF, Deadline, ProtocolError, Reply, ReplyError, Wire
from tierd.core.errors import BlockDamaged, BlockVanished, InvalidInput, SpillFull, SpillRefused
from tierd.core.messages import Record
from tierd.ports import SpillHealth, StoredBlock, Wanted, attempt
from tierd_client.format import U8Array

T = TypeVar("T")
MARKER_BYTES = 16
EPOCH_BYTES = 8
LOOK_COMMANDS = 3
LOOKED_FOR_MAX = 16
"""Blocks that a put looks for at a time, before it stores those that are not there."""
SMALL_CONNECTIONS = 8
"""More to each server, for what carries no payload, so that no probe and no look waits until a block is through:
one for the probe, two for looks, one for statistics, four for the movers' threads."""
RELEASE_MIN = (6, 2)
"""Of Redis; every Valkey is newer."""


class RedisSpillStore:
    """Blocks as string values of a Redis or Valkey server (docs/format.md, section 6).

    url: of one server, of a primary under Sentinel, or of a cluster (redis_url.py). prefix: begins every key.
    instance, marker: 16 bytes each; the id of this instance, and what its marker key must begin with; `epoch`
    follows there, and `save_epoch` is told of each new one. shared: other instances write there too, so that a
    put looks first whether the block is there. pool_size: most connections to each server that carry blocks, so
    also most blocks under way; further ones wait. connect_timeout_s: for one connection with its handshake.
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
        self.shared = shared
        self._epoch, self._save_epoch = epoch, save_epoch
        self._marker_key = marker_key(self._prefix, instance)
        self._marker = marker
        self._wall_clock = wall_clock
        self._redis = RedisClient(url, pool_size, connect_timeout_s)
        self._small = RedisClient(url, SMALL_CONNECTIONS, connect_timeout_s)

    def __repr__(self) -> str:
        return f"RedisSpillStore({self._redis}, prefix {self._prefix.decode()})"

    def put(self, block: StoredBlock, payload: U8Array, deadline_s: float) -> bool:
        if self.shared:
            return _the_only(self.put_all([(block, payload)], deadline_s))
        deadline = Deadline(deadline_s)
        return self._redis.exchange(self._set(block, payload, deadline), deadline)

    def put_all(
        self, blocks: Iterable[tuple[StoredBlock, U8Array]], deadline_s: float
    ) -> Iterator[tuple[int, bool | Exception]]:
        deadline = Deadline(deadline_s)
        if self.shared:
            return self._put_what_is_not_there(blocks, deadline)
        return self._redis.exchange_all((self._set(*one, deadline) for one in blocks), deadline)

    def look(
        self, fingerprint: bytes, identities: Sequence[bytes], deadline_s: float
    ) -> list[StoredBlock | None]:
        return self._look([(fingerprint, identity) for identity in identities], Deadline(deadline_s))

    def restate(self, fingerprint: bytes, records: Mapping[bytes, Record], deadline_s: float) -> None:
        deadline = Deadline(deadline_s)
        blocks = self._look([(fingerprint, identity) for identity in records], deadline)
        older = [block for block in blocks if block and block.record.wall < records[block.identity].wall]
        pairs = [(self._key(fingerprint, block.identity), records[block.identity]) for block in older]
        self._run([_statistics_command(key, record) for key, record in pairs], deadline)

    def get(self, fingerprint: bytes, identity: bytes, out: U8Array, deadline_s: float) -> int:
        deadline = Deadline(deadline_s)
        return self._redis.exchange(self._get(Wanted(fingerprint, identity, out), deadline), deadline)

    def get_all(self, wanted: Iterable[Wanted], deadline_s: float) -> Iterator[tuple[int, int | Exception]]:
        deadline = Deadline(deadline_s)
        return self._redis.exchange_all((self._get(one, deadline) for one in wanted), deadline)

    def footprints(self, fingerprint: bytes, identities: Sequence[bytes], deadline_s: float) -> list[int | None]:
        keys = [self._key(fingerprint, identity) for identity in identities]
        asked = [(b"MEMORY", b"USAGE", name) for key in keys for name in (key, statistics_key(key))]
        answers = self._small.batch(asked, Deadline(deadline_s))
        for answer in answers:
            if isinstance(answer, ReplyError):  # also without the right to ask: the blocks can be used all the same
                raise SpillRefused(f"{self._redis}: {answer}")
        found = [one if isinstance(one, int) else 0 for one in answers]
        pairs = zip(found[::2], found[1::2], strict=True)
        return [value + statistics if value else None for value, statistics in pairs]

    def unlink(self, fingerprint: bytes, identities: Sequence[bytes], deadline_s: float) -> None:
        keys = [self._key(fingerprint, identity) for identity in identities]
        self._run([(b"UNLINK", name) for key in keys for name in (key, statistics_key(key))], Deadline(deadline_s))

    def probe(self, deadline_s: float) -> SpillHealth:
        deadline = Deadline(deadline_s)
        notes = self._server_notes(deadline)
        (found,) = self._run([(b"GET", self._marker_key)], deadline)
        if found == self._marker_value():
            self._try_write(deadline)
            return SpillHealth(same=True, detail="; ".join(notes))
        # A release before epochs wrote none, neither there nor in its state directory.
        same = not self._epoch and found == self._marker
        detail = self._begin_epoch(found, deadline)
        notes += [] if same else [detail]
        return SpillHealth(same=same, detail="; ".join(notes))

    def close(self) -> None:
        self._redis.close()
        self._small.close()

    def _set(self, block: StoredBlock, payload: U8Array, deadline: Deadline) -> Exchange[bool]:
        data = _exactly(payload, block.size)
        key = self._key(block.fingerprint, block.identity)
        value_bytes = HEADER_BYTES + block.size
        head = b"*3\r\n$3\r\nSET\r\n$%d\r\n%b\r\n$%d\r\n" % (len(key), key, value_bytes)
        header = encode_header(block, self._wall_clock(), self._instance)

        def hear(wire: Wire) -> bool:
            _expect_ok(wire.reply(deadline))
            return True

        return Exchange(key, value_bytes, [head + header, data, CRLF], hear)

    def _get(self, wanted: Wanted, deadline: Deadline) -> Exchange[int]:
        fingerprint, identity, out = wanted
        view = _exactly(out, out.nbytes)
        key = self._key(fingerprint, identity)
        value_bytes = HEADER_BYTES + view.nbytes

        def hear(wire: Wire) -> int:
            header, check = bytearray(HEADER_BYTES), PayloadCheck()
            found = wire.value(memoryview(header), view, deadline, check.see)
            if found is None:
                raise BlockVanished(f"block {identity.hex()} is not on {self._redis}")
            if found != value_bytes:
                raise BlockDamaged(f"payload bytes: found {found - HEADER_BYTES}, expected {view.nbytes}")
            return check.expect(decode_checksum(header, fingerprint, identity, view.nbytes))

        return Exchange(key, value_bytes, [b"*2\r\n$3\r\nGET\r\n$%d\r\n%b\r\n" % (len(key), key)], hear)

    def _key(self, fingerprint: bytes, identity: bytes) -> bytes:
        return block_key(self._prefix, fingerprint, identity)

    def _run(self, commands: Sequence[Words], deadline: Deadline) -> list[Reply]:
        """Replies of small commands; the first refusal among them is raised."""
        return [self._reply(answer) for answer in self._small.batch(commands, deadline)]

    def _reply(self, answer: Answer) -> Reply:
        if isinstance(answer, ReplyError):
            raise spill_error(self._redis, answer) from answer
        return answer

    def _put_what_is_not_there(
        self, blocks: Iterable[tuple[StoredBlock, U8Array]], deadline: Deadline
    ) -> Iterator[tuple[int, bool | Exception]]:
        """`put_all`, each LOOKED_FOR_MAX blocks looked for together before."""
        coming = enumerate(blocks)
        while some := dict(islice(coming, LOOKED_FOR_MAX)):
            there = attempt(self._there, {n: block for n, (block, _) in some.items()}, deadline)
            if isinstance(there, Exception):
                yield from dict.fromkeys(some, there).items()
                continue
            yield from ((n, found.own) for n, found in there.items())
            deadline.renew()
            absent = [n for n in some if n not in there]
            sets = [self._set(*some[n], deadline) for n in absent]
            for place, answer in self._redis.exchange_all(sets, deadline):
                yield absent[place], answer

    def _there(self, blocks: Mapping[int, StoredBlock], deadline: Deadline) -> dict[int, StoredBlock]:
        """Which of these blocks are stored already, with the same content; the newer statistics stay."""
        looked = self._look([(block.fingerprint, block.identity) for block in blocks.values()], deadline)
        there = {
            n: found for (n, block), found in zip(blocks.items(), looked, strict=True)
            if found is not None and (found.size, found.checksum) == (block.size, block.checksum)
        }
        newer = [blocks[n] for n, found in there.items() if found.record.wall < blocks[n].record.wall]
        pairs = [(self._key(block.fingerprint, block.identity), block.record) for block in newer]
        with suppress(SpillFull):  # the blocks are stored all the same
            self._run([_statistics_command(key, record) for key, record in pairs], deadline)
        return there

    def _look(self, blocks: Sequence[tuple[bytes, bytes]], deadline: Deadline) -> list[StoredBlock | None]:
        """What is stored by fingerprint and identity."""
        keys = [self._key(*block) for block in blocks]
        answers = self._small.batch([words for key in keys for words in _look_commands(key)], deadline)
        return [
            self._seen(*block, *answers[LOOK_COMMANDS * n : LOOK_COMMANDS * (n + 1)])
            for n, block in enumerate(blocks)
        ]

    def _seen(
        self, fingerprint: bytes, identity: bytes, header: Answer, value_bytes: Answer, statistics: Answer
    ) -> StoredBlock | None:
        """What the answers to `_look_commands` tell. A refusal is raised, but for a wrong type."""
        for answer in (header, value_bytes, statistics):
            if not isinstance(answer, ReplyError) or fault_of(answer).error is not BlockDamaged:
                self._reply(answer)
        if not isinstance(header, bytes) or not isinstance(value_bytes, int) or not value_bytes:
            return None
        try:
            block = decode_header(header, fingerprint, identity, value_bytes - HEADER_BYTES, self._instance)
        except BlockDamaged:
            return None
        return latest_statistics(block, statistics if isinstance(statistics, bytes) else None)

    def _marker_value(self) -> bytes:
        return self._marker + self._epoch.to_bytes(EPOCH_BYTES, "little")

    def _try_write(self, deadline: Deadline) -> None:
        """Writes the marker that is there over itself: a server that only reads would be up until the next store.
        One that is full does what is to be done: it serves what it holds."""
        with suppress(SpillFull):
            self._run([(b"SET", self._marker_key, self._marker_value(), b"XX")], deadline)

    def _begin_epoch(self, found: Reply, deadline: Deadline) -> str:
        """Marks the server as this instance's in a new epoch, unless another one's marker is there. What is said
        of that. The server is told first: a kill before the state directory is means one more new epoch."""
        marker = found if isinstance(found, bytes) else b""
        if marker and not marker.startswith(self._marker):
            return "another marker is there: a second daemon has this instance id, or state was restored"
        epoch = int.from_bytes(marker[MARKER_BYTES : MARKER_BYTES + EPOCH_BYTES], "little")
        self._epoch = max(epoch, self._epoch) + 1
        self._run([(b"SET", self._marker_key, self._marker_value())], deadline)
        self._save_epoch(self._epoch)
        if not marker:
            return "the marker was absent: a new or flushed server"
        return "the marker is of another epoch: the server is one of before, or was restored"

    def _server_notes(self, deadline: Deadline) -> list[str]:
        """What is wrong with the settings of the servers, each thing once. Reaches all of them."""
        answers = self._small.everywhere([(b"INFO", b"server"), (b"INFO", b"memory")], deadline)
        notes = (note for _, about in answers for note in server_notes(info_of(about)))
        return list(dict.fromkeys(notes))


def _the_only(answers: Iterable[tuple[int, T | Exception]]) -> T:
    ((_, answer),) = answers
    if isinstance(answer, Exception):
        raise answer
    return answer


def _exactly(array: U8Array, size: int) -> memoryview:
    """The array's bytes; ValueError when they are not `size` contiguous ones, which is the caller's bug."""
    if array.nbytes != size or not array.flags.c_contiguous:
        raise ValueError(f"{array.nbytes} bytes, contiguous: {array.flags.c_contiguous}; the block has {size}")
    return array.data.cast("B")


def _expect_ok(reply: Reply) -> None:
    if reply != b"OK":
        raise ProtocolError(f"{reply!r} where OK was expected")


def _look_commands(key: bytes) -> tuple[Words, ...]:
    """Header, bytes of the value, and the statistics beside it: no payload, and no more than that of whatever
    lies there. A value that is longer than statistics are gives a byte too many, and is none."""
    header = (b"GETRANGE", key, b"0", b"%d" % (HEADER_BYTES - 1))
    statistics = (b"GETRANGE", statistics_key(key), b"0", b"%d" % STATISTICS_BYTES)
    return header, (b"STRLEN", key), statistics


def _statistics_command(key: bytes, record: Record) -> Words:
    """Writes the statistics beside the block of a key."""
    return b"SET", statistics_key(key), encode_statistics(record)


def info_of(answers: Sequence[Answer]) -> dict[str, str]:
    """The fields of replies to INFO; a user who may not ask gets none."""
    text = b"".join(one for one in answers if isinstance(one, bytes)).decode("utf-8", "replace")
    return dict(line.split(":", 1) for line in text.splitlines() if ":" in line)


def server_notes(info: Mapping[str, str]) -> list[str]:
    """What people should know of a server, by its INFO: it is too old, or makes misses that nobody decided on."""
    notes = []
    release = info.get("redis_version", "")
    numbers = tuple(int(part) for part in release.split(".")[:2] if part.isdecimal())
    if "valkey_version" not in info and release and numbers < RELEASE_MIN:
        notes.append(f"the server is Redis {release}, older than 6.2, the oldest that is supported")
    policy = info.get("maxmemory_policy", "noeviction")
    if info.get("maxmemory") == "0":
        notes.append("the server has no maxmemory: nothing keeps it from taking all memory of its machine")
    elif policy != "noeviction":
        notes.append(f"the server evicts by itself (maxmemory-policy {policy}): blocks may vanish")
    return notes
