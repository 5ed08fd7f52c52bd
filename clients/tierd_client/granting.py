"""Slots that are reserved for blocks, and what ends that: Commit, or Abort."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from tierd_client.errors import BrokenPeer, TierdClientError
from tierd_client.holding import Batch, giving_back
from tierd_client.routine import Work
from tierd_client.session import Session
from tierd_client.v1 import blocks_pb2

COMMITTED = 1


def nothing() -> None:
    """There is nothing to do meanwhile."""


async def commit(
    session: Session, batch: Batch, generations: Mapping[int, int], checksums: Sequence[int], tier: Any,
    meanwhile: Callable[[], None] = nothing,
) -> list[int]:
    """Publishes blocks, if any; the places of those that were revoked meanwhile. `generations`: of their slots, by
    place in the batch; `checksums` parallel to them. `meanwhile` is done while the daemon answers, where that can
    be."""
    if not generations:
        meanwhile()
        return []
    request = blocks_pb2.CommitRequest(
        session=session.id, ids=_ids(batch, generations), generations=generations.values(), checksums=checksums,
        tier=tier, sequence=batch.sequence)
    begun = await session.begin("Commit", request)
    try:
        meanwhile()
    finally:
        reply = await (session.call("Commit", request) if begun is None else Work(begun.answer))
    if len(reply.outcomes) != len(generations):
        raise BrokenPeer("Commit: the reply is not parallel to the ids")
    return [place for place, outcome in zip(generations, reply.outcomes, strict=True) if outcome != COMMITTED]


async def abort(session: Session, batch: Batch, generations: Mapping[int, int], tier: Any) -> None:
    """Gives back what is not committed, if the daemon can hear it; else it ends with the session."""
    if generations:
        with suppress(TierdClientError):
            await giving_back(session, "Abort", blocks_pb2.AbortRequest(
                session=session.id, ids=_ids(batch, generations), generations=generations.values(), tier=tier))


def _ids(batch: Batch, places: Mapping[int, int]) -> bytes:
    whole: bytes = batch.blocks.ids
    return whole if len(places) == len(batch) else b"".join(map(batch.id, places))
