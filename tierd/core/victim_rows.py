"""What the orders of victims share: what one is, and rows with tokens.

Entries of an order are never searched for: a row has a token, an entry carries the token it was made with, and an
entry whose token is old is skipped when it comes up. A row that comes up while it is protected leaves its list
("out") and is put back when the protection ends, so that a choice never walks over the same protected rows twice.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from tierd.core.arrays import constant, scalars, some
from tierd.core.catalog import Catalog
from tierd.core.policy.base import Moment
from tierd.core.protection import Protection
from tierd_client.format import I64Array, U8Array

Lets = Callable[[int], bool]
"""Whether this victim goes for what comes in."""
Place = tuple[int, int, bytes]
"""(last, -position, identity): the order of equals."""
Spot = tuple[int, int]
"""What of a place does not lie far off: all but the identity."""
TokenArray = NDArray[np.uint32]

NONE = -1
_ONE = constant(1, np.uint32)
_CHILD, _NO_CHILD = constant(1, np.int32), constant(0, np.int32)
TOGETHER_FROM = 16
"""Shorter runs are looked at row by row in less time."""


class Victims(Protocol):
    """Rows of one tier, in the order of eviction."""

    out: NDArray[np.bool_]
    """Rows that `put_back` would take back."""

    def load(self, rows: I64Array) -> None:
        """Takes in distinct rows at the start, whenever they came."""
        self.insert(rows)

    def expect(self, ids: U8Array, places: I64Array) -> None:
        """The ids at these places are not in the tier, and about to come in; told before room is made for them.
        Records tell an order of ranks all that it needs."""
        del ids, places

    def insert(self, rows: I64Array) -> None:
        """Takes in distinct rows, or moves those that are in to where statistics and standing now put them."""

    def discard(self, rows: I64Array) -> None:
        """Forgets rows; those that are not in are ignored."""

    def put_back(self, rows: I64Array) -> None:
        """The protection of these rows, or their last child, may have gone; or they were chosen and stay."""

    def choose(self, count: int, now: Moment, protection: Protection, lets: Lets | None = None) -> I64Array:
        """The next `count` victims, in order, taken out, and no longer counted as children of their parents. `lets`
        is asked before: once it lets a victim stay, no other goes."""

    def terms(self, row: int) -> dict[str, float]:
        """What the order knows of a row beside its record, for people."""
        del row
        return {}


class VictimRows:
    """Tokens and places of rows: what all indexes share."""

    def __init__(self, catalog: Catalog, children: NDArray[np.int32], *, leaf_only: bool) -> None:
        self.catalog = catalog
        self._children = children
        self.children_at = scalars(children)
        """Children of each row that are still in the tier."""
        self.leaf_only = leaf_only
        """Whether they go before it."""
        self.token = np.zeros(catalog.capacity, np.uint32)
        """Moves on with each insertion of the row and when it leaves, modulo 2^32: odd while it is in."""
        self._token_at = scalars(self.token)
        self.last_at, self._position_at = scalars(catalog.last), scalars(catalog.position)
        self.out = np.zeros(catalog.capacity, bool)
        self.out_at = scalars(self.out)
        self.members = 0
        self.choice = 0
        """Number of the choice of victims that is being made, or was made last."""

    def renew(self, rows: I64Array) -> TokenArray:
        """New tokens of rows that are in from now on."""
        before: TokenArray = self.token[rows]
        tokens: TokenArray = (before + _ONE) | _ONE
        self.members += len(rows) - int(np.count_nonzero(before & _ONE))
        self.token[rows], self.out[rows] = tokens, False
        return tokens

    def valid(self, row: int, token: int) -> bool:
        """Whether an entry still stands for its row."""
        return bool(self._token_at[row] == token)

    def all_valid(self, rows: I64Array, tokens: TokenArray) -> NDArray[np.bool_]:
        """As `valid`, for many."""
        current: NDArray[np.bool_] = self.token[rows] == tokens
        return current

    def discard(self, rows: I64Array) -> None:
        tokens = self.token[rows]
        odd = tokens & _ONE
        if some(odd):  # none is in of those that were chosen
            self.members -= int(np.count_nonzero(odd))
            self.token[rows] = tokens + odd
        self.out[rows] = False

    def take(self, rows: I64Array) -> I64Array:
        """These were chosen."""
        self.token[rows] += _ONE
        self.out[rows] = True
        self.members -= len(rows)
        return rows

    def go_together(self, run: I64Array) -> bool:
        """Counts rows of a run as gone from their parents, if all go and no parent comes back into the order
        with the last of its children. False, and nothing changes, where that is not so, or only a look at one after
        the other can say it: of rows last accessed in one step no parent comes before its child."""
        if len(run) < TOGETHER_FROM or self.last_at[run.item(0)] != self.last_at[run.item(-1)]:
            return False
        linked = self.catalog.linked(run)
        if self.leaf_only and some(self.out[linked]):
            return False
        np.subtract.at(self._children, linked, _CHILD)
        if not self.leaf_only or not some(self._children[run] != _NO_CHILD):
            return True
        np.add.at(self._children, linked, _CHILD)
        return False

    def stays(self, row: int) -> bool:
        """Whether its children keep a row here."""
        return self.leaf_only and self.children_at[row] != 0

    def child_goes(self, parent: int) -> bool:
        """A child of this row was chosen. True when it was what kept the row out of the order."""
        left = self.children_at[parent] = self.children_at[parent] - 1
        return self.leaf_only and not left and self.out_at[parent]

    def returning(self, rows: I64Array) -> I64Array:
        """Those that are out and have no child here: with the last child a row is put back once more."""
        out = self.out_at
        return np.array([row for row in rows.tolist() if out[row] and not self.stays(row)], np.int64)

    def place(self, row: int) -> Place:
        return self.last_at[row], -self._position_at[row], self.catalog.identity[row].tobytes()

    def in_order(self, rows: I64Array) -> I64Array:
        """Rows last accessed in one step, sorted by their places."""
        depth = -self.catalog.position[rows].astype(np.int64)
        order = depth.argsort()
        if some(_repeated(depth[order])):
            first = self.catalog.words[:, 0][rows].byteswap()
            order = np.lexsort((first, depth))
            if some(_repeated(depth[order]) & _repeated(first[order])):
                words = self.catalog.words[rows].byteswap().T
                order = np.lexsort((words[3], words[2], words[1], words[0], depth))
        return rows[order]


def _repeated(ordered: NDArray[Any]) -> NDArray[np.bool_]:
    """Which are equal to the one before, from the second on."""
    repeated: NDArray[np.bool_] = ordered[1:] == ordered[:-1]
    return repeated
