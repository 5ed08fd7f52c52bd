"""Live traffic as requests, for a trace that `tierd sim` replays and for shadow mode: which blocks each one named.

The event loop's thread notes what commands name and nothing else; once a second a thread of its own joins the notes
of one request, and writes them. What is noted between two rounds is bounded, and what is over the bound is left out
and counted. A log that cannot be written ends the recording, never the daemon.

A sequence is a request, from its opening to its end. Outside sequences a call that asks for blocks begins one, and
a call that stores blocks goes on with the session's last one when it names blocks of it, or follows them in the
chain. A request is written when it has ended. What a client in shadow mode reports is joined in the same way.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

import numpy as np
import structlog

from tierd.core import messages as m
from tierd_client.format import U64Array, words_of

log = structlog.get_logger(__name__)

ROUND_S = 1.0
MOST_WAITING_IDS = 1 << 18
"""Noted from one round to the next: a quarter of a million blocks a second is more than an engine computes."""
MOST_OPEN = 4_096
MOST_OPEN_IDS = 1 << 20
"""Of requests that may still grow; the oldest are written as they are."""
GROWS_S = 10.0
"""After so long without a call a request outside a sequence is over."""


_NO_WORDS: U64Array = np.empty(0, np.uint64)


@dataclass(frozen=True, slots=True)
class Shadowed:
    """What is known of a request whose blocks are stored nowhere. `asked`: blocks at its start that it asked for;
    others came new. `served`: blocks at its start that the engine had in a cache of its own. `block_bytes`: of one
    block. `prefill_tokens_per_s`: of the engine, 0 where it is not known."""

    namespace: int
    block_bytes: int
    asked: int
    served: int
    prefill_tokens_per_s: float


@dataclass(frozen=True, slots=True)
class Noted:
    """What one command named. `words`: the first 8 bytes of each identity; `before`: of the one before the first, 0
    for none. `asks`: it begins a request, outside a sequence. `ends`: with it the request is over; without blocks
    its sequence, or, without a name, its session."""

    at_s: float
    session: int
    sequence: str
    words: U64Array
    before: int
    block_tokens: int
    asks: bool
    ends: bool = False
    shadowed: Shadowed | None = None

    @property
    def key(self) -> tuple[int, str, int]:
        """Of the request that it goes on with: session, sequence, and the namespace of blocks that are not
        stored."""
        return self.session, self.sequence, self.shadowed.namespace if self.shadowed else 0


@dataclass(slots=True)
class Request:
    """`words`: of its blocks, in the order in which they were first named; the last `replies` were not asked
    for."""

    at_s: float
    last_s: float
    block_tokens: int
    words: dict[int, None] = field(default_factory=dict)
    replies: int = 0
    served: int = 0
    shadowed: Shadowed | None = None

    def follows(self, noted: Noted) -> bool:
        """Whether a command's blocks are some of these, or come behind them."""
        return len(noted.words) > 0 and (int(noted.words[0]) in self.words or noted.before in self.words)

    def add(self, noted: Noted) -> None:
        words = noted.words.tolist()
        asked = len(words) if noted.shadowed is None else noted.shadowed.asked
        self.served += noted.shadowed.served if noted.shadowed else 0
        self.last_s, before = noted.at_s, len(self.words)
        self.words.update(dict.fromkeys(words[:asked]))
        if len(self.words) > before:
            self.replies, before = 0, len(self.words)
        self.words.update(dict.fromkeys(words[asked:]))
        self.replies += len(self.words) - before


def noted_of(command: m.Command, at_s: float) -> Noted | None:
    """What a command says of a request; None for the repetition of an earlier one, and for all other commands."""
    match command:
        case m.OpenSequence(session, name, blocks):
            return _named(at_s, session, name, blocks, asks=True)
        case m.CloseSequence(session, name):
            return Noted(at_s, session, name, _NO_WORDS, 0, 0, asks=False, ends=True)
        case m.EndSession(session):
            return Noted(at_s, session, "", _NO_WORDS, 0, 0, asks=False, ends=True)
        case m.Acquire(session, blocks, sequence, lease, retry) if not lease and not retry:
            return _named(at_s, session, sequence, blocks, asks=True)
        case m.Touch(session, blocks, _, sequence):
            return _named(at_s, session, sequence, blocks, asks=True)
        case m.Reserve(session=session, blocks=blocks, sequence=sequence, retry=False):
            return _named(at_s, session, sequence, blocks, asks=False)
        case m.Store(session=session, blocks=blocks, sequence=sequence):
            return _named(at_s, session, sequence, blocks, asks=False)
    return None


def _named(at_s: float, session: int, sequence: str, blocks: m.Ids, *, asks: bool) -> Noted:
    words = words_of(blocks.ids)[:, 0].copy()
    return Noted(at_s, session, sequence, words, _word_before(blocks), blocks.rule.block_tokens, asks)


