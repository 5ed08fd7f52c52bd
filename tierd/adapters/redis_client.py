"""Commands to one Redis or Valkey server, or to several, each sent where its key lives.

A command has one key. What the servers fail at is raised as a SpillError that names the server. A command that
was sent to the wrong server is sent again to the right one, within its deadline, so it must bear repetition.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import Generic, TypeAlias, TypeVar

from tierd.adapters.redis_faults import FAILURES, fault_of, in_our_words, spill_error
from tierd.adapters.redis_pool import RedisPool
from tierd.adapters.redis_route import Place, route_of
from tierd.adapters.redis_url import RedisAddress, parse_redis_url
from tierd.adapters.resp import Deadline, Reply, ReplyError, Wire, command
from tierd.core.errors import BlockVanished, SpillDown, SpillError
from tierd.ports import attempt

PIPELINE_MAX = 1024
"""Most commands that are sent before their replies are read."""
TURNS_MAX = 5
"""Most servers that one command is sent to, one after the other."""

T = TypeVar("T")
Words = Sequence[bytes]
Answer: TypeAlias = "Reply | ReplyError"


@dataclass(frozen=True, slots=True)
class Exchange(Generic[T]):
    """One command about a key, and `hear`, which reads its reply; both may be done again from the start."""

    key: bytes
    request: Sequence[bytes | memoryview]
    hear: Callable[[Wire], T]

    def talk(self, wire: Wire, deadline: Deadline) -> T:
        wire.send(self.request, deadline)
        return self.hear(wire)


class RedisClient:
    """`url`: see redis_url.py. pool_size: most connections to each server; calls that find none wait.
    connect_timeout_s: for one connection with its handshake."""

    def __init__(self, url: str, pool_size: int, connect_timeout_s: float) -> None:
        """Connects to nothing yet. Raises InvalidInput."""
        self._url = parse_redis_url(url)
        self._route = route_of(self._url, pool_size, connect_timeout_s)

    def __str__(self) -> str:
        return str(self._url)

    def exchange_all(self, exchanges: Sequence[Exchange[T]], deadline: Deadline) -> list[T | Exception]:
        """What was heard of each, or why nothing was. Servers are talked to one after the other, each with all its
        commands at once; what that did not answer is exchanged by itself."""
        answers: dict[int, T | Exception] = {}
        if len(exchanges) > 1:
            with suppress(SpillError):
                for pool, numbers in self._by_pool(exchanges, deadline).items():
                    self._pipeline(pool, {n: exchanges[n] for n in numbers}, answers, deadline)
        for n, one in enumerate(exchanges):
            if n not in answers:
                answers[n] = attempt(self.exchange, one, deadline)
        return [answers[n] for n in range(len(exchanges))]

    def _by_pool(self, exchanges: Sequence[Exchange[T]], deadline: Deadline) -> dict[RedisPool, list[int]]:
        found: dict[RedisPool, list[int]] = {}
        for n, one in enumerate(exchanges):
            found.setdefault(self._place(one.key, deadline).pool, []).append(n)
        return found

    def _pipeline(
        self, pool: RedisPool, exchanges: Mapping[int, Exchange[T]], answers: dict[int, T | Exception],
        deadline: Deadline,
    ) -> None:
        """Adds the answers that came: none after a failure, or a reply that was not read to its end."""
        request = [buffer for one in exchanges.values() for buffer in one.request]
        with suppress(*FAILURES), pool.borrow(deadline) as wire:
            wire.send(request, deadline, commands=len(exchanges))
            for n, one in exchanges.items():
                try:
                    answers[n] = one.hear(wire)
                except ReplyError as error:
                    if not fault_of(error).elsewhere and self._redirected(error, pool) is None:
                        answers[n] = spill_error(pool.address, error)
                except BlockVanished as error:
                    answers[n] = error

    def exchange(self, exchange: Exchange[T], deadline: Deadline) -> T:
        """What was heard; from the start again where another server is to be asked."""
        sent_to: Place | None = None
        for _ in range(TURNS_MAX):
            place = sent_to or self._place(exchange.key, deadline)
            try:
                with place.pool.borrow(deadline) as wire:
                    if place.asking:
                        wire.send([command(b"ASKING")], deadline)
                        wire.reply(deadline)
                    return exchange.talk(wire, deadline)
            except FAILURES as error:
                sent_to = self._redirected(error, place.pool)
                if sent_to is None:
                    self._look_elsewhere(place.pool, error, deadline)
        raise self._astray()

    def batch(self, commands: Sequence[Words], deadline: Deadline) -> list[Answer]:
        """Replies of small commands whose second word is the key, in their order; an error reply stands for
        itself. Servers are talked to at the same time, each with all its commands at once."""
        replies: list[Answer] = []
        for first in range(0, len(commands), PIPELINE_MAX):
            replies += self._batch(commands[first : first + PIPELINE_MAX], deadline)
        return replies

    def everywhere(
        self, commands: Sequence[Words], deadline: Deadline
    ) -> list[tuple[RedisAddress, list[Answer]]]:
        """The replies of each server to the same commands."""
        for _ in range(TURNS_MAX):
            with in_our_words(self):
                servers = self._route.servers(deadline)
            try:
                found = _pipelines(dict.fromkeys(servers, commands), deadline)
            except _ServerFailed as failed:
                self._look_elsewhere(failed.pool, failed.error, deadline)
            else:
                return [(pool.address, replies) for pool, replies in found.items()]
        raise self._astray()

    def close(self) -> None:
        """Idempotent. Calls under way end by their deadlines."""
        self._route.close()

    def _place(self, key: bytes, deadline: Deadline) -> Place:
        with in_our_words(self):
            return self._route.place(key, deadline)

    def _batch(self, commands: Sequence[Words], deadline: Deadline) -> list[Answer]:
        answers: dict[int, Answer] = {}
        left: dict[int, Place | None] = dict.fromkeys(range(len(commands)))
        for _ in range(TURNS_MAX):
            places = {n: place or self._place(commands[n][1], deadline) for n, place in left.items()}
            try:
                found = _turn(commands, places, deadline)
            except _ServerFailed as failed:
                self._look_elsewhere(failed.pool, failed.error, deadline)
                left = dict.fromkeys(left)
                continue
            answers |= found
            sent_to = {n: self._redirected(answer, places[n].pool) for n, answer in found.items()}
            left = {n: place for n, place in sent_to.items() if place is not None}
            if not left:
                return [answers[n] for n in range(len(commands))]
        raise self._astray()

    def _redirected(self, answer: object, pool: RedisPool) -> Place | None:
        """Where a server of the pool sends the command that it answered so."""
        if not isinstance(answer, ReplyError):
            return None
        with in_our_words(pool.address):
            return self._route.redirected(answer, pool)

    def _look_elsewhere(self, pool: RedisPool, error: Exception, deadline: Deadline) -> None:
        """Returns when the server that failed is none of ours any more; else raises the failure as a SpillError."""
        fault = fault_of(error)
        if fault.new_role:
            pool.drop_all()
        if fault.elsewhere:
            self._route.suspect(pool)
            with suppress(*FAILURES):
                if pool not in self._route.servers(deadline):
                    return
        raise spill_error(pool.address, error) from error

    def _astray(self) -> SpillDown:
        return SpillDown(f"{self}: sent from server to server {TURNS_MAX} times")


class _ServerFailed(Exception):
    def __init__(self, pool: RedisPool, error: Exception) -> None:
        super().__init__(str(error))
        self.pool = pool
        self.error = error


@contextmanager
def _failures_of(pool: RedisPool) -> Iterator[None]:
    try:
        yield
    except FAILURES as error:
        raise _ServerFailed(pool, error) from error


def _turn(commands: Sequence[Words], places: Mapping[int, Place], deadline: Deadline) -> dict[int, Answer]:
    """Sends the commands of these numbers to their places; the answers by number."""
    parts: dict[RedisPool, list[Words]] = {}
    numbers: dict[RedisPool, list[int | None]] = {}
    for n, place in places.items():
        if place.asking:
            parts.setdefault(place.pool, []).append((b"ASKING",))
            numbers.setdefault(place.pool, []).append(None)
        parts.setdefault(place.pool, []).append(commands[n])
        numbers.setdefault(place.pool, []).append(n)
    found = _pipelines(parts, deadline)
    answered = ((n, answer) for pool in found for n, answer in zip(numbers[pool], found[pool], strict=True))
    return {n: answer for n, answer in answered if n is not None}


def _pipelines(
    parts: Mapping[RedisPool, Sequence[Words]], deadline: Deadline
) -> dict[RedisPool, list[Answer]]:
    """All commands go out before the first reply is read. Raises _ServerFailed."""
    found: dict[RedisPool, list[Answer]] = {}
    wires: dict[RedisPool, Wire] = {}
    with ExitStack() as lent:
        # In one order, so that no two calls wait for each other's connections.
        for pool in sorted(parts, key=lambda pool: str(pool.address)):
            with _failures_of(pool):
                wires[pool] = lent.enter_context(pool.borrow(deadline))
                packed = b"".join(command(*words) for words in parts[pool])
                wires[pool].send([packed], deadline, commands=len(parts[pool]))
        for pool, wire in wires.items():
            with _failures_of(pool):
                found[pool] = [_answer(wire, deadline) for _ in parts[pool]]
    return found


def _answer(wire: Wire, deadline: Deadline) -> Answer:
    """The next reply; an error that concerns one command only stands for itself."""
    try:
        return wire.reply(deadline)
    except ReplyError as error:
        if fault_of(error).elsewhere:
            raise
        return error
