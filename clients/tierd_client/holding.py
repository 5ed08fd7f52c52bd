"""Calls by which the daemon comes to hold something for this session, or no longer does.

The answer to such a call may be lost, by a deadline or because its caller turns away (a task that is cancelled).
What is held must not depend on it: a Reserve or Acquire is given up by its number, what gives back runs on without
its caller, and where neither can be told to the daemon the session is given up, with all that it holds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from tierd_client.deadline import Deadline
from tierd_client.errors import BrokenPeer, NotFound, TierdClientError, TimedOut, Unavailable
from tierd_client.session import Session
from tierd_client.v1 import blocks_pb2

GIVE_UP_S = 0.25
"""How long giving a call up may take: whoever turned away does not wait for long."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Identities of one call, ready for the wire (a BlockIds message), and bytes of one block. `budgeted`: their
    sequence has a budget, so that its blocks in hbm get slots by Reserve."""

    blocks: Any
    block_bytes: int
    sequence: str = ""
    priority: Any = 0
    budgeted: bool = False

    def __len__(self) -> int:
        return len(self.blocks.ids) // 32

    def id(self, index: int) -> bytes:
        identity: bytes = self.blocks.ids[32 * index : 32 * index + 32]
        return identity


async def acquire(session: Session, batch: Batch, wait: Deadline, device: bool = False) -> Any:
    """One Acquire; the reply is checked to be parallel to the ids. `device`: also of copies on a GPU."""
    request = blocks_pb2.AcquireRequest(
        session=session.id, blocks=batch.blocks, sequence=batch.sequence, timeout_ms=wait.left_ms(),
        device_memory=device)
    reply = await taking(session, "Acquire", request, wait.left_s())
    if not len(reply.outcomes) == len(reply.addresses) == len(reply.checksums) == len(batch):
        raise BrokenPeer("Acquire: the reply is not parallel to the ids")
    return reply


async def release(session: Session, leases: Sequence[int]) -> None:
    """Ends leases. What the daemon no longer knows, or cannot hear, ends with the session."""
    with suppress(NotFound, Unavailable, TimedOut):
        await giving_back(session, "Release", blocks_pb2.ReleaseRequest(session=session.id, leases=leases))


async def taking(session: Session, method: str, request: Any, wait_s: float) -> Any:
    """A Reserve or Acquire, which gets a number."""
    request.call = next(session.numbers)
    try:
        return await session.call(method, request, wait_s)
    except TimedOut:
        session.give_up()
        raise
    except TierdClientError:
        raise
    except BaseException:
        await _give_up(session, request.call)
        raise


async def _give_up(session: Session, call: int) -> None:
    try:
        await session.call("GiveUp", blocks_pb2.GiveUpRequest(session=session.id, call=call), within_s=GIVE_UP_S)
    except BaseException as error:
        session.give_up()
        if not isinstance(error, TierdClientError):
            raise


async def opening(session: Session, method: str, request: Any) -> None:
    """A call that opens what has a name."""
    try:
        await session.call(method, request)
    except BaseException as error:
        if isinstance(error, TimedOut) or not isinstance(error, TierdClientError):
            session.give_up()
        raise


async def giving_back(session: Session, method: str, request: Any) -> Any:
    """An Abort, Release or close."""
    try:
        return await session.call(method, request, unheard=session.give_up)
    except BaseException as error:
        if isinstance(error, TimedOut) or not isinstance(error, TierdClientError | asyncio.CancelledError):
            session.give_up()
        raise