def _word_before(blocks: m.Ids) -> int:
    """The first 8 bytes of the identity before the first of these, 0 for none."""
    before = blocks.parent or b""
    if blocks.some is not None and len(blocks):
        before = blocks.some[1][0].tobytes()
    return int.from_bytes(before[:8], "little")


class Joining:
    """Notes to requests. Belongs to one thread."""

    def __init__(self) -> None:
        self._open: dict[tuple[int, str, int], Request] = {}

    def take(self, notes: Sequence[Noted], now_s: float) -> list[Request]:
        """The requests that are over with these notes, in the order in which they ended."""
        done: list[Request] = []
        for noted in notes:
            if len(noted.words):
                done += self._go_on(noted)
            if noted.ends:
                done += self._end(noted)
        return done + self._over(now_s)

    def _go_on(self, noted: Noted) -> list[Request]:
        """Adds to the request that a command belongs to, or begins one: then that before it is over."""
        key, done = noted.key, list[Request]()
        request = self._open.get(key)
        if request and not noted.sequence and (noted.asks or not request.follows(noted)):
            done.append(self._open.pop(key))
            request = None
        if request is None:
            request = Request(noted.at_s, noted.at_s, noted.block_tokens, shadowed=noted.shadowed)
            self._open[key] = request
        request.add(noted)
        return done

    def _end(self, noted: Noted) -> list[Request]:
        """A request is over, or a session with all that it has."""
        if noted.sequence or len(noted.words):
            ended = self._open.pop(noted.key, None)
            return [ended] if ended else []
        return [self._open.pop(key) for key in list(self._open) if key[0] == noted.session]

    @property
    def is_open(self) -> bool:
        """Whether a request may still grow."""
        return bool(self._open)

    def rest(self) -> list[Request]:
        """Those that are still open, as they are."""
        rest, self._open = list(self._open.values()), {}
        return rest

    def _over(self, now_s: float) -> list[Request]:
        """Requests outside sequences that nobody goes on with, and the oldest of too many."""
        old = [key for key, one in self._open.items() if not key[1] and now_s - one.last_s > GROWS_S]
        over = [self._open.pop(key) for key in old]
        ids = sum(len(one.words) for one in self._open.values())
        while len(self._open) > MOST_OPEN or ids > MOST_OPEN_IDS:
            oldest = self._open.pop(next(iter(self._open)))
            ids -= len(oldest.words)
            over.append(oldest)
        return over


class Recorder:
    """Belongs to the event loop's thread, but for what it hands to its own."""

    def __init__(
        self, write: Callable[[Sequence[Request]], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`write`: called on the recorder's thread; OSError ends the recording."""
        self.left_out_total = 0
        """Commands over the bound."""
        self.failed = False
        self._write, self._clock = write, clock
        self._notes: list[Noted] = []
        self._waiting_ids = self._left_out_told = 0
        self._joining = Joining()
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="tierd-record")

    def note(self, command: m.Command) -> None:
        """Of a command that the engine has carried out."""
        if self.failed or type(command) not in _RECORDED:
            return
        noted = noted_of(command, self._clock())
        if noted is not None:
            self._keep(noted)

    def note_shadowed(
        self, session: int, blocks: m.Ids, shadowed: Shadowed, *, begins: bool, ends: bool
    ) -> None:
        """Of a request, or a part of one, whose blocks are stored nowhere."""
        noted = _named(self._clock(), session, "", blocks, asks=begins)
        self._keep(replace(noted, ends=ends, shadowed=shadowed))

    async def run(self) -> None:
        """Works until cancelled."""
        while True:
            await asyncio.sleep(ROUND_S)
            await self._round(last=False)

    async def stop(self, timeout_s: float) -> None:
        """Writes what is left, as far as the time goes."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._round(last=True)
        except TimeoutError:
            log.warning("trace_not_written", timeout_s=timeout_s)
        finally:
            self._pool.shutdown(wait=False, cancel_futures=True)

    def _keep(self, noted: Noted) -> None:
        if self._waiting_ids + len(noted.words) > MOST_WAITING_IDS:
            self.left_out_total += 1
            return
        self._waiting_ids += len(noted.words)
        self._notes.append(noted)

    async def _round(self, *, last: bool) -> None:
        notes, self._notes, self._waiting_ids = self._notes, [], 0
        left_out, self._left_out_told = self.left_out_total - self._left_out_told, self.left_out_total
        if left_out:
            log.warning("trace_has_gaps", commands=left_out, reason="more than can be recorded in a second")
        if not self.failed and (notes or last or self._joining.is_open):
            await asyncio.get_running_loop().run_in_executor(self._pool, self._carry_out, notes, last)

    def _carry_out(self, notes: Sequence[Noted], last: bool) -> None:
        requests = self._joining.take(notes, self._clock()) + (self._joining.rest() if last else [])
        try:
            self._write(sorted(requests, key=lambda one: one.at_s))
        except OSError as error:
            self.failed = True
            log.warning("trace_ended", error=str(error))


_RECORDED = {m.OpenSequence, m.CloseSequence, m.EndSession, m.Acquire, m.Touch, m.Reserve, m.Store}
