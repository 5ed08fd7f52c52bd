"""Pools that sessions lend: numbered, opened, and closed when their session ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from tierd.core.errors import InvalidInput, LimitReached, NotFound, Refused, Unavailable
from tierd.core.loans import FIRST_POOL, PoolPlan
from tierd.ports import LentStore
from tierd_client.format import U64Array

POOL_NUMBERS = 0x10000 - FIRST_POOL
"""Numbers go round, so that a copy that still runs on a closed pool never finds another one under its number."""


@dataclass(slots=True)
class _Pool:
    """`ending`: all of it is being given back, so that no more pages are taken."""

    session: int
    plan: PoolPlan
    ending: bool = False


class Pools:
    """All pools of this boot. Belongs to the event loop's thread; memory is opened on a thread of its own."""

    def __init__(self, store: LentStore | None, most: int) -> None:
        """`most`: pools at once; 0, or no store: lending is off."""
        self._store = store
        self.most = most if store is not None else 0
        self._pools: dict[int, _Pool] = {}
        self._opening = 0
        self._next = 0
        self._opener = ThreadPoolExecutor(1, thread_name_prefix="tierd-lent")

    async def open(
        self, session: int, plan: PoolPlan, process: tuple[int, int], still_open: Callable[[], object],
        deadline: float,
    ) -> int:
        """Opens a pool; its number. `still_open` raises when the session has ended meanwhile. Raises Refused,
        LimitReached, InvalidInput, Unavailable."""
        if not self.most or self._store is None:
            raise Refused("lending is off: max_lent_pools is 0")
        if len(self._pools) + self._opening >= self.most:
            raise LimitReached(f"max_lent_pools: all {self.most} are open")
        number = self._new_number()
        loop = asyncio.get_running_loop()
        self._opening += 1
        future = loop.run_in_executor(self._opener, self._store.open_pool, number, session, plan, process)
        try:
            async with asyncio.timeout_at(deadline):
                await asyncio.shield(future)
            still_open()
        except BaseException as error:
            future.add_done_callback(lambda done: self._give_up(number, done))
            if isinstance(error, TimeoutError):
                raise Unavailable("the device did not open the memory in time") from error
            raise
        finally:
            self._opening -= 1
        self._pools[number] = _Pool(session, plan)
        return number

    def require(self, session: int, number: int) -> None:
        """Raises NotFound unless the session lends such a pool."""
        self._of(session, number)

    def begin_end(self, session: int, number: int) -> None:
        """All of a session's pool is being given back: it takes no more pages. NotFound."""
        self._of(session, number).ending = True

    def check(self, session: int, number: int, pages: U64Array, fences: U64Array, block_bytes: int) -> None:
        """Raises InvalidInput unless the pages are of this pool, hold blocks of that size, and can become ready;
        NotFound, and Refused for a pool that is being given back."""
        pool = self._of(session, number)
        if pool.ending:
            raise Refused(f"pool {number} is being given back: it takes no more pages")
        plan = pool.plan
        if plan.page_bytes != block_bytes:
            raise InvalidInput("pool", f"its pages have {plan.page_bytes} bytes, a block has {block_bytes}")
        if int(pages.max(initial=0)) >= plan.pages:
            raise InvalidInput("pages", f"{pages.max()}: the pool has pages 0 to {plan.pages - 1}")
        if fences.any() and plan.fence is None:
            raise InvalidInput("fences", "the pool has no fence")

    def close(self, number: int) -> None:
        """The pool is no longer lent: no page of it is read."""
        if self._pools.pop(number, None) is not None and self._store is not None:
            self._store.close_pool(number)

    def end(self, session: int) -> None:
        """A session is over: its pools close, each when the last read of it ends."""
        for number in [number for number, pool in self._pools.items() if pool.session == session]:
            self.close(number)
        if self._store is not None:
            self._store.forget(session)

    def _of(self, session: int, number: int) -> _Pool:
        pool = self._pools.get(number)
        if pool is None or pool.session != session:
            raise NotFound(f"pool {number} of session {session} is unknown")
        return pool

    def _new_number(self) -> int:
        while (number := FIRST_POOL + self._next % POOL_NUMBERS) in self._pools:
            self._next += 1
        self._next += 1
        return number

    def _give_up(self, number: int, done: asyncio.Future[None]) -> None:
        if not done.cancelled() and done.exception() is None and self._store is not None:
            self._store.close_pool(number)
