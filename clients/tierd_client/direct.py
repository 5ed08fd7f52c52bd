"""Reads without an RPC: blocks are found and copied by the catalog in shared memory, and the daemon is told of the
accesses afterwards, in batches.

What the catalog cannot give (absent, below, just changing) is asked for as ever. A report that is lost costs a
record its access, never bytes; so reports wait in a bounded table, and are dropped rather than waited for.
"""

from __future__ import annotations

import platform
import threading
from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np

from tierd_client.catalog import CatalogReader
from tierd_client.checks import Checks
from tierd_client.errors import TierdClientError
from tierd_client.format import IDENTITY_BYTES
from tierd_client.hints import touch
from tierd_client.identity import Identities
from tierd_client.routine import run
from tierd_client.session import Session
from tierd_client.staging import Sink

if TYPE_CHECKING:
    from tierd_client.namespace import NamespaceRoutines

REPORT_EVERY_S = 0.5
NOTED_MAX = 16_384
"""Accesses that wait to be reported, by block; what comes when so many wait is dropped."""

COUNT_MAX = 64
"""Most accesses of one block in one report."""

ORDERED_MACHINES = ("x86_64", "AMD64")
"""Where loads and stores keep their order, which an optimistic reader needs."""

Found = tuple[list[int], list[int]]
"""Indices of blocks that were read, and of those that were found damaged."""

_Key = tuple["NamespaceRoutines", int, str]


def reader_of(session: Session) -> CatalogReader | None:
    """A reader of the catalog that a session has mapped; None where there is none that can be relied upon."""
    if session.memory is None or platform.machine() not in ORDERED_MACHINES:
        return None
    if session.catalog is None:
        table = session.memory.catalog()
        session.catalog = None if table is None else CatalogReader(table)
    return session.catalog


def read(session: Session, namespace: int, ids: Identities, sink: Sink, checks: Checks) -> Found:
    """Copies what the catalog has ready."""
    done: list[int] = []
    damaged: list[int] = []
    reader, memory = reader_of(session), session.memory
    if reader is None or memory is None:
        return done, damaged
    for index, identity in enumerate(ids):
        if reader.find(identity) < 0:
            continue
        out = sink.begin(index)
        checksum = reader.read(identity, out, memory.segment, namespace)
        if checksum is None:
            continue
        if checks.passes(out, checksum):
            sink.ready()
            done.append(index)
        else:
            damaged.append(index)
    return done, damaged


class Reports:
    """Accesses that the daemon has not heard of. Thread-safe; `dropped`: those that it never will."""

    def __init__(self) -> None:
        self.dropped = 0
        self._noted: dict[_Key, dict[bytes, int]] = {}
        self._size = 0
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None

    def note(self, namespace: NamespaceRoutines, group: int, sequence: str, blocks: Iterable[bytes]) -> None:
        """Blocks that were read. The first one starts the thread that reports."""
        with self._lock:
            counts = self._noted.setdefault((namespace, group, sequence), {})
            for identity in blocks:
                if identity not in counts:
                    if self._size >= NOTED_MAX:
                        self.dropped += 1
                        continue
                    self._size += 1
                counts[identity] = min(counts.get(identity, 0) + 1, COUNT_MAX)
            if self._thread is None and not self._closing.is_set():
                self._thread = threading.Thread(target=self._report, name="tierd-reports", daemon=True)
                self._thread.start()

    async def flush(self, sequence: str | None = None) -> None:
        """Reports what was noted; only that of a sequence which is about to close, when it is given."""
        for (namespace, group, name), counts in self._taken(sequence).items():
            ids = Identities(
                np.frombuffer(b"".join(counts), np.uint8).reshape(-1, IDENTITY_BYTES),
                namespace.layout.group_fingerprint(group), group)
            try:
                await touch(namespace, ids, None if name else list(counts.values()), name or "")
            except TierdClientError:
                self.dropped += len(counts)

    def close(self) -> None:
        """Ends the thread, and reports what is left."""
        self._closing.set()
        thread = self._thread
        if thread is not None:
            thread.join(REPORT_EVERY_S)
            run(self.flush())

    def _taken(self, sequence: str | None) -> dict[_Key, dict[bytes, int]]:
        with self._lock:
            keys = [key for key in self._noted if sequence is None or key[2] == sequence]
            taken: dict[Any, dict[bytes, int]] = {key: self._noted.pop(key) for key in keys}
            self._size -= sum(map(len, taken.values()))
        return taken

    def _report(self) -> None:
        while not self._closing.wait(REPORT_EVERY_S):
            with suppress(TierdClientError):
                run(self.flush())
