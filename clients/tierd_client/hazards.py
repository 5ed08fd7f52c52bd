"""A session's hazard page: which slots it looks at in place without having asked (docs/format.md, section 8).

A slot is published, and then it is looked whether its record still has it. The daemon changes a record first and
reads the pages then, before it hands the slot on. With a full barrier between the two steps on both sides one sees
the other: either the change is seen here, and the slot is withdrawn, or the daemon sees the slot, and keeps it
aside. The barrier is the release of a lock, an atomic read-modify-write: on x86-64 no later load passes it before
all earlier stores are seen by all. What was read of a slot is read before its withdrawal is stored, by the order of
loads and stores there; a copy that a device makes must have ended.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

import numpy as np

from tierd_client.format import (
    HAZARD_PAGE_BYTES,
    HAZARD_ROW_BITS,
    HAZARDS_MAX,
    BoolArray,
    I64Array,
    U8Array,
    U64Array,
)


@dataclass(slots=True)
class Looked:
    """Blocks of one call that are looked at in place without a lease, by their index in the call."""

    page: HazardPage
    addresses: dict[int, int] = field(default_factory=dict)
    checksums: dict[int, int] = field(default_factory=dict)
    in_hbm: set[int] = field(default_factory=set)
    _entries: list[I64Array] = field(default_factory=list)

    def publish(self, addresses: U64Array, rows: I64Array, size: int) -> bool:
        """As that of the page. False: there is no room."""
        entries = self.page.publish(addresses, rows, size)
        if entries is not None:
            self._entries.append(entries)
        return entries is not None

    def keep(self, kept: BoolArray) -> None:
        """Of those published last these are looked at, the others are not."""
        entries = self._entries.pop()
        self._entries.append(entries[kept])
        self.page.withdraw(entries[~kept])

    def take(self, indices: I64Array, addresses: U64Array, checksums: U64Array, in_hbm: bool) -> None:
        """Blocks, by their index in the call, that are kept."""
        self.addresses.update(zip(indices.tolist(), addresses.tolist(), strict=True))
        self.checksums.update(zip(indices.tolist(), checksums.tolist(), strict=True))
        self.in_hbm.update(indices.tolist() if in_hbm else ())

    def end(self) -> None:
        """Nothing is looked at any more; idempotent. Nothing is withdrawn twice, also by an interrupt: an entry
        that two had would protect neither."""
        while self._entries:
            self.page.withdraw(self._entries.pop())


class HazardPage:
    """Thread-safe."""

    def __init__(self, mapped: U8Array) -> None:
        """`mapped`: the page, writable, without entries."""
        self._entries: U64Array = mapped[:HAZARD_PAGE_BYTES].view("<u8").reshape(-1, 2)
        self._free = list(range(HAZARDS_MAX, 0, -1))
        self._lock = threading.Lock()

    def publish(self, addresses: U64Array, rows: I64Array, size: int) -> I64Array | None:
        """Says that slots of `size` bytes are looked at; the entry of each, to be withdrawn. None: there is no room
        for so many. What is read after it is no older than the daemon's look at the page."""
        with self._lock:
            first = len(self._free) - len(addresses)
            if first < 0:
                return None
            entries = np.array(self._free[first:], np.int64)
            del self._free[first:]
            self._entries[entries, 1] = (rows.astype(np.uint64) << np.uint64(HAZARD_ROW_BITS)) | np.uint64(size)
            self._entries[entries, 0] = addresses
            self._entries[0, 0] = max(int(self._entries[0, 0]), int(entries.max(initial=0)))
        return entries

    def withdraw(self, entries: I64Array) -> None:
        """These slots are looked at no more."""
        with self._lock:
            self._entries[entries, 0] = 0
            self._free += entries.tolist()
            if len(self._free) == HAZARDS_MAX:
                self._entries[0, 0] = 0
