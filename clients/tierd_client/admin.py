"""The control plane: occupancy, listings, explanations, policy, clearing, draining and verifying.

Every answer is a small frozen dataclass with the fields of proto/tierd/v1/admin.proto, whose comments are
the reference.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass, fields
from enum import IntEnum
from functools import partial
from typing import Any, TypedDict, TypeVar, Unpack

from tierd_client.arguments import message, text, whole
from tierd_client.connection import Connection
from tierd_client.deadline import Deadline
from tierd_client.errors import BrokenPeer, InvalidArgument
from tierd_client.format import IDENTITY_BYTES
from tierd_client.identity import Identities, Identity
from tierd_client.outcomes import Priority, Tier, Tiers, tier_number
from tierd_client.routine import Pages, Perform, Work, awaiting, awaiting_pages, blocking, blocking_pages
from tierd_client.shadow import ShadowEstimate, ShadowNamespace, ShadowSize, ShadowStats
from tierd_client.v1 import admin_pb2

Ids = Identities | Iterable[bytes]
"""Identities, or 32-byte identities one by one: the control plane hashes nothing."""

POLICY_BYTES_MAX = 1024

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class TierOccupancy:
    """One tier at one instant: free + used + reserved + quarantined = capacity, in bytes of slots. `stocked_bytes`,
    of slots that sessions hold ahead, is a part of `reserved_bytes`."""

    tier: Tier
    capacity_bytes: int
    free_bytes: int
    used_bytes: int
    reserved_bytes: int
    quarantined_bytes: int
    blocks: int
    evictable_blocks: int
    leased_blocks: int
    requested_bytes: int
    serving: bool
    state: str
    characteristic_age_steps: float
    hits_total: int
    stored_total: int
    evicted_total: int
    demoted_total: int
    promoted_total: int
    failed_moves_total: int
    lent_blocks: int
    found_blocks: int
    shed_total: dict[str, int]
    stocked_bytes: int
    footprints: dict[int, int]
    over_budget_total: int


@dataclass(frozen=True, slots=True)
class Occupancy:
    """All tiers at one instant. `identities` have a copy, `ghosts` only a record."""

    tiers: dict[Tier, TierOccupancy]
    identities: int
    ghosts: int
    sessions: int
    sequences: int
    leases: int
    step: int
    boot_id: bytes
    instance_id: bytes
    uptime_s: float
    misses_total: int
    moves_in_flight: int
    policy: str
    policy_epoch: int
    pinned_blocks: int
    pinned_bytes: int
    pinned_bytes_max: int
    prefetches: int
    budgeted_sequences: int
    budgeted_blocks: int
    read_ahead_used_total: int
    read_ahead_wasted_total: int


@dataclass(frozen=True, slots=True)
class CopyRecord:
    """A block's copy in one tier. `rank`: order of eviction there, higher goes sooner."""

    tier: Tier
    state: str
    address: int
    generation: int
    leases: int
    rank: float


