"""Reads without an RPC: blocks are found and copied by the catalog in shared memory, and the daemon is told of the
accesses afterwards, in batches.

What the catalog cannot give (absent, below, just changing) is asked for as ever. Every access is reported, also to
the next daemon where one ended meanwhile; what waits when this process dies, or finds no room to wait, is lost.
"""

from __future__ import annotations

import platform
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING

import numpy as np

from tierd_client.catalog import CHECKSUM, CatalogReader, Owner
from tierd_client.checks import Checks
from tierd_client.errors import TierdClientError, Unavailable
from tierd_client.format import IDENTITY_BYTES, U8Array
from tierd_client.hints import touch
from tierd_client.identity import Identities
from tierd_client.outcomes import AcquireOutcome
from tierd_client.routine import run
from tierd_client.session import Session
from tierd_client.shared_memory import SharedMemory
from tierd_client.staging import Sink

if TYPE_CHECKING:
    from tierd_client.namespace import NamespaceRoutines

REPORT_EVERY_S = 0.5
NOTED_MAX = 65_536
"""Accesses that wait to be reported; the call that comes to so many reports them itself."""

COUNT_MAX = 64
"""Most accesses of one block in one report."""

ORDERED_MACHINES = ("x86_64", "AMD64")
"""Where loads and stores keep their order, which an optimistic reader needs."""

_Key = tuple["NamespaceRoutines", int, str]


class Lane:
    """The way to blocks of one group in one session without asking. Nothing in it may wait."""

    def __init__(self, session: Session, memory: SharedMemory, reader: CatalogReader, owner: Owner) -> None:
        self.session = session
        self._views = memory.views
        self._reader = reader
        self._owner = owner

    def read_one(self, identity: bytes, out: U8Array, checks: Checks) -> AcquireOutcome | None:
        """Copies one block that the catalog has ready: LEASED, or LOST where it was found damaged. None: ask.

        Nothing need be held meanwhile: a view keeps its mapping, and what is re-used no longer `holds`.
        """
        place = self._reader.place(identity, out.size, self._owner)
        if place is None or not self._reader.copy(place, out, self._views.get):
            return None
        return AcquireOutcome.LEASED if checks.passes(out, place[CHECKSUM]) else AcquireOutcome.LOST

    def read(self, packed: bytes, size: int, sink: Sink, checks: Checks) -> list[AcquireOutcome]:
        """The same for several: LEASED, or LOST where a block was found damaged. The rest is PENDING."""
        places = self._reader.places(packed, size, self._owner)
        outcomes = [AcquireOutcome.PENDING] * len(places)
        begin, copy, view_of = sink.begin, self._reader.copy, self._views.get
        leased, lost = AcquireOutcome.LEASED, AcquireOutcome.LOST
        for index, place in enumerate(places):
            if place is None or not copy(place, out := begin(index), view_of):
                continue
            if checks.passes(out, place[CHECKSUM]):
                sink.ready()
                outcomes[index] = leased
            else:
                outcomes[index] = lost
        return outcomes

    def lookup(self, ids: U8Array) -> U8Array:
        """A bit per tier that has a copy ready, as on the wire; 0 where the daemon is to be asked."""
        return self._reader.lookup(ids, self._owner)


class Lanes:
    """The lanes of one namespace, made anew in each session."""

    def __init__(self, namespace: NamespaceRoutines) -> None:
        self._namespace = namespace
        self._made: dict[int, Lane] = {}

    def of(self, group: int) -> Lane | None:
        """None where blocks are asked for: nothing is mapped, the session must be made anew or does not know the
        namespace, the machine keeps no order, or all TP ranks share the blocks, which are of another namespace
        then. Raises in a forked child and after the client's end."""
        session = self._namespace.client.connection.living()
        lane = self._made.get(group)
        if lane is None or lane.session is not session:
            lane = None if session is None else self._make(session, group)
        return lane

    def _make(self, session: Session, group: int) -> Lane | None:
        namespace = self._namespace
        known, memory, reader = session.namespaces.get(namespace.fingerprint), session.memory, reader_of(session)
        replicated, wanted = namespace.layout.groups[group].replicated, namespace.client.reports is not None
        if known is None or memory is None or reader is None or replicated or not wanted:
            return None
        lane = self._made[group] = Lane(session, memory, reader, (known.number, group))
        return lane


