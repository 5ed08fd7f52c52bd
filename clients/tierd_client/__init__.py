"""Client of tierd. See README.md."""

from __future__ import annotations

from tierd_client.identity import Identities, chain_ids, plain_ids
from tierd_client.layout import Group, Layout, Part

__all__ = ["Group", "Identities", "Layout", "Part", "chain_ids", "plain_ids"]
