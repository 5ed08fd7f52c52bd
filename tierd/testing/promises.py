"""What a simulated machine was promised by pins: those blocks must be there until a time, unless their bytes were
lost by a failure that no pin prevents."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from tierd.core.messages import BlockView
from tierd.testing.shadow import Violation


@dataclass
class Promises:
    until: dict[bytes, float] = field(default_factory=dict)

    def add(self, identities: Iterable[bytes], until: float) -> None:
        for identity in identities:
            self.until[identity] = max(until, self.until.get(identity, 0.0))

    def end(self, identities: Iterable[bytes]) -> None:
        for identity in identities:
            self.until.pop(identity, None)

    def check(self, blocks: Iterable[BlockView], now: float) -> None:
        """Violation when a block that is promised is not READY anywhere."""
        gone = self._missing(blocks, now)
        if gone:
            raise Violation(f"pinned blocks went: {[identity[:4].hex() for identity in gone]}")

    def excuse(self, blocks: Iterable[BlockView], now: float) -> None:
        """After a failure: what is not there now cannot be kept."""
        self.end(self._missing(blocks, now))

    def _missing(self, blocks: Iterable[BlockView], now: float) -> list[bytes]:
        self.until = {identity: until for identity, until in self.until.items() if until > now}
        ready = {block.identity for block in blocks if any(copy.ready for copy in block.copies)}
        return [identity for identity in self.until if identity not in ready]
