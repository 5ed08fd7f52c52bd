"""The daemon's life: order of start and stop, failing and hanging stages."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import textwrap

import pytest

from tierd.app.daemon import EXIT_HUNG, Daemon, Stage


class Diary:
    """Stages that write down what happens to them."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def stage(self, name: str, *, fails: bool = False, hangs: bool = False, start_fails: bool = False) -> Stage:
        async def start() -> None:
            if start_fails:
                raise RuntimeError(f"{name} cannot start")
            self.lines.append(f"start {name}")

        async def run() -> None:
            if fails:
                raise RuntimeError(f"{name} broke")
            try:
                await asyncio.Event().wait()
            finally:
                self.lines.append(f"end {name}")

        async def stop(timeout_s: float) -> None:
            self.lines.append(f"stop {name}")
            if hangs:
                await asyncio.Event().wait()

        return Stage(name, start, run, stop)


def live(
    stages: list[Stage], lines: list[str], *, then: int | None = signal.SIGTERM, timeout_s: float = 1.0
) -> None:
    """Runs a daemon and, once it is ready, sends this process a signal."""

    def ready() -> None:
        lines.append("ready")
        if then is not None:
            os.kill(os.getpid(), then)

    async def whole() -> None:
        async with asyncio.timeout(30):
            await Daemon(stages, on_ready=ready, stop_timeout_s=timeout_s).run()

    asyncio.run(whole())


@pytest.fixture(autouse=True)
def _no_hard_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tierd.app.daemon.exit_in", lambda seconds: None)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_order(number: int) -> None:
    """Stages start in order, readiness comes last, and either signal stops them in the reverse order."""
    diary = Diary()
    live([diary.stage("a"), diary.stage("b")], diary.lines, then=number)
    assert diary.lines[:5] == ["start a", "start b", "ready", "stop b", "stop a"]
    assert sorted(diary.lines[5:]) == ["end a", "end b"]


def test_failing_stage_ends_the_daemon() -> None:
    """A stage that breaks ends the daemon with its error, after the others were stopped."""
    diary = Diary()
    with pytest.raises(ExceptionGroup) as caught:
        live([diary.stage("a"), diary.stage("b", fails=True)], diary.lines, then=None)
    assert "b broke" in str(caught.value.exceptions)
    assert [line for line in diary.lines if line.startswith("stop")] == ["stop b", "stop a"]
    assert "end a" in diary.lines


def test_failing_start_stops_what_runs() -> None:
    """When a stage cannot start, those before it are stopped and nothing reports ready."""
    diary = Diary()
    with pytest.raises(ExceptionGroup, match="TaskGroup") as caught:
        live([diary.stage("a"), diary.stage("b", start_fails=True)], diary.lines)
    assert "b cannot start" in str(caught.value.exceptions)
    assert diary.lines[:2] == ["start a", "stop a"]


def test_hanging_stop_does_not_keep_the_others() -> None:
    """A stage that does not stop in its time is left, and the next one is stopped all the same."""
    diary = Diary()
    live([diary.stage("a"), diary.stage("b", hangs=True)], diary.lines, timeout_s=0.0)
    assert diary.lines.index("stop b") < diary.lines.index("stop a")


def test_hung_process_ends_all_the_same() -> None:
    """A process that hangs after the signal, in whatever code, is ended by its own clock."""
    code = """
        import threading
        from tierd.app.daemon import exit_in
        exit_in(0.2)
        threading.Lock().acquire() and threading.Event().wait()
    """
    command = [sys.executable, "-c", textwrap.dedent(code)]
    done = subprocess.run(command, timeout=30, check=False, capture_output=True)
    assert done.returncode == EXIT_HUNG
    assert b"stop_hung" in done.stdout + done.stderr