@dataclass(frozen=True, slots=True)
class BlockRecord:
    """The record of one identity. `ghost`: no copy is left. `next_use`: soon (for `expected_s` more), human, closed
    or nothing; `pinned_s`: for so many seconds more, 0 when it is not pinned."""

    identity: Identity
    namespace: int
    namespace_name: str
    group: int
    position: int
    parent: bytes
    block_bytes: int
    checksum: int
    copies: tuple[CopyRecord, ...]
    touches: int
    last_step: int
    last_wall_s: float
    ema: float
    crf: float
    sequences: int
    ghost: bool
    priority: str
    next_use: str
    expected_s: float
    pinned_s: float

    @property
    def tiers(self) -> Tiers:
        """The tiers with a READY copy."""
        ready = [Tiers(1 << (copy.tier - 1)) for copy in self.copies if copy.state == "READY"]
        return Tiers(sum(ready))

    @property
    def rank(self) -> dict[Tier, float]:
        """The order of eviction in each tier that has a copy."""
        return {copy.tier: copy.rank for copy in self.copies}


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a block stands where it stands in the order of eviction of a tier; empty `rule`: it is not there."""

    identity: Identity
    rule: str
    terms: dict[str, float]
    rank: float
    protected_by: str
    destination: str


@dataclass(frozen=True, slots=True)
class Explained:
    """Explanations parallel to the ids asked for."""

    blocks: tuple[Explanation, ...]
    policy: str
    step: int


@dataclass(frozen=True, slots=True)
class Plan:
    """What would go, in order, if so many bytes were needed now."""

    victims: tuple[Explanation, ...]
    enough: bool
    free_bytes: int
    victim_bytes: int
    victim_blocks: int


@dataclass(frozen=True, slots=True)
class PolicyInForce:
    policy: str
    policy_epoch: int


@dataclass(frozen=True, slots=True)
class TierShare:
    """What one tier holds of a namespace or tenant: READY blocks, the bytes of their slots, and of those being
    written."""

    tier: Tier
    blocks: int
    used_bytes: int
    reserved_bytes: int


@dataclass(frozen=True, slots=True)
class NamespaceRecord:
    """A namespace, or a tenant with all its namespaces (`namespace` 0), and its share of each tier that is on."""

    namespace: int
    names: tuple[str, ...]
    fingerprint: bytes
    model: str
    revision: str
    weights_epoch: int
    engine: str
    dtype: str
    adapter: str
    tenant: str
    domain: str
    tp_rank: int
    tp_size: int
    block_bytes: tuple[int, ...]
    tiers: dict[Tier, TierShare]


@dataclass(frozen=True, slots=True)
class SequenceRecord:
    """A running request. `blocks`: of its first chain. Without a budget `budget_blocks` and what follows is 0."""

    session: int
    sequence: str
    namespace: int
    group: int
    blocks: int
    kept_blocks: int
    leaving_blocks: int
    given_up_blocks: int
    spare_slots: int
    budget_blocks: int
    recent_blocks: int
    sink_blocks: int
    lossy: bool
    policy: str


@dataclass(frozen=True, slots=True)
class TierCleared:
    """Copies of one tier that went, and the bytes of their slots."""

    tier: Tier
    blocks: int
    bytes: int


class BlockFilter(TypedDict, total=False):
    """Which blocks; what is left out takes any. `prefix`: first bytes of the identity. `revision`, `tenant`:
    "" is a value, none. `tenant` as `Layout.tenant` and listings show it. `older_than_s`: last accessed at
    least so long ago."""

    namespace: int
    tier: Tier | str | None
    prefix: bytes
    in_use: bool | None
    model: str | None
    revision: str | None
    weights_epoch: int | None
    weights_epoch_below: int | None
    tenant: str | None
    group: int | None
    older_than_s: float
    pinned: bool | None


@dataclass(frozen=True, slots=True)
class Cleared:
    """Copies removed per tier, and blocks left because they were in use, the first 1,000 by identity.

    `left_blocks`: more deletes at once than may be; clear again. `deletes_waiting`: stored values that are still
    to be deleted, because the spill tier is down or the time was over."""

    hbm_blocks: int
    host_blocks: int
    spill_blocks: int
    ghosts: int
    in_use_blocks: int
    tiers: dict[Tier, TierCleared]
    in_use_ids: tuple[bytes, ...]
    left_blocks: int
    deletes_waiting: int


class DrainState(IntEnum):
    """Where a drain stands; all but RUNNING are its end."""

    RUNNING = 1
    DONE = 2
    DEADLINE = 3
    FULL = 4
    DOWN = 5


@dataclass(frozen=True, slots=True)
class DrainProgress:
    """How far a drain is: `held_blocks` lay in the spill tier before, `total` was to be stored."""

    state: DrainState
    held_blocks: int
    total_blocks: int
    total_bytes: int
    stored_blocks: int
    stored_bytes: int
    gone_blocks: int
    failed_blocks: int


@dataclass(frozen=True, slots=True)
class Switched:
    """The namespaces that a name stands for now and stood for before: the same when nothing had to be done."""

    namespace: int
    namespace_before: int
    weights_epoch_before: int


@dataclass(frozen=True, slots=True)
class Verified:
    """`damaged`: identities whose bytes do not have their checksum; `skipped_blocks` could not be read."""

    verified_blocks: int
    verified_bytes: int
    damaged: tuple[bytes, ...]
    skipped_blocks: int


class AdminRoutines:
    """What the control plane can do, as routines (routine.py)."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def occupancy(self) -> Occupancy:
        """Bytes and blocks per tier at one instant."""
        reply = await self._call("Occupancy", admin_pb2.OccupancyRequest())
        tiers = [
            _record(
                TierOccupancy, one, tier=_tier(one.tier), shed_total=dict(one.shed_total),
                footprints=dict(one.footprints),
            )
            for one in reply.tiers
        ]
        return _record(Occupancy, reply, tiers={one.tier: one for one in tiers})

    def namespaces(self, *, by_tenant: bool = False, page_size: int = 1000) -> Pages[NamespaceRecord]:
        """Each namespace and its share of the tiers, by number; or each tenant, the largest first."""

        async def page(offset: int | None) -> tuple[list[NamespaceRecord], int]:
            reply = await self._call("ListNamespaces", message(
                admin_pb2.ListNamespacesRequest, page_size=page_size, offset=offset or 0, by_tenant=by_tenant))
            return [_namespace(one) for one in reply.namespaces], reply.next_offset

        return page

    def sequences(self, *, page_size: int = 1000) -> Pages[SequenceRecord]:
        """Each open sequence, by session and name, and what of its budget is used."""

        async def page(offset: int | None) -> tuple[list[SequenceRecord], int]:
            reply = await self._call("ListSequences", message(
                admin_pb2.ListSequencesRequest, page_size=page_size, offset=offset or 0))
            return [_sequence(one) for one in reply.sequences], reply.next_offset

        return page

    def list_blocks(
        self, *, by_rank: bool = False, page_size: int = 1000, **where: Unpack[BlockFilter],
    ) -> Pages[BlockRecord]:
        """All blocks that the filter takes, page by page; `by_rank`: next to go first, needs `tier`."""
        taken = _filter(**where)
        sort = admin_pb2.BLOCK_SORT_RANK if by_rank else admin_pb2.BLOCK_SORT_UNSPECIFIED

        async def page(token: bytes | None) -> tuple[list[BlockRecord], bytes]:
            reply = await self._call("ListBlocks", message(
                admin_pb2.ListBlocksRequest, filter=taken, page_size=page_size, page_token=token or b"", sort=sort))
            return [_block(one) for one in reply.blocks], reply.next_page_token

        return page

    async def describe(self, ids: Ids) -> list[BlockRecord | None]:
        """The record of each identity, None where nothing is known."""
        reply = await self._call("DescribeBlock", admin_pb2.DescribeBlockRequest(ids=_packed(ids)))
        return [_block(one) if one.identity else None for one in reply.blocks]

    async def explain(self, ids: Ids, tier: Tier | str = "host") -> Explained:
        """Why blocks stand where they stand in a tier's order of eviction: every term of their rank."""
        reply = await self._call("Explain", admin_pb2.ExplainRequest(ids=_packed(ids), tier=tier_number(tier)))
        return _record(Explained, reply, blocks=tuple(map(_explanation, reply.blocks)))

    async def plan(self, needed_bytes: int, tier: Tier | str = "host", limit: int = 0) -> Plan:
        """Dry run: what would go and where to, if so many bytes were needed in a tier now."""
        whole(needed_bytes, "needed_bytes", 0, 2**63 - 1)
        request = message(admin_pb2.PlanRequest, tier=tier_number(tier), bytes=needed_bytes, limit=limit)
        reply = await self._call("Plan", request)
        return _record(Plan, reply, victims=tuple(map(_explanation, reply.victims)))

    async def config(self) -> dict[str, Any]:
        """The settings in force, secrets masked."""
        config: dict[str, Any] = json.loads((await self._call("GetConfig", admin_pb2.GetConfigRequest())).json)
        return config

    async def set_policy(self, policy: str) -> PolicyInForce:
        """Changes the policy of the running daemon, as on its command line; no statistics are lost."""
        request = admin_pb2.SetPolicyRequest(policy=text(policy, "policy", POLICY_BYTES_MAX))
        return _record(PolicyInForce, await self._call("SetPolicy", request))

    async def clear(self, *, dry_run: bool = False, ghosts: bool = False, **where: Unpack[BlockFilter]) -> Cleared:
        """Removes blocks by filter; `dry_run` only says how many. `ghosts`: forgets all records without a copy
        too, which have no namespace: only without a filter."""
        request = admin_pb2.ClearRequest(filter=_filter(**where), dry_run=dry_run, ghosts=ghosts)
        reply = await self._call("Clear", request)
        tiers = [_record(TierCleared, one, tier=_tier(one.tier)) for one in reply.tiers]
        return _record(
            Cleared, reply, tiers={one.tier: one for one in tiers},
            in_use_ids=tuple(reply.in_use_ids[i : i + 32] for i in range(0, len(reply.in_use_ids), 32)))

    async def switch_epoch(self, name: str, weights_epoch: int) -> Switched:
        """Binds a namespace's name to the same layout with other weights, in a time that does not depend on the
        blocks. Those of before are never served to whoever registers `layout.replace(weights_epoch=...)`, and
        are swept in the background. Idempotent; NotFound for a name that stands for nothing."""
        request = admin_pb2.SwitchEpochRequest(name=name, weights_epoch=weights_epoch)
        return _record(Switched, await self._call("SwitchEpoch", request))

    def drain(
        self, *, bytes_per_s: int = 0, timeout_s: float = 600.0, **where: Unpack[BlockFilter],
    ) -> Pages[DrainProgress]:
        """Stores in the spill tier what lies above it alone, at most `bytes_per_s` (0: no bound), and tells how far
        it is until it ends. Whoever stops listening ends it; what was stored stays stored."""
        wait = Deadline(timeout_s)
        request = admin_pb2.DrainRequest(
            filter=_filter(**where), bytes_per_s=bytes_per_s, timeout_s=max(1, math.ceil(wait.left_s())))

        async def page(under_way: Any) -> tuple[list[DrainProgress], Any]:
            if under_way is None:
                stream = (await self._connection.opened(wait)).stream("Drain", request, wait.left_s())
                under_way = stream, iter(stream)
            stream, parts = under_way
            part = await Work(partial(next, parts, None), stream.cancel)
            if part is None:
                return [], None
            progress = _record(DrainProgress, part, state=_drain_state(part.state))
            return [progress], under_way if progress.state is DrainState.RUNNING else None

        return page

    async def verify(
        self, ids: Ids = (), *, repair: bool = False, timeout_s: float = 60.0, **where: Unpack[BlockFilter],
    ) -> Verified:
        """Compares stored bytes with their checksums; `repair` drops damaged copies."""
        wait = Deadline.of(timeout_s)
        taken = _filter(**where)
        request = admin_pb2.VerifyRequest(
            ids=_packed(ids), filter=taken if taken.ByteSize() else None, repair=repair, timeout_ms=wait.left_ms())
        reply = await self._call("Verify", request, timeout_s)
        return _record(Verified, reply, damaged=tuple(reply.damaged))

    async def shadow_stats(self) -> ShadowStats:
        """What host memory of several sizes would have saved clients in shadow mode."""
        reply = await self._call("ShadowStats", admin_pb2.ShadowStatsRequest())
        return _record(ShadowStats, reply, namespaces=tuple(map(_shadow_namespace, reply.namespaces)))

    async def attach_spill(self, url: str, *, replace: bool = False, timeout_s: float = 10.0) -> int:
        """Uses the spill store of a URL from now on, `replace`: instead of the one that is attached. Returns the
        blocks of that one that were forgotten."""
        request = admin_pb2.AttachSpillRequest(url=url, replace=replace, timeout_ms=Deadline(timeout_s).left_ms())
        return int((await self._call("AttachSpill", request, timeout_s)).forgotten_blocks)

    async def detach_spill(self) -> int:
        """Uses no spill store from now on; returns the blocks that were forgotten."""
        return int((await self._call("DetachSpill", admin_pb2.DetachSpillRequest())).forgotten_blocks)

    async def _call(self, method: str, request: Any, wait_s: float = 0.0) -> Any:
        return await self._connection.call(method, request, wait_s)


