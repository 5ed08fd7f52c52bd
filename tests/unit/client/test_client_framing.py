"""Messages with payload, framed by hand: what protobuf makes of them, and of which of its own they are."""

from __future__ import annotations

import numpy as np
import pytest

from tierd_client.framing import MESSAGE_BYTES, data_messages, data_of, packed_field
from tierd_client.v1 import blocks_pb2 as pb

DATA = np.random.default_rng(0).integers(0, 256, 2 * MESSAGE_BYTES + 3, dtype=np.uint8)


@pytest.mark.parametrize("size", [1, 127, 128, 16_383, 16_384, MESSAGE_BYTES, MESSAGE_BYTES + 1])
def test_protobuf_reads_what_is_framed(size: int) -> None:
    """Both messages that carry payload are, byte by byte, what protobuf makes of the same data."""
    data = DATA[:size]
    messages = list(data_messages([data]))
    cut = [data[start : start + MESSAGE_BYTES].tobytes() for start in range(0, size, MESSAGE_BYTES)]
    assert messages == [pb.PutRequest(data=one).SerializeToString() for one in cut]
    assert messages == [pb.GetResponse(data=one).SerializeToString() for one in cut]


@pytest.mark.parametrize("size", [1000, 40_000, MESSAGE_BYTES - 1, len(DATA)])
def test_blocks_are_cut_anew(size: int) -> None:
    """However large the blocks are, all messages are full but the last and hold the bytes in order."""
    blocks = [DATA[start : start + size] for start in range(0, len(DATA), size)]
    parts = [data_of(message) for message in data_messages(blocks)]
    assert [len(part) for part in parts if part is not None] == [MESSAGE_BYTES, MESSAGE_BYTES, 3]
    assert b"".join(part.tobytes() for part in parts if part is not None) == DATA.tobytes()


@pytest.mark.parametrize("size", [0, 1, 127, 128, 16_384, 1 << 21])
def test_payload_of_a_message(size: int) -> None:
    """The payload of a message that protobuf made is found in place."""
    data = np.zeros(size, np.uint8).tobytes()
    found = data_of(pb.PutRequest(data=data).SerializeToString())
    assert found is not None and found.tobytes() == data


@pytest.mark.parametrize("message", [
    b"", b"\x12", b"\x12\x02a", b"\x12\x01ab", b"\x12\x81\x80\x80\x80\x00a", b"\x12\x01a\x12\x01b",
    pb.PutRequest(header=pb.PutHeader(session=1)).SerializeToString(),
])
def test_any_other_message_is_left_to_protobuf(message: bytes) -> None:
    """A message that is torn, has another field, or encodes its length at length, is not taken for payload."""
    assert data_of(message) is None


@pytest.mark.parametrize("count", [0, 1, 127, 8_192])
def test_fields_out_of_arrays(count: int) -> None:
    """An array as a repeated field, of enums or of 64-bit words, is what protobuf makes of its numbers."""
    outcomes, words = np.full(count, 3, np.int8), np.arange(count, dtype=np.uint64) << np.uint64(50)
    told = pb.AcquireResponse.FromString(packed_field(1, outcomes) + packed_field(4, words))
    assert told == pb.AcquireResponse(outcomes=outcomes.tolist(), checksums=words.tolist())
