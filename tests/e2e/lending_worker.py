"""A worker that lends: pages of 4 KiB in its own memory, cut in two pieces, with a fence.

Commands: `fill PAGE SEED` writes a pattern, `adopt SEED PAGE FENCE`, `reach N`, `withdraw SAVE TIMEOUT_MS PAGE...`,
`evict SEED`, `close`.
"""

from __future__ import annotations

import sys

import numpy as np
from worker_process import commands, say

from tierd_client import Client, Fence, Layout, SharedRegion, TierdClientError, pieces_of

BLOCK = 4096
PAGES = 8
LAYOUT = Layout.opaque(block_bytes=BLOCK)


def pattern(seed: int) -> np.ndarray:
    """The bytes of a block."""
    return np.random.default_rng(seed).integers(0, 256, BLOCK, np.uint8)


def name(seed: int) -> bytes:
    """The id of a block."""
    return b"block %d" % seed


class Lender:
    def __init__(self, address: str) -> None:
        self.client = Client(address, name="lender", shared_memory="require")
        self.namespace = self.client.namespace(LAYOUT)
        region = SharedRegion(PAGES * BLOCK)
        # As engines keep it: all first halves of all pages, then all second halves.
        self.kv = region.array.reshape(2, PAGES, BLOCK // 2)
        self.fence = Fence()
        self.pool = self.client.lend([region], pieces_of([self.kv], page_axis=1), PAGES, self.fence)

    def fill(self, page: int, seed: int) -> str:
        self.kv[:, page] = pattern(seed).reshape(2, -1)
        return "done"

    def adopt(self, seed: int, page: int, fence: int) -> str:
        return self.namespace.adopt(self.pool, [name(seed)], [page], [fence])[0].name

    def reach(self, value: int) -> str:
        self.fence.reach(value)
        return "done"

    def withdraw(self, save: int, timeout_ms: int, *pages: int) -> dict[int, str]:
        outcomes = self.pool.withdraw(pages, save=bool(save), timeout_s=timeout_ms / 1000)
        return {page: outcome.name for page, outcome in outcomes.items()}

    def evict(self, seed: int) -> str:
        return self.namespace.evict([name(seed)], to="host")[0].name

    def close(self) -> bool:
        return self.pool.close()


def main() -> None:
    lender = Lender(sys.argv[1])
    say(ready=True)
    for line in commands():
        verb, *arguments = line.split()
        try:
            say(**{verb: getattr(lender, verb)(*map(int, arguments))})
        except TierdClientError as error:
            say(**{verb: type(error).__name__, "text": str(error)})


if __name__ == "__main__":
    main()
