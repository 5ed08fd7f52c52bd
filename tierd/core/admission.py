"""Whether a block is stored at all, where others would have to go for it.

`learned`: the newcomers of a request are weighed against the next victims, the deepest newcomer first, by the index
of gaps.py. One is declined while the victim's index is more than THETA times its own: what is dropped cannot come
back before its next miss, so that a newcomer must be worth more. The first block of a request is always stored, and
nothing is declined while there is room. With `spill_write = on_worth` a victim above the spill tier is dropped by
the same comparison, where something would be deleted there for it.
"""

from __future__ import annotations

import numpy as np

from tierd.core.arrays import Mask, indices
from tierd.core.fallback import active
from tierd.core.gaps import CLASS_MASK, FOLLOWERS_SHIFT, bin_of, bins_of, classes_of, never_seen
from tierd.core.hashindex import NO_ROW
from tierd.core.messages import Ids, Priority, Tier
from tierd.core.standing import standing_of, standings
from tierd.core.state import State, TierState
from tierd.core.touching import touch_kept_out
from tierd.core.underway import Sequence
from tierd_client.format import I64Array

THETA = 0.7


class Admission:
    """The newcomers of one request, in the order of their chain, and how many of them were declined so far."""

    def __init__(self, state: State, bars: list[float], priority: Priority) -> None:
        """`bars`: THETA times the index of each newcomer that may be declined. `priority`: of all; what stands
        lower goes for them, whatever it is worth."""
        self._state = state
        self._bars = bars
        self._priority = priority or Priority.NORMAL
        self._left = 0
        self.declined = 0

    def begin(self, wanted: int) -> None:
        """Victims are to be chosen for so many newcomers."""
        self._left = wanted

    def lets(self, row: int) -> bool:
        """Whether this victim goes for the newcomers that are left; those that it is worth more than are declined.
        False: none is left."""
        ahead = standing_of(self._state.catalog, row) < self._priority
        index = 0.0 if ahead else _index_of(self._state, row)
        while self._left and self._bars and index > self._bars[-1]:
            self._bars.pop()
            self.declined += 1
            self._left -= 1
        self._left -= 1
        return self._left >= 0


def admits_by_index(state: State, tier: TierState) -> bool:
    """Whether newcomers of a tier may be declined: where something would be dropped for them."""
    learned = state.policy.common.admission == "learned" and not active(state.fallback)
    return learned and state.destination(tier) is None


def worth_a_store(state: State, rows: I64Array) -> Mask:
    """Which of these victims go to the spill tier: all while there is room for them; then those that are worth more
    than the one that would be deleted first, by the same margin, or stand higher."""
    spill = state.tiers[Tier.SPILL]
    weighed = state.settings.spill_write == "on_worth" and not active(state.fallback)
    if not weighed or _has_room(state, spill, rows):
        return np.ones(len(rows), bool)
    state.guard(rows)
    first = state.choose(spill, 1)
    state.spare(spill, first)
    state.unguard(rows)
    if not len(first):
        return np.ones(len(rows), bool)
    catalog = state.catalog
    idle = bins_of(state.clock.step - catalog.last[rows])
    bars = THETA * state.gaps.index[classes_of(catalog.learnt[rows]), idle]
    worth: Mask = bars >= _index_of(state, int(first[0]))
    worth |= standings(catalog, rows) > standing_of(catalog, int(first[0]))
    return worth


def _has_room(state: State, spill: TierState, rows: I64Array) -> bool:
    """Whether these can be stored without anything being deleted for them, now or for the watermarks."""
    copies = spill.copies
    most = state.settings.spill_low * min(copies.capacity, copies.limit)
    return bool(copies.capacity - copies.free + int(state.catalog.size[rows].sum()) <= most)


def worth_terms(state: State, row: int) -> dict[str, float]:
    """What a block is worth beside newcomers, and why: for people."""
    learnt, idle = state.catalog.learnt.item(row), state.clock.step - state.catalog.last.item(row)
    return {
        "class": float(_class_of(learnt)), "followers": float(learnt >> FOLLOWERS_SHIFT), "idle_steps": float(idle),
        "index": _index_of(state, row), "admission_threshold": THETA,
    }


def _class_of(learnt: int) -> int:
    return max(1, learnt & CLASS_MASK) - 1


def _index_of(state: State, row: int) -> float:
    """As for many, and many times faster."""
    catalog = state.catalog
    idle = bin_of(state.clock.step - catalog.last.item(row))
    return float(state.gaps.index.item(_class_of(catalog.learnt.item(row)), idle))


def decline(
    state: State, tier: TierState, sequence: Sequence | None, blocks: Ids, rows: I64Array, ghosts: I64Array,
    places: I64Array,
) -> None:
    """The ids at these places are kept out: counted, and accessed once."""
    tier.counters.note_shed("declined", len(places))
    touch_kept_out(state, sequence, blocks, rows, ghosts, places)


def admission_of(
    state: State, blocks: Ids, ghosts: I64Array, places: I64Array, priority: Priority
) -> Admission:
    """Of the ids at these places, for which a tier has no copy, stored with this priority. `ghosts`: of all ids."""
    touches, idle = np.zeros(len(places), np.uint32), np.zeros(len(places), np.int64)
    learnt = never_seen(len(blocks), blocks.chain)[places]
    found = indices(ghosts[places] != NO_ROW)
    records = state.ghosts.records(ghosts[places[found]])
    touches[found], idle[found], learnt[found] = records.touches, state.clock.step - records.last, records.learnt
    classes = state.gaps.classes(touches, idle, learnt, state.new_class)
    bars = THETA * state.gaps.index[classes[places > 0], 0]
    return Admission(state, bars.tolist(), priority)
