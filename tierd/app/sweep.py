"""The sweep: clears the blocks of retired namespaces, a slice at a time between other commands.

A retired namespace is one whose weights were switched away from (namespaces.py). Which are is on disk, so that a
restart goes on where the last daemon stopped. Belongs to the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog

from tierd.app.namespaces import Namespaces
from tierd.app.writer import Writer
from tierd.core import messages as m

log = structlog.get_logger(__name__)

SLICE_BLOCKS = 512
PAUSE_S = 0.002
"""After each slice, which takes about as long: others get at least half of the event loop's time."""

IN_USE_PAUSE_S = 1.0
"""Before what is in use is looked at again."""

UNLINKS_WAITING_MAX = 16_384
"""More deletes are not laid upon the spill tier: those beyond its queue's bound would stay as garbage."""


class Sweep:
    """Clears what is retired now. Whoever still uses the number of a retired namespace may put blocks there later;
    those go by their rank, with the next sweep, or at the next start."""

    def __init__(self, writer: Writer, namespaces: Namespaces, unlinks_waiting: Callable[[], int]) -> None:
        self._writer, self._namespaces, self._unlinks_waiting = writer, namespaces, unlinks_waiting
        self._wanted = asyncio.Event()
        self._wanted.set()

    def wake(self) -> None:
        """A namespace was retired."""
        self._wanted.set()

    async def run(self) -> None:
        """Sweeps whenever it is woken, and once at the start; until it is cancelled."""
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            cleared = 0
            while (numbers := self._namespaces.retired()) and (slice_ := self._clear(numbers)) is not None:
                cleared += slice_
                await asyncio.sleep(PAUSE_S if slice_ else IN_USE_PAUSE_S)
            if cleared:
                log.info("swept", blocks=cleared, why="their weights were switched away from")

    def _clear(self, numbers: frozenset[int]) -> int | None:
        """Clears a slice; copies that went, 0 when there is only something to wait for, None when all are gone."""
        if self._unlinks_waiting() > UNLINKS_WAITING_MAX:
            return 0
        command = m.Clear(m.BlockFilter(namespaces=numbers), most=SLICE_BLOCKS)
        reply = self._writer.ask(command, m.Cleared)
        copies = sum(reply.copies.values())
        return copies if copies or reply.in_use else None
