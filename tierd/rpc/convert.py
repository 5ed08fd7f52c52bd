"""Translation between the messages of the wire and the types of the core, in both directions.

Everything that a peer sends passes here first: a malformed field is InvalidInput naming it, so nothing
behind this module checks again.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import fields, replace
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError, Message
from numpy.typing import NDArray

from tierd.app.drain import Progress
from tierd.app.namespaces import LayoutFilter, Namespaces
from tierd.app.service import TierState
from tierd.app.shares import DOMAIN, NamespaceShare, TenantShare
from tierd.app.stocks import StoreOrder, StoreResult
from tierd.app.streams import CHUNK_BYTES_MAX, PutOrder
from tierd.core import messages as m
from tierd.core.errors import InvalidInput
from tierd_client.format import IDENTITY_BYTES, U8Array, U64Array, words_of
from tierd_client.framing import data_of, packed_field
from tierd_client.layout import TEXT_BYTES_MAX
from tierd_client.v1 import admin_pb2 as apb
from tierd_client.v1 import blocks_pb2 as pb

NAME_BYTES_MAX = 256
POLICY_BYTES_MAX = 1024
URL_BYTES_MAX = 4096
TIMEOUT_MS_MAX = 600_000
DRAIN_S_DEFAULT, DRAIN_S_MAX = 600, 86_400
TOKEN_BYTES = 16
STEPS_MAX = 1_000_000
TOUCHES_MAX = 64
"""Accesses to one block in one call: more at one moment say no more about it."""
PREFETCH_MS = 30_000
STOP_REASONS = {
    **dict.fromkeys(("tool_calls", "tool_use", "function_call"), m.NextUse.SOON),
    **dict.fromkeys(("stop", "end_turn", "stop_sequence"), m.NextUse.HUMAN),
}
"""Why generation ended, as inference servers say it."""
RETURNED_MAX = 65_536
"""Slots that one Store gives back."""
PAGE_DEFAULT, PAGE_MAX = 1_000, 10_000
PAGE_TOKEN_BYTES_MAX = 64
OLDER_THAN_S_MAX = 1e9
POSITION_MAX = 2**32 - 1
CHAINS_MAX = 1024
"""Chains of one LookupChains: each costs some microseconds, whatever its length."""
RECORD_IDS_MAX = 10_000
"""Ids of one Describe or Explain: so many records fit a message."""

ARENA_TIERS = (m.Tier.HBM, m.Tier.HOST)
LOWER_TIERS = (m.Tier.HOST, m.Tier.SPILL)


# --- fields of requests -------------------------------------------------------------------------------


def identities(data: bytes, field: str, most: int) -> U8Array:
    """Packed identities as an array of shape (n, 32), n from 1 to `most`."""
    if not data:
        raise InvalidInput(field, "empty: at least one identity is needed")
    if len(data) % IDENTITY_BYTES:
        raise InvalidInput(field, f"{len(data)} bytes, not a multiple of {IDENTITY_BYTES}")
    if len(data) > most * IDENTITY_BYTES:
        raise InvalidInput(field, f"{len(data) // IDENTITY_BYTES} identities, more than {most}")
    return np.frombuffer(data, np.uint8).reshape(-1, IDENTITY_BYTES)


def block_ids(blocks: pb.BlockIds, max_ids: int) -> m.Ids:
    """The field `blocks` of a request."""
    if not 1 <= blocks.namespace <= 65535:
        raise InvalidInput("blocks.namespace", f"{blocks.namespace} is no number of a namespace (1 to 65535)")
    ids = identities(blocks.ids, "blocks.ids", max_ids)
    if not words_of(ids)[:, 0].all() and not (named := ids.any(axis=1)).all():
        raise InvalidInput("blocks.ids", f"identity {int(np.argmin(named))} is all zeros, which stands for none")
    if len(blocks.parent) not in (0, IDENTITY_BYTES):
        raise InvalidInput("blocks.parent", f"{len(blocks.parent)} bytes, not {IDENTITY_BYTES} or none")
    if not blocks.chain and (blocks.parent or blocks.position):
        field = "blocks.parent" if blocks.parent else "blocks.position"
        raise InvalidInput(field, "means nothing for free-standing blocks (chain is false)")
    if blocks.position + len(ids) > POSITION_MAX:
        raise InvalidInput("blocks.position", f"{blocks.position} leaves no positions for {len(ids)} blocks")
    parent = blocks.parent or None
    return m.Ids(blocks.namespace, blocks.group, ids, blocks.chain, blocks.position, parent)


def chains(
    each: Sequence[pb.BlockIds], max_ids: int, field: str = "chains", least: int = 1
) -> tuple[m.Ids, ...]:
    """A field of `least` or more chains with at most `max_ids` identities in all."""
    if not least <= len(each) <= CHAINS_MAX:
        raise InvalidInput(field, f"{len(each)} chains, not {least} to {CHAINS_MAX}")
    found = tuple(block_ids(blocks, max_ids) for blocks in each)
    alone = [index for index, blocks in enumerate(found) if not blocks.chain]
    if alone:
        raise InvalidInput(field, f"number {alone[0]} is no chain but free-standing blocks (chain is false)")
    total = sum(map(len, found))
    if total > max_ids:
        raise InvalidInput(field, f"{total} identities in all, more than {max_ids}")
    return found


def session(number: int) -> int:
    if number == 0:
        raise InvalidInput("session", "0 is no session: open one first")
    return int(number)


def token(value: bytes) -> bytes:
    if len(value) != TOKEN_BYTES:
        raise InvalidInput("token", f"{len(value)} bytes, not {TOKEN_BYTES}")
    return bytes(value)


def text(value: str, field: str, *, needed: bool = False, most: int = NAME_BYTES_MAX) -> str:
    """A name of at most `most` bytes of UTF-8."""
    size = len(value.encode())
    if size > most:
        raise InvalidInput(field, f"{size} bytes, more than {most}")
    if needed and not value:
        raise InvalidInput(field, "empty: it must be named")
    return value


def timeout_s(timeout_ms: int) -> float:
    if timeout_ms > TIMEOUT_MS_MAX:
        raise InvalidInput("timeout_ms", f"{timeout_ms}, more than {TIMEOUT_MS_MAX}")
    return timeout_ms / 1000


def drain_timeout_s(value: int) -> float:
    """Seconds; 0 is the default."""
    if value > DRAIN_S_MAX:
        raise InvalidInput("timeout_s", f"{value}, more than {DRAIN_S_MAX}")
    return float(value or DRAIN_S_DEFAULT)


def optional_tier(value: int, field: str, allowed: Collection[m.Tier] = tuple(m.Tier)) -> m.Tier | None:
    """A tier, None when it is not specified."""
    if value == 0:
        return None
    if value not in tuple(m.Tier):
        raise InvalidInput(field, f"{value} is not a Tier")
    tier = m.Tier(value)
    if tier not in allowed:
        names = " or ".join(one.name for one in allowed)
        raise InvalidInput(field, f"{tier.name}: only {names} is possible here")
    return tier


def arena_tier(value: int, field: str) -> m.Tier:
    """HBM or HOST; not specified is HOST."""
    return optional_tier(value, field, ARENA_TIERS) or m.Tier.HOST


def needed_tier(value: int, field: str) -> m.Tier:
    tier = optional_tier(value, field)
    if tier is None:
        raise InvalidInput(field, "not specified: a tier is needed")
    return tier


def priority(value: int) -> m.Priority:
    if value not in tuple(m.Priority):
        raise InvalidInput("priority", f"{value} is not a Priority")
    return m.Priority(value)


def close_sequence(request: pb.CloseSequenceRequest) -> m.CloseSequence:
    number, name = session(request.session), text(request.sequence, "sequence", needed=True)
    reason = text(request.stop_reason, "stop_reason")
    if int(request.next_use) not in tuple(m.NextUse):
        raise InvalidInput("next_use", f"{request.next_use} is not a NextUse")
    if reason and request.next_use:
        raise InvalidInput("stop_reason", "given together with next_use: it is one or the other")
    next_use = STOP_REASONS.get(reason, m.NextUse.NONE) if reason else m.NextUse(request.next_use)
    if request.expected_ms and next_use != m.NextUse.SOON:
        raise InvalidInput("expected_ms", "means nothing but for a tool call")
    return m.CloseSequence(number, name, next_use, request.expected_ms / 1000)


def touch(request: pb.TouchRequest, max_ids: int) -> m.Touch:
    blocks = block_ids(request.blocks, max_ids)
    name = text(request.sequence, "sequence")
    counts = np.array(request.counts, np.int64) if request.counts else np.ones(len(blocks), np.int64)
    if name and request.counts:
        raise InvalidInput("counts", "given in a sequence, where each block counts once")
    if len(counts) != len(blocks):
        raise InvalidInput("counts", f"{len(counts)} value(s) for {len(blocks)} identities")
    wrong = np.flatnonzero((counts < 1) | (counts > TOUCHES_MAX))
    if len(wrong):
        raise InvalidInput(f"counts[{wrong[0]}]", f"{counts[wrong[0]]} is not from 1 to {TOUCHES_MAX}")
    return m.Touch(
        session(request.session), blocks, counts, name, request.read_hbm_blocks, request.read_host_blocks)


def prefetch(request: pb.PrefetchRequest, max_ids: int) -> m.Prefetch:
    if request.within_ms > TIMEOUT_MS_MAX:
        raise InvalidInput("within_ms", f"{request.within_ms}, more than {TIMEOUT_MS_MAX}")
    return m.Prefetch(
        session(request.session), block_ids(request.blocks, max_ids), arena_tier(request.to, "to"),
        (request.within_ms or PREFETCH_MS) / 1000,
    )


def ticket(number: int) -> int:
    if number == 0:
        raise InvalidInput("ticket", "0 is no ticket")
    return int(number)


def words(values: Sequence[int], field: str, count: int) -> U64Array:
    """A repeated fixed64 that is parallel to `count` identities."""
    if len(values) != count:
        raise InvalidInput(field, f"{len(values)} value(s) for {count} identities")
    return np.array(values, np.uint64)


def leases(values: Sequence[int], most: int) -> tuple[int, ...]:
    if len(values) > most:
        raise InvalidInput("leases", f"{len(values)}, more than {most}")
    if 0 in values:
        raise InvalidInput("leases", "0 is no lease")
    return tuple(values)


def observation(request: pb.ObserveRequest) -> m.Observe:
    """Whether the masses themselves are possible is the engine's to say, which knows the sequence."""
    if len(request.attention) % 4:
        raise InvalidInput("attention", f"{len(request.attention)} bytes, not a multiple of 4")
    if not 1 <= request.steps <= STEPS_MAX:
        raise InvalidInput("steps", f"{request.steps} is not from 1 to {STEPS_MAX}")
    name = text(request.sequence, "sequence", needed=True)
    mass = np.frombuffer(request.attention, "<f4").astype(np.float32) if request.attention else None
    return m.Observe(session(request.session), name, mass, request.steps, request.policy_epoch)


