"""What stands between the runner and one peer, and how its servers are started.

Runs in the peer's own environment: the standard library, numpy and what the peer brings, nothing of tierd.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Block = NDArray[np.uint8]

CAPACITY_BYTES = 1 << 30
"""Memory that each store is given."""

CHAIN_CALL_BLOCKS = 64

START_WITHIN_S = 60.0
STOP_WITHIN_S = 10.0

LEASH = Path(__file__).resolve().parents[3] / "tierd/leash.py"
"""Starts a program that dies with its parent; a file of the standard library alone."""


class Adapter:
    """One peer behind few verbs. `put`, `queue`, `flush`, `get_into` and `exists` are timed; all else is not."""

    version = "?"
    can_queue = False

    def start(self, place: Path) -> None:
        """Starts servers and client; `place` is an empty directory of its own with a short path."""
        raise NotImplementedError

    def use(self, block_bytes: int) -> None:
        """From now on blocks have that size."""

    def buffers(self, count: int, block_bytes: int) -> list[Block]:
        """The caller's memory, of which blocks are put and into which they are read. A peer that takes only
        memory of its own making gives that."""
        return list(np.zeros((count, block_bytes), np.uint8))

    def ids(self, numbers: Sequence[int]) -> Any:
        """The ids of one call in the peer's own form. Blocks are read by the same calls as they were put."""
        return [f"block-{number:032x}" for number in numbers]

    def put(self, ids: Any, blocks: Sequence[Block]) -> None:
        """Returns when the peer has acknowledged the blocks."""
        raise NotImplementedError

    def queue(self, ids: Any, blocks: Sequence[Block]) -> None:
        """As `put`, but returns when the blocks may be overwritten. Asked where `can_queue`, as is `flush`."""
        raise NotImplementedError

    def flush(self) -> None:
        """Returns when all that was queued is acknowledged."""
        raise NotImplementedError

    def put_chain(self, numbers: Sequence[int], blocks: Sequence[Block]) -> None:
        """Puts the blocks of one long prompt, not timed."""
        for at in range(0, len(numbers), CHAIN_CALL_BLOCKS):
            part = slice(at, at + CHAIN_CALL_BLOCKS)
            self.put(self.ids(numbers[part]), blocks[part])

    def get_into(self, ids: Any, blocks: Sequence[Block]) -> bool:
        """Copies blocks into the caller's memory; whether all were there."""
        raise NotImplementedError

    def exists(self, ids: Any) -> int:
        """How many of them, from the first, are there."""
        raise NotImplementedError

    def clear(self) -> None:
        """Forgets all blocks."""
        raise NotImplementedError

    def stop(self) -> None:
        """Ends client and servers. The runner kills what is left."""


class Server:
    """A server of a peer as a child of the runner, its output in `log`."""

    def __init__(self, command: Sequence[str | Path], log: Path, **environment: str) -> None:
        with log.open("wb") as out:
            self._process = subprocess.Popen(
                [sys.executable, "-S", LEASH, str(os.getpid()), str(int(signal.SIGTERM)), *map(str, command)],
                stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=os.environ | environment)
        self._log = log

    def await_port(self, port: int) -> None:
        """Returns when it listens on that port of 127.0.0.1."""
        def listens() -> bool:
            with socket.socket() as probe:
                return probe.connect_ex(("127.0.0.1", port)) == 0

        self.await_that(listens)

    def await_that(self, condition: Callable[[], bool]) -> None:
        """Raises RuntimeError with the end of its log when it ends, or not in time."""
        deadline = time.monotonic() + START_WITHIN_S
        while not condition():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the server did not start: {self.log_end()}")
            pause(0.05)

    def log_end(self) -> str:
        return " ".join(self._log.read_text(errors="replace")[-400:].split())

    def stop(self) -> None:
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(STOP_WITHIN_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def pause(seconds: float) -> None:
    threading.Event().wait(seconds)


def free_port() -> int:
    """A TCP port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def address_of(block: Block) -> int:
    """Where a block lies in this process."""
    address: int = block.ctypes.data
    return address
