"""The second worker of test_paged.py: reads blocks into pages of its own.

usage: paged_worker.py ADDRESS
`get FIRST COUNT`: reads block FIRST + i into page COUNT - i of tensors that are laid out otherwise; the answer has
outcomes, layers as they were told, and for each block whether its bytes are right.
"""

from __future__ import annotations

import sys

import numpy as np
from worker_process import commands, say

from tierd_client import Client, Layout, PagedKV

LAYERS, PAGE = 5, (16, 2, 64)
LAYOUT = Layout(model="m", dtype="float16", layers=LAYERS, kv_heads=2, head_dim=64, block_tokens=16)


def content(number: int) -> np.ndarray[tuple[int, ...], np.dtype[np.float16]]:
    """A block's elements: (2, layers, *page)."""
    random = np.random.default_rng(number)
    return random.integers(0, 2**10, (2, LAYERS, *PAGE)).astype(np.float16)


def main(address: str) -> None:
    with Client(address) as client:
        ns = client.namespace(LAYOUT)
        say(ready=True)
        for command in commands():
            first, count = map(int, command.split()[1:])
            pages = np.zeros((LAYERS, count + 1, 2, *PAGE), np.float16)
            layers: list[int] = []
            paged = PagedKV(LAYOUT, pages, page_axis=0)
            ids = [b"%d" % number for number in range(first, first + count)]
            outcomes = ns.get_pages(ids, paged, np.arange(count, 0, -1), after_layer=layers.append)
            right = [
                np.array_equal(pages[:, count - i].swapaxes(0, 1), content(first + i)) for i in range(count)
            ]
            names = [outcome.name for outcome in outcomes]
            say(get=names, right=right, layers=layers, page_0=bool(pages[:, 0].any()))


if __name__ == "__main__":
    main(sys.argv[1])