def budget(given: pb.SequenceBudget) -> m.Budget:
    """The field `budget` of a request. Whether its numbers go together is the engine's to say."""
    policy = text(given.policy, "budget.policy", most=POLICY_BYTES_MAX)
    recent = given.recent_blocks or (given.blocks + 1) // 2
    found = m.Budget(given.blocks, recent, given.sink_blocks, given.lossy)
    return replace(found, policy=policy) if policy else found


def set_budget(request: pb.SetBudgetRequest) -> m.SetBudget:
    seen = observation(pb.ObserveRequest(
        session=request.session, sequence=request.sequence, attention=request.attention, steps=request.steps or 1))
    given = budget(request.budget) if request.HasField("budget") else None
    return m.SetBudget(seen.session, seen.sequence, given, seen.attention, seen.steps)


def store_order(request: pb.StoreRequest, max_ids: int) -> StoreOrder:
    number, tier = session(request.session), arena_tier(request.tier, "tier")
    for field in ("slots_max", "spare_slots"):
        if getattr(request, field) > max_ids:
            raise InvalidInput(field, f"{getattr(request, field)}, more than {max_ids}")
    if len(request.returned) > RETURNED_MAX:
        raise InvalidInput("returned", f"{len(request.returned)} slots, more than {RETURNED_MAX}")
    store = None
    if request.HasField("blocks") or not request.returned:
        blocks = _at_places(block_ids(request.blocks, max_ids), request.places)
        checksums = 0 if request.commit_later else len(blocks)
        store = m.Store(
            number, blocks, 0, words(request.generations, "generations", len(blocks)),
            words(request.checksums, "checksums", checksums), tier, text(request.sequence, "sequence"),
            priority(request.priority), request.further, request.commit_later,
        )
    returned = np.array(request.returned, np.uint64)
    return StoreOrder(number, tier, store, request.slots_max, request.spare_slots, returned)


