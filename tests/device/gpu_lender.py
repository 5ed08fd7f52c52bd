"""A worker whose KV pages lie on the GPU, in tensors of (2, pages, bytes of K or V), one for each of two layers.

Commands: `fill PAGE SEED`, `adopt SEED PAGE`, `spin MS SEED PAGE` adopts a page whose kernel runs so long still,
`evict SEED`, `withdraw SAVE PAGE...`, `free`.
"""

from __future__ import annotations

import json
import sys
import threading
from typing import Any

import numpy as np
import torch

from tierd_client import Client, Fence, Layout, TierdClientError, pieces_of
from tierd_client.cuda import CudaRegion

LAYERS, PAGES, HALF = 2, 4096, 32 << 10
BLOCK = LAYERS * 2 * HALF
LAYOUT = Layout.opaque(block_bytes=BLOCK)


def pattern(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, BLOCK, np.uint8)


def name(seed: int) -> bytes:
    return b"block %d" % seed


def say(**values: Any) -> None:
    print(json.dumps(values), flush=True)


class Lender:
    def __init__(self, address: str) -> None:
        self.client = Client(address, name="gpu", shared_memory="require", rpc_timeout_s=60)
        self.ns = self.client.namespace(LAYOUT)
        self.layers = [torch.zeros((2, PAGES, HALF), dtype=torch.uint8, device="cuda") for _ in range(LAYERS)]
        torch.cuda.synchronize()
        self.fence = Fence()
        regions = [CudaRegion.of(layer) for layer in self.layers]
        self.pool = self.client.lend(regions, pieces_of(self.layers, page_axis=1), PAGES, self.fence)

    def write(self, page: int, seed: int) -> None:
        data = torch.from_numpy(pattern(seed)).cuda().view(LAYERS, 2, HALF)
        for layer, tensor in enumerate(self.layers):
            tensor[:, page] = data[layer]

    def fill(self, page: int, seed: int) -> bool:
        self.write(page, seed)
        torch.cuda.synchronize()
        return True

    def adopt(self, seed: int, page: int, fence: int = 0) -> str:
        return self.ns.adopt(self.pool, [name(seed)], [page], [fence])[0].name

    def spin(self, ms: int, seed: int, page: int) -> str:
        """The page is written behind a kernel that runs; its fence is reached when the event behind it is done."""
        value = self.fence.value + 1
        torch.cuda._sleep(int(ms * 1e6))
        self.write(page, seed)
        event = torch.cuda.Event()
        event.record()
        outcome = self.adopt(seed, page, value)
        threading.Thread(target=lambda: (event.synchronize(), self.fence.reach(value)), daemon=True).start()
        return outcome

    def evict(self, seed: int) -> str:
        return self.ns.evict([name(seed)], to="host", timeout_s=20)[0].name

    def withdraw(self, save: int, *pages: int) -> dict[int, str]:
        return {page: one.name for page, one in self.pool.withdraw(pages, bool(save), timeout_s=20).items()}

    def free(self) -> bool:
        return self.pool.close()


def main() -> None:
    lender = Lender(sys.argv[1])
    say(ready=True)
    for line in sys.stdin:
        verb, *arguments = line.split()
        try:
            say(**{verb: getattr(lender, verb)(*map(int, arguments))})
        except TierdClientError as error:
            say(**{verb: type(error).__name__, "text": str(error)})


if __name__ == "__main__":
    main()
