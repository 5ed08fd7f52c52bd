"""What the daemon hears of a request once it has finished, on a thread of the link."""

from __future__ import annotations

from collections.abc import Sequence

from tierd_client.errors import TierdClientError
from tierd_client.identity import Identities
from tierd_client.integrations.keys import Run
from tierd_client.integrations.link import Link
from tierd_client.integrations.prompts import Prompt, Shadow
from tierd_client.integrations.request_hints import Hints
from tierd_client.layout import Layout
from tierd_client.namespace import Namespace


def report(link: Link, layouts: Sequence[Layout], name: str, prompt: Prompt, hints: Hints) -> None:
    """Tells of blocks that the engine's own cache served, and what the request said of its blocks' future. `name`:
    of the request. In shadow mode it tells of the request itself. Returns at once; nothing is told while the daemon
    is away."""
    if link.options.shadow:
        shadow = prompt.as_shadow()
        if link.is_up and len(shadow.run):
            link.submit(lambda: _shadow(link, layouts[0], shadow))
        return
    touched, whole = prompt.served_elsewhere(), prompt.whole()
    if link.is_up and whole and (touched or hints.ttl_s or hints.next_use is not None):
        link.submit(lambda: _report(link, layouts, name, touched, whole, hints))


def _report(
    link: Link, layouts: Sequence[Layout], name: str, touched: list[Run], whole: list[Run], hints: Hints,
) -> None:
    try:
        for layout in layouts:
            namespace = link.namespace(layout)
            for run in touched:
                namespace.touch(run.identities(layout))
            _hint(namespace, name, [run.identities(layout) for run in whole], hints)
    except TierdClientError as error:
        link.lost(error)


def _shadow(link: Link, layout: Layout, told: Shadow) -> None:
    try:
        link.namespace(layout).shadow(
            told.run.identities(layout), told.asked, told.served, block_bytes=told.block_bytes,
            prefill_tokens_per_s=told.prefill_tokens_per_s)
    except TierdClientError as error:
        link.lost(error)


def _hint(namespace: Namespace, name: str, chains: list[Identities], hints: Hints) -> None:
    if hints.ttl_s:
        for ids in chains:
            namespace.pin(ids, hints.ttl_s)
    if hints.next_use is not None:
        sequence = namespace.sequence(name, chains, hints.priority)
        sequence.close(hints.next_use, expected_s=hints.expected_s)
