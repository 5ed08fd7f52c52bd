"""Stored values that wait to be deleted from the spill tier, and the order between deletes and stores.

A delete of an identity must not overtake a later store of it, or a block that was spilled again is gone.
So a store cancels a delete that still waits, and waits itself for one that is under way. Belongs to the
event loop.
"""

from __future__ import annotations

from collections import defaultdict
from itertools import islice

from tierd.core.messages import Move, Unlink

IDENTITIES_WAITING_MAX = 200_000
"""More are dropped: they stay in the server as garbage, which is never a wrong hit."""

IDENTITIES_PER_CALL = 512


class Unlinks:
    """Deletes in order of namespaces; one call under way at a time."""

    def __init__(self) -> None:
        self._waiting: dict[int, dict[bytes, None]] = defaultdict(dict)
        self._count = 0
        self._under_way: Unlink | None = None
        self._busy: frozenset[bytes] = frozenset()
        self._held: list[Move] = []
        self.dropped = 0
        self.added = self.settled = 0
        """Identities that came, and that left: deleted, stored again, or to be asked for once more."""

    def __len__(self) -> int:
        """Identities that wait."""
        return self._count

    @property
    def left(self) -> int:
        """Identities that wait or are being deleted."""
        return self.added - self.settled

    @property
    def room(self) -> int:
        """Identities that may still be added."""
        return IDENTITIES_WAITING_MAX - self._count

    def add(self, unlink: Unlink) -> None:
        waiting = self._waiting[unlink.namespace]
        for identity in unlink.identities:
            if self._count >= IDENTITIES_WAITING_MAX:
                self.dropped += 1
            elif identity not in waiting:
                waiting[identity] = None
                self._count += 1
                self.added += 1

    def concerns(self, namespace: int, identity: bytes) -> bool:
        """Whether this one waits to be deleted, or is being deleted."""
        under_way = self._under_way is not None and self._under_way.namespace == namespace
        return identity in self._waiting[namespace] or (under_way and identity in self._busy)

    def forget(self) -> None:
        """Nothing that waits is deleted: the store was given up."""
        self._waiting.clear()
        self.settled += self._count
        self._count = 0
        if self._under_way is not None:
            self._under_way = Unlink(self._under_way.namespace, ())

    def holds(self, store: Move) -> bool:
        """Takes note of a store. True: it must wait, and comes back from `finished`."""
        if self._waiting[store.namespace].pop(store.identity, 0) is None:
            self._count -= 1
            self.settled += 1
        if self._under_way is None or store.namespace != self._under_way.namespace:
            return False
        if store.identity not in self._busy:
            return False
        self._held.append(store)
        return True

    def begin(self) -> Unlink | None:
        """The next call; None while one is under way or nothing waits."""
        if self._under_way is not None or self._count == 0:
            return None
        namespace, waiting = next((n, w) for n, w in self._waiting.items() if w)
        identities = tuple(islice(waiting, IDENTITIES_PER_CALL))
        for identity in identities:
            del waiting[identity]
        self._count -= len(identities)
        self._under_way = Unlink(namespace, identities)
        self._busy = frozenset(identities)
        return self._under_way

    def finished(self, done: bool) -> list[Move]:
        """The call is over; returns the stores that waited for it. What was not deleted waits again."""
        call, held = self._under_way, self._held
        self.settled += len(self._busy)
        self._under_way, self._busy, self._held = None, frozenset(), []
        if call is not None and not done:
            stored = {move.identity for move in held}
            self.add(Unlink(call.namespace, tuple(i for i in call.identities if i not in stored)))
        return held

    def take_held(self) -> list[Move]:
        """The stores that wait, which will not be made any more."""
        held, self._held = self._held, []
        return held
