"""The daemon's clock while the machine's wall clock is set."""

from __future__ import annotations

import time

import pytest

from tierd.adapters.steady_clock import SteadyClock

HOUR_S = 3600.0


@pytest.mark.parametrize("set_by_s", [-HOUR_S, HOUR_S], ids=["back", "forward"])
def test_a_wall_clock_that_is_set_moves_nothing(monkeypatch: pytest.MonkeyPatch, set_by_s: float) -> None:
    """The clock begins at the wall's time, and goes neither back, nor stands, nor jumps when that is set."""
    wall = time.time
    clock = SteadyClock()
    before = clock()
    assert abs(before - wall()) < HOUR_S / 2
    monkeypatch.setattr(time, "time", lambda: wall() + set_by_s)
    after = clock()
    assert before < after < before + HOUR_S / 2
