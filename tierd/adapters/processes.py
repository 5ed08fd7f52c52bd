"""Which processes live, by the kernel's word: pid with start time, watched through a pidfd."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

START_TIME_FIELD = 22
STATE_FIELD = 3
FLAGS_FIELD = 9
FLAG_EXITING = 0x4
"""PF_EXITING of the kernel: set at the start of a process's end, before its memory goes."""


@dataclass(frozen=True, slots=True)
class Process:
    """A process, never another one that got its pid later. `start_time`: field 22 of /proc/PID/stat."""

    pid: int
    start_time: int


def identify(pid: int) -> Process:
    """Names a living process. Raises ProcessLookupError."""
    state, start_time, _ = _stat(pid)
    if state in "ZX":
        raise ProcessLookupError(f"pid {pid} has ended")
    return Process(pid, start_time)


def is_alive(process: Process) -> bool:
    """Whether the process can still touch memory; a zombie cannot."""
    try:
        return identify(process.pid) == process
    except ProcessLookupError:
        return False


def is_running(process: Process) -> bool:
    """Whether the process lives and is not ending either: one that ends gives its devices up before it is dead."""
    try:
        state, start_time, flags = _stat(process.pid)
    except ProcessLookupError:
        return False
    return state not in "ZX" and start_time == process.start_time and not flags & FLAG_EXITING


def _stat(pid: int) -> tuple[str, int, int]:
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        raise ProcessLookupError(f"no process with pid {pid}") from None
    # The command's name, field 2, is in brackets and may itself hold brackets and blanks.
    after_name = text[text.rindex(")") + 2 :].split()
    state, start_time, flags = (after_name[at - 3] for at in (STATE_FIELD, START_TIME_FIELD, FLAGS_FIELD))
    return state, int(start_time), int(flags)


@dataclass(slots=True)
class _Watched:
    pidfd: int
    sessions: set[int] = field(default_factory=set)


class ProcessWatch:
    """Calls back when the process of a session ends. Belongs to one event loop; not thread-safe.

    One pidfd per process, however many sessions it has.
    """

    def __init__(self, on_end: Callable[[int], None]) -> None:
        """`on_end(session)`: called on the loop, once per watched session of the process that ended."""
        self._on_end = on_end
        self._watched: dict[Process, _Watched] = {}
        self._process_of: dict[int, Process] = {}

    def __len__(self) -> int:
        return len(self._watched)

    def watch(self, process: Process, session: int) -> bool:
        """Starts watching; False when the process has already ended (there is no call back then)."""
        watched = self._watched.get(process)
        if watched is None:
            pidfd = _open_pidfd(process)
            if pidfd is None:
                return False
            watched = self._watched[process] = _Watched(pidfd)
            asyncio.get_running_loop().add_reader(pidfd, self._ended, process)
        watched.sessions.add(session)
        self._process_of[session] = process
        return True

    def forget(self, session: int) -> None:
        """Stops watching on behalf of a session that is over; unknown ones are ignored."""
        process = self._process_of.pop(session, None)
        if process is None:
            return
        self._watched[process].sessions.discard(session)
        if not self._watched[process].sessions:
            self._close(process)

    def close(self) -> None:
        for process in list(self._watched):
            self._close(process)

    def _ended(self, process: Process) -> None:
        for session in sorted(self._close(process)):
            self._on_end(session)

    def _close(self, process: Process) -> set[int]:
        watched = self._watched.pop(process)
        with contextlib.suppress(RuntimeError):
            asyncio.get_running_loop().remove_reader(watched.pidfd)
        os.close(watched.pidfd)
        for session in watched.sessions:
            del self._process_of[session]
        return watched.sessions


def _open_pidfd(process: Process) -> int | None:
    try:
        pidfd = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return None
    if not is_alive(process):
        os.close(pidfd)
        return None
    return pidfd
