"""Shadow memory: what a simulated machine holds in each page, and who may touch it.

Bytes are stood in for by stamps: a page that was written holds (identity, number of the page in its block).
Whoever may read or write a range holds it; a range that is handed out must not be held by anyone else.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from tierd.core.messages import Tier
from tierd_client.format import PAGE_BYTES

Stamp = tuple[bytes, int]


class Violation(AssertionError):
    """The engine did what may never happen."""


class Use(Enum):
    READ = "read"
    WRITE = "write"


@dataclass(eq=False)
class Hold:
    """One party's right to a range of a tier."""

    tier: Tier
    address: int
    size: int
    identity: bytes
    use: Use
    who: str

    def pages(self) -> range:
        first = self.address // PAGE_BYTES
        return range(first, first + (self.size + PAGE_BYTES - 1) // PAGE_BYTES)

    def __str__(self) -> str:
        return f"{self.who} may {self.use.value} {self.tier.name} {self.address:#x} ({self.identity[:4].hex()})"


@dataclass
class Shadow:
    """All arenas of one machine."""

    stamps: dict[tuple[Tier, int], Stamp] = field(default_factory=dict)
    holders: dict[tuple[Tier, int], list[Hold]] = field(default_factory=dict)

    def take(self, hold: Hold) -> Hold:
        """Registers a right. Violation when another party's right does not go with it."""
        for page in hold.pages():
            for other in self.holders.get((hold.tier, page), ()):
                if Use.WRITE in (hold.use, other.use):
                    raise Violation(f"{hold}, while {other}")
        for page in hold.pages():
            self.holders.setdefault((hold.tier, page), []).append(hold)
        return hold

    def give_back(self, hold: Hold) -> None:
        for page in hold.pages():
            holders = self.holders[hold.tier, page]
            holders.remove(hold)
            if not holders:
                del self.holders[hold.tier, page]

    def write(self, hold: Hold, pages: int | None = None) -> None:
        """Writes the first `pages` pages of a held range (all by default) with the stamps of its identity."""
        for number, page in enumerate(hold.pages()):
            if pages is not None and number >= pages:
                return
            self.stamps[hold.tier, page] = (hold.identity, number)

    def holds_block(self, hold: Hold) -> bool:
        """Whether each page of the range holds its part of the identity's block."""
        return all(
            self.stamps.get((hold.tier, page)) == (hold.identity, number)
            for number, page in enumerate(hold.pages())
        )

    def check(self, hold: Hold) -> None:
        """Violation unless the range holds the block of its identity."""
        if not self.holds_block(hold):
            found = [self.stamps.get((hold.tier, page)) for page in hold.pages()]
            shown = ", ".join("nothing" if stamp is None else f"{stamp[0][:4].hex()}/{stamp[1]}" for stamp in found)
            raise Violation(f"{hold}, but finds {shown}")
