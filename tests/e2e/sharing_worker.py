"""One of the workers of test_two_workers.py.

usage: sharing_worker.py ADDRESS
Commands, each with FIRST and COUNT of the blocks: `put`, `get`, `lease`, `drop`, and `reserve`, which takes slots
and writes half of each. The answer has the outcomes by name, or for `get` how many blocks were right.
"""

from __future__ import annotations

import sys

from block_pattern import pattern, wrong_bytes
from half_put import reserve
from worker_process import commands, say

from tierd_client import Client, Layout, Lease
from tierd_client.deadline import Deadline
from tierd_client.namespace import Namespace
from tierd_client.v1 import blocks_pb2

BLOCK_BYTES = 32 << 10
LAYOUT = Layout.opaque(block_bytes=BLOCK_BYTES)


class Worker:
    def __init__(self, client: Client) -> None:
        self._client = client
        self._ns: Namespace = client.namespace(LAYOUT)
        self._leases: list[Lease] = []

    def put(self, numbers: range) -> list[str]:
        blocks = [pattern(number, BLOCK_BYTES) for number in numbers]
        return [outcome.name for outcome in self._ns.put(_ids(numbers), blocks)]

    def get(self, numbers: range) -> int:
        found = zip(numbers, self._ns.get(_ids(numbers)), strict=True)
        return sum(block is not None and not wrong_bytes(block, number) for number, block in found)

    def lease(self, numbers: range) -> list[str]:
        self._leases.append(self._ns.acquire(_ids(numbers)))
        return [outcome.name for outcome in self._leases[-1].outcomes]

    def drop(self, numbers: range) -> list[str]:
        return [outcome.name for outcome in self._ns.evict(_ids(numbers), to=None, allow_drop=True)]

    def reserve(self, numbers: range) -> list[str]:
        session = self._client.connection.current()
        memory = session.memory
        assert memory is not None
        reply = reserve(self._ns, session, _ids(numbers))
        for address in filter(None, reply.addresses):
            memory.writable([address], BLOCK_BYTES, Deadline(5))[0][: BLOCK_BYTES // 2] = 0xEE
        return [blocks_pb2.ReserveOutcome.Name(one).removeprefix("RESERVE_OUTCOME_") for one in reply.outcomes]

    def finish(self) -> None:
        for lease in self._leases:
            lease.release()


def _ids(numbers: range) -> list[bytes]:
    return [b"%d" % number for number in numbers]


def main() -> None:
    with Client(sys.argv[1], shared_memory="require") as client:
        worker = Worker(client)
        say(ready=True)
        for command in commands():
            verb, first, count = command.split()
            say(**{verb: getattr(worker, verb)(range(int(first), int(first) + int(count)))})
        worker.finish()


if __name__ == "__main__":
    main()
