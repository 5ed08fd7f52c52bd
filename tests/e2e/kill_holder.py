"""A worker for test_kill.py that is in the middle of everything when the daemon dies.

It holds half-written slots and a lease with zero-copy views over any number of restarts.
usage: kill_holder.py ADDRESS CHAIN, a chain that is stored
Commands: `scribble` writes into the slots, `check` compares the views, `commit` tries to publish the slots.
"""

from __future__ import annotations

import sys

import numpy as np
from block_pattern import pattern, wrong_bytes
from half_put import batch_of, reserve
from load_worker import BLOCK_BYTES, LAYOUT, ids_of_chain, numbers_of_chain
from worker_process import commands, say

from tierd_client import Client, Lease, TierdClientError, plain_ids
from tierd_client.deadline import Deadline
from tierd_client.session import Session
from tierd_client.v1 import blocks_pb2

SLOTS = 5
HALF = BLOCK_BYTES // 2
SECRET = 1 << 40
"""Number of the first block that it writes and never commits."""


class Holder:
    def __init__(self, client: Client, chain: int) -> None:
        self._client, self._chain = client, chain
        self._ns = client.namespace(LAYOUT)
        self._session: Session = client.connection.current()
        self._session.take_hold()
        memory = self._session.memory
        assert memory is not None
        ids = plain_ids(self._ns.fingerprint, [b"secret-%d" % place for place in range(SLOTS)])
        self._batch = batch_of(self._ns, self._session, ids)
        self._grants = reserve(self._ns, self._session, ids)
        assert all(self._grants.addresses), self._grants.outcomes
        self._slots = memory.writable(self._grants.addresses, BLOCK_BYTES, Deadline(5))
        for place, slot in enumerate(self._slots):
            slot[:HALF] = pattern(SECRET + place, BLOCK_BYTES)[:HALF]
        self._lease: Lease = self._ns.acquire(ids_of_chain(self._ns, chain), timeout_s=5.0)
        self._views = self._lease.views()

    def scribble(self) -> None:
        """Writes on as if nothing had happened."""
        for place, slot in enumerate(self._slots):
            np.copyto(slot, pattern(SECRET + place, BLOCK_BYTES))
        say(scribble=len(self._slots))

    def check(self) -> None:
        views = list(zip(numbers_of_chain(self._chain), self._views, strict=True))
        say(check=sum(view is not None for _, view in views),
            wrong=sum(wrong_bytes(view, number) for number, view in views if view is not None))

    def commit(self) -> None:
        request = blocks_pb2.CommitRequest(
            session=self._session.id, ids=self._batch.blocks.ids, generations=self._grants.generations,
            checksums=[0] * SLOTS, tier=self._grants.tier)
        try:
            # Through the session in use: the one that holds the slots is gone with its daemon.
            reply = self._client.connection.current().call("Commit", request).block()
            say(commit=[int(outcome) for outcome in reply.outcomes])
        except TierdClientError as error:
            say(commit=type(error).__name__)

    def let_go(self) -> None:
        self._lease.release()
        self._session.drop_hold()


def main() -> None:
    with Client(sys.argv[1], connect_timeout_s=30.0) as client:
        holder = Holder(client, int(sys.argv[2]))
        say(holding=SLOTS)
        for command in commands():
            getattr(holder, command)()
        holder.let_go()


if __name__ == "__main__":
    main()
