"""Prefixes of prompts, kept in tierd from one request to the next and from one process to another."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from transformers import DynamicCache

from tierd_client.errors import InvalidArgument
from tierd_client.identity import Identities, chain_ids
from tierd_client.integrations.calls import CONNECT_S, attempt
from tierd_client.integrations.link import Link
from tierd_client.integrations.options import Options
from tierd_client.integrations.transformers import blocks
from tierd_client.integrations.transformers.model import layout_of
from tierd_client.namespace import Namespace
from tierd_client.outcomes import AcquireOutcome, PutOutcome

BLOCK_TOKENS = 16
FETCH_TIMEOUT_S = 5.0
"""Blocks may have to come back from Redis; what does not come in time is computed."""


class PrefixCache(DynamicCache):
    """A cache of one sequence that may begin with what tierd held of it."""

    def __init__(self) -> None:
        super().__init__()
        self.reused_tokens = 0
        """With which it began."""
        self.known_blocks = 0
        """That are in tierd, as far as is known."""


@dataclass
class PrefixStats:
    """What came of it so far. `outcomes`: of blocks that were saved, by name."""

    prompts: int = 0
    prompt_tokens: int = 0
    reused_tokens: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)


class PrefixStore:
    """The prefixes of one model in one daemon. Thread-safe but for its statistics.

    `options`: of the daemon, as `Options` or its fields by name. While the daemon is away caches begin empty and
    nothing is saved, which is logged once.
    """

    def __init__(self, model: Any, options: Options | None = None, *, block_tokens: int = BLOCK_TOKENS,
                 **fields: Any) -> None:
        options = options or Options.of(fields)
        self.layout = layout_of(model, block_tokens, options.revision)
        self.stats = PrefixStats()
        self._device = model.device
        self._link = Link(options, "transformers", [self.layout])
        self._link.wait_up(CONNECT_S)

    def cache(self, token_ids: Any, timeout_s: float = FETCH_TIMEOUT_S) -> PrefixCache:
        """A cache for a prompt, filled with its longest prefix in tierd; one token at least is left to compute.

        `token_ids`: [tokens] or [1, tokens], without padding. generate() takes all of them and feeds the rest.
        """
        tokens = blocks.tokens_of(token_ids)
        cache = PrefixCache()
        ids = chain_ids(self.layout, tokens)[: max(0, len(tokens) - 1) // self.layout.block_tokens]
        held = attempt(self._link, self.layout, lambda namespace: self._read(namespace, ids, timeout_s), None)
        if held is not None and len(held):
            for layer, (keys, values) in enumerate(blocks.unpack(held, self._device)):
                cache.update(keys, values, layer)
            cache.known_blocks = len(held)
            cache.reused_tokens = len(held) * self.layout.block_tokens
        self.stats.prompts += 1
        self.stats.prompt_tokens += len(tokens)
        self.stats.reused_tokens += cache.reused_tokens
        return cache

    def save(self, cache: PrefixCache, token_ids: Any, *, wait: bool = True) -> Counter[str]:
        """Stores the full blocks that the cache holds beyond those in tierd; their outcomes by name.

        `token_ids`: of all that the cache holds, or more, as generate() returned them: blocks are found by them,
        and ids of another text would give that text these keys and values. `wait`: as in `Namespace.put`. Raises
        InvalidArgument for too few ids, and for a cache of another model or of several sequences.
        """
        tokens, length = blocks.tokens_of(token_ids), cache.get_seq_length()
        if len(tokens) < length:
            raise InvalidArgument(f"token_ids: {len(tokens)}, the cache holds {length} tokens")
        ids = chain_ids(self.layout, tokens[:length])
        first = min(cache.known_blocks, len(ids))
        if first == len(ids):
            return Counter()
        packed = blocks.raw(blocks.pack(cache.layers, self.layout, first, len(ids)))
        outcomes: list[PutOutcome] = attempt(self._link, self.layout,
            lambda namespace: namespace.put(ids[first:], packed, wait=wait), [])
        cache.known_blocks = first + _leading(outcomes, (PutOutcome.STORED, PutOutcome.EXISTS, PutOutcome.QUEUED))
        counts = Counter(outcome.name for outcome in outcomes)
        self.stats.outcomes.update(counts)
        return counts

    def close(self) -> None:
        """Gives the daemon up; idempotent."""
        self._link.close()

    def __enter__(self) -> PrefixStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _read(self, namespace: Namespace, ids: Identities, timeout_s: float) -> Any:
        found = namespace.lookup(ids).prefix
        held = blocks.empty(self.layout, found)
        outcomes = namespace.get_into(ids[:found], blocks.raw(held), timeout_s=timeout_s) if found else []
        return held[: _leading(outcomes, (AcquireOutcome.LEASED,))]


def _leading(outcomes: Any, good: tuple[Any, ...]) -> int:
    """How many of the first ones are good."""
    return next((i for i, outcome in enumerate(outcomes) if outcome not in good), len(outcomes))