def reader_of(session: Session) -> CatalogReader | None:
    """A reader of the catalog that a session has mapped; None where there is none that can be relied upon."""
    if session.catalog is None and session.memory is not None and platform.machine() in ORDERED_MACHINES:
        table = session.memory.catalog()
        session.catalog = None if table is None else CatalogReader(table)
    return session.catalog



class Reports:
    """Accesses that the daemon has not heard of. Thread-safe; `dropped`: those that it never will."""

    def __init__(self) -> None:
        self.dropped = 0
        self._noted: list[tuple[_Key, bytes]] = []
        self._size = 0
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def waiting(self) -> int:
        """Accesses that wait to be reported."""
        return self._size // IDENTITY_BYTES

    @property
    def full(self) -> bool:
        """Whether so many accesses wait that they are to be flushed."""
        return self._size >= NOTED_MAX * IDENTITY_BYTES

    def note(self, namespace: NamespaceRoutines, group: int, sequence: str, packed: bytes) -> None:
        """Blocks that were read, packed. The first ones start the thread that reports."""
        if self._thread is None:
            self._start()
        with self._lock:
            self._noted.append(((namespace, group, sequence), packed))
            self._size += len(packed)

    async def flush(self, sequence: str | None = None) -> None:
        """Reports what was noted; only that of a sequence which is about to close, when it is given."""
        for (namespace, group, name), counts in self._taken(sequence).items():
            fingerprint = namespace.layout.group_fingerprint(group)
            for part in _rounds(counts, once=bool(name)):
                packed = np.frombuffer(b"".join(part), np.uint8).reshape(-1, IDENTITY_BYTES)
                try:
                    ids = Identities(packed, fingerprint, group)
                    await touch(namespace, ids, None if name else list(part.values()), name)
                except Unavailable:
                    self._keep((namespace, group, name), part)
                except TierdClientError:
                    self.dropped += sum(part.values())

    def close(self) -> None:
        """Ends the thread, and reports what is left."""
        self._closing.set()
        thread = self._thread
        if thread is not None:
            thread.join(REPORT_EVERY_S)
            run(self.flush())

    def _taken(self, sequence: str | None) -> dict[_Key, Counter[bytes]]:
        """What was noted, each block with how often it was."""
        with self._lock:
            noted = self._noted
            self._noted = [one for one in noted if sequence is not None and one[0][2] != sequence]
            self._size = sum(len(packed) for _, packed in self._noted)
        taken: dict[_Key, Counter[bytes]] = {}
        for key, packed in noted:
            if sequence is None or key[2] == sequence:
                starts = range(0, len(packed), IDENTITY_BYTES)
                taken.setdefault(key, Counter()).update(packed[at : at + IDENTITY_BYTES] for at in starts)
        return taken

    def _keep(self, key: _Key, counts: dict[bytes, int]) -> None:
        """Until a daemon is there again, as long as there is room and the client is not closing."""
        with self._lock:
            if self.full or self._closing.is_set():
                self.dropped += sum(counts.values())
                return
            packed = b"".join(identity * count for identity, count in counts.items())
            self._noted.append((key, packed))
            self._size += len(packed)

    def _start(self) -> None:
        with self._lock:
            if self._thread is None and not self._closing.is_set():
                self._thread = threading.Thread(target=self._report, name="tierd-reports", daemon=True)
                self._thread.start()

    def _report(self) -> None:
        while not self._closing.wait(REPORT_EVERY_S):
            with suppress(TierdClientError):
                run(self.flush())


def _rounds(counts: Counter[bytes], *, once: bool) -> Iterator[dict[bytes, int]]:
    """Accesses of blocks as reports take them: at most COUNT_MAX of one block, or one alone in a sequence."""
    if once:
        yield dict.fromkeys(counts, 1)
        return
    left = dict(counts)
    while left:
        yield {identity: min(count, COUNT_MAX) for identity, count in left.items()}
        left = {identity: count - COUNT_MAX for identity, count in left.items() if count > COUNT_MAX}
