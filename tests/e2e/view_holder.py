"""A worker that looks at blocks in place until it is told otherwise.

usage: view_holder.py ADDRESS CHAIN, a chain that is stored
Commands: `check` compares the views.
"""

from __future__ import annotations

import sys

from block_pattern import wrong_bytes
from load_worker import LAYOUT, ids_of_chain, numbers_of_chain
from worker_process import commands, say

from tierd_client import Client


def main() -> None:
    chain = int(sys.argv[2])
    with Client(sys.argv[1], connect_timeout_s=30.0) as client:
        ns = client.namespace(LAYOUT)
        lease = ns.acquire(ids_of_chain(ns, chain), timeout_s=5.0)
        views = list(zip(numbers_of_chain(chain), lease.views(), strict=True))
        say(holding=sum(view is not None for _, view in views))
        for _ in commands():
            wrong = sum(wrong_bytes(view, number) for number, view in views if view is not None)
            say(check=len(views), wrong=wrong)
        lease.release()


if __name__ == "__main__":
    main()
