"""SampleStored, LearnFootprints: which stored blocks to ask the spill server about, and what it said."""

from __future__ import annotations

import numpy as np

from tierd.core.arrays import groups
from tierd.core.messages import LearnFootprints, Learnt, Sample, SampleStored, Tier
from tierd.core.state import State
from tierd_client.format import STATE_READY, I64Array

LOOKED_AT = 4096
"""Stored blocks of which samples are drawn: a size that none of so many has takes little room."""


def sample_stored(state: State, command: SampleStored) -> Sample:
    """The commonest sizes of which something is to be learnt; blocks that others stored are left out."""
    copies = state.tier(Tier.SPILL).copies
    rows = copies.placed(np.flatnonzero(copies.state == STATE_READY))
    rows = rows[:: max(1, len(rows) // LOOKED_AT)]
    sizes = state.catalog.size[rows].astype(np.int64)
    by_size = {int(sizes[places[0]]): rows[places] for places in groups(sizes) if len(places)}
    due = [of for size, of in by_size.items() if copies.footprints.is_due(size, command.learnt_before_s)]
    due.sort(key=len, reverse=True)
    return Sample([one for of in due[: command.sizes] for one in _described(state, of, command.blocks)])


def _described(state: State, rows: I64Array, count: int) -> list[tuple[int, int, bytes]]:
    rows = rows[:: max(1, len(rows) // count)][:count]
    catalog = state.catalog
    sizes, namespaces = catalog.size[rows].tolist(), catalog.namespace[rows].tolist()
    return list(zip(sizes, namespaces, (one.tobytes() for one in catalog.identity[rows]), strict=True))


def learn_footprints(state: State, command: LearnFootprints) -> Learnt:
    """Counts what is stored anew. What is over the limit then goes as what is above the high watermark does."""
    copies = state.tier(Tier.SPILL).copies
    copies.footprints.learn(command.bytes_by_size, state.clock.wall_s)
    copies.recount()
    return Learnt(copies.footprints.learnt)
