"""Translation of what is said of requests in shadow mode, as convert.py does for the rest."""

from __future__ import annotations

from dataclasses import fields

from tierd.app.namespaces import Namespace
from tierd.app.recorder import Shadowed
from tierd.app.shadow import ShadowFigures, SizeFigures
from tierd.core.errors import InvalidInput
from tierd.core.shadow import Estimate
from tierd_client.layout import BLOCK_BYTES_MAX
from tierd_client.v1 import admin_pb2 as apb
from tierd_client.v1 import blocks_pb2 as pb

PREFILL_TOKENS_PER_S_MAX = 1e9


def shadowed(request: pb.ShadowRequest, count: int) -> Shadowed:
    """What is said of a request with `count` blocks; the namespace is not looked up."""
    if request.asked_blocks > count:
        raise InvalidInput("asked_blocks", f"{request.asked_blocks} of {count} identities")
    if request.served_blocks > request.asked_blocks:
        raise InvalidInput("served_blocks", f"{request.served_blocks}, more than asked_blocks")
    if request.block_bytes > BLOCK_BYTES_MAX:
        raise InvalidInput("block_bytes", f"{request.block_bytes}, more than {BLOCK_BYTES_MAX}")
    rate = request.prefill_tokens_per_s
    if not 0 <= rate <= PREFILL_TOKENS_PER_S_MAX:
        raise InvalidInput("prefill_tokens_per_s", f"{rate} is not from 0 to {PREFILL_TOKENS_PER_S_MAX:g}")
    return Shadowed(
        request.blocks.namespace, request.block_bytes, request.asked_blocks, request.served_blocks, rate)


def namespace_figures(found: ShadowFigures, namespace: Namespace) -> apb.ShadowNamespace:
    plain = [field.name for field in fields(found) if field.name != "sizes"]
    return apb.ShadowNamespace(
        name=next(iter(namespace.names), ""), model=namespace.layout.model, sizes=map(_size, found.sizes),
        **{name: getattr(found, name) for name in plain},
    )


def _size(one: SizeFigures) -> apb.ShadowSize:
    figures = one.figures
    return apb.ShadowSize(
        capacity_bytes=one.capacity_bytes, capacity_blocks=figures.capacity_blocks, held_blocks=figures.held_blocks,
        sampled_share=figures.sampled_share, block_hits=_estimate(figures.block_hits),
        prefix_hits=_estimate(figures.prefix_hits), saved=_estimate(figures.saved),
    )


def _estimate(one: Estimate) -> apb.ShadowEstimate:
    return apb.ShadowEstimate(blocks=one.blocks, error=one.error)
