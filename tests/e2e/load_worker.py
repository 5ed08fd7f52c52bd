"""A worker that puts, gets, leases, evicts and re-admits chains until its input ends.

Prints a line for each thing that the daemon acknowledged, so that the test knows what it may expect.
usage: load_worker.py ADDRESS NUMBER [SHARED_MEMORY], the client's mode
"""

from __future__ import annotations

import random
import sys
import threading
from collections import deque
from collections.abc import Callable

import numpy as np
from block_pattern import pattern, wrong_bytes
from worker_process import commands, say

from tierd_client import Client, Identities, Layout, Lease, PutOutcome, TimedOut, Unavailable, chain_ids
from tierd_client.namespace import Namespace

BLOCK_BYTES = 16 << 10
CHAIN_BLOCKS = 6
SHARED_CHAINS = 20
OWN_CHAINS = 60
LEASES_MAX = 3
LAYOUT = Layout.opaque(block_bytes=BLOCK_BYTES, block_tokens=16)


def ids_of_chain(ns: Namespace, chain: int) -> Identities:
    """Block i of a chain has the number chain * CHAIN_BLOCKS + i."""
    return chain_ids(ns, [chain * 1_000 + place for place in range(16 * CHAIN_BLOCKS)])


def numbers_of_chain(chain: int) -> range:
    return range(chain * CHAIN_BLOCKS, (chain + 1) * CHAIN_BLOCKS)


class Worker:
    def __init__(self, client: Client, number: int) -> None:
        self._client = client
        self._ns = client.namespace(LAYOUT)
        self._random = random.Random(number)
        self._own = SHARED_CHAINS + number * OWN_CHAINS
        self._leases: deque[tuple[int, Lease]] = deque()
        self._sequences = 0

    def round(self) -> None:
        actions: list[Callable[[int], None]] = [
            self._put, self._put, self._put_running, self._get, self._get, self._get, self._lease, self._evict,
            self._readmit,
        ]
        if self._random.random() < 0.3:
            chain = self._random.randrange(SHARED_CHAINS)
        else:
            chain = self._own + self._random.randrange(OWN_CHAINS)
        self._random.choice(actions)(chain)

    def release_all(self) -> None:
        while self._leases:
            self._release_oldest()

    def _put(self, chain: int) -> None:
        self._stored(chain, self._ns.put(ids_of_chain(self._ns, chain), self._blocks(chain)))

    def _put_running(self, chain: int) -> None:
        """As a request does: its chain is pinned meanwhile, and all its calls are one access a block."""
        self._sequences += 1
        ids = ids_of_chain(self._ns, chain)
        with self._ns.sequence(f"{self._own}-{self._sequences}", ids) as sequence:
            self._ns.get(ids[: sequence.lookup().prefix])
            outcomes = self._ns.put(ids, self._blocks(chain))
        self._stored(chain, outcomes)

    def _blocks(self, chain: int) -> np.ndarray:
        return np.stack([pattern(number, BLOCK_BYTES) for number in numbers_of_chain(chain)])

    def _stored(self, chain: int, outcomes: list[PutOutcome]) -> None:
        there = (PutOutcome.STORED, PutOutcome.EXISTS)
        numbers = [n for n, one in zip(numbers_of_chain(chain), outcomes, strict=True) if one in there]
        say(stored=numbers)

    def _get(self, chain: int) -> None:
        blocks = self._ns.get(ids_of_chain(self._ns, chain))
        found = [(n, one) for n, one in zip(numbers_of_chain(chain), blocks, strict=True) if one is not None]
        told = self._client.flush_accesses() == 0
        say(read=[n for n, _ in found if told], wrong=sum(wrong_bytes(block, n) for n, block in found))

    def _lease(self, chain: int) -> None:
        if len(self._leases) == LEASES_MAX:
            self._release_oldest()
        lease = self._ns.acquire(ids_of_chain(self._ns, chain))
        self._leases.append((chain, lease))
        told = self._client.flush_accesses() == 0
        views = zip(numbers_of_chain(chain), lease.views(), strict=True)
        say(read=[n for n, view in views if view is not None and told], wrong=self._wrong_in(chain, lease))

    def _release_oldest(self) -> None:
        """Its view must have stayed right however often the daemon died meanwhile."""
        chain, lease = self._leases.popleft()
        say(held=chain, wrong=self._wrong_in(chain, lease))
        lease.release()

    def _wrong_in(self, chain: int, lease: Lease) -> int:
        views = zip(numbers_of_chain(chain), lease.views(), strict=True)
        return sum(wrong_bytes(view, number) for number, view in views if view is not None)

    def _evict(self, chain: int) -> None:
        outcomes = self._ns.evict(ids_of_chain(self._ns, chain), to="spill")
        say(evicted=[one.name for one in outcomes])

    def _readmit(self, chain: int) -> None:
        to = self._random.choice(["host", "hbm"])
        outcomes = self._ns.readmit(ids_of_chain(self._ns, chain), to=to, timeout_s=2.0)
        say(readmitted=[one.name for one in outcomes])


def main() -> None:
    stop = threading.Event()
    threading.Thread(target=lambda: (list(commands()), stop.set()), daemon=True).start()
    mode = sys.argv[3] if len(sys.argv) > 3 else "require"
    with Client(sys.argv[1], connect_timeout_s=30.0, shared_memory=mode) as client:  # type: ignore[arg-type]
        worker = Worker(client, int(sys.argv[2]))
        while not stop.is_set():
            try:
                worker.round()
            except (Unavailable, TimedOut) as error:
                say(failed=f"{type(error).__name__}: {error}")
                stop.wait(0.02)
        worker.release_all()


if __name__ == "__main__":
    main()
