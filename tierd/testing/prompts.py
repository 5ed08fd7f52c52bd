"""Made-up prompts that share prefixes, for simulations: chains of identities over a small set of blocks."""

from __future__ import annotations

import random
from dataclasses import dataclass
from hashlib import blake2b

import numpy as np

from tierd.core.messages import Ids
from tierd_client.format import IDENTITY_BYTES, U8Array
from tierd_client.hits import PREFIX, HitRule

_FORKS = {0: 2, 3: 2, 6: 2}
"""Position in a prompt -> how many ways it goes on from there; elsewhere there is one."""


@dataclass(frozen=True, slots=True)
class Kind:
    """Blocks of one namespace and group: all of one size. `rule`: what a hit of them is."""

    namespace: int
    group: int
    block_bytes: int
    rule: HitRule = PREFIX


@dataclass(frozen=True, slots=True)
class Prompt:
    kind: Kind
    chain: tuple[bytes, ...]

    def ids(self, start: int = 0, end: int | None = None) -> Ids:
        """Blocks `start .. end - 1` as a chain with their place in it."""
        part = self.chain[start:end]
        parent = self.chain[start - 1] if start else None
        return Ids(self.kind.namespace, self.kind.group, pack(part), True, start, parent, rule=self.kind.rule)


def draw_prompt(random_: random.Random, kind: Kind, longest: int) -> Prompt:
    """A prompt of 1 to `longest` blocks."""
    path = bytes([kind.namespace, kind.group])
    chain = []
    for position in range(random_.randint(1, longest)):
        path += bytes([random_.randrange(_FORKS.get(position, 1))])
        chain.append(blake2b(path, digest_size=IDENTITY_BYTES).digest())
    return Prompt(kind, tuple(chain))


def pack(identities: tuple[bytes, ...] | list[bytes]) -> U8Array:
    """Identities as a packed array (n, 32)."""
    return np.frombuffer(b"".join(identities), np.uint8).reshape(-1, IDENTITY_BYTES).copy()


def unpack(ids: U8Array) -> list[bytes]:
    return [bytes(one) for one in ids]


def checksum_of(identity: bytes) -> int:
    """What stands for the checksum of an identity's block: blocks are immutable, so there is one."""
    return int.from_bytes(identity[:8], "little")
