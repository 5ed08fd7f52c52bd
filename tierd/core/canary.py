"""A free slot borrowed for a moment, to be written and read by whoever asks whether a tier works.

No record owns it, no reader hears of it, nothing is evicted for it and no statistics change. It counts as
reserved until it is given back; a kill between frees it, since it is in no table.
"""

from __future__ import annotations

import numpy as np

from tierd.core.messages import BorrowedSlot, BorrowSlot, Done, ReturnSlot, Tier
from tierd.core.state import State, TierState
from tierd_client.format import STATE_READY


def borrow_slot(state: State, command: BorrowSlot) -> BorrowedSlot:
    tier = state.tier(command.tier)
    address = tier.copies.borrow(command.size)
    ready = tier.copies.state == STATE_READY
    sample = state.catalog.identity[int(np.argmax(ready))].tobytes() if ready.any() else b""
    return BorrowedSlot(address, address is not None or _room_can_be_made(state, tier), sample)


def return_slot(state: State, command: ReturnSlot) -> Done:
    copies = state.tier(command.tier).copies
    copies.give_back_borrowed(copies.borrowed[command.address], [command.address])
    return Done()


def _room_can_be_made(state: State, tier: TierState) -> bool:
    """Whether a newcomer would find a victim that may leave, or one that is leaving."""
    if tier.leaving:
        return True
    below = state.destination(tier)
    if below is not None and below.tier == Tier.SPILL and not state.spill_up:
        return False
    chosen = state.choose(tier, 1)
    if len(chosen):
        state.spare(tier, chosen)
    return len(chosen) > 0
