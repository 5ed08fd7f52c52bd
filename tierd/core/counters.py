"""What a tier counts since this boot."""

from __future__ import annotations

from dataclasses import dataclass, field

SHED_REASONS = ("rate", "busy", "full", "unused", "declined")
"""Why a block was not stored in a tier that could have been. In the spill tier: no rate left, too many moves under
way, no room there, never accessed again (spill_write on_reuse). Declined: what would have had to go was worth
more."""


@dataclass(slots=True)
class Counters:
    hits: int = 0
    stored: int = 0
    evicted: int = 0
    demoted: int = 0
    promoted: int = 0
    failed_moves: int = 0
    over_budget: int = 0
    """Copies that left for a budget of their sequence."""
    shed: dict[str, int] = field(default_factory=lambda: dict.fromkeys(SHED_REASONS, 0))

    def note_shed(self, reason: str, blocks: int) -> None:
        """Blocks that could have been stored were not."""
        self.shed[reason] += blocks