class _Twin:
    def __init__(self, routines: AdminRoutines, perform: Perform) -> None:
        self._routines = routines
        self._perform = perform


class Admin(_Twin):
    """`client.admin`. What takes a filter takes the keywords of BlockFilter."""

    occupancy = blocking(AdminRoutines.occupancy)
    namespaces = blocking_pages(AdminRoutines.namespaces)
    sequences = blocking_pages(AdminRoutines.sequences)
    list_blocks = blocking_pages(AdminRoutines.list_blocks)
    describe = blocking(AdminRoutines.describe)
    explain = blocking(AdminRoutines.explain)
    plan = blocking(AdminRoutines.plan)
    config = blocking(AdminRoutines.config)
    set_policy = blocking(AdminRoutines.set_policy)
    clear = blocking(AdminRoutines.clear)
    switch_epoch = blocking(AdminRoutines.switch_epoch)
    drain = blocking_pages(AdminRoutines.drain)
    verify = blocking(AdminRoutines.verify)
    shadow_stats = blocking(AdminRoutines.shadow_stats)
    attach_spill = blocking(AdminRoutines.attach_spill)
    detach_spill = blocking(AdminRoutines.detach_spill)


class AsyncAdmin(_Twin):
    """`admin` of an AsyncClient. What takes a filter takes the keywords of BlockFilter."""

    occupancy = awaiting(AdminRoutines.occupancy)
    namespaces = awaiting_pages(AdminRoutines.namespaces)
    sequences = awaiting_pages(AdminRoutines.sequences)
    list_blocks = awaiting_pages(AdminRoutines.list_blocks)
    describe = awaiting(AdminRoutines.describe)
    explain = awaiting(AdminRoutines.explain)
    plan = awaiting(AdminRoutines.plan)
    config = awaiting(AdminRoutines.config)
    set_policy = awaiting(AdminRoutines.set_policy)
    clear = awaiting(AdminRoutines.clear)
    switch_epoch = awaiting(AdminRoutines.switch_epoch)
    drain = awaiting_pages(AdminRoutines.drain)
    verify = awaiting(AdminRoutines.verify)
    shadow_stats = awaiting(AdminRoutines.shadow_stats)
    attach_spill = awaiting(AdminRoutines.attach_spill)
    detach_spill = awaiting(AdminRoutines.detach_spill)


