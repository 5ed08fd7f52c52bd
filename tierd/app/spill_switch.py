"""Attaches, detaches and switches the spill store of a running daemon.

What only the old store held is forgotten, and stays there; what lies above is not touched. Loads that run end with
the store that they began with, stores that run count as failed.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import structlog

from tierd.app.finder import Finder
from tierd.app.mover import Mover
from tierd.app.spill_slot import SpillSlot
from tierd.app.spill_watch import SpillWatch
from tierd.app.writer import Writer
from tierd.core.errors import InvalidInput, Refused, SpillDown, Unavailable
from tierd.core.messages import Done, SpillState
from tierd.ports import SpillStore

log = structlog.get_logger(__name__)


class SpillSwitch:
    """Belongs to the event loop's thread; one change at a time."""

    def __init__(
        self, slot: SpillSlot, writer: Writer, mover: Mover, watch: SpillWatch, finder: Finder,
        make_store: Callable[[str, bool], SpillStore],
    ) -> None:
        """`make_store`: a store of a URL, and whether that may name files; InvalidInput for one that is none."""
        self._slot, self._writer, self._mover = slot, writer, mover
        self._watch, self._finder, self._make_store = watch, finder, make_store
        self._lock = asyncio.Lock()

    @property
    def attached(self) -> bool:
        return self._slot.attached

    async def attach(self, url: str, replace: bool, deadline: float, *, files: bool) -> int:
        """Uses the store of a URL from now on, once it has answered; returns the blocks of the old one that were
        forgotten. `files`: whether the URL may name files of this machine.

        Refused where one is attached and not `replace`, or none is and `replace`; InvalidInput, SpillDown,
        Unavailable: then nothing has changed.
        """
        async with self._turn(deadline):
            if self.attached and not replace:
                raise Refused("a spill store is attached already: detach it, or switch")
            if replace and not self.attached:
                raise Refused("no spill store is attached: attach one")
            store = self._store_of(url, files)
            try:
                await self._reach(store, deadline)
            except BaseException:
                await asyncio.to_thread(store.close)
                raise
            forgotten = await self._exchange(store)
            await self._watch.probe()
            log.info("spill_attached", store=repr(store), forgotten=forgotten)
            return forgotten

    async def detach(self, deadline: float) -> int:
        """Uses none from now on; returns the blocks that were forgotten. Refused where none is attached."""
        async with self._turn(deadline):
            if not self.attached:
                raise Refused("no spill store is attached")
            forgotten = await self._exchange(None)
            log.info("spill_detached", forgotten=forgotten)
            return forgotten

    @asynccontextmanager
    async def _turn(self, deadline: float) -> AsyncIterator[None]:
        """Waits for the change before this one. Unavailable when that takes until the deadline."""
        try:
            async with asyncio.timeout_at(deadline):
                await self._lock.acquire()
        except TimeoutError:
            raise Unavailable("another change of the spill store is under way") from None
        try:
            yield
        finally:
            self._lock.release()

    def _store_of(self, url: str, files: bool) -> SpillStore:
        try:
            return self._make_store(url, files)
        except InvalidInput as error:
            raise InvalidInput("url", str(error).removeprefix(f"{error.field}: ")) from None

    async def _reach(self, store: SpillStore, deadline: float) -> None:
        left_s = deadline - asyncio.get_running_loop().time()
        if left_s <= 0:
            raise SpillDown("the time was over before the store was asked")
        await asyncio.to_thread(store.probe, left_s)

    async def _exchange(self, store: SpillStore | None) -> int:
        self._watch.give_up("the spill store is being changed" if store else "no spill store is attached")
        self._mover.forget_deletes()
        self._finder.forget()
        before = self._slot.exchange(store)
        state = SpillState(up=False, forgotten=True, attached=store is not None)
        forgotten = self._writer.ask(state, Done).count
        if before is not None:
            await asyncio.to_thread(before.close)
        return forgotten
