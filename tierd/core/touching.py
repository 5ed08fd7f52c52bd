"""Touch: accesses that were served elsewhere, by the engine's own cache or by the catalog without a call. Records
change, no copy moves."""

from __future__ import annotations

import numpy as np

from tierd.core import statistics
from tierd.core.arrays import every, first_of_each, indices
from tierd.core.gaps import never_seen
from tierd.core.hashindex import NO_ROW, UNKNOWN
from tierd.core.messages import Ids, Tier, Touch, Touched
from tierd.core.sequences import begin_request, first_in
from tierd.core.state import State
from tierd.core.underway import Sequence
from tierd_client.format import I64Array, U8Array


def touch(state: State, command: Touch) -> Touched:
    state.sessions.get(command.session)
    blocks = command.blocks
    rows = state.find(blocks)
    sequence = begin_request(state, command, rows, counted=False)
    state.link(blocks, rows)
    counts = command.counts.astype(np.int64)
    if sequence is not None:
        counts = first_in(sequence, blocks.ids).astype(np.int64)
    known = rows != UNKNOWN
    places = first_of_each(indices(known & (counts > 0)), rows)
    state.touch(rows[places], counts[places], hit=True)
    for tier, hits in ((Tier.HBM, command.hbm_hits), (Tier.HOST, command.host_hits)):
        if tier in state.tiers:
            state.tiers[tier].counters.hits += hits
    ghosts = 0 if every(known) else _touch_ghosts(state, blocks.ids[~known], counts[~known])
    return Touched(state.clock.step, len(places), ghosts)


def touch_kept_out(
    state: State, sequence: Sequence | None, blocks: Ids, rows: I64Array, ghosts: I64Array, places: I64Array
) -> None:
    """One access, at most one per sequence, to blocks that a request named and that were not stored: those of which
    there is no copy have a record from now on. `ghosts`: where those of all ids stood."""
    if not len(places):
        return
    if sequence is not None:
        places = places[first_in(sequence, blocks.ids[places])]
    known = rows[places] != UNKNOWN
    state.touch(rows[places[known]], hit=False)
    places = places[~known][::-1]  # the deepest are forgotten first
    if not len(places) or not state.policy.common.persist:
        return
    ids = blocks.ids[places]
    records = state.ghosts.take_or_new(ids, ghosts[places], never_seen(len(blocks), blocks.chain)[places])
    statistics.access_ghosts(records, np.ones(len(ids), bool), state.accessing(hit=False))
    state.ghosts.add(ids, records, state.policy.common.ghosts_for(state.most_identities))


def _touch_ghosts(state: State, ids: U8Array, counts: np.ndarray) -> int:
    """So that a block which comes back has the rank that its use elsewhere has earned."""
    places, first = np.unique(state.ghosts.places(ids), return_index=True)
    wanted = (places != NO_ROW) & (counts[first] > 0)
    places, counts = places[wanted], counts[first][wanted]
    records = state.ghosts.records(places)
    for done in range(int(counts.max(initial=0))):
        statistics.access_ghosts(records, counts > done, state.accessing(hit=None))
    state.ghosts.update(places, records)
    return len(places)