def _record(kind: type[T], message: Any, **given: Any) -> T:
    """A dataclass from the fields of the same names of a message, but for those given."""
    names = [field.name for field in fields(kind)]  # type: ignore[arg-type]
    return kind(**{name: given[name] if name in given else getattr(message, name) for name in names})


def _block(message: Any) -> BlockRecord:
    copies = tuple(_record(CopyRecord, copy, tier=_tier(copy.tier)) for copy in message.copies)
    priority = Priority(message.priority).name.lower() if message.priority else ""
    identity = Identity(message.identity)
    return _record(BlockRecord, message, identity=identity, copies=copies, priority=priority)


def _explanation(message: Any) -> Explanation:
    identity = Identity(message.identity)
    return _record(Explanation, message, identity=identity, terms={term.name: term.value for term in message.terms})


def _tier(value: int) -> Tier:
    try:
        return Tier(value)
    except ValueError as error:
        raise BrokenPeer(f"{value} is no tier") from error


def _drain_state(value: int) -> DrainState:
    try:
        return DrainState(value)
    except ValueError as error:
        raise BrokenPeer(f"{value} is no state of a drain") from error


def _namespace(message: Any) -> NamespaceRecord:
    tiers = [_record(TierShare, one, tier=_tier(one.tier)) for one in message.tiers]
    return _record(
        NamespaceRecord, message, names=tuple(message.names), block_bytes=tuple(message.block_bytes),
        tiers={one.tier: one for one in tiers})


