"""The other end of a raw copy over TCP.

`python -m tierd.bench.peer PORT COUNT BYTES` has COUNT blocks of BYTES, which it gives and overwrites as it is
asked by the first who connects, until that connection ends. A request is a REQUEST of verb and number of blocks,
then their numbers; after PUT the blocks follow, and ACK answers.
"""

from __future__ import annotations

import socket
import struct
import sys
from collections.abc import Sequence

from tierd.bench.blocks import random_blocks
from tierd_client.format import U8Array

GET, PUT, ACK = b"G", b"P", b"A"
REQUEST = struct.Struct("<cI")
NUMBER = struct.Struct("<I")


def request(verb: bytes, blocks: Sequence[int]) -> bytes:
    return REQUEST.pack(verb, len(blocks)) + b"".join(map(NUMBER.pack, blocks))


def fill(line: socket.socket, out: memoryview) -> None:
    """Receives so many bytes. ConnectionError when the peer ends before."""
    done = 0
    while done < len(out):
        got = line.recv_into(out[done:])
        if not got:
            raise ConnectionError("the peer has gone")
        done += got


def serve(line: socket.socket, blocks: U8Array) -> None:
    """Answers requests until the other end closes."""
    head = bytearray(REQUEST.size)
    while True:
        fill(line, memoryview(head))
        verb, count = REQUEST.unpack(head)
        numbers = bytearray(NUMBER.size * count)
        fill(line, memoryview(numbers))
        for (number,) in NUMBER.iter_unpack(numbers):
            if verb == GET:
                line.sendall(memoryview(blocks[number]))
            else:
                fill(line, memoryview(blocks[number]))
        if verb == PUT:
            line.sendall(ACK)


def main(port: int, count: int, block_bytes: int) -> None:
    blocks = random_blocks(count, block_bytes)
    with socket.create_server(("127.0.0.1", port)) as server:
        line, _ = server.accept()
    line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    with line:
        serve(line, blocks)


if __name__ == "__main__":
    try:
        main(*map(int, sys.argv[1:]))
    except ConnectionError:
        sys.exit(0)
