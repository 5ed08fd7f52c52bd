"""A worker of test_put_ahead.py and test_put_claims.py that holds slots ahead of its puts.

usage: stock_holder.py ADDRESS
Commands: `put` stores 4 blocks and says the outcomes; `half` writes 4 of which the daemon was told, and
never commits them.
"""

from __future__ import annotations

import sys
import threading
from typing import Any, NoReturn

import numpy as np
from worker_process import commands, say

from tierd_client import Client, Layout, granting, storing

SIZE = 64 << 10
LAYOUT = Layout.opaque(block_bytes=SIZE)


async def never(*call: Any) -> NoReturn:
    say(half=len(call))
    threading.Event().wait()
    raise AssertionError


def main() -> None:
    with Client(sys.argv[1], connect_timeout_s=30.0, shared_memory="require") as client:
        ns = client.namespace(LAYOUT)
        say(ready=1)
        for turn, command in enumerate(commands()):
            if command == "half":
                storing.CLAIM_BYTES = 1
                setattr(granting, "commit", never)  # noqa: B010 - mypy takes an assignment for a mistake
            data = np.full((4, SIZE), turn, np.uint8)
            outcomes = ns.put([f"{turn}-{place}".encode() for place in range(4)], data)
            say(put=[int(outcome) for outcome in outcomes])


if __name__ == "__main__":
    main()
