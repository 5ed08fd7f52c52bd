"""The header before each payload in the spill tier, the statistics beside it, and their keys (docs/format.md, 6).

The header is fixed-size, checksummed binary: what another process wrote is parsed, never executed, and
whatever does not parse is BlockDamaged with the field that is wrong.
"""

from __future__ import annotations

import math
import struct
from binascii import hexlify
from dataclasses import replace
from typing import Any

import xxhash

from tierd.core.errors import BlockDamaged
from tierd.core.messages import Record
from tierd.ports import StoredBlock
from tierd_client.format import IDENTITY_BYTES

MAGIC = b"TIERDBLK"
VERSION = 1
HEADER_BYTES = 256
STATISTICS_BYTES = 64
CODEC_NONE = 0
CIPHER_NONE = 0

_FIELDS = struct.Struct("<8sHHHH32s32s32sIIQQQqdddd16sHB45x")
_PAYLOAD_CHECKSUM = 11
"""Place among the fields."""
_KNOWN_FIELDS = (
    "magic", "version", "header bytes", "header checksum", "codec", "cipher", "fingerprint", "identity",
    "payload bytes",
)
"""In the order in which they give each other meaning."""
_CHECKSUM = struct.Struct("<Q")
_NO_PARENT = bytes(IDENTITY_BYTES)
_NOBODY = bytes(16)
_WEIGHTED = 1
_STATISTICS_MAGIC = b"TIERDSTA"
_STATISTICS = struct.Struct("<8sHHQqdddB3x")
# Columns of the catalog that the fields end up in are narrower than the envelope's.
_GROUP_MAX = 0xFFFF
_TOUCHES_MAX = 0xFFFFFFFF


def block_key(prefix: bytes, fingerprint: bytes, identity: bytes) -> bytes:
    """Key of a block; the braces keep it and its siblings in one hash slot of a cluster."""
    return b"{%b:%b:%b}" % (prefix, hexlify(fingerprint), hexlify(identity))


def statistics_key(key: bytes) -> bytes:
    """Key of the statistics beside the block of a key."""
    return key + b":s"


def marker_key(prefix: bytes, instance: bytes) -> bytes:
    """Key whose value tells that a server still holds what this instance stored."""
    return b"{%b:marker}:%b" % (prefix, instance.hex().encode())


def encode_header(block: StoredBlock, written_wall_s: float, writer: bytes = _NOBODY) -> bytes:
    """The 256 bytes that go before the payload of `block`. written_wall_s: seconds since 1970. writer: 16 bytes,
    the id of the instance that stores it."""
    record = block.record
    body = _FIELDS.pack(
        MAGIC, VERSION, HEADER_BYTES, CODEC_NONE, CIPHER_NONE, block.fingerprint, block.identity,
        block.parent or _NO_PARENT, block.group, block.position, block.size, block.checksum, record.touches,
        record.last, record.ema, record.crf, record.wall, written_wall_s, writer, _WEIGHTED * record.weighted,
        record.learnt,
    )
    return body + _CHECKSUM.pack(xxhash.xxh3_64_intdigest(body))


def decode_header(
    header: bytes, fingerprint: bytes, identity: bytes, payload_bytes: int, reader: bytes = _NOBODY
) -> StoredBlock:
    """What the header says, once it is known to be of the block that was asked for.

    `payload_bytes`: bytes of the stored value behind the header. `reader`: the instance that asks, whose own
    blocks are `own`. Raises BlockDamaged naming the field.
    """
    fields = _checked_fields(header, fingerprint, identity, payload_bytes)
    record = Record(
        touches=fields[12], last=fields[13], ema=fields[14], crf=fields[15], wall=fields[16],
        weighted=bool(fields[19] & _WEIGHTED), learnt=fields[20],
    )
    _check_numbers(fields[8], record)
    parent = None if fields[7] == _NO_PARENT else fields[7]
    return StoredBlock(
        fingerprint=fields[5], identity=fields[6], group=fields[8], position=fields[9], parent=parent,
        size=fields[10], checksum=fields[11], record=record, own=fields[18] == reader,
    )


