"""The spill tier in this process's memory: the trivial twin of the Redis store, and a spill tier for tests."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from tierd.adapters.envelope import (
    HEADER_BYTES,
    PayloadCheck,
    decode_checksum,
    decode_header,
    encode_header,
    encode_statistics,
    latest_statistics,
)
from tierd.core.errors import BlockDamaged, BlockVanished, SpillDown, SpillFull
from tierd.core.messages import Record
from tierd.ports import SpillHealth, SpillStore, StoredBlock
from tierd_client.format import U8Array


class MemorySpillStore(SpillStore):
    """Stored values by (fingerprint, identity), header included as on a server.

    `values` is open to tests, which damage or remove what is in it; `flush` is what a server restart does.
    """

    shared = False

    def __init__(self, capacity_bytes: int, wall_clock: Callable[[], float] = time.time) -> None:
        """capacity_bytes: of values with their headers; a put beyond it is SpillFull."""
        self.values: dict[tuple[bytes, bytes], bytes] = {}
        self._statistics: dict[tuple[bytes, bytes], bytes] = {}
        self._capacity_bytes = capacity_bytes
        self._used_bytes = 0
        self._wall_clock = wall_clock
        self._marked = False
        self._closed = False
        self._lock = threading.Lock()

    def put(self, block: StoredBlock, payload: U8Array, deadline_s: float) -> bool:
        if payload.nbytes != block.size:
            raise ValueError(f"{payload.nbytes} bytes for a block of {block.size}")
        value = encode_header(block, self._wall_clock()) + payload.tobytes()
        key = (block.fingerprint, block.identity)
        with self._lock:
            self._check_open(deadline_s)
            used = self._used_bytes + len(value) - len(self.values.get(key, b""))
            if used > self._capacity_bytes:
                raise SpillFull(f"memory spill: {used} bytes would be more than its {self._capacity_bytes}")
            self.values[key] = value
            self._used_bytes = used
        return True

    def get(self, fingerprint: bytes, identity: bytes, out: U8Array, deadline_s: float) -> int:
        with self._lock:
            self._check_open(deadline_s)
            value = self.values.get((fingerprint, identity))
        if value is None:
            raise BlockVanished(f"block {identity.hex()} is not in the memory spill")
        checksum = decode_checksum(value[:HEADER_BYTES], fingerprint, identity, len(value) - HEADER_BYTES)
        if len(value) - HEADER_BYTES != out.nbytes:
            raise BlockDamaged(f"payload bytes: found {len(value) - HEADER_BYTES}, expected {out.nbytes}")
        out[...] = np.frombuffer(value, np.uint8, offset=HEADER_BYTES).reshape(out.shape)
        check = PayloadCheck()
        check.see(memoryview(value)[HEADER_BYTES:])
        return check.expect(checksum)

    def look(
        self, fingerprint: bytes, identities: Sequence[bytes], deadline_s: float
    ) -> list[StoredBlock | None]:
        with self._lock:
            self._check_open(deadline_s)
            return [self._seen(fingerprint, identity) for identity in identities]

    def restate(self, fingerprint: bytes, records: Mapping[bytes, Record], deadline_s: float) -> None:
        with self._lock:
            self._check_open(deadline_s)
            for identity, record in records.items():
                block = self._seen(fingerprint, identity)
                if block is not None and block.record.wall < record.wall:
                    self._statistics[fingerprint, identity] = encode_statistics(record)

    def footprints(self, fingerprint: bytes, identities: Sequence[bytes], deadline_s: float) -> list[int | None]:
        with self._lock:
            self._check_open(deadline_s)
            values = [self.values.get((fingerprint, identity)) for identity in identities]
        return [None if value is None else len(value) for value in values]

    def unlink(self, fingerprint: bytes, identities: Sequence[bytes], deadline_s: float) -> None:
        with self._lock:
            self._check_open(deadline_s)
            for identity in identities:
                self._used_bytes -= len(self.values.pop((fingerprint, identity), b""))
                self._statistics.pop((fingerprint, identity), None)

    def probe(self, deadline_s: float) -> SpillHealth:
        with self._lock:
            self._check_open(deadline_s)
            same, self._marked = self._marked, True
        return SpillHealth(same, "" if same else "the marker was absent: a new or flushed store")

    def flush(self) -> None:
        """Forgets everything, the marker too."""
        with self._lock:
            self.values.clear()
            self._statistics.clear()
            self._used_bytes = 0
            self._marked = False

    def close(self) -> None:
        self._closed = True

    def _seen(self, fingerprint: bytes, identity: bytes) -> StoredBlock | None:
        value = self.values.get((fingerprint, identity), b"")
        try:
            block = decode_header(value[:HEADER_BYTES], fingerprint, identity, len(value) - HEADER_BYTES)
        except BlockDamaged:
            return None
        return latest_statistics(block, self._statistics.get((fingerprint, identity)))

    def _check_open(self, deadline_s: float) -> None:
        if self._closed or deadline_s <= 0:
            raise SpillDown(f"memory spill: {'closed' if self._closed else 'the deadline passed'}")
