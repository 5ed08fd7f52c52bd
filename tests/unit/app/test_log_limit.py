"""The limit on repeated log lines: what passes, what is counted, and that nothing is forgotten."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest
import structlog
from structlog.testing import capture_logs

from tierd.app.log_limit import BURST_LINES, WINDOW_S, WINDOWS_MAX, RepeatLimit


class Lines:
    """A limit whose time the test drives; what it would call later is called by `later`."""

    def __init__(self) -> None:
        self.now = 100.0
        self.calls: list[tuple[float, Callable[[], None]]] = []
        self.limit = RepeatLimit(lambda: self.now, lambda seconds, call: self.calls.append((seconds, call)))

    def passes(self, event: str, level: str = "warning", **fields: Any) -> bool:
        try:
            self.limit(None, level, {"event": event, **fields})
        except structlog.DropEvent:
            return False
        return True


def test_a_burst_passes_and_the_rest_is_counted() -> None:
    """Some lines of an event pass at once, the others of its window are told in one line when it ends."""
    lines = Lines()
    assert [lines.passes("torn") for _ in range(BURST_LINES + 7)] == [True] * BURST_LINES + [False] * 7
    lines.now += WINDOW_S
    with capture_logs() as told:
        assert lines.passes("torn")
    assert told == [{"event": "repeated", "what": "torn", "times": 7, "in_s": WINDOW_S, "log_level": "warning"}]


def test_events_and_levels_are_limited_apart() -> None:
    """A flood of one event keeps back no other, nor the same one of another level; a library's lines count as one
    event, whatever they say."""
    lines = Lines()
    for _ in range(100):
        lines.passes("torn")
    assert lines.passes("spill_down") and lines.passes("torn", "error")
    assert [lines.passes(f"socket {n}", logger="grpc") for n in range(6)] == [True] * BURST_LINES + [False]


def test_the_summary_comes_when_nothing_else_is_logged() -> None:
    """The first line that is kept back asks for the summary at the end of the window, once."""
    lines = Lines()
    for _ in range(50):
        lines.passes("torn", "error")
    assert [seconds for seconds, _ in lines.calls] == [WINDOW_S]
    lines.now += WINDOW_S
    with capture_logs() as told:
        lines.calls[0][1]()
        lines.calls[0][1]()
    assert [(one["times"], one["log_level"]) for one in told] == [(50 - BURST_LINES, "error")]


def test_summaries_themselves_are_never_kept_back() -> None:
    """However many events are repeated, each summary passes."""
    lines = Lines()
    assert all(lines.passes("repeated") for _ in range(100))


def test_the_table_is_bounded() -> None:
    """Of more events than are followed the oldest is told early and forgotten."""
    lines = Lines()
    for _ in range(BURST_LINES + 2):
        lines.passes("first")
    with capture_logs() as told:
        for number in range(WINDOWS_MAX):
            assert lines.passes(f"event {number}")
    assert [(one["what"], one["times"]) for one in told] == [("first", 2)]
    assert lines.passes("first")


def test_every_line_of_several_threads_passes_or_is_counted() -> None:
    """Lines of several threads are neither lost nor told twice."""
    lines, passed = Lines(), []

    def work() -> None:
        passed.extend(lines.passes("torn") for _ in range(500))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    with capture_logs() as told:
        lines.limit.flush(all_=True)
    assert sum(passed) == BURST_LINES and told[0]["times"] == 2000 - BURST_LINES


FLOOD = """
import logging
import structlog
from tierd.app import logs
logs.configure("info", True)
for number in range(1000):
    structlog.get_logger().warning("move_failed", op=number)
    logging.getLogger("grpc").warning("socket %d", number)
structlog.get_logger().info("stopped")
"""


def test_a_flood_is_some_lines_and_a_summary() -> None:
    """A process that logs a thousand failures writes a handful of lines, and at its end how many there were."""
    done = subprocess.run([sys.executable, "-c", FLOOD], capture_output=True, text=True, check=True, timeout=60)
    assert len(done.stderr.splitlines()) == 2 * BURST_LINES + 3
    for what in ("move_failed", "grpc"):
        assert f'"what": "{what}", "times": {1000 - BURST_LINES}' in done.stderr


def test_a_fault_has_one_reference() -> None:
    """The same fault has the same reference each time, another one another: a line that was kept back is found
    under one that was not."""
    from tierd.rpc.status import _reference

    def fault(kind: type[Exception]) -> str:
        with pytest.raises(kind) as caught:
            raise kind("something")
        return _reference("Get", caught.value)

    assert fault(ValueError) == fault(ValueError) != fault(KeyError)
