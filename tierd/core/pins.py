"""Pin, Unpin: until a time, the last copy of an identity is not dropped to make room, nor on anybody's word.

A pinned block may be demoted; it stays where the next step would be its end. What is damaged or gone is gone:
a pin keeps no bytes that are not there, and none that are not this daemon's: an engine's page, or what another
daemon stored. The times lie in the catalog, so that they survive the daemon.
"""

from __future__ import annotations

import numpy as np

from tierd.core.arena import slots_of
from tierd.core.deadlines import Deadlines
from tierd.core.errors import InvalidInput, LimitReached
from tierd.core.hashindex import NO_ROW
from tierd.core.messages import Done, Pin, Pinned, PinReply, Unpin
from tierd.core.state import State
from tierd_client.format import I64Array


def pin(state: State, command: Pin) -> PinReply:
    settings = state.settings
    ttl_s = command.ttl_s or settings.pin_ttl_s
    if not 0 < ttl_s <= settings.pin_ttl_max_s:
        raise InvalidInput("ttl_ms", f"{ttl_s:g} s, more than pin_ttl_max_s, {settings.pin_ttl_max_s:g} s")
    rows = state.find(command.blocks)
    known = np.zeros(len(rows), bool)
    for tier in state.tiers.values():
        known |= (rows != NO_ROW) & tier.copies.own(rows)
    mine = np.unique(rows[known])
    _refuse_above_quota(state, mine[state.kept.until[mine] == 0])
    state.keep(mine, state.clock.wall_s + ttl_s)
    return PinReply(np.where(known, Pinned.PINNED, Pinned.MISS).astype(np.int8), ttl_s)


def _refuse_above_quota(state: State, fresh: I64Array) -> None:
    wanted, most = state.kept_bytes + state.slot_bytes_of(fresh), quota(state)
    if len(fresh) and wanted > most:
        tier = list(state.tiers)[-1].name.lower()
        problem = f"{wanted} bytes would be pinned, more than {most}, the share of the {tier} tier"
        raise LimitReached(f"pin_share: {problem}; nothing was pinned")


def quota(state: State) -> int:
    """Most bytes that pins may keep: a share of the lowest tier, where they come to rest."""
    lowest = list(state.tiers.values())[-1]
    return int(state.settings.pin_share * lowest.copies.limit)


def unpin(state: State, command: Unpin) -> Done:
    rows = np.unique(state.find(command.blocks))
    return Done(len(state.unkeep(rows[rows != NO_ROW])))


def recover_pins(state: State) -> None:
    """What is left of an earlier boot's pins: those of blocks that are still there, the longest first, as far as
    they are within the share."""
    state.kept = Deadlines(state.catalog.pinned_until)
    rows = state.kept.rows()
    order = rows[np.argsort(-state.kept.until[rows], kind="stable")]
    sizes = slots_of(state.catalog.size[order])
    state.kept_bytes = int(sizes.sum())
    state.unkeep(order[np.cumsum(sizes) > quota(state)])
