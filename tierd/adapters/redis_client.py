"""Commands to one Redis or Valkey server, or to several, each sent where its key lives.

A command has one key. What the servers fail at is raised as a SpillError that names the server. A command that
was sent to the wrong server is sent again to the right one, within its deadline, so it must bear repetition.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from itertools import chain
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
PORTION_BYTES_MAX = 2 << 20
"""Values that are sent, or asked for, before the replies to those before are read: so that the server always has
something to do, and never much to remember. A larger value is one portion."""
PORTION_COMMANDS_MAX = 16
"""After a failure two portions at most are exchanged one by one."""
KEY_PLACES = {b"MEMORY": 2}
"""Where the key stands in a small command, if not behind its first word."""
TURNS_MAX = 5
"""Most servers that one command is sent to, one after the other."""

T = TypeVar("T")
Words = Sequence[bytes]
Answer: TypeAlias = "Reply | ReplyError"


@dataclass(frozen=True, slots=True)
class Exchange(Generic[T]):
    """One command about a key, and `hear`, which reads its reply; both may be done again from the start.

    `value_bytes`: of the value that goes one way or the other.
    """

    key: bytes
    value_bytes: int
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

    def exchange_all(
        self, exchanges: Iterable[Exchange[T]], deadline: Deadline
    ) -> Iterator[tuple[int, T | Exception]]:
        """What was heard of each, or why nothing was, as soon as it is known; each answer renews the deadline. They
        are drawn as they can be begun. After a failure those left unanswered, and what still comes, are exchanged
        one by one, until a server is down."""
        coming = enumerate(exchanges)
        drawn: dict[int, Exchange[T]] = {}
        yield from self._stream(coming, drawn, deadline)
        down: SpillDown | None = None
        for n, one in chain(drawn.items(), coming):
            answer = attempt(self.exchange, one, deadline) if down is None else down
            yield n, answer
            if isinstance(answer, SpillDown):
                down = answer
            else:
                deadline.renew()

    def _stream(
        self, coming: Iterator[tuple[int, Exchange[T]]], drawn: dict[int, Exchange[T]], deadline: Deadline
    ) -> Iterator[tuple[int, T | Exception]]:
        """The answers that come, while the next commands are under way, by one connection to each server: none
        after a failure, or a reply that was not read to its end. Nothing more is sent once another server is to be
        asked for something. `drawn`: what was taken of `coming` and is not answered."""
        wires: dict[RedisPool, Wire] = {}
        under_way: dict[RedisPool, dict[int, Exchange[T]]] = {}
        astray = False
        with suppress(*FAILURES, SpillError), ExitStack() as lent:
            for portion in chain(_portions(coming, drawn), ({},)):
                parts = {} if astray else self._by_pool(portion, deadline)
                for pool, part in parts.items():
                    if pool not in wires:
                        wires[pool] = lent.enter_context(pool.borrow(deadline))
                    request = [buffer for one in part.values() for buffer in one.request]
                    wires[pool].send(request, deadline, commands=len(part))
                for pool, part in under_way.items():
                    for n, one in part.items():
                        answer = self._heard(one, wires[pool], pool)
                        if answer is None:
                            astray = True
                            continue
                        del drawn[n]
                        yield n, answer
                        deadline.renew()
                if astray and not parts:
                    return
                under_way = parts

    def _by_pool(
        self, exchanges: Mapping[int, Exchange[T]], deadline: Deadline
    ) -> dict[RedisPool, dict[int, Exchange[T]]]:
        found: dict[RedisPool, dict[int, Exchange[T]]] = {}
        with in_our_words(self):
            for n, one in exchanges.items():
                found.setdefault(self._route.place(one.key, deadline).pool, {})[n] = one
        return found

    def _heard(self, exchange: Exchange[T], wire: Wire, pool: RedisPool) -> T | Exception | None:
        """None for what another server is to be asked for."""
        try:
            return exchange.hear(wire)
        except ReplyError as error:
            if fault_of(error).elsewhere or self._redirected(error, pool) is not None:
                return None
            return spill_error(pool.address, error)
        except BlockVanished as error:
            return error

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
        """Replies of small commands of one key (KEY_PLACES) in their order; an error reply stands for
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
            places = {n: place or self._place(_key_of(commands[n]), deadline) for n, place in left.items()}
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


def _key_of(words: Words) -> bytes:
    return words[KEY_PLACES.get(words[0], 1)]


def _portions(
    coming: Iterator[tuple[int, Exchange[T]]], drawn: dict[int, Exchange[T]]
) -> Iterator[dict[int, Exchange[T]]]:
    """What comes, in portions of PORTION_BYTES_MAX, or of one value that is larger; also put into `drawn`."""
    portion: dict[int, Exchange[T]] = {}
    portion_bytes = 0
    for n, one in coming:
        drawn[n] = one
        over = portion_bytes + one.value_bytes > PORTION_BYTES_MAX or len(portion) == PORTION_COMMANDS_MAX
        if portion and over:
            yield portion
            portion, portion_bytes = {}, 0
        portion[n] = one
        portion_bytes += one.value_bytes
    yield portion


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