def _at_places(blocks: m.Ids, places: Sequence[int]) -> m.Ids:
    if not len(places):
        return blocks
    if len(places) > len(blocks):
        raise InvalidInput("places", f"{len(places)} of {len(blocks)} identities")
    at = np.array(places, np.int64)
    wrong = np.flatnonzero((at >= len(blocks)) | (np.diff(at, prepend=-1) <= 0))
    if len(wrong):
        problem = f"{at[wrong[0]]} is not above the one before it, or beyond {len(blocks)} identities"
        raise InvalidInput(f"places[{wrong[0]}]", problem)
    return blocks.take(at)


def put_header(first: bytes | None) -> pb.PutHeader:
    message = None if first is None else _put_request(first, "header")
    if message is None or message.WhichOneof("part") != "header":
        raise InvalidInput("header", "missing: the first message of a Put carries it")
    return message.header


def put_order(header: pb.PutHeader, max_ids: int) -> PutOrder:
    blocks = block_ids(header.blocks, max_ids)
    return PutOrder(
        session(header.session), blocks, arena_tier(header.tier, "tier"), text(header.sequence, "sequence"),
        words(header.checksums, "checksums", len(blocks)), priority(header.priority),
    )


def put_data(message: bytes) -> U8Array:
    """The payload of a message of a Put, in place where it is alone in it."""
    data = data_of(message)
    if data is None:
        request = _put_request(message, "data")
        if request.WhichOneof("part") != "data":
            raise InvalidInput("data", "missing: each message of a Put but the first carries it")
        data = np.frombuffer(request.data, np.uint8)
    if len(data) > CHUNK_BYTES_MAX:
        raise InvalidInput("data", f"{len(data)} bytes in one message, more than {CHUNK_BYTES_MAX}")
    return data


