"""The shared-memory format: tables of named columns, and the index that finds an identity's row.

Both sides of the format live here, because daemon and client must not disagree by a byte: the daemon
writes the catalog through these columns, a client on the same host probes it read-only. docs/format.md
is the description; this module is pure (standard library and numpy).
"""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

U8Array = NDArray[np.uint8]
U64Array = NDArray[np.uint64]
I64Array = NDArray[np.int64]
BoolArray = NDArray[np.bool_]

FORMAT_VERSION = 1
IDENTITY_BYTES = 32
HEADER_BYTES = 8192
PAGE_BYTES = 4096
OFFSET_BITS = 48
OFFSET_MASK = (1 << OFFSET_BITS) - 1
"""Of an address: a segment, or a pool of lent pages, in the bits above, the offset in these."""
TIERS = 3
FIRST_POOL = 0x8000
"""Segments from here on are pools of pages that engines lend: nobody else can map them."""

CATALOG_MAGIC = b"TIERDCAT"
GHOST_MAGIC = b"TIERDGHO"
SESSION_MAGIC = b"TIERDSES"
LEARNT_MAGIC = b"TIERDLRN"
LEARNT_CLASSES, LEARNT_TOUCHES, LEARNT_BINS = 38, 8, 96
"""Classes of blocks, numbers of accesses, and bins of gaps of which counts are kept."""

_FIXED = struct.Struct("<8sII16s16sI")
_WORDS_OFFSET = 64
_JSON_OFFSET = 256

# Mutable 64-bit words of a header, by index. Catalog: INDEX_EPOCH is odd while the index is rebuilt.
WORD_ROWS, WORD_BUCKETS, WORD_SALT, WORD_POLICY_EPOCH, WORD_INDEX_EPOCH = 0, 1, 2, 3, 4
# REACH has a bit per tier whose copies can be reached; 0: written by a daemon that does not say.
WORD_REACH = 11
# Ghost table: WORD_ROWS is the capacity; the ring holds entries HEAD .. TAIL-1, modulo the capacity.
WORD_HEAD, WORD_TAIL = 5, 6
WORDS = 24

STATE_ABSENT, STATE_FILLING, STATE_READY = 0, 1, 2
HAZARD_PAGE_BYTES = 16_384
HAZARDS_MAX = HAZARD_PAGE_BYTES // 16 - 1
"""Entries of a session's hazard page, after the one whose first word says how many of them may be in use."""
HAZARD_ROW_BITS = 32
"""Of the second word of an entry: the row in the bits above, bytes of the block in these."""

HOLD_FREE, HOLD_LEASE, HOLD_RESERVATION, HOLD_QUARANTINE = 0, 1, 2, 3

BUCKET_EMPTY = 0
BUCKET_TOMBSTONE = 0xFFFFFFFF
"""A bucket holds 0, the tombstone, or row + 1."""


class FormatError(ValueError):
    """A buffer is not a table of the wanted kind and version."""


