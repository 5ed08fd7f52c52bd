"""What was stored, and whether what is read is that."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray


def digest(block: NDArray[Any]) -> str:
    """Of a contiguous block's bytes. Not the daemon's own checksum, so that it proves something about it."""
    return hashlib.blake2b(block.reshape(-1).view(np.uint8).data, digest_size=16).hexdigest()


class Ledger:
    """Digests of the blocks that the daemon acknowledged, by identity, and the comparison with reads.

    An identity may be stored again after its last copy was lost, and its bytes then differ in the last bit of
    some numbers (another length of prefill); a read must be one of the versions acknowledged.
    """

    def __init__(self) -> None:
        self._stored: dict[str, set[str]] = {}
        self.blocks_verified = 0
        self.bytes_verified = 0
        self.mismatches: list[str] = []

    def store(self, digests: Mapping[str, str]) -> None:
        for identity, value in digests.items():
            self._stored.setdefault(identity, set()).add(value)

    def check(self, digests: Mapping[str, str], block_bytes: int) -> None:
        """Blocks that were read: one that nobody stored is a mismatch, too."""
        for identity, value in digests.items():
            self.blocks_verified += 1
            self.bytes_verified += block_bytes
            if value not in self._stored.get(identity, ()):
                self.mismatches.append(identity)