def _put_request(message: bytes, field: str) -> pb.PutRequest:
    try:
        request: pb.PutRequest = pb.PutRequest.FromString(message)
    except DecodeError as error:
        raise InvalidInput(field, "the message is no PutRequest") from error
    return request


def block_filter(where: apb.BlockFilter, namespaces: Namespaces) -> m.BlockFilter:
    """`namespaces`: where the fields of layouts become numbers."""
    if where.namespace > 65535:
        raise InvalidInput("filter.namespace", f"{where.namespace} is no number of a namespace (1 to 65535)")
    if len(where.identity_prefix) > IDENTITY_BYTES:
        problem = f"{len(where.identity_prefix)} bytes, more than {IDENTITY_BYTES}"
        raise InvalidInput("filter.identity_prefix", problem)
    if not 0 <= where.older_than_s <= OLDER_THAN_S_MAX:
        raise InvalidInput("filter.older_than_s", f"{where.older_than_s} is not from 0 to {OLDER_THAN_S_MAX:.0f}")
    layouts = layout_filter(where)
    return m.BlockFilter(
        where.namespace, optional_tier(where.tier, "filter.tier"), bytes(where.identity_prefix),
        _given(where, "in_use"), None if layouts == LayoutFilter() else namespaces.matching(layouts),
        _given(where, "group"), where.older_than_s, _given(where, "pinned"),
    )


