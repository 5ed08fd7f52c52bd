"""The place of the spill store, in which another one, or none, can be put while the daemon runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from tierd.core.errors import SpillDown
from tierd.core.messages import Record
from tierd.ports import SpillHealth, SpillStore, StoredBlock, Wanted
from tierd_client.format import U8Array


class SpillSlot:
    """A spill store that hands each call to the one in it; without one every call is SpillDown.

    A call goes on with the store that it began with. Changed by the event loop's thread, called by any.
    """

    def __init__(self, store: SpillStore | None) -> None:
        self._store = store

    @property
    def attached(self) -> bool:
        return self._store is not None

    @property
    def shared(self) -> bool:
        store = self._store
        return store is not None and store.shared

    def exchange(self, store: SpillStore | None) -> SpillStore | None:
        """Puts a store in; returns the one that was there, which is the caller's to close."""
        before, self._store = self._store, store
        return before

    def put(self, block: StoredBlock, payload: U8Array, deadline_s: float) -> bool:
        return self._current().put(block, payload, deadline_s)

    def put_all(
        self, blocks: Iterable[tuple[StoredBlock, U8Array]], deadline_s: float
    ) -> Iterator[tuple[int, bool | Exception]]:
        return self._current().put_all(blocks, deadline_s)

    def get(self, fingerprint: bytes, identity: bytes, out: U8Array, deadline_s: float) -> int:
        return self._current().get(fingerprint, identity, out, deadline_s)

    def get_all(self, wanted: Iterable[Wanted], deadline_s: float) -> Iterator[tuple[int, int | Exception]]:
        return self._current().get_all(wanted, deadline_s)

    def look(
        self, fingerprint: bytes, identities: Sequence[bytes], deadline_s: float
    ) -> list[StoredBlock | None]:
        return self._current().look(fingerprint, identities, deadline_s)

    def restate(self, fingerprint: bytes, records: Mapping[bytes, Record], deadline_s: float) -> None:
        self._current().restate(fingerprint, records, deadline_s)

    def footprints(self, fingerprint: bytes, identities: Sequence[bytes], deadline_s: float) -> list[int | None]:
        return self._current().footprints(fingerprint, identities, deadline_s)

    def unlink(self, fingerprint: bytes, identities: Sequence[bytes], deadline_s: float) -> None:
        self._current().unlink(fingerprint, identities, deadline_s)

    def probe(self, deadline_s: float) -> SpillHealth:
        return self._current().probe(deadline_s)

    def close(self) -> None:
        """Closes the store that is in it, if there is one."""
        if self._store is not None:
            self._store.close()

    def _current(self) -> SpillStore:
        store = self._store
        if store is None:
            raise SpillDown("no spill store is attached")
        return store
