"""Every field's bad input: INVALID_ARGUMENT (or what the API says instead), with a message that names it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from rpc_daemon import DEADLINE_S, Daemon, block_ids, identity, register_request, run

from tierd_client.layout import Group, Layout, Part
from tierd_client.v1 import admin_pb2 as apb
from tierd_client.v1 import blocks_pb2 as pb

LAST = 2**32 - 1
MANY = 1_000_001
INVALID = grpc.StatusCode.INVALID_ARGUMENT
NOT_FOUND = grpc.StatusCode.NOT_FOUND
REFUSED = grpc.StatusCode.FAILED_PRECONDITION
LONG = "x" * 257
ONE = block_ids(1)
CHAIN = block_ids(1, chain=True)
LONG_CHAIN = block_ids(*range(600), chain=True)
OPEN = object()
"""Stands for the number of the open session."""

LAYOUT = Layout.opaque(block_bytes=4096)

Case = tuple[str, Callable[[int], Any], str, grpc.StatusCode]
"""Method, request made for a session, what the message must contain, status."""


def floats(*values: float) -> bytes:
    return np.array(values, "<f4").tobytes()


def registration(**fields: object) -> pb.RegisterNamespaceRequest:
    request = register_request(LAYOUT)
    for name, value in fields.items():
        setattr(request, name, value)
    return request


def blocks_cases(method: str, request: Any, **fields: object) -> list[Case]:
    """The ways in which `blocks` can be malformed, for a request that has it."""

    def case(blocks: pb.BlockIds, text: str, status: grpc.StatusCode = INVALID) -> Case:
        return method, lambda s: request(blocks=blocks, **_with_session(fields, s)), text, status

    return [
        case(pb.BlockIds(namespace=1), "blocks.ids: empty"),
        case(pb.BlockIds(namespace=1, ids=b"x" * 33), "blocks.ids: 33 bytes"),
        case(pb.BlockIds(namespace=1, ids=b"x" * 32 * 1001), "blocks.ids: 1001 identities, more than 1000"),
        case(pb.BlockIds(namespace=0, ids=identity(1)), "blocks.namespace: 0"),
        case(pb.BlockIds(namespace=70000, ids=identity(1)), "blocks.namespace: 70000"),
        case(pb.BlockIds(namespace=77, ids=identity(1)), "namespace 77", NOT_FOUND),
        case(pb.BlockIds(namespace=1, group=9, ids=identity(1)), "group: 9"),
        case(pb.BlockIds(namespace=1, ids=identity(1) + bytes(32)), "blocks.ids: identity 1 is all zeros"),
        case(pb.BlockIds(namespace=1, ids=identity(1), chain=True, parent=b"xy"), "blocks.parent: 2 bytes"),
        case(pb.BlockIds(namespace=1, ids=identity(1), parent=identity(2)), "blocks.parent: means nothing"),
        case(pb.BlockIds(namespace=1, ids=identity(1), position=4), "blocks.position: means nothing"),
        case(pb.BlockIds(namespace=1, ids=identity(1), chain=True, position=LAST), "blocks.position: 4294967295"),
    ]


def closing(session: int, **fields: Any) -> pb.CloseSequenceRequest:
    return pb.CloseSequenceRequest(session=session, sequence="r", **fields)


def storing(session: int, **fields: Any) -> pb.StoreRequest:
    return pb.StoreRequest(**{"session": session, "blocks": ONE, "generations": [1], "checksums": [1], **fields})


def in_chains(blocks: pb.BlockIds) -> pb.LookupChainsRequest:
    """A request of which the second chain is malformed."""
    second = pb.BlockIds()
    second.CopyFrom(blocks)
    second.chain = not (blocks.parent or blocks.position) or blocks.chain
    return pb.LookupChainsRequest(chains=[CHAIN, second])


def session_cases(method: str, request: Any, **fields: object) -> list[Case]:
    """The ways in which `session` can be wrong."""
    return [
        (method, lambda s: request(session=0, **fields), "session: 0", INVALID),
        (method, lambda s: request(session=12345, **fields), "session 12345", NOT_FOUND),
    ]


def _with_session(fields: dict[str, object], session: int) -> dict[str, object]:
    return {name: session if value is OPEN else value for name, value in fields.items()}

TIMEOUT = "timeout_ms: 600001, more than 600000"

CASES: list[Case] = [
    ("RegisterNamespace", lambda s: registration(schema_version=2), "schema_version 2", REFUSED),
    ("RegisterNamespace", lambda s: registration(fingerprint=b"x"), "fingerprint: 1 bytes", INVALID),
    ("RegisterNamespace", lambda s: registration(fingerprint=b"x" * 32), "fingerprint: 7878", INVALID),
    ("RegisterNamespace", lambda s: registration(canonical=b"x"), "canonical: ", INVALID),
    ("RegisterNamespace", lambda s: registration(canonical=b"x" * 65537), "canonical: 65537 bytes", INVALID),
    ("RegisterNamespace", lambda s: registration(name=LONG), "name: 257 bytes", INVALID),
    ("RegisterNamespace", lambda s: registration(domain="acme"), "domain 'acme'", NOT_FOUND),
    ("RegisterNamespace", lambda s: registration(name="taken"), "differs in groups", REFUSED),
    ("Detach", lambda s: pb.DetachRequest(session=s, token=b"x"), "token: 1 bytes", INVALID),
    ("Detach", lambda s: pb.DetachRequest(session=s, token=b"x" * 16), "token is not that", REFUSED),
    ("Detach", lambda s: pb.DetachRequest(session=0, token=b"x" * 16), "session: 0", INVALID),
    ("Detach", lambda s: pb.DetachRequest(session=9, token=b"x" * 16), "session 9", NOT_FOUND),
    *blocks_cases("Lookup", pb.LookupRequest),
    *blocks_cases("LookupChains", in_chains),
    ("LookupChains", lambda s: pb.LookupChainsRequest(), "chains: 0 chains", INVALID),
    ("LookupChains", lambda s: pb.LookupChainsRequest(chains=[CHAIN] * 1025), "chains: 1025 chains", INVALID),
    ("LookupChains", lambda s: pb.LookupChainsRequest(chains=[CHAIN, ONE]), "chains: number 1 is no", INVALID),
    (
        "LookupChains", lambda s: pb.LookupChainsRequest(chains=[LONG_CHAIN] * 2),
        "chains: 1200 identities in all, more than 1000", INVALID,
    ),
    *blocks_cases("Reserve", pb.ReserveRequest, session=OPEN),
    *session_cases("Reserve", pb.ReserveRequest, blocks=ONE),
    ("Reserve", lambda s: pb.ReserveRequest(session=s, blocks=ONE, tier=pb.TIER_SPILL), "tier: SPILL", INVALID),
    ("Reserve", lambda s: pb.ReserveRequest(session=s, blocks=ONE, tier=7), "tier: 7 is not a Tier", INVALID),
    ("Reserve", lambda s: pb.ReserveRequest(session=s, blocks=ONE, sequence=LONG), "sequence: 257 bytes", INVALID),
    ("Reserve", lambda s: pb.ReserveRequest(session=s, blocks=ONE, sequence="r"), "sequence 'r'", NOT_FOUND),
    ("Reserve", lambda s: pb.ReserveRequest(session=s, blocks=ONE, timeout_ms=600_001), TIMEOUT, INVALID),
    *blocks_cases("Store", pb.StoreRequest, session=OPEN, generations=[1], checksums=[1]),
    *session_cases("Store", pb.StoreRequest, blocks=ONE, generations=[1], checksums=[1]),
    ("Store", lambda s: pb.StoreRequest(session=s, blocks=ONE), "generations: 0 value(s) for 1", INVALID),
    ("Store", lambda s: storing(s, checksums=[]), "checksums: 0 value(s) for 1", INVALID),
    ("Store", lambda s: storing(s, places=[1]), "places[0]: 1 is not above", INVALID),
    ("Store", lambda s: storing(s, places=[0, 0]), "places: 2 of 1 identities", INVALID),
    ("Store", lambda s: storing(s, tier=pb.TIER_SPILL), "tier: SPILL", INVALID),
    ("Store", lambda s: storing(s, priority=9), "priority: 9 is not", INVALID),
    ("Store", lambda s: storing(s, sequence=LONG), "sequence: 257 bytes", INVALID),
    ("Store", lambda s: storing(s, sequence="r"), "sequence 'r'", NOT_FOUND),
    ("Store", lambda s: storing(s, slots_max=1001), "slots_max: 1001, more than 1000", INVALID),
    ("Store", lambda s: storing(s, spare_slots=1001), "spare_slots: 1001, more than 1000", INVALID),
    ("Store", lambda s: storing(s, returned=[1] * 65_537), "returned: 65537 slots", INVALID),
    ("Store", lambda s: storing(s, timeout_ms=600_001), TIMEOUT, INVALID),
    *session_cases("Commit", pb.CommitRequest, ids=identity(1), generations=[1], checksums=[1]),
    ("Commit", lambda s: pb.CommitRequest(session=s), "ids: empty", INVALID),
    ("Commit", lambda s: pb.CommitRequest(session=s, ids=b"x"), "ids: 1 bytes", INVALID),
    ("Commit", lambda s: pb.CommitRequest(session=s, ids=b"x" * 32 * 1001), "ids: 1001 identities", INVALID),
    ("Commit", lambda s: pb.CommitRequest(session=s, ids=identity(1)), "generations: 0 value(s) for 1", INVALID),
    ("Commit", lambda s: pb.CommitRequest(session=s, ids=identity(1), generations=[1]), "checksums: 0", INVALID),
    (
        "Commit",
        lambda s: pb.CommitRequest(session=s, ids=identity(1), generations=[1], checksums=[1], tier=3),
        "tier: SPILL", INVALID,
    ),
    (
        "Commit",
        lambda s: pb.CommitRequest(session=s, ids=identity(1), generations=[1], checksums=[1], sequence=LONG),
        "sequence: 257 bytes", INVALID,
    ),
    *session_cases("Abort", pb.AbortRequest, ids=identity(1), generations=[1]),
    ("Abort", lambda s: pb.AbortRequest(session=s, generations=[1]), "ids: empty", INVALID),
    ("Abort", lambda s: pb.AbortRequest(session=s, ids=identity(1), generations=[1, 2]), "generations: 2", INVALID),
    ("Abort", lambda s: pb.AbortRequest(session=s, ids=identity(1), generations=[1], tier=9), "tier: 9", INVALID),
    *blocks_cases("Acquire", pb.AcquireRequest, session=OPEN),
    *session_cases("Acquire", pb.AcquireRequest, blocks=ONE),
    ("Acquire", lambda s: pb.AcquireRequest(session=s, blocks=ONE, sequence=LONG), "sequence: 257", INVALID),
    ("Acquire", lambda s: pb.AcquireRequest(session=s, blocks=ONE, sequence="r"), "sequence 'r'", NOT_FOUND),
    ("Acquire", lambda s: pb.AcquireRequest(session=s, blocks=ONE, timeout_ms=600_001), TIMEOUT, INVALID),
    *session_cases("GiveUp", pb.GiveUpRequest, call=1),
    ("GiveUp", lambda s: pb.GiveUpRequest(session=s), "call: 0", INVALID),
    *blocks_cases("ReportDamage", pb.ReportDamageRequest, session=OPEN),
    *session_cases("ReportDamage", pb.ReportDamageRequest, blocks=ONE),
    ("ReportDamage", lambda s: pb.ReportDamageRequest(session=s, blocks=ONE, timeout_ms=600_001), TIMEOUT, INVALID),
    *session_cases("Release", pb.ReleaseRequest, leases=[1]),
    ("Release", lambda s: pb.ReleaseRequest(session=s, leases=[0]), "leases: 0", INVALID),
    ("Release", lambda s: pb.ReleaseRequest(session=s, leases=range(1, 1002)), "leases: 1001", INVALID),
    ("Release", lambda s: pb.ReleaseRequest(session=s, leases=[5]), "lease 5", NOT_FOUND),
    *blocks_cases("OpenSequence", pb.OpenSequenceRequest, session=OPEN, sequence="r"),
    *session_cases("OpenSequence", pb.OpenSequenceRequest, blocks=ONE, sequence="r"),
    ("OpenSequence", lambda s: pb.OpenSequenceRequest(session=s, blocks=ONE), "sequence: empty", INVALID),
    (
        "OpenSequence", lambda s: pb.OpenSequenceRequest(session=s, sequence="r", blocks=CHAIN, others=[ONE]),
        "others: number 0 is no chain", INVALID,
    ),
    (
        "OpenSequence",
        lambda s: pb.OpenSequenceRequest(session=s, sequence="r", blocks=LONG_CHAIN, others=[LONG_CHAIN]),
        "more than 400", INVALID,
    ),
    (
        "OpenSequence", lambda s: pb.OpenSequenceRequest(session=s, blocks=ONE, sequence=LONG),
        "sequence: 257", INVALID,
    ),
    *session_cases("CloseSequence", pb.CloseSequenceRequest, sequence="r"),
    ("CloseSequence", lambda s: pb.CloseSequenceRequest(session=s), "sequence: empty", INVALID),
    ("CloseSequence", lambda s: closing(s, next_use=7), "next_use: 7", INVALID),
    ("CloseSequence", lambda s: closing(s, stop_reason=LONG), "stop_reason: 257", INVALID),
    ("CloseSequence", lambda s: closing(s, stop_reason="stop", next_use=1), "stop_reason: given", INVALID),
    ("CloseSequence", lambda s: closing(s, next_use=2, expected_ms=1), "expected_ms: means nothing", INVALID),
    ("CloseSequence", lambda s: pb.CloseSequenceRequest(session=s, sequence=LONG), "sequence: 257", INVALID),
    ("CloseSequence", lambda s: pb.CloseSequenceRequest(session=s, sequence="r"), "sequence 'r'", NOT_FOUND),
    *session_cases("Observe", pb.ObserveRequest, sequence="open", steps=1),
    ("Observe", lambda s: pb.ObserveRequest(session=s, steps=1), "sequence: empty", INVALID),
    ("Observe", lambda s: pb.ObserveRequest(session=s, sequence="r", steps=1), "sequence 'r'", NOT_FOUND),
    ("Observe", lambda s: pb.ObserveRequest(session=s, sequence="open", steps=0), "steps: 0", INVALID),
    ("Observe", lambda s: pb.ObserveRequest(session=s, sequence="open", steps=MANY), "steps: 1000001", INVALID),
    *[
        (
            "Observe",
            lambda s, mass=mass: pb.ObserveRequest(session=s, sequence="open", steps=1, attention=mass),
            "attention: ", INVALID,
        )
        for mass in (
            b"abc", floats(float("nan")), floats(-0.1), floats(float("inf")), floats(1.01), floats(0.1, 0.1, 0.1)
        )
    ],
    *session_cases("SetBudget", pb.SetBudgetRequest, sequence="open"),
    ("SetBudget", lambda s: pb.SetBudgetRequest(session=s), "sequence: empty", INVALID),
    ("SetBudget", lambda s: pb.SetBudgetRequest(session=s, sequence="r"), "sequence 'r'", NOT_FOUND),
    ("SetBudget", lambda s: pb.SetBudgetRequest(session=s, sequence="open", steps=MANY), "steps: 1000001", INVALID),
    (
        "SetBudget", lambda s: pb.SetBudgetRequest(session=s, sequence="open", attention=b"abc"),
        "attention: 3 bytes", INVALID,
    ),
    (
        "SetBudget",
        lambda s: pb.SetBudgetRequest(session=s, sequence="open", budget=pb.SequenceBudget(policy="p" * 5000)),
        "budget.policy: 5000 bytes", INVALID,
    ),
    *blocks_cases("Evict", pb.EvictRequest, to=pb.TIER_SPILL),
    ("Evict", lambda s: pb.EvictRequest(blocks=ONE), "allow_drop: false", INVALID),
    ("Evict", lambda s: pb.EvictRequest(blocks=ONE, to=pb.TIER_HBM), "to: HBM", INVALID),
    ("Evict", lambda s: pb.EvictRequest(blocks=ONE, to=8), "to: 8 is not a Tier", INVALID),
    ("Evict", lambda s: pb.EvictRequest(blocks=ONE, to=3, timeout_ms=600_001), TIMEOUT, INVALID),
    *blocks_cases("Readmit", pb.ReadmitRequest),
    ("Readmit", lambda s: pb.ReadmitRequest(blocks=ONE, to=pb.TIER_SPILL), "to: SPILL", INVALID),
    ("Readmit", lambda s: pb.ReadmitRequest(blocks=ONE, to=8), "to: 8 is not a Tier", INVALID),
    ("Readmit", lambda s: pb.ReadmitRequest(blocks=ONE, timeout_ms=600_001), TIMEOUT, INVALID),
    *blocks_cases("Pin", pb.PinRequest),
    ("Pin", lambda s: pb.PinRequest(blocks=ONE, ttl_ms=86_400_001), "ttl_ms: 86400", INVALID),
    *blocks_cases("Unpin", pb.UnpinRequest),
    *session_cases("Touch", pb.TouchRequest, blocks=ONE),
    *blocks_cases("Touch", pb.TouchRequest, session=OPEN),
    ("Touch", lambda s: pb.TouchRequest(session=s, blocks=ONE, counts=[1, 1]), "counts: 2 value", INVALID),
    ("Touch", lambda s: pb.TouchRequest(session=s, blocks=ONE, counts=[0]), r"counts[0]: 0 is not from 1", INVALID),
    ("Touch", lambda s: pb.TouchRequest(session=s, blocks=ONE, counts=[65]), "counts[0]: 65", INVALID),
    ("Touch", lambda s: pb.TouchRequest(session=s, blocks=ONE, counts=[1], sequence="r"), "counts: given", INVALID),
    ("Touch", lambda s: pb.TouchRequest(session=s, blocks=ONE, sequence="r"), "sequence 'r'", NOT_FOUND),
    ("Touch", lambda s: pb.TouchRequest(session=s, blocks=ONE, sequence=LONG), "sequence: 257", INVALID),
    *session_cases("Prefetch", pb.PrefetchRequest, blocks=ONE),
    *blocks_cases("Prefetch", pb.PrefetchRequest, session=OPEN),
    ("Prefetch", lambda s: pb.PrefetchRequest(session=s, blocks=ONE, to=pb.TIER_SPILL), "to: SPILL", INVALID),
    ("Prefetch", lambda s: pb.PrefetchRequest(session=s, blocks=ONE, within_ms=600_001), "within_ms: 6", INVALID),
    *session_cases("PrefetchStatus", pb.PrefetchStatusRequest, ticket=1),
    ("PrefetchStatus", lambda s: pb.PrefetchStatusRequest(session=s), "ticket: 0 is no ticket", INVALID),
    ("PrefetchStatus", lambda s: pb.PrefetchStatusRequest(session=s, ticket=9), "ticket 9", NOT_FOUND),
    ("PrefetchStatus", lambda s: pb.PrefetchStatusRequest(session=s, ticket=9, timeout_ms=600_001), TIMEOUT,
     INVALID),
    *session_cases("Shadow", pb.ShadowRequest, blocks=ONE),
    *blocks_cases("Shadow", pb.ShadowRequest, session=OPEN),
    ("Shadow", lambda s: pb.ShadowRequest(session=s, blocks=ONE, asked_blocks=2), "asked_blocks: 2 of 1", INVALID),
    ("Shadow", lambda s: pb.ShadowRequest(session=s, blocks=ONE, served_blocks=1), "served_blocks: 1", INVALID),
    ("Shadow", lambda s: pb.ShadowRequest(session=s, blocks=ONE, block_bytes=1 << 32), "block_bytes: 4", INVALID),
    *[
        (
            "Shadow", lambda s, rate=rate: pb.ShadowRequest(session=s, blocks=ONE, prefill_tokens_per_s=rate),
            "prefill_tokens_per_s: ", INVALID,
        )
        for rate in (-1.0, float("nan"), float("inf"))
    ],
    *session_cases("CancelPrefetch", pb.CancelPrefetchRequest, ticket=1),
    ("CancelPrefetch", lambda s: pb.CancelPrefetchRequest(session=s), "ticket: 0 is no ticket", INVALID),
    ("CancelPrefetch", lambda s: pb.CancelPrefetchRequest(session=s, ticket=9), "ticket 9", NOT_FOUND),
]

PREFIX = apb.BlockFilter(identity_prefix=b"x" * 33)


def filtered(ghosts: bool = False, **fields: object) -> apb.ClearRequest:
    return apb.ClearRequest(filter=apb.BlockFilter(**fields), ghosts=ghosts)


ADMIN_CASES: list[Case] = [
    ("ListBlocks", lambda s: apb.ListBlocksRequest(page_size=10_001), "page_size: 10001", INVALID),
    ("ListBlocks", lambda s: apb.ListBlocksRequest(page_token=b"x" * 65), "page_token: 65 bytes", INVALID),
    ("ListBlocks", lambda s: apb.ListBlocksRequest(page_token=b"x"), "page_token", INVALID),
    ("ListBlocks", lambda s: apb.ListBlocksRequest(sort=5), "sort: 5 is not a BlockSort", INVALID),
    ("ListBlocks", lambda s: apb.ListBlocksRequest(sort=apb.BLOCK_SORT_RANK), "filter.tier: not", INVALID),
    ("ListBlocks", lambda s: apb.ListBlocksRequest(filter=PREFIX), "filter.identity_prefix: 33 bytes", INVALID),
    (
        "ListBlocks", lambda s: apb.ListBlocksRequest(filter=apb.BlockFilter(tier=9)), "filter.tier: 9", INVALID,
    ),
    (
        "ListBlocks", lambda s: apb.ListBlocksRequest(filter=apb.BlockFilter(namespace=70_000)),
        "filter.namespace: 70000", INVALID,
    ),
    ("DescribeBlock", lambda s: apb.DescribeBlockRequest(), "ids: empty", INVALID),
    ("DescribeBlock", lambda s: apb.DescribeBlockRequest(ids=b"x"), "ids: 1 bytes", INVALID),
    ("DescribeBlock", lambda s: apb.DescribeBlockRequest(ids=b"x" * 32 * 1001), "ids: 1001", INVALID),
    ("Explain", lambda s: apb.ExplainRequest(tier=pb.TIER_HOST), "ids: empty", INVALID),
    ("Explain", lambda s: apb.ExplainRequest(ids=identity(1)), "tier: not specified", INVALID),
    ("Explain", lambda s: apb.ExplainRequest(ids=identity(1), tier=4), "tier: 4", INVALID),
    ("Plan", lambda s: apb.PlanRequest(bytes=1), "tier: not specified", INVALID),
    ("Plan", lambda s: apb.PlanRequest(bytes=1, tier=4), "tier: 4", INVALID),
    ("Plan", lambda s: apb.PlanRequest(bytes=1, tier=2, limit=10_001), "limit: 10001", INVALID),
    ("SetPolicy", lambda s: apb.SetPolicyRequest(), "policy: empty", INVALID),
    ("SetPolicy", lambda s: apb.SetPolicyRequest(policy="x" * 1025), "policy: 1025 bytes", INVALID),
    ("SetPolicy", lambda s: apb.SetPolicyRequest(policy="best"), "policy", INVALID),
    ("SetPolicy", lambda s: apb.SetPolicyRequest(policy="lrfu(alpha=7)"), "alpha", INVALID),
    ("ListNamespaces", lambda s: apb.ListNamespacesRequest(page_size=10_001), "page_size: 10001", INVALID),
    ("ListSequences", lambda s: apb.ListSequencesRequest(page_size=10_001), "page_size: 10001", INVALID),
    ("Clear", lambda s: apb.ClearRequest(filter=PREFIX), "filter.identity_prefix", INVALID),
    ("Clear", lambda s: filtered(model="m" * 1025), "filter.model: 1025 bytes", INVALID),
    ("Clear", lambda s: filtered(revision="m" * 1025), "filter.revision: 1025 bytes", INVALID),
    ("Clear", lambda s: filtered(tenant="acme"), "filter.tenant: 'acme'", INVALID),
    ("Clear", lambda s: filtered(older_than_s=-1), "filter.older_than_s: -1.0", INVALID),
    ("Clear", lambda s: filtered(older_than_s=float("nan")), "filter.older_than_s: nan", INVALID),
    ("Clear", lambda s: filtered(older_than_s=2e9), "filter.older_than_s: 2000000000.0", INVALID),
    ("Clear", lambda s: filtered(ghosts=True, group=1), "ghosts: given together with a filter", INVALID),
    ("SwitchEpoch", lambda s: apb.SwitchEpochRequest(), "name: empty", INVALID),
    ("SwitchEpoch", lambda s: apb.SwitchEpochRequest(name=LONG), "name: 257 bytes", INVALID),
    ("SwitchEpoch", lambda s: apb.SwitchEpochRequest(name="x"), "name 'x' is bound to no", NOT_FOUND),
    (
        "SwitchEpoch", lambda s: apb.SwitchEpochRequest(name="taken", weights_epoch=-1),
        "weights_epoch: -1", INVALID,
    ),
    ("AttachSpill", lambda s: apb.AttachSpillRequest(), "url: empty", INVALID),
    ("AttachSpill", lambda s: apb.AttachSpillRequest(url="x" * 4097), "url: 4097 bytes", INVALID),
    ("AttachSpill", lambda s: apb.AttachSpillRequest(url="x"), "is attached already", REFUSED),
    ("AttachSpill", lambda s: apb.AttachSpillRequest(url="x", replace=True), "url: there is no", INVALID),
    ("AttachSpill", lambda s: apb.AttachSpillRequest(url="x", timeout_ms=600_001), TIMEOUT, INVALID),
    ("Drain", lambda s: apb.DrainRequest(filter=PREFIX), "filter.identity_prefix: 33 bytes", INVALID),
    ("Drain", lambda s: apb.DrainRequest(timeout_s=86_401), "timeout_s: 86401", INVALID),
    ("Verify", lambda s: apb.VerifyRequest(ids=b"x"), "ids: 1 bytes", INVALID),
    ("Verify", lambda s: apb.VerifyRequest(timeout_ms=600_001), TIMEOUT, INVALID),
    ("Verify", lambda s: apb.VerifyRequest(filter=PREFIX), "filter.identity_prefix", INVALID),
    (
        "Verify", lambda s: apb.VerifyRequest(ids=identity(1), filter=apb.BlockFilter(namespace=1)),
        "filter: given together with ids", INVALID,
    ),
]


def test_bad_input_names_its_field(tmp_path: Path) -> None:
    """A malformed field ends the call with the status of the API and a message that names the field."""

    async def body(d: Daemon) -> None:
        await d.namespace(Layout.of_groups([Group("kv", 1, (Part("k", "uint8", (4096,)),))] * 2), "taken")
        session = (await d.session()).number
        await d.blocks.OpenSequence(
            pb.OpenSequenceRequest(session=session, sequence="open", blocks=block_ids(1, 2)), timeout=DEADLINE_S
        )
        wrong = []
        for stub, cases in ((d.blocks, CASES), (d.admin, ADMIN_CASES)):
            for method, make, text, status in cases:
                got = await _outcome(getattr(stub, method), make(session))
                if got[0] is not status or text not in got[1]:
                    wrong.append(f"{method}: wanted {status.name} {text!r}, got {got[0]} {got[1]!r}")
        assert not wrong, "\n".join(wrong)

    run(body, tmp_path)


async def _outcome(call: Any, request: Any) -> tuple[Any, str]:
    try:
        called = call(request, timeout=DEADLINE_S)
        reply = [part async for part in called] if hasattr(called, "__aiter__") else await called
    except grpc.aio.AioRpcError as error:
        return error.code(), str(error.details())
    return None, str(reply)


def test_each_call_has_cases() -> None:
    """No verb with a request to check is left out of the table of bad input."""
    tested = {method for method, *_ in (*CASES, *ADMIN_CASES)}
    every = {
        method.name
        for service in (pb.DESCRIPTOR.services_by_name["Blocks"], apb.DESCRIPTOR.services_by_name["Admin"])
        for method in service.methods
    }
    assert every - tested == {"Session", "Put", "Get", "Occupancy", "GetConfig", "ShadowStats", "DetachSpill"}


@pytest.mark.parametrize(
    ("request_", "text", "status"),
    [
        (pb.SessionRequest(client_name=LONG, protocol_version=1), "client_name: 257 bytes", INVALID),
        (pb.SessionRequest(protocol_version=2), "protocol_version 2 is not the daemon's, 1", REFUSED),
        (pb.SessionRequest(), "protocol_version 0", REFUSED),
    ],
)
def test_bad_sessions(request_: Any, text: str, status: grpc.StatusCode, tmp_path: Path) -> None:
    """A session that cannot be opened ends its stream with the reason."""

    async def body(d: Daemon) -> None:
        call = d.blocks.Session(request_, timeout=DEADLINE_S)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call.read()
        assert caught.value.code() is status and text in str(caught.value.details())

    run(body, tmp_path)


def test_bad_get(tmp_path: Path) -> None:
    """A Get is checked as the Acquire that it contains."""

    async def body(d: Daemon) -> None:
        await d.namespace()
        session = (await d.session()).number
        requests = [
            (pb.GetRequest(session=0, blocks=ONE), "session: 0", INVALID),
            (pb.GetRequest(session=5, blocks=ONE), "session 5", NOT_FOUND),
            (pb.GetRequest(session=session), "blocks.namespace: 0", INVALID),
            (pb.GetRequest(session=session, blocks=ONE, sequence=LONG), "sequence: 257", INVALID),
            (pb.GetRequest(session=session, blocks=ONE, timeout_ms=600_001), TIMEOUT, INVALID),
        ]
        for request, text, status in requests:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await d.blocks.Get(request, timeout=DEADLINE_S).read()
            assert caught.value.code() is status and text in str(caught.value.details())

    run(body, tmp_path)


def test_bad_put(tmp_path: Path) -> None:
    """A Put whose header or stream is malformed stores nothing and names what is wrong."""

    async def body(d: Daemon) -> None:
        await d.namespace()
        session = (await d.session()).number
        head = pb.PutHeader(session=session, blocks=ONE, checksums=[1])
        data, half = pb.PutRequest(data=b"x" * 4096), pb.PutRequest(data=b"x" * 2048)

        def header(**fields: object) -> pb.PutRequest:
            changed = pb.PutHeader()
            changed.CopyFrom(head)
            for name, value in fields.items():
                if name in ("checksums", "blocks"):
                    changed.ClearField(name)
                    changed.MergeFrom(pb.PutHeader(**{name: value}))
                else:
                    setattr(changed, name, value)
            return pb.PutRequest(header=changed)

        streams = [
            ([], "header: missing", INVALID),
            ([data], "header: missing", INVALID),
            ([pb.PutRequest()], "header: missing", INVALID),
            ([header(session=0), data], "session: 0", INVALID),
            ([header(session=3), data], "session 3", NOT_FOUND),
            ([header(tier=3), data], "tier: SPILL", INVALID),
            ([header(sequence=LONG), data], "sequence: 257", INVALID),
            ([header(sequence="r"), data], "sequence 'r'", NOT_FOUND),
            ([header(timeout_ms=600_001), data], TIMEOUT, INVALID),
            ([header(checksums=[]), data], "checksums: 0", INVALID),
            ([header(blocks=pb.BlockIds(namespace=1)), data], "blocks.ids: empty", INVALID),
            ([header(blocks=pb.BlockIds(namespace=9, ids=identity(1))), data], "namespace 9", NOT_FOUND),
            ([header(), header()], "data: missing", INVALID),
            ([header()], "data: ended after 0 bytes of 4096", INVALID),
            ([header(), half], "data: ended after 2048 bytes of 4096", INVALID),
            ([header(), data, half], "data: more bytes than the 1 blocks of 4096", INVALID),
            ([header(), pb.PutRequest(data=b"x" * (1024 * 1024 + 1))], "data: 1048577 bytes in one", INVALID),
        ]
        for messages, text, status in streams:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await d.blocks.Put(iter(messages), timeout=DEADLINE_S)
            assert (caught.value.code(), text in str(caught.value.details())) == (status, True), text
        assert await d.tiers_of(ONE) == [0]
        await d.check_balance()
        assert d.service.segments_reserved(session) == frozenset()

    run(body, tmp_path)