@dataclass(frozen=True, slots=True)
class Column:
    """One column: dtype in numpy's notation, little-endian; the first axis is the row unless said."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        return int(np.dtype(self.dtype).itemsize * np.prod(self.shape, dtype=np.int64))


def catalog_columns(rows: int, buckets: int) -> list[Column]:
    """Columns of a catalog. Those with a leading axis of 3 have one plane per tier: hbm, host, spill."""
    return [
        Column("index", "<u4", (buckets,)),
        Column("identity", "|u1", (rows, IDENTITY_BYTES)),
        Column("sequence", "<u4", (rows,)),
        Column("birth", "<u4", (rows,)),
        Column("namespace", "<u2", (rows,)),
        Column("group", "<u2", (rows,)),
        Column("position", "<u4", (rows,)),
        Column("parent", "<i4", (rows,)),
        Column("parent_birth", "<u4", (rows,)),
        Column("size", "<u4", (rows,)),
        Column("checksum", "<u8", (rows,)),
        Column("state", "|u1", (TIERS, rows)),
        Column("address", "<u8", (TIERS, rows)),
        Column("generation", "<u8", (TIERS, rows)),
        Column("flags", "|u1", (rows,)),
        Column("touches", "<u4", (rows,)),
        Column("last", "<i8", (rows,)),
        Column("wall", "<f8", (rows,)),
        Column("ema", "<f8", (rows,)),
        Column("crf", "<f8", (rows,)),
        Column("policy", "|u1", (rows, 24)),
    ]


def ghost_columns(capacity: int) -> list[Column]:
    """Columns of the ghost table: 64 bytes a ghost."""
    return [
        Column("identity", "|u1", (capacity, IDENTITY_BYTES)),
        Column("ema", "<f8", (capacity,)),
        Column("crf", "<f8", (capacity,)),
        Column("last", "<i8", (capacity,)),
        Column("wall", "<u4", (capacity,)),
        Column("touches", "<u4", (capacity,)),
    ]


def session_columns(sessions: int, holds: int) -> list[Column]:
    """Columns of the session table: who lives, and which slots each may still touch."""
    return [
        Column("session", "<u8", (sessions,)),
        Column("pid", "<u4", (sessions,)),
        Column("start_time", "<u8", (sessions,)),
        Column("token", "|u1", (sessions, 16)),
        Column("hold_session", "<u8", (holds,)),
        Column("hold_kind", "|u1", (holds,)),
        Column("hold_tier", "|u1", (holds,)),
        Column("hold_address", "<u8", (holds,)),
        Column("hold_generation", "<u8", (holds,)),
        Column("hold_bytes", "<u4", (holds,)),
    ]


def learnt_columns(ghosts: int) -> list[Column]:
    """What was learnt of accesses, beside the statistics: counts of gaps, and a byte for each place of a ghost."""
    return [
        Column("gaps", "<f8", (LEARNT_CLASSES + LEARNT_TOUCHES + 1, LEARNT_BINS + 1)),
        Column("ghosts", "|u1", (ghosts,)),
    ]


def table_bytes(columns: Sequence[Column]) -> int:
    """Bytes of a table with its header, a multiple of the page size."""
    end = HEADER_BYTES
    for column in columns:
        end = _aligned(end, 64) + column.nbytes
    return _aligned(end, PAGE_BYTES)


class Table:
    """A header and named columns over one buffer (a mapping, or private memory)."""

    def __init__(self, buffer: Any, columns: Sequence[Column], instance: bytes, boot: bytes) -> None:
        self.buffer = buffer
        self.instance = instance
        self.boot = boot
        self.words: U64Array = np.frombuffer(buffer, "<u8", WORDS, _WORDS_OFFSET)
        self.columns: dict[str, NDArray[Any]] = {}
        offset = HEADER_BYTES
        for column in columns:
            offset = _aligned(offset, 64)
            count = int(np.prod(column.shape, dtype=np.int64))
            flat = np.frombuffer(buffer, column.dtype, count, offset)
            self.columns[column.name] = flat.reshape(column.shape)
            offset += column.nbytes

    def __getitem__(self, name: str) -> NDArray[Any]:
        return self.columns[name]

    @classmethod
    def create(
        cls, magic: bytes, columns: Sequence[Column], *, buffer: Any = None, instance: bytes = bytes(16),
        boot: bytes = bytes(16),
    ) -> Table:
        """Writes the header of a new table into `buffer` (zeroed, writable; None: private memory)."""
        if buffer is None:
            buffer = np.zeros(table_bytes(columns), np.uint8).data
        view = memoryview(buffer).cast("B")
        text = json.dumps([[c.name, c.dtype, list(c.shape)] for c in columns]).encode()
        if _JSON_OFFSET + len(text) > HEADER_BYTES:
            raise FormatError(f"the column list takes {len(text)} bytes, more than a header holds")
        view[_JSON_OFFSET : _JSON_OFFSET + len(text)] = text
        _FIXED.pack_into(view, 0, magic, FORMAT_VERSION, HEADER_BYTES, instance, boot, len(text))
        return cls(view, columns, instance, boot)

    @classmethod
    def attach(cls, magic: bytes, buffer: Any) -> Table:
        """Opens an existing table. FormatError when it is not one that this code can read."""
        view = memoryview(buffer).cast("B")
        if len(view) < HEADER_BYTES:
            raise FormatError(f"{len(view)} bytes are less than a header")
        found, version, _, instance, boot, size = _FIXED.unpack_from(view, 0)
        if found != magic:
            raise FormatError(f"magic {found!r} is not {magic!r}")
        if version != FORMAT_VERSION:
            raise FormatError(f"format version {version} is not {FORMAT_VERSION}")
        try:
            listed = json.loads(bytes(view[_JSON_OFFSET : _JSON_OFFSET + size]))
            columns = [Column(name, dtype, tuple(shape)) for name, dtype, shape in listed]
            if table_bytes(columns) > len(view):
                raise FormatError(f"columns need {table_bytes(columns)} bytes of {len(view)}")
            return cls(view, columns, instance, boot)
        except (ValueError, TypeError) as error:
            raise FormatError(f"column list: {error}") from error

    def set_boot(self, boot: bytes) -> None:
        """Stamps the boot that owns the table from now on."""
        self.boot = boot
        self.buffer[32:48] = boot


def words_of(ids: U8Array) -> U64Array:
    """Identities (n, 32) uint8 as (n, 4) words, without a copy where the memory allows it."""
    return np.ascontiguousarray(ids).view("<u8")


_MULTIPLIER, _SHIFT = np.array(0x9E3779B97F4A7C15, np.uint64), np.array(29, np.uint64)
_ZERO, _ONE, _NONE = np.array(0), np.array(1), np.array(-1)
FEW_PROBES = 48
"""So many identities are probed one by one in less time than they take a step together."""


def hashes(words: U64Array, salt: int) -> U64Array:
    """Multiplicative hash of the first two words of each identity."""
    mixed: U64Array = words[:, 0] ^ np.uint64(salt)
    mixed *= _MULTIPLIER
    mixed += words[:, 1]
    mixed ^= mixed >> _SHIFT
    return mixed


def first_bucket(words: U64Array, salt: int, mask: int) -> I64Array:
    """Where the probe of each identity starts: the lower bits of its hash."""
    mixed = hashes(words, salt)
    mixed &= np.uint64(mask)
    return mixed.view(np.int64)


def find_rows(index: NDArray[np.uint32], identity: U64Array, words: U64Array, salt: int) -> I64Array:
    """Row of each identity, -1 where it has none. Linear probing: all take a step at once, until few are left.

    `identity` is the catalog's column as (rows, 4) words, `words` the (n, 4) words looked for.
    """
    mask = len(index) - 1
    bucket = first_bucket(words, salt, mask)
    if (few := _find_few(index, identity, words, bucket)) is not None:
        return few
    rows, left = np.empty(len(words), np.int64), np.arange(len(words))
    for _ in range(len(index)):
        rows[left], go_on = _step(index.view(np.int32), identity, words, bucket)
        left, words, bucket = left[go_on], words.take(go_on, axis=0), (bucket[go_on] + _ONE) & mask
        if (few := _find_few(index, identity, words, bucket)) is not None:
            rows[left] = few
            break
    return rows


def _find_few(
    index: NDArray[np.uint32], identity: U64Array, words: U64Array, bucket: I64Array
) -> I64Array | None:
    """Row of each identity, one by one; None where they are too many for that, or first words are not enough."""
    if len(words) > FEW_PROBES:
        return None
    rows = np.array(_probe_each(index, identity, words, bucket), np.int64)
    known = (rows >= _ZERO).nonzero()[0]
    if len(known) < len(rows):
        return rows if identity.take(rows[known], 0).tobytes() == words.take(known, 0).tobytes() else None
    return rows if identity.take(rows, 0).tobytes() == words.tobytes() else None


def _step(
    index: NDArray[np.int32], identity: U64Array, words: U64Array, bucket: I64Array
) -> tuple[I64Array, I64Array]:
    """Row of each identity that stands in its bucket, -1 for others; places of those that may stand further on."""
    candidate = index.take(bucket) - _ONE  # -1 for an empty bucket, -2 for a tombstone
    same = same_identity(identity, candidate, words) & (candidate >= _ZERO)
    return np.where(same, candidate, _NONE), ((candidate != _NONE) ^ same).nonzero()[0]


def _probe_each(
    index: NDArray[np.uint32], identity: U64Array, words: U64Array, bucket: I64Array
) -> list[int]:
    """Row of each identity, as far as its first word tells."""
    entry_of, first_word, mask = index.data, identity[:, 0].data, len(index) - 1
    # The first entries are read together: one by one each would be waited for.
    starts = zip(words[:, 0].tolist(), bucket.tolist(), index[bucket].tolist(), strict=True)
    rows = list[int]()
    for word, at, entry in starts:
        last = at + mask
        while entry != BUCKET_EMPTY and (entry == BUCKET_TOMBSTONE or first_word[entry - 1] != word):
            at += 1
            entry = entry_of[at & mask] if at <= last else BUCKET_EMPTY
        rows.append(entry - 1)
    return rows


def same_identity(identity: U64Array, rows: I64Array, words: U64Array) -> BoolArray:
    """Whether rows hold these identities, (n, 4) words; a row out of range counts as the first or last one."""
    equal = identity.take(rows, 0, mode="clip") == words
    found: BoolArray = equal.view("<u4").reshape(len(rows)) == _FOUR_TRUE
    return found


_FOUR_TRUE = np.array(0x01010101, np.uint32)
"""Four booleans, each a byte, that are all true."""


def _aligned(value: int, step: int) -> int:
    return (value + step - 1) // step * step
