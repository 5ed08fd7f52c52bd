"""Finds ghosts by identity: those of one hash form a chain, the latest first.

A ghost that goes is never taken out. Ghosts come numbered, oldest out first: where a chain comes to a number that
the ring has left behind, it ends. One that left a hole in the ring is passed over.
"""

from __future__ import annotations

import numpy as np

from tierd.core.arrays import constant, every, indices, scalars
from tierd.core.hashindex import NO_ROW, UNKNOWN, U32Array
from tierd_client.format import I64Array, U8Array, U64Array, first_bucket, hashes, same_identity, words_of

MOST_NUMBER = (1 << 32) - 1
_ONE, _HOLE = constant(1, np.int64), constant(0, np.uint32)
REBUILT_AT_ONCE = 4096
FEW_CHAINS = 48
"""So many chains are followed one by one in less time than they take a step together."""


class GhostIndex:
    """Numbers are those of places, from 1 on; the place of each in the ring is its remainder by the capacity."""

    def __init__(self, identity: U8Array, touches: U32Array, salt: int) -> None:
        """Over the columns of the ring; `touches` of a hole are 0."""
        self._words, self._touches, self._salt = words_of(identity), touches, salt
        self._capacity = len(identity)
        buckets = 1 << max(4, (2 * self._capacity - 1).bit_length())
        self._mask = constant(buckets - 1, np.uint32)
        self._latest: U32Array = np.zeros(buckets, np.uint32)
        """Number of the first ghost of each chain."""
        self._before: U32Array = np.zeros(self._capacity, np.uint32)
        """Number of the next one behind each ghost."""
        self._before_at, self._first_word_at = scalars(self._before), scalars(self._words[:, 0])
        self._touches_at = scalars(touches)

    def add(self, first: int, at: slice | I64Array, hashed: U32Array) -> None:
        """Ghosts that stand in the ring now, in their order, numbered from `first`; `hashed`: their `hashes_of`."""
        bucket = (hashed & self._mask).astype(np.int64)
        numbers = np.arange(first, first + len(bucket), dtype=np.uint32)
        before = self._latest.take(bucket)
        self._latest[bucket] = numbers
        if not every(self._latest.take(bucket) == numbers):
            _chain(bucket, numbers, before)
        self._before[at] = before

    def hashes_of(self, at: slice | I64Array) -> U32Array:
        """Hashes of the identities at these places, as far as `add` looks at them."""
        return hashes(self._words[at], self._salt).astype(np.uint32)

    def rebuild(self, first: int, at: I64Array) -> None:
        """Starts over with those at these places, holes among them, numbered from `first`."""
        self._latest = np.zeros(len(self._latest), np.uint32)  # fresh pages take memory when something is put there
        for start in range(0, len(at), REBUILT_AT_ONCE):
            part = at[start : start + REBUILT_AT_ONCE]
            self.add(first + start, part, self.hashes_of(part))

    def find(self, ids: U8Array, oldest: int) -> I64Array:
        """Place of each identity (n, 32) in the columns, `NO_ROW` where there is no ghost of it numbered from
        `oldest` on."""
        words = words_of(ids)
        places = np.full(len(words), NO_ROW)
        numbers = self._latest.take(first_bucket(words, self._salt, len(self._latest) - 1))
        left = indices(numbers >= oldest)
        numbers = numbers[left]
        while len(left):
            if (few := self._find_few(words.take(left, axis=0), numbers, oldest)) is not None:
                places[left] = few
                break
            at = (numbers.astype(np.int64) - _ONE) % self._capacity
            there = numbers >= oldest
            same = same_identity(self._words, at, words.take(left, axis=0)) & (self._touches[at] != _HOLE) & there
            places[left[same]] = at[same]
            on = there & ~same
            left, numbers = left[on], self._before[at[on]]
        return places

    def _find_few(self, words: U64Array, numbers: U32Array, oldest: int) -> I64Array | None:
        """Place of each identity, one by one along its chain from this number on; None where they are too many for
        that, or first words are not enough."""
        if len(words) > FEW_CHAINS:
            return None
        first_word, touches = self._first_word_at, self._touches_at
        before, capacity, places = self._before_at, self._capacity, list[int]()
        for word, number in zip(words[:, 0].tolist(), numbers.tolist(), strict=True):
            while number >= oldest and (first_word[at := (number - 1) % capacity] != word or not touches[at]):
                number = before[at]
            places.append((number - 1) % capacity if number >= oldest else NO_ROW)
        found = np.array(places, np.int64)
        known = indices(found != UNKNOWN)
        sure = self._words.take(found[known], 0).tobytes() == words.take(known, 0).tobytes()
        return found if sure else None


def _chain(bucket: I64Array, numbers: U32Array, before: U32Array) -> None:
    """Where several come into one chain, each stands behind the next one; `before` is what stood first."""
    order = bucket.argsort(kind="stable")
    again = indices(bucket[order[1:]] == bucket[order[:-1]])
    before[order[again + 1]] = numbers[order[again]]
