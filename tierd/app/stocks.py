"""Store: blocks that a session wrote into slots of its stock, and the slots for its next ones, in one call."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np

from tierd.app.line import Turn
from tierd.app.service import Service
from tierd.core import messages as m
from tierd.core.errors import TierdError
from tierd_client.format import U64Array


@dataclass(frozen=True, slots=True)
class StoreOrder:
    """What a Store asks for. `store`: None when slots are given back only. `slots_max`: most slots for blocks that
    are ABSENT; `spare`: for later ones."""

    session: int
    tier: m.Tier
    store: m.Store | None
    slots_max: int
    spare: int
    returned: U64Array


@dataclass(slots=True)
class StoreResult:
    outcomes: m.OutcomeArray
    stock: m.StockReply


Key = tuple[int, m.Tier, int]
"""Session, tier, and bytes of a block."""

NOTHING = m.StockReply(np.empty(0, np.uint64), np.empty(0, np.uint64), 0)

RECALLED_WITHIN_S = 1.0
"""How long a put waits for slots that others hold ahead and were asked for. Who lives gives them back in some
milliseconds, or has used them; one that is stopped, or hangs, keeps nobody waiting for longer."""

COMMITTED_WITHIN_S = 1.0
"""So long the Commit of a put is waited for before slots are made ready for the next one."""

PREPARED_S = 5.0
"""How long slots that were made ready for a session wait for its next Store."""


class Stocks:
    """Belongs to the event loop's thread. After a Store was answered slots are made ready for the next one, so that
    no answer waits for evictions."""

    def __init__(self, service: Service) -> None:
        self._service = service
        service.sessions.on_want.append(self._drop_all)
        self._prepared: dict[Key, m.StockReply] = {}
        self._due: dict[int, tuple[asyncio.TimerHandle, Key, m.Stock]] = {}
        """By session, what is to be made ready when its put ends, of which it told first."""

    async def store(self, order: StoreOrder, deadline: float) -> StoreResult:
        """Publishes what was written; blocks that are not there get slots, for the first of which it waits. Where
        there is none and none to come, they are FULL."""
        service = self._service
        service.sessions.require(order.session)
        result = StoreResult(np.empty(0, np.int8), NOTHING)
        if order.store is None:
            self._unstock(order.session, order.tier, order.returned)
            return result
        command = service.placed_store(order.store)
        result.outcomes = service.writer.ask_first(command, m.StoreReply).outcomes
        stored = command.generations[result.outcomes == m.Stored.STORED.value]
        service.sessions.settled(order.session, order.tier, stored)
        self._unstock(order.session, order.tier, order.returned)
        await self._restock(order, command, result, deadline)
        return result

    async def _restock(
        self, order: StoreOrder, command: m.Store, result: StoreResult, deadline: float
    ) -> None:
        absent = result.outcomes == m.Stored.ABSENT.value
        needed = min(int(np.count_nonzero(absent)), order.slots_max)
        key = order.session, order.tier, command.block_bytes
        ready = self._prepared.pop(key, NOTHING)
        left = len(ready.addresses) - needed
        more, spare = max(0, -left), max(0, order.spare - max(0, left))
        ask = m.Stock(order.session, command.blocks, command.block_bytes, more, spare, order.tier)
        result.stock = ready
        if more or spare or not len(ready.addresses):
            had = await self._stock(ask, deadline, wait=not len(ready.addresses))
            self._service.sessions.granted(order.session, order.tier, had.addresses, had.generations)
            result.stock = _joined(ready, had)
        if not len(result.stock.addresses) and not result.stock.may_come:
            result.outcomes[absent] = m.Stored.FULL
        if order.spare:
            self._prepare_soon(key, replace(ask, needed=0, spare=order.spare), command.commit_later)

    async def _stock(self, ask: m.Stock, deadline: float, *, wait: bool) -> m.StockReply:
        """Slots; where some are needed and there is none yet, `wait` for the first."""
        service, loop = self._service, asyncio.get_running_loop()
        call = _Asking(service, ask)
        recalled = float("inf")
        try:
            with service.writer.line.stand(call):
                while call.wants_more and wait:
                    until = deadline
                    if not call.waiting:  # for what others hold ahead
                        service.sessions.ask_stocks_back()
                        recalled = min(recalled, loop.time() + RECALLED_WITHIN_S)
                        until = min(deadline, recalled)
                    if loop.time() >= until:
                        return call.reply if until == deadline else replace(call.reply, may_come=False)
                    await service.writer.wait(call.waiting, until)
                    service.sessions.require(ask.session)
                    service.writer.line.go(call)
        except BaseException:
            with suppress(TierdError):  # the session has ended, and with it what it held
                self._unstock(ask.session, ask.tier, call.reply.generations)
            raise
        return call.reply

    def put_ended(self, session: int) -> None:
        """A put of which the daemon heard before it was written has been committed or given up."""
        if session in self._due:
            timer, key, ahead = self._due.pop(session)
            timer.cancel()
            asyncio.get_running_loop().call_soon(self._prepare, key, ahead)

    def _prepare_soon(self, key: Key, ahead: m.Stock, commit_later: bool) -> None:
        """After the answer, or that to the Commit: who sends it waits for that one only."""
        loop, session = asyncio.get_running_loop(), key[0]
        if not commit_later:
            loop.call_soon(self._prepare, key, ahead)
            return
        self.put_ended(session)
        self._due[session] = loop.call_later(COMMITTED_WITHIN_S, self.put_ended, session), key, ahead

    def _prepare(self, key: Key, ahead: m.Stock) -> None:
        """Takes slots that the next answer hands out."""
        with suppress(TierdError):  # the session has ended
            if key not in self._prepared:
                reply = self._service.writer.ask(ahead, m.StockReply)
                if len(reply.addresses):
                    self._prepared[key] = reply
                    self._service.sessions.granted(ahead.session, ahead.tier, reply.addresses, reply.generations)
                    asyncio.get_running_loop().call_later(PREPARED_S, self._drop, key, reply)

    def _drop(self, key: Key, reply: m.StockReply) -> None:
        """Gives back slots that nobody was told of, if that is still so."""
        if self._prepared.get(key) is reply:
            del self._prepared[key]
            with suppress(TierdError):  # the session has ended, and with it what it held
                self._unstock(key[0], key[1], reply.generations)

    def _drop_all(self) -> None:
        for key, reply in list(self._prepared.items()):
            self._drop(key, reply)

    def _unstock(self, session: int, tier: m.Tier, generations: U64Array) -> None:
        if len(generations):
            self._service.writer.step(m.Unstock(session, generations))
            self._service.sessions.settled(session, tier, generations)


class _Asking(Turn):
    """A call for slots."""

    def __init__(self, service: Service, ask: m.Stock) -> None:
        self._service, self._ask = service, ask
        self.reply = service.writer.ask(ask, m.StockReply)
        super().__init__(self.reply.waiting)

    @property
    def wants_more(self) -> bool:
        """Whether slots are needed, and none is there but may come."""
        return bool(not len(self.reply.addresses) and self._ask.needed and self.reply.may_come)

    def try_again(self) -> bool:
        if self.wants_more:
            self.reply = self._service.writer.ask(self._ask, m.StockReply)
            self.waiting = frozenset(self.reply.waiting)
        return bool(len(self.reply.addresses))


def _joined(first: m.StockReply, then: m.StockReply) -> m.StockReply:
    return m.StockReply(
        np.concatenate([first.addresses, then.addresses]), np.concatenate([first.generations, then.generations]),
        then.spare_max, then.may_come,
    )
