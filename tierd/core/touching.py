"""Touch: accesses that were served elsewhere, by the engine's own cache or by the catalog without a call. Records
change, no copy moves."""

from __future__ import annotations

import numpy as np

from tierd.core import statistics
from tierd.core.arrays import every, first_of_each, indices
from tierd.core.hashindex import NO_ROW
from tierd.core.messages import Tier, Touch, Touched
from tierd.core.sequences import begin_request, first_in
from tierd.core.state import State
from tierd_client.format import U8Array


def touch(state: State, command: Touch) -> Touched:
    session = state.sessions.get(command.session)
    blocks = command.blocks
    rows = state.find(blocks)
    sequence = begin_request(state, session.number, command.sequence, counted=False)
    state.link(blocks, rows)
    counts = command.counts.astype(np.int64)
    if sequence is not None:
        counts = first_in(sequence, blocks.ids).astype(np.int64)
    known = rows != NO_ROW
    places = first_of_each(indices(known & (counts > 0)), rows)
    state.touch(rows[places], counts[places])
    for tier, hits in ((Tier.HBM, command.hbm_hits), (Tier.HOST, command.host_hits)):
        if tier in state.tiers:
            state.tiers[tier].counters.hits += hits
    ghosts = 0 if every(known) else _touch_ghosts(state, blocks.ids[~known], counts[~known])
    return Touched(state.clock.step, len(places), ghosts)


def _touch_ghosts(state: State, ids: U8Array, counts: np.ndarray) -> int:
    """So that a block which comes back has the rank that its use elsewhere has earned."""
    places, first = np.unique(state.ghosts.places(ids), return_index=True)
    wanted = (places != NO_ROW) & (counts[first] > 0)
    places, counts = places[wanted], counts[first][wanted]
    records = state.ghosts.records(places)
    for done in range(int(counts.max(initial=0))):
        statistics.access_ghosts(records, counts > done, state.clock.step, state.clock.wall_s, state.policy.common)
    state.ghosts.update(places, records)
    return len(places)
