"""The breaker of the spill tier: finds it down, keeps probing, and brings it back within two seconds.

    down --probe answers--> up --a call finds it down, or a probe fails--> down

A probe that is late alone proves nothing of a server that answers moves meanwhile: it is slow, and not down.

While it is down moves from and to it fail at once, the engine stores nothing there, and its health service
is NOT_SERVING; everything above goes on. A probe also tells a server that was flushed or swapped: then what
the engine believes to be stored there is forgotten.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import structlog

from tierd.app.mover import Mover
from tierd.app.writer import Writer
from tierd.core.errors import SpillError, SpillLate
from tierd.core.messages import Done, SpillState, Tier
from tierd.ports import SpillHealth, SpillStore

log = structlog.get_logger(__name__)

PROBE_DEADLINE_S = 0.5
PROBE_DOWN_FIRST_S = 0.25
PROBE_DOWN_MAX_S = 1.0
"""With the deadline below two seconds, which is how soon a server that came back must be used again."""

PROBE_UP_S = 3.0
STEADY_S = 5.0
"""A server that was up for less is flapping: its next pause goes on doubling."""


class SpillWatch:
    """Watches one spill store. All methods belong to the event loop's thread; starts down."""

    def __init__(
        self, store: SpillStore, writer: Writer, mover: Mover,
        on_change: Callable[[bool], None], *, probe_up_s: float = PROBE_UP_S, expected: bool = True,
    ) -> None:
        """`on_change` is told of each change of state (to set the health service). `expected`: a store is there to
        be reached, so that it is worth a line if the first probe fails."""
        self._store = store
        self._writer = writer
        self._mover = mover
        self._on_change = on_change
        self._probe_up_s = probe_up_s
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="tierd-probe")
        self._found_down = asyncio.Event()
        self._pause_s = PROBE_DOWN_FIRST_S
        self._up_since = 0.0
        self._changes = 0
        self._is_unheard = expected
        self.is_up = False
        self.detail = "not reached yet"
        self._noted = ""
        mover.guard_spill(self.found_down)
        self._tell(SpillState(up=False))

    async def run(self) -> None:
        """Watches until cancelled. The first probe is made at once."""
        try:
            while True:
                await self.probe()
                self._found_down.clear()
                if self.is_up:
                    await self._until_found_down(self._probe_up_s)
                if not self.is_up:
                    await asyncio.sleep(self._pause_s)
                    self._pause_s = min(2 * self._pause_s, PROBE_DOWN_MAX_S)
        finally:
            self._pool.shutdown(wait=False, cancel_futures=True)

    def found_down(self, reason: str) -> None:
        """A move found the server down."""
        if self.is_up:
            self._go_down(reason)

    def give_up(self, reason: str) -> None:
        """The store is about to be changed: it is down until the next probe has answered."""
        self._changes += 1
        self.detail = reason
        if self.is_up:
            self._go_down(reason)

    async def probe(self) -> None:
        """Asks the server once and draws the consequence."""
        loop, changes = asyncio.get_running_loop(), self._changes
        moves = self._mover.measures.moves_of(Tier.SPILL)
        try:
            health = await loop.run_in_executor(self._pool, self._store.probe, PROBE_DEADLINE_S)
        except SpillError as error:
            answers_moves = self._mover.measures.moves_of(Tier.SPILL) > moves
            if not (self.is_up and answers_moves and isinstance(error, SpillLate)):
                self._probe_failed(str(error))
        except Exception as error:  # a store that breaks its contract is a store that is down
            log.exception("spill_probe_failed")
            self._probe_failed(f"{type(error).__name__}: {error}")
        else:
            if changes == self._changes:  # else it is the answer of the store before
                self._answered(health)

    def _answered(self, health: SpillHealth) -> None:
        self._is_unheard = False
        self.detail = health.detail
        if health.same and health.detail != self._noted:
            self._noted = health.detail
            log.warning("spill_notes", detail=health.detail or "none any more")
        if self.is_up and health.same:
            return
        came_back = not self.is_up
        if came_back:
            self.is_up = True
            self._up_since = asyncio.get_running_loop().time()
            self._mover.open_spill()
        forgotten = self._tell(SpillState(up=True, forgotten=not health.same))
        if forgotten:
            log.warning("spill_forgotten", blocks=forgotten, detail=health.detail)
        if came_back:
            self._on_change(True)
            log.info("spill_up", detail=health.detail)

    def _probe_failed(self, reason: str) -> None:
        self.detail = reason
        if self.is_up:
            self._go_down(reason)
        elif self._is_unheard:
            log.warning("spill_down", reason=reason)
        self._is_unheard = False

    def _go_down(self, reason: str) -> None:
        self.is_up = False
        self.detail = reason
        if asyncio.get_running_loop().time() - self._up_since >= STEADY_S:
            self._pause_s = PROBE_DOWN_FIRST_S
        self._mover.shut_spill()
        self._mover.measures.spill_outages += 1
        self._tell(SpillState(up=False))
        self._found_down.set()
        self._on_change(False)
        log.warning("spill_down", reason=reason)

    def _tell(self, state: SpillState) -> int:
        """Tells the engine; returns the blocks that it takes for lost."""
        try:
            return self._writer.ask(state, Done).count
        except Exception:  # the watch must outlive whatever the engine makes of its news
            log.exception("spill_state_refused", up=state.up)
            return 0

    async def _until_found_down(self, timeout_s: float) -> None:
        try:
            await asyncio.wait_for(self._found_down.wait(), timeout_s)
        except TimeoutError:
            return
