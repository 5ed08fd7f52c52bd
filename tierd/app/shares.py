"""Who has how much of each tier: by namespace, and by tenant."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tierd.app.namespaces import Namespace
from tierd.core.messages import SharesReply, Tier

DOMAIN = "default"
"""The one security domain so far."""


@dataclass(slots=True)
class TierShare:
    """READY copies, the bytes of their slots, and the bytes of slots that are being written."""

    blocks: int = 0
    used_bytes: int = 0
    reserved_bytes: int = 0

    def add(self, other: TierShare) -> None:
        self.blocks += other.blocks
        self.used_bytes += other.used_bytes
        self.reserved_bytes += other.reserved_bytes


@dataclass(slots=True)
class TenantShare:
    """What a tenant has in each tier that is on."""

    tenant: str
    tiers: dict[Tier, TierShare] = field(default_factory=dict)

    @property
    def total_bytes(self) -> int:
        return sum(one.used_bytes + one.reserved_bytes for one in self.tiers.values())


@dataclass(slots=True)
class NamespaceShare(TenantShare):
    """What one namespace of a tenant has."""

    namespace: Namespace = field(kw_only=True)


def by_namespace(namespaces: Sequence[Namespace], reply: SharesReply) -> list[NamespaceShare]:
    """One share for each namespace, in their order, also of those that have nothing."""
    return [_share(one, reply) for one in namespaces]


def _share(namespace: Namespace, reply: SharesReply) -> NamespaceShare:
    share, number = NamespaceShare(namespace.layout.tenant, namespace=namespace), namespace.number
    for tier, of in reply.tiers.items():
        known = number < len(of.blocks)
        columns = (of.blocks, of.used_bytes, of.reserved_bytes)
        share.tiers[tier] = TierShare(*(int(column[number]) if known else 0 for column in columns))
    return share


def by_tenant(shares: Sequence[NamespaceShare]) -> list[TenantShare]:
    """The sums over each tenant's namespaces, those with the most bytes first."""
    tenants: dict[str, TenantShare] = {}
    for share in shares:
        tenant = tenants.setdefault(share.tenant, TenantShare(share.tenant))
        for tier, one in share.tiers.items():
            tenant.tiers.setdefault(tier, TierShare()).add(one)
    return sorted(tenants.values(), key=lambda tenant: (-tenant.total_bytes, tenant.tenant))
