"""Which of the blocks that are read are compared with their checksums, and what becomes of those that differ."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import xxhash

from tierd_client.errors import InvalidArgument, TierdClientError
from tierd_client.format import IDENTITY_BYTES, U8Array
from tierd_client.session import Session
from tierd_client.v1 import blocks_pb2

MODES = ("always", "sampled", "never")

SAMPLE_EVERY = 64
"""Of so many blocks read from shared memory one is compared with `sampled`."""

REPORT_S = 1.0
"""How long the daemon may take to look at blocks that were found damaged."""


class Checks:
    """Thread-safe. `damaged_blocks`: found since it was made."""

    def __init__(self, mode: str) -> None:
        if mode not in MODES:
            raise InvalidArgument(f"verify: {mode!r} is none of {', '.join(MODES)}")
        self.damaged_blocks = 0
        self._every = {"always": 1, "sampled": SAMPLE_EVERY, "never": 0}[mode]
        self._read = 0
        self._lock = threading.Lock()

    @property
    def compares(self) -> bool:
        """False when no block is compared."""
        return self._every > 0

    def chooses(self) -> bool:
        """Whether the next block that is read is to be compared."""
        if not self._every:
            return False
        with self._lock:
            read = self._read
            self._read = read + 1
        return read % self._every == 0

    def chosen(self, blocks: int) -> range:
        """Which of the next blocks that are read are to be compared."""
        if not self._every:
            return range(0)
        with self._lock:
            first = -self._read % self._every
            self._read += blocks
        return range(first, blocks, self._every)

    def passes(self, block: U8Array, checksum: int) -> bool:
        """False for a block that is compared and differs."""
        return not self.chooses() or checksum_of(block) == checksum

    async def report(self, session: Session, blocks: Any, indices: Sequence[int]) -> None:
        """Counts damaged blocks of a BlockIds message and tells the daemon, which looks at its copies. Nothing may
        be leased any more, or it could not drop them. Never raises because the daemon is away."""
        if not indices:
            return
        with self._lock:
            self.damaged_blocks += len(indices)
        ids = b"".join(blocks.ids[i * IDENTITY_BYTES : (i + 1) * IDENTITY_BYTES] for i in indices)
        named = blocks_pb2.BlockIds(namespace=blocks.namespace, group=blocks.group, ids=ids)
        with suppress(TierdClientError):
            await session.call("ReportDamage", blocks_pb2.ReportDamageRequest(
                session=session.id, blocks=named, timeout_ms=int(REPORT_S * 1000)), REPORT_S)


RunningChecksum = xxhash.xxh3_64
"""The checksum of bytes that come in pieces: `update` and `intdigest`."""


def checksum_of(block: U8Array) -> int:
    """The checksum of a block's bytes, as records and the wire carry it: xxh3_64, seed 0."""
    digest: int = xxhash.xxh3_64_intdigest(block)  # type: ignore[arg-type]
    return digest
