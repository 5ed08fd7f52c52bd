"""Another process that reads what the test holds under a lease; the second half of test_handover.py.

usage: leased_reader.py ADDRESS
`read PLACES`, pickled, in hex: copies the blocks into pages, the first block into the last page; answers their
bytes in hex, in the order of the blocks, or the name of the error.
"""

from __future__ import annotations

import pickle
import sys

import numpy as np
from worker_process import commands, say

from tierd_client import Client, Layout, LeasedReader, PagedKV, TierdClientError

LAYOUT = Layout(model="handover", dtype="uint8", layers=2, kv_heads=1, head_dim=256, block_tokens=4)


def main(address: str) -> None:
    with Client(address) as client:
        reader = LeasedReader(client)
        reader.map_all()
        say(ready=True)
        for command in commands():
            places = pickle.loads(bytes.fromhex(command.split()[1]))
            pages = np.zeros((2, 2, len(places), 4, 1, 256), np.uint8)
            order = range(len(places) - 1, -1, -1)
            try:
                reader.scatter(places, PagedKV(LAYOUT, pages), order)
            except TierdClientError as error:
                say(read=type(error).__name__)
                continue
            say(read=[pages[:, :, page].swapaxes(0, 1).tobytes().hex() for page in order])


if __name__ == "__main__":
    main(sys.argv[1])