def layout_filter(where: apb.BlockFilter) -> LayoutFilter:
    for field in ("model", "revision"):
        text(getattr(where, field), f"filter.{field}", most=TEXT_BYTES_MAX)
    if where.tenant and not re.fullmatch("[0-9a-f]{16}", where.tenant):
        raise InvalidInput("filter.tenant", f"{where.tenant[:32]!r} is not the 16 hex digits of a listing")
    return LayoutFilter(**{field.name: _given(where, field.name) for field in fields(LayoutFilter)})


def _given(message: Any, field: str) -> Any:
    """An optional field's value, None where it is not set."""
    return getattr(message, field) if message.HasField(field) else None


def clear(request: apb.ClearRequest, namespaces: Namespaces) -> m.Clear:
    if request.ghosts and request.filter != apb.BlockFilter():
        raise InvalidInput("ghosts", "given together with a filter, but records without a copy have no namespace")
    return m.Clear(block_filter(request.filter, namespaces), request.dry_run, request.ghosts)


def count(value: int, field: str, default: int = PAGE_DEFAULT, most: int = PAGE_MAX) -> int:
    """A number of rows: 0 is the default."""
    if value > most:
        raise InvalidInput(field, f"{value}, more than {most}")
    return value or default


def list_blocks(request: apb.ListBlocksRequest, namespaces: Namespaces) -> m.ListBlocks:
    where = block_filter(request.filter, namespaces)
    if request.sort not in (apb.BLOCK_SORT_UNSPECIFIED, apb.BLOCK_SORT_RANK):
        raise InvalidInput("sort", f"{request.sort} is not a BlockSort")
    by_rank = request.sort == apb.BLOCK_SORT_RANK
    if by_rank and where.tier is None:
        raise InvalidInput("filter.tier", "not specified: sorting by rank needs a tier")
    if len(request.page_token) > PAGE_TOKEN_BYTES_MAX:
        raise InvalidInput("page_token", f"{len(request.page_token)} bytes: not a token of this daemon")
    limit = count(request.page_size, "page_size")
    return m.ListBlocks(where, limit, bytes(request.page_token), by_rank)


# --- replies ------------------------------------------------------------------------------------------


def tier_name(tier: m.Tier) -> str:
    return f"TIER_{tier.name}"


def _fill(message: Message, **columns: NDArray[np.int8] | U64Array) -> None:
    """Sets repeated fields from arrays. By way of a list each number would be made and taken apart by itself."""
    numbers = message.DESCRIPTOR.fields_by_name
    message.MergeFromString(b"".join(packed_field(numbers[name].number, of) for name, of in columns.items()))


def told(outcomes: m.OutcomeArray, request: Any) -> m.OutcomeArray:
    """Outcomes of what is stored, as the caller knows them: before there was DECLINED such blocks were FULL."""
    declined = outcomes == m.Reserved.DECLINED.value
    return outcomes if request.knows_declined else np.where(declined, m.Reserved.FULL.value, outcomes)


def reserve_response(reply: m.ReserveReply, request: Any, tier: m.Tier) -> pb.ReserveResponse:
    response = pb.ReserveResponse(tier=tier_name(tier))
    outcomes = told(reply.outcomes, request)
    _fill(response, outcomes=outcomes, addresses=reply.addresses, generations=reply.generations)
    return response


