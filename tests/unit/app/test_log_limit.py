"""The limit on repeated log lines."""

from __future__ import annotations

from tierd.app.log_limit import LOG_EVERY_S, LogLimit


def test_one_line_per_interval() -> None:
    """One line passes per interval and says how many were kept back before it."""
    now = [100.0]
    limit = LogLimit(lambda: now[0])
    assert [limit.suppressed() for _ in range(4)] == [0, None, None, None]
    now[0] += LOG_EVERY_S
    assert [limit.suppressed() for _ in range(2)] == [3, None]
    now[0] += LOG_EVERY_S
    assert limit.suppressed() == 1
