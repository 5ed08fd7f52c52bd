"""Hazard pages: a small file of shared memory for each session that looks at slots without asking, writable by it.

They outlive the daemon as the session table does: what a process looks at does not depend on who serves it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable

import numpy as np

from tierd.adapters.shm import SharedDirectory, SharedFile, WantedFile
from tierd_client.format import HAZARD_PAGE_BYTES, PAGE_BYTES, U64Array

PAGE_PREFIX = "hazard-"
_SIGN = WantedFile("seg-0", PAGE_BYTES, "max_sessions")
"""There while any page is: a daemon of before, which would hand out what pages name, starts empty because of it."""

_lock = threading.Lock()


def full_barrier() -> None:
    """Nothing that this thread reads afterwards is older than what it has stored before: taking a lock is an atomic
    read-modify-write, which on x86-64 waits for all stores."""
    with _lock:
        pass


def of_pages(name: str) -> bool:
    """Whether a file belongs to the hazard pages."""
    return name.startswith(PAGE_PREFIX) or name == _SIGN.name


class HazardPages:
    """The pages of one instance, by session."""

    def __init__(self, directory: SharedDirectory, sessions: Iterable[int]) -> None:
        """Takes over the pages of sessions of an earlier boot that may still live, and removes all others."""
        self._directory = directory
        self._files: dict[int, SharedFile] = {}
        for number in sessions:
            file = directory.open(_wanted(number))
            if file is not None:
                self._files[number] = file
        kept = {_wanted(number).name for number in self._files} | ({_SIGN.name} if self._files else set())
        directory.remove(name for name in directory.names() if of_pages(name) and name not in kept)

    def pages(self) -> dict[int, U64Array]:
        """Each as (n, 2) words."""
        return {number: _words(file) for number, file in self._files.items()}

    def page(self, session: int) -> tuple[SharedFile, U64Array]:
        """The file of a session, made when it is first asked for, and its words. Raises NoRoom, OSError."""
        file = self._files.get(session)
        if file is None:
            if not self._files:
                self._directory.replace([_SIGN])[_SIGN.name].close()
            wanted = _wanted(session)
            file = self._files[session] = self._directory.replace([wanted])[wanted.name]
        return file, _words(file)

    def remove(self, session: int) -> None:
        """The session is over; nothing if it had none."""
        file = self._files.pop(session, None)
        if file is not None:
            self._directory.remove([_wanted(session).name] if self._files else [_wanted(session).name, _SIGN.name])
            file.close()


def _wanted(session: int) -> WantedFile:
    return WantedFile(f"{PAGE_PREFIX}{session:016x}", HAZARD_PAGE_BYTES, "max_sessions")


def _words(file: SharedFile) -> U64Array:
    return np.frombuffer(file.mapping, "<u8").reshape(-1, 2)