def store_response(result: StoreResult, request: Any, tier: m.Tier) -> pb.StoreResponse:
    stock = result.stock
    response = pb.StoreResponse(tier=tier_name(tier), spare_max=stock.spare_max)
    outcomes = told(result.outcomes, request)
    _fill(response, outcomes=outcomes, addresses=stock.addresses, generations=stock.generations)
    return response


def acquire_response(reply: m.AcquireReply) -> pb.AcquireResponse:
    response = pb.AcquireResponse(tiers=reply.tiers.astype(np.uint8).tobytes(), lease=reply.lease)
    _fill(
        response, outcomes=reply.outcomes, addresses=reply.addresses, generations=reply.generations,
        checksums=reply.checksums,
    )
    return response


def pin_response(reply: m.PinReply) -> pb.PinResponse:
    return pb.PinResponse(outcomes=reply.outcomes.tolist(), ttl_ms=round(reply.ttl_s * 1000))


def prefetch_response(reply: m.PrefetchReply) -> pb.PrefetchResponse:
    return pb.PrefetchResponse(
        ticket=reply.ticket, outcomes=reply.outcomes.tolist(), done=reply.done, left_ms=round(reply.left_s * 1000)
    )


def set_budget_response(reply: m.BudgetSet) -> pb.SetBudgetResponse:
    response = pb.SetBudgetResponse(budget=sequence_budget(reply.budget))
    _fill(response, residency=reply.outcomes)
    return response


def sequence_budget(one: m.Budget) -> pb.SequenceBudget:
    return pb.SequenceBudget(
        blocks=one.blocks, recent_blocks=one.recent_blocks, sink_blocks=one.sink_blocks, lossy=one.lossy,
        policy=one.policy,
    )


def get_header(reply: m.AcquireReply, block_bytes: int) -> pb.GetResponse:
    header = pb.GetHeader(
        outcomes=reply.outcomes.tolist(), checksums=reply.checksums.tolist(), block_bytes=block_bytes,
        tiers=reply.tiers.astype(np.uint8).tobytes(),
    )
    return pb.GetResponse(header=header)


def lookup_response(reply: m.LookedUp, ready_in_ms: int) -> pb.LookupResponse:
    response = pb.LookupResponse(
        tiers=reply.tiers.tobytes(), hit_blocks=reply.hit_blocks, ready_in_ms=min(ready_in_ms, 2**32 - 1)
    )
    _fill(response, presence=reply.presence)
    return response


def lookup_chains_response(reply: m.ChainsLookedUp, ready_in_ms: int) -> pb.LookupChainsResponse:
    return pb.LookupChainsResponse(
        tiers=[tiers.tobytes() for tiers in reply.tiers], hit_tokens=reply.hit_tokens,
        ready_in_ms=min(ready_in_ms, 2**32 - 1),
    )


def block_record(view: m.BlockView | None, namespace_name: str) -> apb.BlockRecord:
    """A record for people; an empty one where nothing is known."""
    if view is None:
        return apb.BlockRecord()
    record = view.record
    return apb.BlockRecord(
        identity=view.identity, namespace=view.namespace, namespace_name=namespace_name, group=view.group,
        position=view.position, parent=view.parent or b"", block_bytes=view.size, checksum=view.checksum,
        copies=[_copy(copy) for copy in view.copies], touches=record.touches, last_step=record.last,
        last_wall_s=record.wall, ema=record.ema, crf=record.crf, sequences=view.sequences, ghost=view.ghost,
        priority=f"PRIORITY_{view.priority.name}", next_use=view.next_use.name.lower() if view.next_use else "",
        expected_s=view.expected_s, pinned_s=view.pinned_s,
    )


def _copy(copy: m.CopyView) -> apb.Copy:
    return apb.Copy(
        tier=tier_name(copy.tier), state="READY" if copy.ready else "FILLING", address=copy.address,
        generation=copy.generation, leases=copy.leases, rank=copy.rank,
    )


