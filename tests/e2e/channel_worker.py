"""A client of test_channel_bytes.py that puts or gets blocks.

usage: channel_worker.py ADDRESS MODE; MODE: shared_memory of the client, `require` or `never`
Commands: `put FIRST COUNT`, `get FIRST COUNT`; the answer says how many were right.
"""

from __future__ import annotations

import sys

from block_pattern import pattern, wrong_bytes
from worker_process import commands, say

from tierd_client import Client, Layout, PutOutcome

BLOCK_BYTES = 64 << 10
LAYOUT = Layout.opaque(block_bytes=BLOCK_BYTES)


def main() -> None:
    with Client(sys.argv[1], shared_memory=sys.argv[2]) as client:  # type: ignore[arg-type]
        ns = client.namespace(LAYOUT)
        say(attached=client.maps_memory)
        for command in commands():
            verb, first, count = command.split()
            numbers = range(int(first), int(first) + int(count))
            ids = [b"%d" % number for number in numbers]
            if verb == "put":
                outcomes = ns.put(ids, [pattern(number, BLOCK_BYTES) for number in numbers], timeout_s=20.0)
                say(put=outcomes.count(PutOutcome.STORED))
            else:
                blocks = zip(numbers, ns.get(ids, timeout_s=20.0), strict=True)
                say(get=sum(block is not None and not wrong_bytes(block, number) for number, block in blocks))


if __name__ == "__main__":
    main()
