"""The clock of accesses: what one step is.

`request`: each new sequence, and each request outside one, is a tick. `decode`: the decode steps of the
fastest worker. `wall`: seconds times `steps_per_second`. A step never goes back.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tierd.core.errors import InvalidInput

IDLE_MAX = 2.0**40
"""Steps: longer than anything has been idle."""
MODES = ("request", "decode", "wall")


class Clock:
    """`step` is the number of the current step; `wall_s` the wall time (s since 1970) last told."""

    def __init__(self, mode: str = "request", steps_per_second: float = 10.0, step: int = 0) -> None:
        if mode not in MODES:
            raise InvalidInput("clock", f"{mode!r} is not one of {', '.join(MODES)}")
        self.mode = mode
        self.steps_per_second = steps_per_second
        self.step = step
        self.wall_s = 0.0
        self._began: tuple[float, int] | None = None
        """Wall time and step when it was first told the time."""

    def tell(self, wall_s: float) -> None:
        """The shell says what time it is. A wall clock that was set back stands still for the engine."""
        self.wall_s = max(self.wall_s, wall_s)
        self._began = self._began or (self.wall_s, self.step)
        if self.mode == "wall":
            self.step = max(self.step, int(self.wall_s * self.steps_per_second))

    def steps_at(self, wall_s: NDArray[np.float64]) -> NDArray[np.int64]:
        """Steps of a clock that follows the wall, at these times."""
        steps: NDArray[np.int64] = (wall_s * self.steps_per_second).astype(np.int64)
        return steps

    def converted(self, wall_s: NDArray[np.float64]) -> NDArray[np.int64]:
        """What this clock showed, or would have shown, at times not after now: at the mean rate at which it has
        moved so far, or `steps_per_second` before it has."""
        if self.mode == "wall":
            return self.steps_at(wall_s)
        idle = (self.wall_s - wall_s) * self._rate()
        steps: NDArray[np.int64] = self.step - np.minimum(idle, IDLE_MAX).astype(np.int64)
        return steps

    def _rate(self) -> float:
        """Steps per second."""
        began_s, began_step = self._began or (self.wall_s, self.step)
        moved = self.step - began_step
        return moved / (self.wall_s - began_s) if moved and self.wall_s > began_s else self.steps_per_second

    def request(self) -> None:
        """A sequence opened, or a request came outside one."""
        if self.mode == "request":
            self.step += 1

    def decoded(self, step: int) -> None:
        """A worker has reached this decode step, on the scale of this clock."""
        if self.mode == "decode":
            self.step = max(self.step, step)