def explanation(one: m.Explanation) -> apb.Explanation:
    terms = [apb.Term(name=name, value=value) for name, value in one.terms.items()]
    return apb.Explanation(
        identity=one.identity, rule=one.rule, terms=terms, rank=one.rank, protected_by=one.protected_by,
        destination=one.destination,
    )


def tier_occupancy(
    tier: m.Tier, one: m.TierOccupancy | None, requested_bytes: int, state: TierState
) -> apb.TierOccupancy:
    """`one`: None for a tier that is off."""
    names = [name for name in m.TierOccupancy.__slots__ if name != "tier"]
    values: dict[str, Any] = {name: getattr(one, name) for name in names} if one is not None else {}
    return apb.TierOccupancy(
        tier=tier_name(tier), requested_bytes=requested_bytes, serving=state.serving, state=state.text, **values
    )


def plan_response(reply: m.Planned) -> apb.PlanResponse:
    return apb.PlanResponse(
        victims=[explanation(one) for one in reply.victims], enough=reply.enough, free_bytes=reply.free_bytes,
        victim_bytes=reply.victim_bytes, victim_blocks=reply.victim_blocks,
    )


def sequences_response(page: m.SequencePage, offset: int) -> apb.ListSequencesResponse:
    end = offset + len(page.sequences)
    return apb.ListSequencesResponse(
        sequences=map(_sequence_record, page.sequences), next_offset=end if page.more else 0
    )


def _sequence_record(one: m.SequenceView) -> apb.SequenceRecord:
    return apb.SequenceRecord(
        session=one.session, sequence=one.name, namespace=one.namespace, group=one.group, blocks=one.blocks,
        budget=None if one.budget is None else sequence_budget(one.budget), kept_blocks=one.kept_blocks,
        leaving_blocks=one.leaving_blocks, given_up_blocks=one.given_up_blocks, spare_slots=one.spare_slots,
    )


def namespaces_response(shares: Sequence[TenantShare], offset: int, limit: int) -> apb.ListNamespacesResponse:
    """One page of them."""
    page, end = shares[offset : offset + limit], offset + limit
    return apb.ListNamespacesResponse(
        namespaces=map(_namespace_record, page), next_offset=end if end < len(shares) else 0
    )


def _namespace_record(share: TenantShare) -> apb.NamespaceRecord:
    record = apb.NamespaceRecord(tenant=share.tenant, domain=DOMAIN)
    for tier, one in share.tiers.items():
        record.tiers.add(
            tier=tier_name(tier), blocks=one.blocks, used_bytes=one.used_bytes, reserved_bytes=one.reserved_bytes
        )
    if isinstance(share, NamespaceShare):
        layout = share.namespace.layout
        record.namespace, record.fingerprint = share.namespace.number, layout.fingerprint
        record.names.extend(share.namespace.names)
        record.block_bytes.extend(share.namespace.block_bytes())
        for field in ("model", "revision", "weights_epoch", "engine", "dtype", "adapter", "tp_rank", "tp_size"):
            setattr(record, field, getattr(layout, field))
    return record


def drain_progress(progress: Progress) -> apb.DrainProgress:
    return apb.DrainProgress(**{field.name: getattr(progress, field.name) for field in fields(Progress)})


def clear_response(reply: m.Cleared, deletes_waiting: int) -> apb.ClearResponse:
    tiers = [
        apb.TierCleared(tier=tier_name(tier), blocks=blocks, bytes=reply.slot_bytes[tier])
        for tier, blocks in reply.copies.items()
    ]
    return apb.ClearResponse(
        tiers=tiers, in_use_ids=reply.skipped,
        hbm_blocks=reply.copies.get(m.Tier.HBM, 0), host_blocks=reply.copies.get(m.Tier.HOST, 0),
        spill_blocks=reply.copies.get(m.Tier.SPILL, 0), ghosts=reply.ghosts, in_use_blocks=reply.in_use,
        left_blocks=reply.left, deletes_waiting=deletes_waiting,
    )
