"""What a figure is, and which of its values pass."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from tierd.bench.measuring import Measured, Result, Scale


@dataclass(frozen=True, slots=True)
class Figure:
    """One line of the report. Without a gate it is told beside the others and cannot fail."""

    name: str
    what: str
    goal: float | None = None
    gate: float | None = None
    better: Literal["higher", "lower"] = "higher"

    def reaches(self, value: float, least: float | None) -> bool:
        """Whether a value is as good as another one; anything is as good as none."""
        if least is None:
            return True
        return value >= least if self.better == "higher" else value <= least


@dataclass(frozen=True, slots=True)
class Measurement:
    """Figures that come out of one run of the same processes. `needs`: a package without which it is left out."""

    suite: str
    figures: tuple[Figure, ...]
    measure: Callable[[Scale], Measured]
    needs: str = ""

    def figure_names(self) -> set[str]:
        return {figure.name for figure in self.figures}


@dataclass(frozen=True, slots=True)
class Finding:
    """What a figure came out as."""

    figure: Figure
    result: Result

    @property
    def passed(self) -> bool:
        return self.figure.reaches(self.result.value, self.figure.gate)

    @property
    def reached_goal(self) -> bool:
        return self.figure.reaches(self.result.value, self.figure.goal)
