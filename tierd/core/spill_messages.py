"""Commands and replies about the spill store: what it is, what it holds, what it is to know. Part of the vocabulary
of messages.py."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tierd.core.terms import Ids, Record
from tierd_client.format import U64Array


@dataclass(frozen=True, slots=True)
class SpillState:
    """`up`: can be used. `forgotten`: the server no longer holds what was stored (flushed, swapped, new).
    `attached`: whether there is one; without one the tier is off. None: as before."""

    up: bool
    forgotten: bool = False
    attached: bool | None = None


@dataclass(frozen=True, slots=True)
class AddFound:
    """Blocks that the spill store was found to hold, at their places as stored (`blocks.some`), of `size` bytes
    each. `records`: with steps of whatever clock. `own`: stored by this instance."""

    blocks: Ids
    size: int
    checksums: U64Array
    records: tuple[Record, ...]
    own: NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class TakeStatistics:
    """Up to `limit` records of spilled blocks that changed since the spill store was told; they count as told."""

    limit: int


@dataclass(slots=True)
class Taken:
    """Namespace, identity and record of each."""

    records: list[tuple[int, bytes, Record]]


@dataclass(frozen=True, slots=True)
class SampleStored:
    """Up to `blocks` stored blocks of each of up to `sizes` sizes whose footprint was not learnt since a wall time,
    in seconds."""

    sizes: int
    blocks: int
    learnt_before_s: float


@dataclass(slots=True)
class Sample:
    """Size, namespace and identity of each."""

    blocks: list[tuple[int, int, bytes]]


@dataclass(frozen=True, slots=True)
class LearnFootprints:
    """Bytes of its memory that the spill store takes for a block, by the block's size."""

    bytes_by_size: Mapping[int, int]


@dataclass(slots=True)
class Learnt:
    """All that is known of footprints now."""

    bytes_by_size: dict[int, int]


SpillCommand = SpillState | AddFound | TakeStatistics | SampleStored | LearnFootprints
