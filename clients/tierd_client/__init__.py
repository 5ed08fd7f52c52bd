"""Client of tierd, the multi-tier KV-cache offload daemon. Start with `Client`.

Names are loaded when they are first used: layouts, identities and formats need no grpc.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tierd_client.budget import BlockResidency, Budget, Resident
    from tierd_client.catalog import CatalogReader
    from tierd_client.chains import ChainsHit
    from tierd_client.client import AsyncClient, Client
    from tierd_client.credentials import Tls
    from tierd_client.errors import (
        AccessDenied,
        BrokenPeer,
        ClientClosed,
        ConnectFailed,
        FailedPrecondition,
        ForkedClientError,
        InvalidArgument,
        LimitReached,
        NotFound,
        SharedMemoryUnavailable,
        TierdClientError,
        TimedOut,
        Unavailable,
    )
    from tierd_client.handover import LeasedReader, Places
    from tierd_client.hints import PrefetchProgress, PrefetchTicket
    from tierd_client.identity import Identities, chain_ids, plain_ids, private_ids
    from tierd_client.layout import Group, Layout, Part
    from tierd_client.lease import AsyncLease, Lease
    from tierd_client.lending import AsyncLentPool, Fence, LentPool, Piece, SharedRegion, pieces_of
    from tierd_client.namespace import AsyncNamespace, Namespace
    from tierd_client.outcomes import (
        AcquireOutcome,
        AdoptOutcome,
        EvictOutcome,
        LookupResult,
        NextUse,
        PinOutcome,
        PrefetchOutcome,
        Presence,
        Priority,
        PutOutcome,
        ReadmitOutcome,
        Tier,
        Tiers,
        WithdrawOutcome,
    )
    from tierd_client.paged import PagedKV
    from tierd_client.sequence import AsyncSequence, Sequence

_HOMES = {
    "budget": ("BlockResidency", "Budget", "Resident"),
    "catalog": ("CatalogReader",),
    "chains": ("ChainsHit",),
    "client": ("AsyncClient", "Client"),
    "credentials": ("Tls",),
    "errors": (
        "AccessDenied", "BrokenPeer", "ClientClosed", "ConnectFailed", "FailedPrecondition",
        "ForkedClientError", "InvalidArgument", "LimitReached", "NotFound", "SharedMemoryUnavailable",
        "TierdClientError", "TimedOut", "Unavailable",
    ),
    "handover": ("LeasedReader", "Places"),
    "hints": ("PrefetchProgress", "PrefetchTicket"),
    "identity": ("Identities", "chain_ids", "plain_ids", "private_ids"),
    "layout": ("Group", "Layout", "Part"),
    "lease": ("AsyncLease", "Lease"),
    "lending": ("AsyncLentPool", "Fence", "LentPool", "Piece", "SharedRegion", "pieces_of"),
    "namespace": ("AsyncNamespace", "Namespace"),
    "outcomes": (
        "AcquireOutcome", "AdoptOutcome", "EvictOutcome", "LookupResult", "NextUse", "PinOutcome",
        "PrefetchOutcome", "Presence", "Priority", "PutOutcome", "ReadmitOutcome", "Tier", "Tiers",
        "WithdrawOutcome",
    ),
    "paged": ("PagedKV",),
    "sequence": ("AsyncSequence", "Sequence"),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [  # noqa: PLE0604, RUF100 - a literal, for those who read it without running it
    "AccessDenied", "AcquireOutcome", "AdoptOutcome", "AsyncClient", "AsyncLease", "AsyncLentPool",
    "AsyncNamespace", "AsyncSequence", "BlockResidency", "BrokenPeer", "Budget", "CatalogReader", "ChainsHit",
    "Client", "ClientClosed", "ConnectFailed", "EvictOutcome", "FailedPrecondition", "Fence",
    "ForkedClientError", "Group", "Identities", "InvalidArgument", "Layout", "Lease", "LeasedReader",
    "LentPool", "LimitReached", "LookupResult", "Namespace", "NextUse", "NotFound", "PagedKV", "Part", "Piece",
    "PinOutcome", "Places", "PrefetchOutcome", "PrefetchProgress", "PrefetchTicket", "Presence", "Priority",
    "PutOutcome", "ReadmitOutcome", "Resident", "Sequence", "SharedMemoryUnavailable", "SharedRegion", "Tier",
    "TierdClientError", "Tiers", "TimedOut", "Tls", "Unavailable", "WithdrawOutcome", "chain_ids", "pieces_of",
    "plain_ids", "private_ids",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"tierd_client.{_HOME_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