def decode_checksum(header: bytes | bytearray, fingerprint: bytes, identity: bytes, payload_bytes: int) -> int:
    """The checksum of the payload, all that a load needs of `decode_header`."""
    checksum: int = _checked_fields(header, fingerprint, identity, payload_bytes)[_PAYLOAD_CHECKSUM]
    return checksum


class PayloadCheck:
    """The checksum of a payload that is seen piece by piece, in its order."""

    def __init__(self) -> None:
        self._digest = xxhash.xxh3_64()
        self.see = self._digest.update

    def expect(self, checksum: int) -> int:
        """The same. BlockDamaged when what was seen has another one."""
        found = self._digest.intdigest()
        if found != checksum:
            raise BlockDamaged(f"payload checksum: found {found:016x}, expected {checksum:016x}")
        return checksum


def encode_statistics(record: Record) -> bytes:
    """The 64 bytes of the value beside a block."""
    body = _STATISTICS.pack(
        _STATISTICS_MAGIC, VERSION, _WEIGHTED * record.weighted, record.touches, record.last, record.ema,
        record.crf, record.wall, record.learnt,
    )
    return body + _CHECKSUM.pack(xxhash.xxh3_64_intdigest(body))


def latest_statistics(block: StoredBlock, value: bytes | None) -> StoredBlock:
    """The block with the statistics beside it, where they are sound and newer than its own."""
    record = None if value is None else _decode_statistics(value)
    if record is None or record.wall <= block.record.wall:
        return block
    return replace(block, record=record)


def _decode_statistics(value: bytes) -> Record | None:
    """None for what this version did not write: statistics are worth no error."""
    if len(value) != STATISTICS_BYTES:
        return None
    magic, version, flags, touches, last, ema, crf, wall, learnt = _STATISTICS.unpack_from(value)
    sound = _CHECKSUM.unpack_from(value, _STATISTICS.size)[0] == xxhash.xxh3_64_intdigest(value[: _STATISTICS.size])
    record = Record(touches, last, wall, ema, crf, bool(flags & _WEIGHTED), learnt)
    if (magic, version, sound) != (_STATISTICS_MAGIC, VERSION, True):
        return None
    try:
        _check_numbers(0, record)
    except BlockDamaged:
        return None
    return record


def _checked_fields(
    header: bytes | bytearray, fingerprint: bytes, identity: bytes, payload_bytes: int
) -> tuple[Any, ...]:
    """All fields of a header, of which those that are known beforehand are as they must be."""
    if len(header) != HEADER_BYTES:
        raise BlockDamaged(f"header: {len(header)} bytes, not {HEADER_BYTES}")
    fields, (checksum,) = _FIELDS.unpack_from(header), _CHECKSUM.unpack_from(header, _FIELDS.size)
    found = (*fields[:3], checksum, *fields[3:7], fields[10])
    sealed = xxhash.xxh3_64_intdigest(header[: _FIELDS.size])
    wanted = (MAGIC, VERSION, HEADER_BYTES, sealed, CODEC_NONE, CIPHER_NONE, fingerprint, identity, payload_bytes)
    if found != wanted:
        for one in zip(_KNOWN_FIELDS, found, wanted, strict=True):
            _expect(*one)
    return fields


def _check_numbers(group: int, record: Record) -> None:
    if group > _GROUP_MAX:
        raise BlockDamaged(f"group: {group} is above {_GROUP_MAX}")
    if record.touches > _TOUCHES_MAX:
        raise BlockDamaged(f"touches: {record.touches} is above {_TOUCHES_MAX}")
    for name, value in (("ema", record.ema), ("crf", record.crf), ("wall time", record.wall)):
        if not math.isfinite(value):
            raise BlockDamaged(f"{name}: {value} is not a finite number")


def _expect(field: str, found: object, wanted: object) -> None:
    if found != wanted:
        raise BlockDamaged(f"{field}: found {_shown(found)}, expected {_shown(wanted)}")


def _shown(value: object) -> str:
    return value.hex() if isinstance(value, bytes) else str(value)
