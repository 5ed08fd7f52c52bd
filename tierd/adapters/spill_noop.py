"""The spill tier that is switched off: it holds nothing and takes nothing."""

# ruff: noqa: ARG002  the port names the arguments

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tierd.core.errors import BlockVanished, SpillFull
from tierd.core.messages import Record
from tierd.ports import SpillHealth, SpillStore, StoredBlock
from tierd_client.format import U8Array


class NoopSpillStore(SpillStore):
    """The least that a spill store can be; a daemon without one has none (app/spill_slot.py).

    `put` raises SpillFull, so a demotion fails as it does on a full server: the block stays above or is
    dropped there. It is never SpillDown, because being off is not being unwell: no breaker opens and health
    does not report it. `get` is a miss.
    """

    shared = False

    def put(self, block: StoredBlock, payload: U8Array, deadline_s: float) -> bool:
        raise SpillFull("the spill tier is off")

    def get(self, fingerprint: bytes, identity: bytes, out: U8Array, deadline_s: float) -> int:
        raise BlockVanished("the spill tier is off")

    def look(
        self, fingerprint: bytes, identities: Sequence[bytes], deadline_s: float
    ) -> list[StoredBlock | None]:
        return [None] * len(identities)

    def restate(self, fingerprint: bytes, records: Mapping[bytes, Record], deadline_s: float) -> None:
        """There is nothing to restate."""

    def footprints(self, fingerprint: bytes, identities: Sequence[bytes], deadline_s: float) -> list[int | None]:
        return [None] * len(identities)

    def unlink(self, fingerprint: bytes, identities: Sequence[bytes], deadline_s: float) -> None:
        """There is nothing to remove."""

    def probe(self, deadline_s: float) -> SpillHealth:
        return SpillHealth(same=False, detail="the spill tier is off")

    def close(self) -> None:
        """There is nothing to close."""
