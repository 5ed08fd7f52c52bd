"""Messages framed by hand: those of Put and Get that carry bytes of blocks, repeated fields out of arrays, and the
frames of calls by a lane.

PutRequest and GetResponse both have them in field 2, `data`: a message with nothing else in it is a tag, a length
and the bytes. The protobuf library would copy those three times more on their way. What it encodes in another way
is as valid, and left to it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from tierd_client.format import U8Array, U64Array

MESSAGE_BYTES = 512 * 1024
"""Payload of one message, but for the last: larger ones fall out of the processor's cache between two copies."""

_OF_LENGTH = 2
"""In the tag of a field whose length comes next."""
_DATA = 2 << 3 | _OF_LENGTH
"""Field 2."""

_LENGTH_BYTES_MAX = 4


def data_messages(blocks: Iterable[U8Array]) -> Iterator[bytes]:
    """All blocks in messages."""
    framer = Framer()
    for block in blocks:
        yield from framer.add(block)
    yield from framer.end()


class Framer:
    """Cuts blocks into messages of MESSAGE_BYTES: small ones share one."""

    def __init__(self) -> None:
        self._pieces: list[U8Array] = []
        self._room = MESSAGE_BYTES

    def add(self, block: U8Array) -> Iterator[bytes]:
        """The messages that are full with this block. Its bytes must stay as they are until its last message."""
        start = 0
        while start < block.size:
            piece = block[start : start + self._room]
            self._pieces.append(piece)
            self._room -= piece.size
            start += piece.size
            if not self._room:
                yield from self.end()

    def end(self) -> Iterator[bytes]:
        """The message of what is left, if anything is."""
        if self._pieces:
            length = MESSAGE_BYTES - self._room
            pieces = (piece.data for piece in self._pieces)
            message = b"".join((bytes((_DATA,)), _varint(length), *pieces))
            self._pieces, self._room = [], MESSAGE_BYTES
            yield message


def data_of(message: bytes) -> U8Array | None:
    """The `data` of a message that has nothing else, in place; None for any other message."""
    if not message or message[0] != _DATA:
        return None
    length = shift = 0
    for start, byte in enumerate(message[1 : 1 + _LENGTH_BYTES_MAX], 2):
        length |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return np.frombuffer(message, np.uint8)[start:] if start + length == len(message) else None
    return None


def packed_field(number: int, values: NDArray[np.int8] | U64Array) -> bytes:
    """A repeated field, packed: of enums and other numbers below 128, or of fixed64."""
    return b"".join((bytes((number << 3 | _OF_LENGTH,)), _varint(values.nbytes), values.tobytes()))


def _varint(number: int) -> bytes:
    digits = bytearray()
    while number > 0x7F:
        digits.append(number & 0x7F | 0x80)
        number >>= 7
    digits.append(number)
    return bytes(digits)


# --- calls over a Unix stream (docs/format.md, section 7) -------------------------------------------------

LANE_BYTES_MAX = 16 << 20
"""Of one message, as by gRPC."""

LANE_CALL = struct.Struct("<IIB")
"""Before a request: its bytes, how long its caller waits in ms, which call it is."""

LANE_ANSWER = struct.Struct("<IB")
"""Before a reply, or the text of an error: its bytes, gRPC's number of the status."""

LANE_METHODS = {
    "Lookup": 1, "Reserve": 2, "Commit": 3, "Abort": 4, "Store": 5, "Acquire": 6, "Release": 7, "Touch": 8,
}
"""Calls of the data plane by their numbers, which never change."""
