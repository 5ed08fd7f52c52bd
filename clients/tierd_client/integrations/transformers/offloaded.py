"""A cache whose old blocks live in tierd and come back when a query needs them: nothing is forgotten for good.

    model attends to    the first block, the best others within the budget, and the newest tokens
    tierd holds         every full block that is older than the newest tokens, layer by layer

Which blocks are best is told by an index of their keys that stays here (index.py). A prompt is attended to in full.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache

from tierd_client.arguments import whole
from tierd_client.errors import InvalidArgument, LimitReached
from tierd_client.identity import Identities, plain_ids
from tierd_client.integrations.calls import CONNECT_S, attempt
from tierd_client.integrations.link import Link
from tierd_client.integrations.options import Options
from tierd_client.integrations.transformers import blocks
from tierd_client.integrations.transformers.attention import (
    ROWS,
    full_attention_only,
    output_of,
    weights_of,
)
from tierd_client.integrations.transformers.index import Index, index_named
from tierd_client.integrations.transformers.layer import AttendedLayer
from tierd_client.integrations.transformers.model import name_of
from tierd_client.integrations.transformers.prefix import FETCH_TIMEOUT_S
from tierd_client.layout import Layout
from tierd_client.namespace import Namespace
from tierd_client.outcomes import AcquireOutcome, PutOutcome

ENGINE = "transformers-offload"

PIN_S = 600.0
"""For which blocks are protected in the daemon, renewed in half of it; a process that dies leaves them so long."""

TOKENS_MAX = 1 << 30
BLOCK_TOKENS_MAX = 4096


@dataclass
class OffloadStats:
    """Blocks of one layer each. `kept` ones found no place in the daemon and stay here; `late` ones were not there
    in time for a query, `lost` ones are gone from the daemon, so that nothing can attend to them any more."""

    offloaded: int = 0
    fetched: int = 0
    kept: int = 0
    late: int = 0
    lost: int = 0


class OffloadedCache(Cache):
    """A cache of one sequence; the model must use this package's attention (`use_attention`).

    Attended to per decoded token: `budget_tokens` in blocks of `block_tokens`, and beside them the newest
    `recent_tokens` to `recent_tokens` + `block_tokens` - 1. `index`: keys, or bounds, for half of the
    bytes and worse choices. `options`: of the daemon, as `Options` or its fields by name. Without a daemon blocks
    stay here, and the same ones are attended to. `close` drops what the daemon holds.
    """

    layers: list[Any]

    def __init__(
        self, model: Any, options: Options | None = None, *, budget_tokens: int = 1024, recent_tokens: int = 64,
        block_tokens: int = 16, index: str = "keys", **fields: Any,
    ) -> None:
        whole(block_tokens, "block_tokens", 1, BLOCK_TOKENS_MAX)
        whole(budget_tokens, "budget_tokens", 2 * block_tokens, TOKENS_MAX)
        whole(recent_tokens, "recent_tokens", 1, TOKENS_MAX)
        config = full_attention_only(model)
        heads = config.num_attention_heads
        layout = Layout(
            model=name_of(model), dtype=str(model.dtype).removeprefix("torch."), layers=1,
            kv_heads=getattr(config, "num_key_value_heads", None) or heads, block_tokens=block_tokens,
            head_dim=getattr(config, "head_dim", None) or config.hidden_size // heads, engine=ENGINE,
        )
        self._shelf = Shelf(layout, options or Options.of(fields))
        super().__init__(layers=[
            OffloadedLayer(number, self._shelf, index_named(index), budget_tokens // block_tokens, recent_tokens)
            for number in range(config.num_hidden_layers)
        ])

    @property
    def stats(self) -> OffloadStats:
        return self._shelf.stats

    @property
    def held_bytes(self) -> int:
        """Of keys and values in this process now, with the index."""
        return sum(layer.held_bytes for layer in self.layers)

    def close(self) -> None:
        """Drops the blocks from the daemon; idempotent."""
        self._shelf.close()

    def __enter__(self) -> OffloadedCache:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Shelf:
    """Blocks of one cache in the daemon, by layer and number. Their names are secret: nobody else finds them."""

    def __init__(self, layout: Layout, options: Options) -> None:
        self.layout = layout
        self.stats = OffloadStats()
        self._secret = secrets.token_bytes(16)
        if options.shadow:
            raise InvalidArgument("shadow: blocks of an offloaded cache must come back, so that they are stored")
        self._link = Link(options, "transformers", [layout])
        self._link.wait_up(CONNECT_S)
        self._pinned_at = time.monotonic()
        self._counts: dict[int, int] = {}

    def store(self, layer: int, first: int, packed: Tensor) -> list[bool]:
        """Of blocks numbered from `first` on: which the daemon has now."""
        ids = self._ids(layer, range(first, first + len(packed)))
        good = (PutOutcome.STORED, PutOutcome.EXISTS)

        def put(namespace: Namespace) -> list[bool]:
            stored = [outcome in good for outcome in namespace.put(ids, blocks.raw(packed))]
            self._pin(namespace, ids)
            return stored

        self._counts[layer] = first + len(packed)
        stored = attempt(self._link, self.layout, put, [False] * len(packed))
        self.stats.offloaded += sum(stored)
        return stored

    def fetch(self, layer: int, numbers: list[int]) -> tuple[Tensor, list[AcquireOutcome]]:
        """Blocks [blocks, 2, 1, block_tokens, kv_heads, head_dim], filled where LEASED."""
        if time.monotonic() - self._pinned_at >= PIN_S / 2:
            self._each(self._pin)
        ids, held = self._ids(layer, numbers), blocks.empty(self.layout, len(numbers))
        outcomes = attempt(
            self._link, self.layout,
            lambda namespace: namespace.get_into(ids, blocks.raw(held), timeout_s=FETCH_TIMEOUT_S),
            [AcquireOutcome.PENDING] * len(numbers))
        self.stats.fetched += outcomes.count(AcquireOutcome.LEASED)
        return held, outcomes

    def close(self) -> None:
        """Drops all blocks; idempotent."""
        self._each(_drop)
        self._counts.clear()
        self._link.close()

    def _each(self, work: Callable[[Namespace, Identities], object]) -> None:
        """Does something with the blocks of each layer, and counts the time of their pins anew."""
        self._pinned_at = time.monotonic()
        for layer, count in self._counts.items():
            ids = self._ids(layer, range(count))
            attempt(self._link, self.layout, partial(_told, work, ids), None)

    def _ids(self, layer: int, numbers: Iterable[int]) -> Identities:
        names = [self._secret + layer.to_bytes(4, "big") + number.to_bytes(8, "big") for number in numbers]
        return plain_ids(self.layout, names)

    @staticmethod
    def _pin(namespace: Namespace, ids: Identities) -> None:
        with suppress(LimitReached):  # pins have their share; unpinned blocks may be dropped as any others
            namespace.pin(ids, ttl_s=PIN_S)


def _told(work: Callable[[Namespace, Identities], object], ids: Identities, namespace: Namespace) -> None:
    work(namespace, ids)


def _drop(namespace: Namespace, ids: Identities) -> None:
    namespace.unpin(ids)
    namespace.evict(ids, to=None, allow_drop=True)


class OffloadedLayer(AttendedLayer):
    """`keys`, `values`: of the newest tokens."""

    def __init__(self, number: int, shelf: Shelf, index: Index, budget_blocks: int, recent_tokens: int) -> None:
        super().__init__()
        self._number, self._shelf, self._index = number, shelf, index
        self._budget, self._recent = budget_blocks, recent_tokens
        self.blocks = 0
        """Full blocks older than the newest tokens."""
        self._here: dict[int, tuple[Tensor, Tensor]] = {}
        self._kept: set[int] = set()
        self._lost: set[int] = set()

    def attend(self, query: Tensor, scaling: float) -> Tensor:
        chosen = self._chosen(query, scaling) if query.shape[2] == 1 else list(range(self.blocks))
        old = self._brought(chosen)
        keys = torch.cat([*(key for key, _ in old), self.keys], 2)
        values = torch.cat([*(value for _, value in old), self.values], 2)
        past = keys.shape[2] - query.shape[2]
        outputs = []
        for start in range(0, query.shape[2], ROWS):
            rows = query[:, :, start : start + ROWS]
            seen = past + start + rows.shape[2]
            outputs.append(output_of(weights_of(rows, keys[:, :, :seen], scaling), values[:, :, :seen]))
        self.settle()
        return torch.cat(outputs, 2)

    def saw(self, weights: Tensor) -> None:
        """Attention of the next tokens of a prompt, computed elsewhere: nothing follows from it."""

    def settle(self) -> None:
        """All new tokens have been attended with: what is older than the newest goes to the daemon."""
        self._unseen = 0
        self._offload()

    def get_seq_length(self) -> int:
        newest = self.keys.shape[2] if self.is_initialized else 0
        return self.blocks * self._shelf.layout.block_tokens + newest

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.get_seq_length() + query_length, 0

    @property
    def held_bytes(self) -> int:
        """Of keys, values and index in this process now."""
        if not self.is_initialized:
            return 0
        old = sum(key.nbytes + value.nbytes for key, value in self._here.values())
        return old + self.keys.nbytes + self.values.nbytes + self._index.nbytes

    def _chosen(self, query: Tensor, scaling: float) -> list[int]:
        """The blocks to attend to: the first, and those with the largest share of some head's attention."""
        if self.blocks <= self._budget:
            return list(range(self.blocks))
        queries = query[0, :, 0].reshape(self.keys.shape[1], -1, query.shape[-1])
        share = (self._index.products(queries) * scaling).softmax(-1).amax((0, 1))
        share[0] = 2.0
        share[list(self._lost)] = -1.0
        return share.topk(self._budget).indices.tolist()

    def _brought(self, chosen: list[int]) -> list[tuple[Tensor, Tensor]]:
        """Keys and values of blocks, [1, kv_heads, block_tokens, head_dim] each; those not chosen leave."""
        missing = [number for number in chosen if number not in self._here and number not in self._lost]
        wanted = {*chosen, *self._kept}
        self._here = {number: block for number, block in self._here.items() if number in wanted}
        if missing:
            held, outcomes = self._shelf.fetch(self._number, missing)
            for number, block, outcome in zip(missing, held, outcomes, strict=True):
                if outcome is AcquireOutcome.LEASED:
                    self._here[number] = blocks.unpack(block[None], self.device)[0]
                elif outcome in (AcquireOutcome.MISS, AcquireOutcome.LOST):
                    self._lost.add(number)
                    self._shelf.stats.lost += 1
                else:
                    self._shelf.stats.late += 1
        return [self._here[number] for number in chosen if number in self._here]

    def _offload(self) -> None:
        """Gives the daemon the full blocks that are older than the newest tokens."""
        size = self._shelf.layout.block_tokens
        count = max(0, self.keys.shape[2] - self._recent) // size
        if not count:
            return
        stored = self._shelf.store(self._number, self.blocks, blocks.pack([self], self._shelf.layout, 0, count))
        old = self.keys[0, :, : count * size].unflatten(1, (count, size))
        self._index.add(old)
        for offset, is_stored in enumerate(stored):
            if not is_stored:
                span = slice(offset * size, (offset + 1) * size)
                self._here[self.blocks + offset] = self.keys[:, :, span].clone(), self.values[:, :, span].clone()
                self._kept.add(self.blocks + offset)
                self._shelf.stats.kept += 1
        self.blocks += count
        self.keys, self.values = self.keys[:, :, count * size :].clone(), self.values[:, :, count * size :].clone()
