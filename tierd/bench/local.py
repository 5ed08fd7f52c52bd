"""Gets and puts of a client on the daemon's host, against numpy's own copy between the same kinds of memory."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from xxhash import xxh3_64_intdigest

from tierd.bench.blocks import SEED, Destinations, Rotation, fresh_ids, random_blocks
from tierd.bench.measuring import GIB, MIB, Measured, Result, Scale, Timed, WrongBytes, alternate, ratio
from tierd.bench.stage import Daemon, serving
from tierd.settings import Settings
from tierd_client import Client
from tierd_client.deadline import Deadline
from tierd_client.format import I64Array, U8Array
from tierd_client.identity import Identities, batches
from tierd_client.layout import Layout
from tierd_client.namespace import Namespace
from tierd_client.outcomes import AcquireOutcome, PutOutcome
from tierd_client.routine import run
from tierd_client.v1 import blocks_pb2

REPETITION_BYTES = 16 * MIB
"""Least that one repetition moves: milliseconds, so that neither the clock nor one interrupt matters."""

ROOM = 1.25
"""Of the arena, in working sets: a segment holds whole blocks only."""

RESERVE_S = 10.0
SERVED_PASSES = 8
REPORTS_S = 1.0
"""After which the daemon has heard of every access: clients report twice a second."""


def get(name: str, block_bytes: int, per_call: int, scale: Scale) -> Measured:
    """memcpy / get into the caller's buffers, so many blocks a call; and the same with every checksum compared."""
    data = working_set(scale, block_bytes, per_call)
    with holding(data) as (daemon, hits), hits.in_place(daemon.client()) as blocks:
        always = daemon.client("always")
        with hits.reader(daemon.client(), per_call) as ours, hits.reader(always, per_call) as verified:
            things = {"limit": hits.copier(blocks, per_call), "ours": ours, "verified": verified}
            seconds = alternate(things, scale.repetitions)
        hits.destinations.check()
    return {
        name: ratio(seconds["limit"], seconds["ours"]),
        f"{name}_verified": ratio(seconds["limit"], seconds["verified"]),
    }


def put(name: str, block_bytes: int, per_call: int, scale: Scale) -> Measured:
    """(memcpy + xxh3) / put of new blocks while there is room, so many a call; a put returns when all are
    committed. Both write into the same arena, where a session may hold the slots of a call ahead."""
    data = working_set(scale, block_bytes, per_call)
    layout = Layout.opaque(block_bytes=block_bytes)
    held_ahead = int(per_call * block_bytes / Settings.model_fields["stock_share"].default)
    with (
        serving(host_bytes=int(2 * data.nbytes * ROOM) + held_ahead) as daemon, daemon.client() as holder,
        daemon.client("always") as client,
    ):
        daemon.await_pages()
        slots = reserved_slots(holder, layout, len(data))
        written = Written(data, client.namespace(layout), per_call)
        seconds = alternate({"limit": written.copier(slots), "ours": written.writer()}, scale.repetitions)
        written.check()
        del slots
    return {name: ratio(seconds["limit"], seconds["ours"])}


