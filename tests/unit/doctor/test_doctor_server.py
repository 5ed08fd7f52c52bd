"""What the doctor makes of a server's clock; the rest of what it asks is tested against real servers."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tierd.doctor.server import skew_of


@given(st.integers(0, 2_000_000_000), st.integers(0, 100), st.integers(0, 100), st.integers(-1000, 1000))
def test_a_slow_answer_is_no_skew(before: int, took: int, read_after: int, ahead: int) -> None:
    """However long an answer takes, a clock is never said to be further off than it is, nor off in the wrong
    direction; an answer that takes no time tells it exactly."""
    told = before + min(read_after, took) + ahead
    found = skew_of(told, before, before + took)
    assert abs(found) <= abs(ahead) and found * ahead >= 0
    assert skew_of(before + ahead, before, before) == ahead
