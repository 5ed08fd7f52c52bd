"""Leased blocks in the hands of another process: one leases them, another one on the same host reads them.

    places = lease.places()                        # in the process that holds the lease; can be pickled
    LeasedReader(client).scatter(places, paged, pages)    # in the other one, until the lease is released

An engine whose scheduler and workers are processes of their own leases what it promises in the scheduler, and then
no worker depends on the daemon for it: the reader asks nobody, also while no daemon runs.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tierd_client.catalog import slot_of
from tierd_client.deadline import Deadline
from tierd_client.errors import InvalidArgument, NotFound, Unavailable
from tierd_client.format import U8Array

if TYPE_CHECKING:
    from tierd_client.client import Client
    from tierd_client.paged import PagedKV
    from tierd_client.shared_memory import SharedMemory

FileId = tuple[int, int]
"""Device and inode of a segment's file, which nobody else has while it is mapped anywhere."""


@dataclass(frozen=True, slots=True)
class Places:
    """Where leased blocks lie in a daemon's shared memory, good until their lease is released. `files`: of each
    segment that the addresses name."""

    block_bytes: int
    addresses: tuple[int, ...]
    files: dict[int, FileId]

    def __len__(self) -> int:
        return len(self.addresses)

    def take(self, indices: Sequence[int]) -> Places:
        """Those of some blocks, in that order."""
        return Places(self.block_bytes, tuple(self.addresses[index] for index in indices), self.files)


class LeasedReader:
    """Reads blocks that other processes hold under leases. Thread-safe.

    What it has mapped once it reads without the daemon; what it has not, it asks for. A daemon that started with
    new memory has its segments in other files: bytes of one are never taken for those of the other.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self._mapped: dict[FileId, U8Array] = {}
        self._lock = threading.Lock()

    def views(self, places: Places) -> list[U8Array]:
        """The flat bytes of each block, read-only; no copy. Unavailable where a segment is not mapped yet and no
        daemon answers, NotFound where it is none of this daemon's."""
        segments = {number: self._segment(file, number) for number, file in places.files.items()}
        found = []
        for address in places.addresses:
            slot = slot_of(address, places.block_bytes, segments.get)
            if slot is None:
                raise InvalidArgument(f"places: {address:#x} and {places.block_bytes} bytes leave their segment")
            found.append(slot)
        return found

    def scatter(self, places: Places, paged: PagedKV, page_numbers: Any) -> None:
        """Copies the blocks into an engine's pages; errors as of `views`, and of `get_pages` for the pages."""
        if places.block_bytes != paged.block_bytes:
            raise InvalidArgument(f"paged: blocks of {paged.block_bytes} bytes, not {places.block_bytes}")
        pages = paged.numbers(page_numbers, len(places), writes=True)
        paged.copies().scatter(pages, self.views(places), None)

    def map_all(self) -> None:
        """Maps what the daemon has now, so that it need not be asked for later. Raises as any call does."""
        connection = self._client.connection
        memory = connection.current().memory
        if memory is None:
            raise Unavailable("nothing of the daemon is mapped: bytes go through streams")
        memory.refresh(Deadline(connection.rpc_timeout_s))
        self._keep(memory)

    def _keep(self, memory: SharedMemory) -> None:
        self._mapped = {memory.files[number]: view for number, view in list(memory.views.items())}

    def _segment(self, file: FileId, number: int) -> U8Array:
        with self._lock:
            session = None if file in self._mapped else self._client.connection.living()
            if session is not None and session.memory is not None:
                self._keep(session.memory)  # as it is: the daemon may be asked for more and not answer
            if file not in self._mapped:
                self.map_all()
            view = self._mapped.get(file)
        if view is None:
            raise NotFound(f"places: segment {number} is not one of the daemon at {self._client.connection.target}")
        return view
