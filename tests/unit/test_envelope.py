"""The envelope of a stored block: its bytes are fixed, and whatever else arrives is damage."""

from __future__ import annotations

import pickle
import struct
from dataclasses import replace
from pathlib import Path

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from tierd.adapters.envelope import HEADER_BYTES, block_key, decode_header, encode_header, marker_key
from tierd.core.errors import BlockDamaged
from tierd.core.messages import Record
from tierd.ports import StoredBlock

GOLDEN = Path(__file__).parent.parent / "golden" / "envelope.bin"
BLOCK = StoredBlock(
    fingerprint=bytes(range(32)), identity=bytes(range(32, 64)), group=3, position=70_000,
    parent=bytes(range(64, 96)), size=5 << 20, checksum=0x0123456789ABCDEF,
    record=Record(touches=7, last=-42, wall=1_700_000_000.25, ema=0.1 + 0.2, crf=5e-324),
)
WRITTEN_WALL_S = 1_700_000_001.5

hashes = st.binary(min_size=32, max_size=32)
numbers = st.floats(allow_nan=False, allow_infinity=False)
records = st.builds(
    Record, touches=st.integers(0, 2**32 - 1), last=st.integers(-(2**63), 2**63 - 1), wall=numbers, ema=numbers,
    crf=numbers, weighted=st.booleans(), learnt=st.integers(0, 255),
)
blocks = st.builds(
    StoredBlock, fingerprint=hashes, identity=hashes, group=st.integers(0, 2**16 - 1),
    position=st.integers(0, 2**32 - 1), parent=st.none() | hashes.filter(any), size=st.integers(0, 2**32 - 1),
    checksum=st.integers(0, 2**64 - 1), record=records,
)


def decode(header: bytes, block: StoredBlock = BLOCK) -> StoredBlock:
    return decode_header(header, block.fingerprint, block.identity, block.size)


def resealed(header: bytes) -> bytes:
    """With the checksum that its other bytes ask for."""
    return header[:248] + struct.pack("<Q", xxhash.xxh3_64_intdigest(header[:248]))


def patched(offset: int, data: bytes) -> bytes:
    header = encode_header(BLOCK, WRITTEN_WALL_S)
    return resealed(header[:offset] + data + header[offset + len(data) :])


def test_golden_bytes() -> None:
    """The bytes of version 1 never change: blocks that are stored today are read tomorrow."""
    golden = GOLDEN.read_bytes()
    assert encode_header(BLOCK, WRITTEN_WALL_S) == golden
    assert decode(golden) == BLOCK


def test_fields_stand_where_the_format_says() -> None:
    """Each field of docs/format.md, section 6, is at its offset."""
    header = encode_header(BLOCK, WRITTEN_WALL_S)
    assert len(header) == HEADER_BYTES == 256
    assert header[:16] == b"TIERDBLK" + struct.pack("<HHHH", 1, 256, 0, 0)
    assert header[16:112] == bytes(range(96))
    assert header[112:136] == struct.pack("<IIQQ", 3, 70_000, 5 << 20, 0x0123456789ABCDEF)
    assert header[136:168] == struct.pack("<Qqdd", 7, -42, 0.1 + 0.2, 5e-324)
    assert header[168:184] == struct.pack("<dd", 1_700_000_000.25, WRITTEN_WALL_S)
    assert not any(header[184:248])


def test_keys() -> None:
    """A block's key holds namespace and identity in braces; the marker's names the instance outside of them."""
    assert block_key(b"tierd", b"\x01" * 32, b"\xab" * 32) == b"{tierd:" + b"01" * 32 + b":" + b"ab" * 32 + b"}"
    assert marker_key(b"tierd", b"\x0f" * 16) == b"{tierd:marker}:" + b"0f" * 16


@given(block=blocks, written=numbers)
def test_round_trip(block: StoredBlock, written: float) -> None:
    """Every block that the catalog can hold comes back equal, and so do its bytes."""
    header = encode_header(block, written)
    assert decode(header, block) == block
    assert encode_header(decode(header, block), written) == header


def test_orphan() -> None:
    """No parent is written as zeros and read as no parent."""
    orphan = replace(BLOCK, parent=None)
    assert encode_header(orphan, 0.0)[80:112] == bytes(32)
    assert decode(encode_header(orphan, 0.0)).parent is None


@pytest.mark.parametrize(
    ("offset", "data", "named"),
    [
        (0, b"TIERDBLX", "magic"),
        (8, b"\x02\x00", "version"),
        (10, b"\x00\x02", "header bytes"),
        (12, b"\x01\x00", "codec"),
        (14, b"\x01\x00", "cipher"),
        (16, b"\xff", "fingerprint"),
        (79, b"\xff", "identity"),
        (112, b"\x00\x00\x01\x00", "group"),
        (120, struct.pack("<Q", (5 << 20) + 1), "payload bytes"),
        (136, struct.pack("<Q", 2**32), "touches"),
        (152, struct.pack("<d", float("nan")), "ema"),
        (160, struct.pack("<d", float("inf")), "crf"),
        (168, struct.pack("<d", float("-inf")), "wall time"),
    ],
)
def test_what_is_wrong_is_named(offset: int, data: bytes, named: str) -> None:
    """A header that is sealed but wrong is BlockDamaged naming its field."""
    with pytest.raises(BlockDamaged, match=named):
        decode(patched(offset, data))


@pytest.mark.parametrize("length", [0, 1, 247, 255, 257, 512])
def test_length(length: int) -> None:
    """A header of another length is BlockDamaged."""
    with pytest.raises(BlockDamaged, match="header"):
        decode((encode_header(BLOCK, 0.0) * 2)[:length])


@given(position=st.integers(0, 255), bit=st.integers(0, 7))
def test_every_bit_counts(position: int, bit: int) -> None:
    """A header with one bit changed anywhere is BlockDamaged."""
    header = bytearray(encode_header(BLOCK, WRITTEN_WALL_S))
    header[position] ^= 1 << bit
    with pytest.raises(BlockDamaged):
        decode(bytes(header))


@given(st.binary(max_size=600) | st.binary(min_size=256, max_size=256))
def test_random_bytes(data: bytes) -> None:
    """Random bytes are BlockDamaged, never anything else."""
    with pytest.raises(BlockDamaged):
        decode(data)


@given(body=st.binary(min_size=232, max_size=232))
def test_random_fields_in_a_sound_frame(body: bytes) -> None:
    """Random fields with magic, version and a right checksum are BlockDamaged, or a block of what was asked for."""
    header = resealed(encode_header(BLOCK, 0.0)[:16] + body + bytes(8))
    fingerprint, identity, size = header[16:48], header[48:80], struct.unpack_from("<Q", header, 120)[0]
    try:
        block = decode_header(header, fingerprint, identity, size)
    except BlockDamaged:
        return
    assert (block.fingerprint, block.identity, block.size) == (fingerprint, identity, size)


class _Bomb:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return (pytest.fail, ("it was unpickled",))


def test_nothing_is_unpickled() -> None:
    """A pickle in a block's place is damage and is not run."""
    data = pickle.dumps(_Bomb())
    with pytest.raises(BlockDamaged):
        decode(data.ljust(HEADER_BYTES, b"."))