def _sequence(message: Any) -> SequenceRecord:
    budget = message.budget
    return _record(
        SequenceRecord, message, budget_blocks=budget.blocks, recent_blocks=budget.recent_blocks,
        sink_blocks=budget.sink_blocks, lossy=budget.lossy, policy=budget.policy)


def _shadow_namespace(message: Any) -> ShadowNamespace:
    return _record(ShadowNamespace, message, sizes=tuple(map(_shadow_size, message.sizes)))


def _shadow_size(message: Any) -> ShadowSize:
    counts = ("block_hits", "prefix_hits", "saved")
    return _record(
        ShadowSize, message, **{name: _record(ShadowEstimate, getattr(message, name)) for name in counts})


def _filter(**where: Unpack[BlockFilter]) -> Any:
    wire: dict[str, Any] = {**where}
    wire["tier"] = tier_number(where.get("tier"))
    wire["identity_prefix"] = prefix = wire.pop("prefix", b"")
    if not isinstance(prefix, bytes):
        raise InvalidArgument(f"prefix: {prefix!r} is no bytes")
    return message(admin_pb2.BlockFilter, **wire)


def _packed(ids: Ids) -> bytes:
    if isinstance(ids, Identities):
        return ids.packed()
    each = list(ids)
    for index, identity in enumerate(each):
        if not isinstance(identity, bytes) or len(identity) != IDENTITY_BYTES:
            raise InvalidArgument(f"ids[{index}]: not an identity of {IDENTITY_BYTES} bytes")
    return b"".join(each)
