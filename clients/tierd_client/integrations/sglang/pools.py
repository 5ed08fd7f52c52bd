"""SGLang's host pools as namespaces and pages: what tells their blocks from those of others, and where they lie."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tierd_client.errors import InvalidArgument
from tierd_client.format import U8Array
from tierd_client.integrations.keys import Run
from tierd_client.integrations.weights import weights_digest
from tierd_client.layout import Group, Layout, Part
from tierd_client.paged import PagedKV

ENGINE = "sglang"
KV = "kv"
"""The pool of keys and values."""


@dataclass(frozen=True, slots=True)
class Pool:
    """A host pool of one rank. `pages`: straight in its memory; None where pages are given flat."""

    layout: Layout
    page_tokens: int
    pages: PagedKV | None

    def numbers(self, host_indices: Any, keys: int) -> NDArray[np.int64] | None:
        """The number of each key's page; None where the indices of tokens are not those of whole pages."""
        given = np.asarray(host_indices, np.int64).reshape(-1)
        if len(given) != keys * self.page_tokens:
            return None
        firsts = given[:: self.page_tokens]
        return firsts // self.page_tokens if not (firsts % self.page_tokens).any() else None


def pool_of(config: Any, name: str, host_pool: Any, *, in_place: bool, revision: str, tenant: str) -> Pool:
    """The pool's namespace and pages. Raises InvalidArgument for memory that is not pages of pieces alike."""
    tokens = int(getattr(host_pool, "page_size", 1) or 1)
    form = f"{name} {getattr(host_pool, 'layout', '')} {getattr(host_pool, 'dtype', '')}"
    if not in_place:
        flat = host_pool.get_dummy_flat_data_page()
        part = Part("page", "uint8", (1, flat.numel() * flat.element_size()))
        return Pool(layout_of(config, tokens, part, f"{form} flat", revision, tenant), tokens, None)
    views = _views(host_pool, tokens)
    part = Part("pieces", "uint8", (len(views), views[0].shape[1]))
    layout = layout_of(config, tokens, part, f"{form} pieces", revision, tenant)
    return Pool(layout, tokens, PagedKV(layout, views))


def layout_of(config: Any, tokens: int, part: Part, form: str, revision: str, tenant: str) -> Layout:
    """Of a rank. Ranks of tensor parallelism share the blocks of MLA, which are alike."""
    model = str(config.model_name or "")
    shared = config.is_mla_model
    shard = f"dcp {config.dcp_rank}/{config.dcp_size}" if getattr(config, "dcp_size", 1) > 1 else ""
    return Layout.of_groups(
        [Group("pages", tokens, (part,))], model=model, revision=revision or _digest(model), engine=ENGINE,
        kv_layout=f"{form} {shard}".strip(), tenant_salt=tenant.encode(),
        tp_rank=0 if shared else config.tp_rank, tp_size=1 if shared else config.tp_size,
        pp_rank=config.pp_rank, pp_size=config.pp_size,
        cp_rank=config.attn_cp_rank, cp_size=config.attn_cp_size,
    )


def run_of(keys: Sequence[str], extra_info: Any) -> Run:
    """Keys that follow each other in a prompt, behind those that `extra_info` names."""
    before = list(getattr(extra_info, "prefix_keys", None) or ())
    parent = before[-1].encode() if before else None
    return Run(tuple(key.encode() for key in keys), position=len(before), parent=parent)


def _views(host_pool: Any, tokens: int) -> list[U8Array]:
    """Each piece of all pages, uint8 (pages, bytes). SGLang says where the pieces of a page lie; that they lie
    alike in all pages is taken from three of them."""
    count = int(host_pool.size) // tokens
    first, sizes = _pieces(host_pool, 0, tokens)
    if len(set(sizes)) != 1:
        raise InvalidArgument(f"host pool: pieces of {sorted(set(sizes))} bytes; with interface_v1 0 pages go flat")
    last, _ = _pieces(host_pool, count - 1, tokens)
    steps = [(end - start) // max(1, count - 1) for start, end in zip(first, last, strict=True)]
    again, _ = _pieces(host_pool, min(1, count - 1), tokens)
    if any(start + step * min(1, count - 1) != second
           for start, step, second in zip(first, steps, again, strict=True)):
        raise InvalidArgument("host pool: its pages do not follow each other; with interface_v1 0 pages go flat")
    return [_view(start, count, step or sizes[0], sizes[0]) for start, step in zip(first, steps, strict=True)]


def _pieces(host_pool: Any, page: int, tokens: int) -> tuple[list[int], list[int]]:
    import torch

    indices = torch.arange(page * tokens, (page + 1) * tokens)
    addresses, sizes = host_pool.get_page_buffer_meta(indices)[:2]
    return list(map(int, addresses)), list(map(int, sizes))


def _view(address: int, count: int, step: int, size: int) -> U8Array:
    memory = (ctypes.c_uint8 * (step * (count - 1) + size)).from_address(address)
    return np.ndarray((count, size), np.uint8, buffer=memoryview(memory), strides=(step, 1))


def _digest(model: str) -> str:
    return weights_digest(Path(model)) if Path(model).is_dir() else ""
