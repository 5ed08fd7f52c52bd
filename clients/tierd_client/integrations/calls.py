"""Calls that an engine can do without."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from tierd_client.errors import ClientClosed, ForkedClientError, InvalidArgument, TierdClientError
from tierd_client.integrations.link import Link
from tierd_client.integrations.shadow import ShadowNamespace
from tierd_client.layout import Layout
from tierd_client.namespace import Namespace

CONNECT_S = 2.0
"""For which what is new waits for the daemon, once."""

T = TypeVar("T")


def attempt(link: Link, layout: Layout, work: Callable[[Namespace], T], otherwise: T) -> T:
    """What comes of a call; `otherwise` while the daemon is away. Raises what is the caller's fault."""
    if link.is_up:
        try:
            namespace = link.namespace(layout)
            return work(ShadowNamespace(namespace) if link.options.shadow else namespace)
        except (InvalidArgument, ClientClosed, ForkedClientError):
            raise
        except TierdClientError as error:
            link.lost(error)
    return otherwise
