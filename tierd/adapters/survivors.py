"""Sessions of an earlier boot whose processes may still touch the slots that they held."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tierd.adapters.processes import Process, ProcessWatch, is_alive
from tierd_client.format import Table


class Survivors:
    """Found in the session table when the daemon starts; each is settled once its process is dead.

    A session that never attached holds nothing that its process could reach, so it is not one. A process of
    another pid namespace (pid 0, yet a start time) cannot be asked: only a detach settles its session.
    """

    def __init__(self, sessions: Table, *, fresh: bool) -> None:
        """`fresh`: the table is new, there is nobody to find."""
        self._found: dict[int, Process] = {}
        columns = (sessions["session"], sessions["pid"], sessions["start_time"])
        for row in [] if fresh else np.flatnonzero(sessions["session"]).tolist():
            number, pid, start_time = (int(column[row]) for column in columns)
            if _may_live(pid, start_time):
                self._found[number] = Process(pid, start_time)

    @property
    def numbers(self) -> frozenset[int]:
        return frozenset(self._found)

    def watch(self, watch: ProcessWatch, on_end: Callable[[int], None]) -> None:
        """Watches their processes; one that died meanwhile is reported at once."""
        for number, process in self._found.items():
            if process.pid and not watch.watch(process, number):
                on_end(number)


def _may_live(pid: int, start_time: int) -> bool:
    return is_alive(Process(pid, start_time)) if pid else start_time != 0
