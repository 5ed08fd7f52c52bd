"""Shadow mode: requests are reported, and nothing is stored; routines of a namespace. And what the daemon says of
it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tierd_client.arguments import number, whole
from tierd_client.identity import batches
from tierd_client.layout import BLOCK_BYTES_MAX
from tierd_client.routine import awaiting, blocking
from tierd_client.session import Session
from tierd_client.v1 import blocks_pb2

if TYPE_CHECKING:
    from tierd_client.namespace import NamespaceRoutines

PREFILL_TOKENS_PER_S_MAX = 1e9


@dataclass(frozen=True, slots=True)
class ShadowEstimate:
    """A number of blocks. With a sample the true one is within `error` in 19 of 20 cases, without one it is 0."""

    blocks: int
    error: int


@dataclass(frozen=True, slots=True)
class ShadowSize:
    """What host memory of one size would have done. `prefix_hits`: of the leading run of each request. `saved`: of
    that run, blocks that the engine had not in a cache of its own. `sampled_share`: of all identities, 1 for
    all."""

    capacity_bytes: int
    capacity_blocks: int
    held_blocks: int
    sampled_share: float
    block_hits: ShadowEstimate
    prefix_hits: ShadowEstimate
    saved: ShadowEstimate


@dataclass(frozen=True, slots=True)
class ShadowNamespace:
    """A namespace in shadow mode, since it was first reported. `prefill_tokens_per_s`: 0 where no engine said
    it."""

    namespace: int
    name: str
    model: str
    policy: str
    block_tokens: int
    block_bytes: int
    requests: int
    asked_blocks: int
    served_blocks: int
    prefill_tokens_per_s: float
    observed_s: float
    sizes: tuple[ShadowSize, ...]


@dataclass(frozen=True, slots=True)
class ShadowStats:
    """`left_out_calls_total`: reports that came faster than the daemon may play them, and are in no figure."""

    namespaces: tuple[ShadowNamespace, ...]
    left_out_calls_total: int


async def shadow(
    ns: NamespaceRoutines, ids: Any, asked: int | None = None, served: int = 0, *, block_bytes: int = 0,
    prefill_tokens_per_s: float = 0.0, continued: bool = False, ended: bool = True,
) -> None:
    """Reports a request of which nothing is stored, so that `tierd stats --shadow` can say what would have been
    saved.

    `ids`: of a chain, first those that were asked for, then those that came new. `asked`: how many were asked for,
    all by default. `served`: of these, from the first on, those that the engine had in a cache of its own.
    `block_bytes`: what a block takes in all ranks and groups; 0 for what the layout says.
    `prefill_tokens_per_s`: as the engine has measured, 0 where it has not. `continued`: more of the last request
    that was not `ended`, of which it names blocks, or which it follows.
    """
    identities = ns.identities(ids)
    asked = whole(len(identities) if asked is None else asked, "asked", 0, len(identities))
    whole(served, "served", 0, asked)
    whole(block_bytes, "block_bytes", 0, BLOCK_BYTES_MAX)
    rate = number(prefill_tokens_per_s, "prefill_tokens_per_s", 0.0, PREFILL_TOKENS_PER_S_MAX)

    async def tell(session: Session) -> None:
        for start, part in batches(identities, session.info.max_ids):
            end = start + len(part)
            await session.call("Shadow", blocks_pb2.ShadowRequest(
                session=session.id, blocks=await ns.block_ids(session, part),
                asked_blocks=max(0, min(asked, end) - start), served_blocks=max(0, min(served, end) - start),
                block_bytes=block_bytes, prefill_tokens_per_s=rate, continued=continued or start > 0,
                ended=ended and end == len(identities)))

    await ns.make(tell)


class BlockingShadow:
    """Of Namespace."""

    shadow = blocking(shadow)


class AwaitingShadow:
    """Of AsyncNamespace."""

    shadow = awaiting(shadow)
