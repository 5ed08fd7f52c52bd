"""Reads without an RPC: blocks are found and copied by the catalog in shared memory, and the daemon is told of the
accesses afterwards, in batches.

What the catalog cannot give (absent, below, just changing) is asked for as ever. Every access is reported, also to
the next daemon where one ended meanwhile; what waits when this process dies, or finds no room to wait, is lost.
"""

from __future__ import annotations

import platform
import threading
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np

from tierd_client.catalog import CHECKSUM, HBM_PLANE, PLANE, CatalogReader, Owner, slot_of
from tierd_client.checks import checksum_of
from tierd_client.errors import TierdClientError, TimedOut, Unavailable
from tierd_client.format import FIRST_POOL, IDENTITY_BYTES, OFFSET_BITS, U8Array
from tierd_client.hazards import Looked
from tierd_client.hints import NO_HITS, Hits, report
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

VECTOR_MIN = 16
"""From so many blocks a call on they are read by columns: fewer cost less one by one."""

ORDERED_MACHINES = ("x86_64", "AMD64")
"""Where loads and stores keep their order, which an optimistic reader needs."""

Key = tuple["NamespaceRoutines", int, str]


class Lane:
    """The way to blocks of one group in one session without asking. What it reads it reports. Nothing in it may
    wait."""

    def __init__(
        self, namespace: NamespaceRoutines, group: int, session: Session, memory: SharedMemory,
        reader: CatalogReader, owner: Owner, reports: Reports,
    ) -> None:
        self.session = session
        self.reports = reports
        self._namespace, self._group = namespace, group
        self._key: Key = namespace, group, ""
        self._checks = namespace.client.checks
        self._views = memory.views
        self._reader = reader
        self._owner = owner

    def read_one(self, identity: bytes, out: U8Array) -> AcquireOutcome:
        """Copies one block that the catalog has ready: LEASED, or LOST where it was damaged. PENDING: ask.

        Nothing need be held meanwhile: a view keeps its mapping, and a slot that is re-used is noticed.
        """
        place = self._reader.place(identity, out.size, self._owner)
        if place is None or not self._reader.copy(place, out, self._views.get):
            return AcquireOutcome.PENDING
        if not self._checks.passes(out, place[CHECKSUM]):
            return AcquireOutcome.LOST
        self.reports.note(self._key, identity, place[PLANE] == HBM_PLANE)
        return AcquireOutcome.LEASED

    def read(self, packed: bytes, size: int, sink: Sink, sequence: str) -> list[AcquireOutcome]:
        """The same for several, in a sequence or none. The rest is PENDING."""
        count, hbm_blocks = len(packed) // IDENTITY_BYTES, 0
        outcomes = [AcquireOutcome.PENDING] * count
        compared = self._checks.chosen(count)
        for index in self._read_together(packed, size, sink, compared, outcomes):
            identity = packed[index * IDENTITY_BYTES : (index + 1) * IDENTITY_BYTES]
            place = self._reader.place(identity, size, self._owner)
            if place is None or not self._reader.copy(place, out := sink.begin(index), self._views.get):
                continue
            if index in compared and checksum_of(out) != place[CHECKSUM]:
                outcomes[index] = AcquireOutcome.LOST
                continue
            sink.ready()
            outcomes[index] = AcquireOutcome.LEASED
            hbm_blocks += place[PLANE] == HBM_PLANE
        if outcomes.count(AcquireOutcome.LEASED) < count:
            packed = b"".join(
                packed[at * IDENTITY_BYTES : (at + 1) * IDENTITY_BYTES]
                for at, outcome in enumerate(outcomes) if outcome is AcquireOutcome.LEASED)
        if packed:
            self.reports.note((self._namespace, self._group, sequence), packed, hbm_blocks)
        return outcomes

    def _read_together(
        self, packed: bytes, size: int, sink: Sink, compared: range, outcomes: list[AcquireOutcome],
    ) -> Iterable[int]:
        """Of many blocks those in host that are not compared: found, copied and looked at again all at once. Which
        are left to be read one by one."""
        count = len(outcomes)
        if count - len(compared) < VECTOR_MIN:
            return range(count)
        places = self._reader.places(packed, size, self._owner)
        together = places.found
        together[compared.start : compared.stop : compared.step] = False
        alone = np.flatnonzero(places.known & ~together)
        chosen = np.flatnonzero(together)
        views = self._views.get
        found = (slot_of(address, size, views) for address in places.address.take(chosen).tolist())
        slots = [slot for slot in found if slot is not None]
        if len(slots) < len(chosen):
            return range(count)
        sink.take(chosen.tolist(), slots)
        for index in chosen[self._reader.still_there(places, chosen)].tolist():
            outcomes[index] = AcquireOutcome.LEASED
        return alone.tolist()

    def look_at(
        self, looked: Looked, packed: bytes, size: int, planes: Sequence[int], on_device: bool = False,
    ) -> None:
        """Blocks that the catalog has ready are looked at in place from now on, in the first of these planes that
        has them. Left out is what finds no room in the page, and, `on_device`, what is in a GPU's memory: that ends
        with the daemon, so it is asked for."""
        settled = np.zeros(len(packed) // IDENTITY_BYTES, bool)
        for plane in planes:
            places = self._reader.places(packed, size, self._owner, plane)
            chosen = np.flatnonzero(places.found & ~settled)
            segments = places.address[chosen] >> np.uint64(OFFSET_BITS)
            mapped = np.isin(segments, np.array(list(self._views), np.uint64))
            if on_device:
                settled[chosen[~mapped & (segments < FIRST_POOL)]] = True
            chosen = chosen[mapped]
            if len(chosen) and looked.publish(places.address[chosen], places.rows[chosen], size):
                checksums = self._reader.checksums(places, chosen)
                there = self._reader.still_ready(places, chosen)
                looked.keep(there)
                settled[chosen[there]] = True
                looked.take(chosen[there], places.address[chosen[there]], checksums[there], plane == HBM_PLANE)

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
        namespace, the machine keeps no order, or the blocks are of the namespace of TP rank 0. Raises in a forked
        child and after the client's end."""
        session = self._namespace.client.connection.living()
        lane = self._made.get(group)
        if lane is None or lane.session is not session:
            lane = None if session is None else self._make(session, group)
        return lane

    def peek(self, ids: Identities) -> U8Array:
        """As `Peeking.peek`."""
        lane = self.of(ids.group)
        return np.zeros(len(ids), np.uint8) if lane is None else lane.lookup(ids.array)

    def _make(self, session: Session, group: int) -> Lane | None:
        namespace = self._namespace
        known, memory, reader = session.namespaces.get(namespace.fingerprint), session.memory, reader_of(session)
        reports, layout = namespace.client.reports, namespace.layout
        elsewhere = layout.groups[group].replicated and layout.home != layout
        if known is None or memory is None or reader is None or reports is None or elsewhere:
            return None
        owner = (known.number, group)
        lane = self._made[group] = Lane(namespace, group, session, memory, reader, owner, reports)
        return lane


class Peeking:
    """Of namespaces of both kinds."""

    _routines: NamespaceRoutines

    def peek(self, ids: Any) -> U8Array:
        """Where blocks are as the catalog in shared memory says it now, without a call and without waiting: a bit
        per tier (Tiers), uint8, shape (n,). 0 where it does not know: the daemon may. Changes nothing."""
        return self._routines.lanes.peek(self._routines.identities(ids))


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
        self._noted: list[tuple[Key, bytes]] = []
        self._size = 0
        self._hbm_hits, self._host_hits = NO_HITS
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

    def note(self, key: Key, packed: bytes, hbm_blocks: int) -> None:
        """Blocks that were read, packed; how many of them out of hbm. The first ones start the thread that reports.
        """
        if self._thread is None:
            self._start()
        with self._lock:
            self._noted.append((key, packed))
            self._size += len(packed)
            self._hbm_hits += hbm_blocks
            self._host_hits += len(packed) // IDENTITY_BYTES - hbm_blocks

    async def flush(self, sequence: str | None = None, *, asked: bool = True) -> None:
        """Reports what was noted; only that of a sequence which is about to close, when it is given. Not `asked`:
        only in a session that lives."""
        taken = self._taken(sequence).items()
        left = deque((key, part) for key, counts in taken for part in _rounds(counts, once=bool(key[2])))
        try:
            while left:
                await self._tell(*left.popleft(), last=not left, asked=asked)
        finally:
            for key, part in left:  # an interrupt, or a task that is cancelled: the next report tells of these
                self._keep(key, part, NO_HITS)

    async def _tell(self, key: Key, part: dict[bytes, int], *, last: bool, asked: bool) -> None:
        """One report. Nobody knows whether the daemon has heard what was interrupted: it is not told twice. The
        `last` one tells of all hits, the others of no more than the accesses that they tell of."""
        namespace, group, name = key
        packed = np.frombuffer(b"".join(part), np.uint8).reshape(-1, IDENTITY_BYTES)
        ids = Identities(packed, namespace.layout.group_fingerprint(group), group)
        hits = self._taken_hits(None if last else sum(part.values()))
        make = namespace.make if asked else namespace.client.connection.make_unasked
        try:
            await report(namespace, ids, None if name else list(part.values()), name, hits, make)
        except Unavailable:
            self._keep(key, part, hits)
        except BaseException as error:
            self.dropped += sum(part.values())
            if not isinstance(error, TierdClientError):
                raise
            if not isinstance(error, TimedOut):
                self._keep(key, {}, hits)

    def close(self) -> None:
        """Ends the thread, and reports what is left."""
        self._closing.set()
        thread = self._thread
        if thread is not None:
            thread.join(REPORT_EVERY_S)
            run(self.flush())

    def _taken(self, sequence: str | None) -> dict[Key, Counter[bytes]]:
        """What was noted, each block with how many calls it was by: one that names it twice is one access."""
        with self._lock:
            noted = self._noted
            self._noted = [one for one in noted if sequence is not None and one[0][2] != sequence]
            self._size = sum(len(packed) for _, packed in self._noted)
        taken: dict[Key, Counter[bytes]] = {}
        for key, packed in noted:
            if sequence is None or key[2] == sequence:
                starts = range(0, len(packed), IDENTITY_BYTES)
                named = dict.fromkeys(packed[at : at + IDENTITY_BYTES] for at in starts)
                taken.setdefault(key, Counter()).update(named.keys())
        return taken

    def _taken_hits(self, most: int | None) -> Hits:
        """Up to so many, or all."""
        with self._lock:
            left = self._hbm_hits + self._host_hits if most is None else most
            host = min(self._host_hits, left)
            hbm = min(self._hbm_hits, left - host)
            self._hbm_hits -= hbm
            self._host_hits -= host
        return hbm, host

    def _keep(self, key: Key, counts: dict[bytes, int], hits: Hits) -> None:
        """Until a daemon is there again, as long as there is room and the client is not closing."""
        with self._lock:
            self._hbm_hits += hits[0]
            self._host_hits += hits[1]
            if self.full or self._closing.is_set():
                self.dropped += sum(counts.values())
                return
            for calls in range(max(counts.values(), default=0)):
                packed = b"".join(identity for identity, count in counts.items() if count > calls)
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
                run(self.flush(asked=False))


def _rounds(counts: Counter[bytes], *, once: bool) -> Iterator[dict[bytes, int]]:
    """Accesses of blocks as reports take them: at most COUNT_MAX of one block, or one alone in a sequence."""
    if once:
        yield dict.fromkeys(counts, 1)
        return
    left = dict(counts)
    while left:
        yield {identity: min(count, COUNT_MAX) for identity, count in left.items()}
        left = {identity: count - COUNT_MAX for identity, count in left.items() if count > COUNT_MAX}
