"""LRU beside the policy: what it would hit, and when it takes over because the policy does worse.

What LRU would hit needs no second cache. With room for so many identities it holds those that were accessed last,
and so hits what was last accessed at a step since which no more than so many were. How many identities were last
accessed at each step is counted here; the gap of an access says the rest.

`lead` is what the policy hit beyond LRU since it was last put to the test, of late mostly. Where it is behind
by more than TOLERANCE of the accesses in it, victims go by last access and all newcomers are stored, for TERM
requests. Then the policy is tried again; each time that it fails LRU stays twice as long.
"""

from __future__ import annotations

import numpy as np

from tierd_client.format import I64Array

HALF_LIFE = 2_000
"""Requests after which a hit counts half."""
_FADE = 0.5 ** (1 / HALF_LIFE)
TOLERANCE = 0.003
LEAST_REQUESTS = 1_000
"""A lead is judged as if so many had been served, if fewer were."""
TERM = 1_000
LONGEST_TERM = 1 << 20
"""Requests."""
MOST_STEPS = 1 << 16
"""Steps that are told apart; what was last accessed before them counts as missed by LRU."""


class Fallback:
    """Begins with nothing: what was accessed before says nothing about either."""

    def __init__(self, step: int) -> None:
        self.active = False
        self.lead = 0.0
        """Blocks, faded."""
        self._accesses = 0.0
        self._requests = 0.0
        """Both faded as `lead` is."""
        self._left = self._term = TERM
        """Requests until the policy is tried again, and how many they were at first."""
        self._step = step
        self._born = max(1, step)
        """What has never been accessed is as if at step 0."""
        self._steps = np.zeros(1024, np.int64)
        self._counts = np.zeros(1024, np.int64)
        self._first = self._end = 0
        """The part of both that is in use, in the order of steps."""
        self._identities = 0
        """Sum of the counts."""
        self._share = 1.0
        """Of those last accessed at the first of the steps, what LRU would have kept."""

    def access(self, step: int, gaps: I64Array, hit: bool | None) -> None:
        """One access to each of these identities, `gaps` steps after the last one to it. `hit`: whether they were
        here; None: they were served elsewhere, which says nothing."""
        last = step - gaps
        places = self._places(last)
        np.subtract.at(self._counts, places, 1)
        self._count(step, len(gaps))
        self._identities += len(gaps) - len(places)
        if hit is not None:
            lru = len(places) - (1.0 - self._share) * np.count_nonzero(places == self._first)
            here = np.count_nonzero(last >= self._born) if hit else 0
            self.lead += here - lru
            self._accesses += len(gaps)

    def _places(self, last: I64Array) -> I64Array:
        """Where those of these steps are counted that are."""
        steps = self._steps[self._first : self._end]
        if not len(steps):
            return np.empty(0, np.int64)
        places = steps.searchsorted(last)
        counted = steps.take(places, mode="clip") == last
        found: I64Array = places[counted] + self._first
        return found

    def _count(self, step: int, accesses: int) -> None:
        if self._first == self._end or self._steps[self._end - 1] != step:
            if self._end == len(self._steps):
                self._make_room()
            self._steps[self._end], self._counts[self._end] = step, 0
            self._end += 1
        self._counts[self._end - 1] += accesses

    def _make_room(self) -> None:
        live = slice(max(self._first, self._end - MOST_STEPS), self._end)
        self._identities -= int(self._counts[self._first : live.start].sum())
        count = live.stop - live.start
        for name in ("_steps", "_counts"):
            longer = np.zeros(max(1024, 2 * count), np.int64)
            longer[:count] = getattr(self, name)[live]
            setattr(self, name, longer)
        self._first, self._end = 0, count

    def tick(self, step: int, identities: int) -> None:
        """At the end of a command: another request has been counted when the step moved. `identities`: as many are
        here now."""
        if step == self._step:
            return
        self._step = step
        self._forget(identities)
        self.lead *= _FADE
        self._accesses *= _FADE
        self._requests = self._requests * _FADE + 1.0
        if self.active:
            self._left -= 1
            if not self._left:
                self.active = False
                self.lead = self._accesses = self._requests = 0.0
        elif self.lead < -TOLERANCE * self._accesses * max(1.0, LEAST_REQUESTS / self._requests):
            self.active, self._left = True, self._term
            self._term = min(2 * self._term, LONGEST_TERM)

    def _forget(self, identities: int) -> None:
        """Of so many identities LRU forgets those last accessed first."""
        excess = oldest = 0
        while (excess := self._identities - identities) > 0:
            oldest = int(self._counts[self._first])
            if oldest > excess:
                break
            self._identities -= oldest
            self._first += 1
        self._share = 1.0 - excess / oldest if excess > 0 else 1.0


def fallback_of(name: str, step: int) -> Fallback | None:
    """The fallback that a policy names, of accesses from this step on; None for `none`."""
    return Fallback(step) if name == "lru" else None


def active(fallback: Fallback | None) -> bool:
    """Whether LRU has taken over from the policy."""
    return fallback is not None and fallback.active
