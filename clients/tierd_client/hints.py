"""What a worker says of the future of its blocks: pins, touches, prefetches; routines of a namespace."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import TYPE_CHECKING, Any

from tierd_client.deadline import Deadline
from tierd_client.errors import InvalidArgument, NotFound
from tierd_client.identity import Identities, batches
from tierd_client.outcomes import NextUse, PinOutcome, PrefetchOutcome, Tier, outcomes_of, said, tier_number
from tierd_client.routine import Routine, awaiting, blocking
from tierd_client.session import Session
from tierd_client.v1 import blocks_pb2

if TYPE_CHECKING:
    from tierd_client.namespace import NamespaceRoutines

Hits = tuple[int, int]
"""Blocks that were read out of hbm, and out of host."""
NO_HITS = (0, 0)

Make = Callable[[Callable[[Session], Routine[int]]], Routine[int]]
"""`make` or `make_unasked` of a connection."""


@dataclass(frozen=True, slots=True)
class PrefetchTicket:
    """A prefetch that was begun; it ends with the session that began it. `tickets`: one per batch of ids."""

    session: int
    tickets: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PrefetchProgress:
    """`outcomes` are parallel to the ids; `done`: none of them changes any more."""

    outcomes: list[PrefetchOutcome]
    done: bool


async def pin(ns: NamespaceRoutines, ids: Any, ttl_s: float = 0.0) -> list[PinOutcome]:
    """Protects blocks: their last copy is not dropped for `ttl_s` seconds; 0 is the daemon's default.

    Pinned blocks may be demoted. A pin outlives this client; of two of one block the later end counts. Raises
    LimitReached when pins would keep more than their share (`pin_share`), and pins nothing of the batch then.
    """
    identities, ttl_ms = ns.identities(ids), milliseconds(ttl_s, "ttl_s")

    async def ask(session: Session) -> list[PinOutcome]:
        outcomes: list[PinOutcome] = []
        for _, part in batches(identities, session.info.max_ids):
            request = blocks_pb2.PinRequest(blocks=await ns.block_ids(session, part), ttl_ms=ttl_ms)
            outcomes += outcomes_of(PinOutcome, (await session.call("Pin", request)).outcomes)
        return outcomes

    return await ns.make(ask)


async def unpin(ns: NamespaceRoutines, ids: Any) -> int:
    """Ends the pins of blocks, whoever set them; how many there were."""
    identities = ns.identities(ids)

    async def ask(session: Session) -> int:
        ended = 0
        for _, part in batches(identities, session.info.max_ids):
            request = blocks_pb2.UnpinRequest(blocks=await ns.block_ids(session, part))
            ended += (await session.call("Unpin", request)).unpinned_blocks
        return ended

    return await ns.make(ask)


async def touch(
    ns: NamespaceRoutines, ids: Any, counts: Sequence[int] | None = None, sequence: Any = None,
) -> int:
    """Tells of accesses that the engine's own cache served; how many records, also of blocks that are gone, they
    reached.

    `counts`: by how many requests each block was used, 1 to 64; once each by default. In a sequence each block
    counts once.
    """
    identities, name = ns.identities(ids), ns.sequence_name(ns.identities(ids), sequence)
    if counts is not None and len(counts) != len(identities):
        raise InvalidArgument(f"counts: {len(counts)} for {len(identities)} ids")
    return await report(ns, identities, counts, name, NO_HITS, ns.make)


async def report(
    ns: NamespaceRoutines, identities: Identities, counts: Sequence[int] | None, name: str, hits: Hits, make: Make,
) -> int:
    """As `touch`; and of how many blocks the client has read without a call, for the daemon's sums. `make`: how
    the call is made."""

    async def ask(session: Session) -> int:
        reached = 0
        for start, part in batches(identities, session.info.max_ids):
            request = blocks_pb2.TouchRequest(
                session=session.id, blocks=await ns.block_ids(session, part), sequence=name,
                counts=None if counts is None else counts[start : start + len(part)],
                read_hbm_blocks=0 if start else hits[0], read_host_blocks=0 if start else hits[1])
            reply = await session.call("Touch", request)
            reached += reply.touched_blocks + reply.touched_ghosts
        return reached

    return await make(ask)


async def prefetch(
    ns: NamespaceRoutines, ids: Any, to: Tier | str = "host", within_s: float = 30.0,
) -> PrefetchTicket:
    """Begins to bring blocks up to a tier, for a request that waits in a queue, and returns at once.

    After `within_s` seconds nothing more of it is begun. Not an access. Raises LimitReached when too many
    prefetches of this client are under way.
    """
    identities, within_ms = ns.identities(ids), milliseconds(within_s, "within_s")

    async def ask(session: Session) -> PrefetchTicket:
        tickets = []
        for _, part in batches(identities, session.info.max_ids):
            blocks = await ns.block_ids(session, part)
            request = blocks_pb2.PrefetchRequest(
                session=session.id, blocks=blocks, to=tier_number(to), within_ms=within_ms)
            tickets.append((await session.call("Prefetch", request)).ticket)
        return PrefetchTicket(session.id, tuple(tickets))

    return await ns.make(ask)


async def prefetch_status(
    ns: NamespaceRoutines, ticket: PrefetchTicket, timeout_s: float = 0.0,
) -> PrefetchProgress:
    """How far a prefetch is; waits up to `timeout_s` for it to be done. NotFound when its session is over."""
    wait = Deadline.of(timeout_s)

    async def ask(session: Session) -> PrefetchProgress:
        _same_session(session, ticket)
        replies = []
        for number in ticket.tickets:
            request = blocks_pb2.PrefetchStatusRequest(
                session=session.id, ticket=number, timeout_ms=wait.left_ms())
            replies.append(await session.call("PrefetchStatus", request, wait.left_s()))
        return _progress(replies)

    return await ns.make(ask, timeout_s)


async def cancel_prefetch(ns: NamespaceRoutines, ticket: PrefetchTicket) -> PrefetchProgress:
    """Begins nothing more of a prefetch, and forgets it. What has come up stays."""

    async def ask(session: Session) -> PrefetchProgress:
        _same_session(session, ticket)
        replies = []
        for number in ticket.tickets:
            request = blocks_pb2.CancelPrefetchRequest(session=session.id, ticket=number)
            replies.append(await session.call("CancelPrefetch", request))
        return _progress(replies)

    return await ns.make(ask)


def _same_session(session: Session, ticket: PrefetchTicket) -> None:
    if session.id != ticket.session:
        raise NotFound("ticket: the session that began the prefetch is over, and the prefetch with it")


def _progress(replies: list[Any]) -> PrefetchProgress:
    outcomes = [outcome for reply in replies for outcome in outcomes_of(PrefetchOutcome, reply.outcomes)]
    return PrefetchProgress(outcomes, all(reply.done for reply in replies))


def milliseconds(seconds: float, name: str) -> int:
    """As the wire has it. InvalidArgument for what it cannot hold."""
    if not isinstance(seconds, Real) or not 0 <= float(seconds) < 2**32 / 1000:
        raise InvalidArgument(f"{name}: {seconds!r} is no number of seconds, negative, or more than can be said")
    return round(seconds * 1000)


@dataclass(frozen=True, slots=True)
class Closing:
    """What is known of the next use of a sequence's blocks when it closes."""

    next_use: NextUse | str | None = None
    stop_reason: str = ""
    expected_s: float = 0.0

    def request(self, session: int, name: str) -> Any:
        return blocks_pb2.CloseSequenceRequest(
            session=session, sequence=name, next_use=said(NextUse, self.next_use, "next_use"),
            stop_reason=self.stop_reason, expected_ms=milliseconds(self.expected_s, "expected_s"))


class BlockingHints:
    """Of Namespace."""

    pin = blocking(pin)
    unpin = blocking(unpin)
    touch = blocking(touch)
    prefetch = blocking(prefetch)
    prefetch_status = blocking(prefetch_status)
    cancel_prefetch = blocking(cancel_prefetch)


class AwaitingHints:
    """Of AsyncNamespace."""

    pin = awaiting(pin)
    unpin = awaiting(unpin)
    touch = awaiting(touch)
    prefetch = awaiting(prefetch)
    prefetch_status = awaiting(prefetch_status)
    cancel_prefetch = awaiting(cancel_prefetch)