def daemon_cpu(name: str, scale: Scale) -> Measured:
    """Milliseconds of the daemon's CPU per GiB of 5 MiB hits, with the reports of these accesses."""
    data = working_set(scale, 5 * MIB, 1)
    samples = []
    with holding(data) as (daemon, hits), hits.reader(daemon.client(), 1) as repeat:
        for _ in range(max(4, scale.repetitions // 8)):
            before_s, repetitions = daemon.cpu_s(), SERVED_PASSES * data.nbytes // REPETITION_BYTES
            for _ in range(repetitions):
                repeat()
            time.sleep(REPORTS_S)
            served = repetitions * per_repetition(5 * MIB, 1) * 5 * MIB
            samples.append((daemon.cpu_s() - before_s) * 1e3 / (served / GIB))
        hits.destinations.check()
    return {name: Result.of(samples)}


def working_set(scale: Scale, block_bytes: int, per_call: int) -> U8Array:
    """Blocks that the caches cannot hold, shape (n, block_bytes)."""
    least = 2 * per_repetition(block_bytes, per_call)
    return random_blocks(max(least, scale.working_set_bytes // block_bytes), block_bytes)


def per_repetition(block_bytes: int, per_call: int) -> int:
    """Blocks of one repetition, in whole calls."""
    return -(-REPETITION_BYTES // (block_bytes * per_call)) * per_call


@dataclass(frozen=True, slots=True)
class Hits:
    """Blocks that a daemon holds, what is in them, and where they are read to."""

    data: U8Array
    ids: Identities
    destinations: Destinations
    layout: Layout

    @contextmanager
    def in_place(self, client: Client) -> Iterator[list[U8Array]]:
        """The blocks where the daemon has them, every page touched by this process, leased meanwhile."""
        with client, client.namespace(self.layout).acquire(self.ids) as lease:
            blocks = [block for block in lease.views() if block is not None]
            if len(blocks) < len(self.ids) or not all(map(np.array_equal, blocks, self.data)):
                raise WrongBytes("a block that was stored cannot be leased")
            yield blocks
            del blocks

    def copier(self, sources: Sequence[U8Array], per_call: int) -> Timed:
        """Copies cold blocks out of these."""
        rotation, count = Rotation(len(self.ids), SEED), per_repetition(self.layout.block_bytes, per_call)

        def repeat() -> float:
            blocks = rotation.next(count)
            pairs = list(zip(self.destinations.take(blocks), [sources[block] for block in blocks], strict=True))
            began = time.perf_counter()
            for destination, source in pairs:
                np.copyto(destination, source)
            return time.perf_counter() - began

        return repeat

    @contextmanager
    def reader(self, client: Client, per_call: int) -> Iterator[Timed]:
        """Gets cold blocks by a client that has touched every page of them before, and is closed in the end."""
        rotation, count = Rotation(len(self.ids), SEED), per_repetition(self.layout.block_bytes, per_call)
        with client:
            namespace = client.namespace(self.layout)

            def read(count: int) -> float:
                blocks = rotation.next(count)
                return self._get(namespace, blocks, self.destinations.take(blocks), per_call)

            read(len(self.ids))
            yield lambda: read(count)

    def _get(self, namespace: Namespace, blocks: I64Array, out: U8Array, per_call: int) -> float:
        starts = range(0, len(blocks), per_call)
        calls = [(self.ids.take(blocks[at : at + per_call]), out[at : at + per_call]) for at in starts]
        began = time.perf_counter()
        outcomes = [namespace.get_into(ids, buffers) for ids, buffers in calls]
        seconds = time.perf_counter() - began
        if any(one is not AcquireOutcome.LEASED for each in outcomes for one in each):
            raise WrongBytes("a block that was stored is not a hit")
        return seconds


class Written:
    """Blocks that are put under new names until the working set is full, then compared, and dropped."""

    def __init__(self, data: U8Array, namespace: Namespace, per_call: int, seed: int = SEED) -> None:
        """`seed`: another one gives other names."""
        self._data = data
        self._namespace = namespace
        self._per_call = per_call
        self._count = per_repetition(data.shape[1], per_call)
        self._rng = np.random.default_rng(seed)
        self._sources = Rotation(len(data), SEED)
        self._stored: list[tuple[Identities, I64Array]] = []
        self._room = len(data)

    def copier(self, into: Sequence[U8Array]) -> Timed:
        """Copies and hashes as many blocks, after a pass over every slot."""
        sources, slots = Rotation(len(into), SEED + 1), Rotation(len(into), SEED + 2)
        for slot, block in zip(into, self._data, strict=True):
            np.copyto(slot, block)

        def repeat() -> float:
            chosen = zip(slots.next(self._count), sources.next(self._count), strict=True)
            pairs = [(into[slot], self._data[source]) for slot, source in chosen]
            began = time.perf_counter()
            for slot, source in pairs:
                np.copyto(slot, source)
                xxh3_64_intdigest(source)
            return time.perf_counter() - began

        return repeat

    def writer(self) -> Timed:
        """Puts, after a pass over every slot: pages of the arena are mapped when they are first written."""
        for _ in range(len(self._data) // self._count + 1):
            self._put()
        return self._put

    def check(self) -> None:
        """Reads back all that was stored, and drops it. Raises WrongBytes."""
        out = np.empty_like(self._data[: self._per_call])
        for ids, sources in self._stored:
            self._namespace.get_into(ids, out)
            if not np.array_equal(out, self._data[sources]):
                raise WrongBytes("a block that was put did not come back")
            self._namespace.evict(ids, to=None, allow_drop=True)
        self._stored.clear()
        self._room = len(self._data)

    def _put(self) -> float:
        if self._room < self._count:
            self.check()
        self._room -= self._count
        calls = []
        for _ in range(0, self._count, self._per_call):
            sources = self._sources.next(self._per_call)
            blocks = [self._data[source] for source in sources]
            calls.append((fresh_ids(self._rng, self._per_call), blocks))
            self._stored.append((calls[-1][0], sources))
        began = time.perf_counter()
        outcomes = [self._namespace.put(ids, blocks) for ids, blocks in calls]
        seconds = time.perf_counter() - began
        if failed := {one for each in outcomes for one in each} - {PutOutcome.STORED}:
            raise WrongBytes(f"blocks were not stored though there is room: {failed}")
        return seconds


def reserved_slots(client: Client, layout: Layout, count: int) -> list[U8Array]:
    """Slots of the daemon's arena that a session may write until its client is closed, and never commits."""
    client.namespace(layout)
    session, addresses = client.connection.current(), []
    assert session.memory is not None, "a client of this host maps the arena"
    number = session.namespaces[layout.fingerprint].number
    for _, ids in batches(fresh_ids(np.random.default_rng(SEED + 3), count), session.batch_ids):
        blocks = blocks_pb2.BlockIds(namespace=number, ids=ids.packed())
        request = blocks_pb2.ReserveRequest(session=session.id, blocks=blocks)
        addresses += run(client.connection.call("Reserve", request)).addresses
    deadline = Deadline(RESERVE_S)
    return session.memory.writable(addresses, layout.block_bytes, deadline)


@contextmanager
def holding(data: U8Array, **settings: Any) -> Iterator[tuple[Daemon, Hits]]:
    """A daemon with these settings that holds these blocks."""
    layout = Layout.opaque(block_bytes=data.shape[1])
    ids = fresh_ids(np.random.default_rng(SEED), len(data))
    with serving(host_bytes=int(data.nbytes * ROOM), **settings) as daemon:
        with daemon.client() as client:
            outcomes = client.namespace(layout).put(ids, data, timeout_s=30.0)
        if any(one is not PutOutcome.STORED for one in outcomes):
            raise WrongBytes("a block was not stored though there is room")
        yield daemon, Hits(data, ids, Destinations(data), layout)
