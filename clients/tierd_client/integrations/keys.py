"""An engine's keys as identities: blocks that the engine names by hashes of its own, in the order of a prompt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tierd_client.format import BoolArray
from tierd_client.identity import Identities, plain_ids
from tierd_client.layout import Layout


@dataclass(frozen=True, slots=True)
class Run:
    """Keys of one group that follow each other in a prompt, 1 to 64 bytes each. `position`: of the first one in the
    prompt, `parent`: the key before it, None at the start. Without `chained` they are single blocks. Picklable."""

    keys: tuple[bytes, ...]
    group: int = 0
    position: int = 0
    parent: bytes | None = None
    chained: bool = True

    def __len__(self) -> int:
        return len(self.keys)

    def part(self, start: int, stop: int) -> Run:
        """Those from `start` to before `stop`."""
        parent = self.keys[start - 1] if start else self.parent
        return Run(self.keys[start:stop], self.group, self.position + start, parent, self.chained)

    def parts(self, chosen: BoolArray) -> list[Run]:
        """Those that are chosen, in runs."""
        edges = np.flatnonzero(np.diff(np.concatenate([[False], chosen, [False]]).astype(np.int8)))
        return [self.part(int(start), int(stop)) for start, stop in zip(edges[::2], edges[1::2], strict=True)]

    def identities(self, layout: Layout) -> Identities:
        """Their identities in a namespace of that layout."""
        if not self.chained:
            return plain_ids(layout, self.keys, self.group)
        before: Sequence[bytes] = () if self.parent is None else (self.parent,)
        ids = plain_ids(layout, (*before, *self.keys), self.group)
        first = self.position - len(before)
        return Identities(ids.array, ids.fingerprint, self.group, chain=True, position=first)[len(before):]
