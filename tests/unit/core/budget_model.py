"""A sequence with a budget as a person would count it: with lists, and nothing of the product."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Model:
    """`kept`: places of blocks in hbm, in order. Masses are exact: small multiples of a power of two."""

    blocks: int
    recent: int
    sinks: int
    kept: list[int] = field(default_factory=list)
    scores: dict[int, float] = field(default_factory=dict)

    def report(self, masses: list[float], steps: int) -> None:
        for place, mass in enumerate(masses):
            self.scores[place] = self.scores.get(place, 0.0) + mass * steps

    def leave(self, over: int, coming: int) -> None:
        """The victims go, one by one: of what is neither first nor last the one with the least, then the first."""
        last = self.kept[max(0, len(self.kept) - max(0, self.recent - coming)) :]
        for _ in range(over):
            free = [place for place in self.kept if place >= self.sinks and place not in last]
            if free:
                self.kept.remove(min(free, key=lambda place: (self.scores.get(place, 0.0), place)))
