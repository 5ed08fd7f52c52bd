"""Where a block stands in the order of eviction before the policy is asked: what requests said of its future.

A record keeps the highest priority that a request gave it, and what is known of its next use until that use
comes. Both make one number, the standing: a lower one goes first, whatever the ranks; among equals the policy's
rank decides. They lie in the flags of the record, where zeros mean that nothing was said.
"""

from __future__ import annotations

import numpy as np

from tierd.core.arrays import constant, some
from tierd.core.catalog import Catalog
from tierd.core.terms import NextUse, Priority
from tierd_client.format import I64Array

PRIORITY_SHIFT, NEXT_SHIFT = 1, 3
PRIORITY_MASK, NEXT_MASK = 3 << PRIORITY_SHIFT, 3 << NEXT_SHIFT
_NEXT_BITS, _NOTHING = constant(NEXT_MASK, np.uint8), constant(0, np.uint8)

ENDED, EXPECTED = 0, 4
"""The standing of blocks whose session is over, and of those that are soon to be read. Between them: that of
their priority, or of a low one while a human is waited for."""


def _coded(priority: int) -> int:
    """NORMAL is 0: the flags of a record of which nobody said anything."""
    return priority ^ Priority.NORMAL


def _standing(flags: int) -> int:
    priority = _coded((flags & PRIORITY_MASK) >> PRIORITY_SHIFT)
    following = (flags & NEXT_MASK) >> NEXT_SHIFT
    if following == NextUse.HUMAN:
        return int(Priority.LOW)
    return {NextUse.CLOSED: ENDED, NextUse.SOON: EXPECTED}.get(NextUse(following), priority)


_STANDINGS = np.array([_standing(flags) for flags in range(256)], np.int64)


def standings(catalog: Catalog, rows: I64Array) -> I64Array:
    """The standing of each row: lower goes first."""
    found: I64Array = _STANDINGS[catalog.flags[rows]]
    return found


def standing_of(catalog: Catalog, row: int) -> int:
    """As `standings`, for one row and many times faster."""
    return int(_STANDINGS[catalog.flags.item(row)])


def priority_of(catalog: Catalog, row: int) -> Priority:
    return Priority(_coded(catalog.flags.item(row) >> PRIORITY_SHIFT & 3))


def next_use_of(catalog: Catalog, row: int) -> NextUse:
    return NextUse(catalog.flags.item(row) >> NEXT_SHIFT & 3)


def set_priority(catalog: Catalog, rows: I64Array, priority: Priority) -> None:
    """Of rows that are new."""
    catalog.flags[rows] &= np.uint8(~PRIORITY_MASK & 0xFF)
    catalog.flags[rows] |= np.uint8(_coded(priority) << PRIORITY_SHIFT)


def raise_priority(catalog: Catalog, rows: I64Array, priority: Priority) -> I64Array:
    """Of rows that were there before, so that a batch job lowers nobody's. Returns those that changed."""
    lower = _coded_priorities(catalog, rows) < priority
    set_priority(catalog, rows[lower], priority)
    changed: I64Array = rows[lower]
    return changed


def _coded_priorities(catalog: Catalog, rows: I64Array) -> I64Array:
    coded = (catalog.flags[rows] & PRIORITY_MASK) >> PRIORITY_SHIFT
    return coded.astype(np.int64) ^ int(Priority.NORMAL)


def forget_soon(catalog: Catalog, rows: I64Array) -> None:
    """At a start nobody knows any more until when a use was expected."""
    soon = rows[(catalog.flags[rows] & NEXT_MASK) == NextUse.SOON << NEXT_SHIFT]
    set_next_use(catalog, soon, NextUse.NONE)


def forget_next_use(catalog: Catalog, rows: I64Array) -> None:
    """The use that was spoken of has come."""
    if some(said := (catalog.flags[rows] & _NEXT_BITS) != _NOTHING):
        set_next_use(catalog, rows[said], NextUse.NONE)


def set_next_use(catalog: Catalog, rows: I64Array, following: NextUse) -> None:
    catalog.flags[rows] &= np.uint8(~NEXT_MASK & 0xFF)
    catalog.flags[rows] |= np.uint8(following << NEXT_SHIFT)
