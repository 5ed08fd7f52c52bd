"""Chains of one prompt that are looked up together: the groups of a layout, the ranks of a model. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from tierd_client.errors import InvalidArgument
from tierd_client.hits import HitRule, hit_tokens
from tierd_client.identity import Identities

CHAINS_MAX = 1024
"""Chains of one call."""


@dataclass(frozen=True, slots=True)
class ChainsHit:
    """How much of a prompt can be reused: `tokens` of it, which end at a block in each chain. `needed`: per
    chain, in the order given, the blocks to read for it. `ready_in_ms`: estimate until they can be acquired."""

    tokens: int
    needed: tuple[Identities, ...]
    ready_in_ms: int = 0


class Question:
    """Chains and their rules, as far as they could be a hit together. Ranks that share a chain ask once."""

    def __init__(self, chains: Sequence[Identities], rules: Sequence[HitRule]) -> None:
        """Raises InvalidArgument for what is no chain from the start of a prompt."""
        if not chains:
            raise InvalidArgument("chains: none given")
        for index, ids in enumerate(chains):
            if not ids.chain or ids.position:
                raise InvalidArgument(f"chains[{index}]: not the chain of a prompt from its first block")
        self._chains, self._rules = chains, rules
        most = hit_tokens([(np.ones(len(ids), bool), rule) for ids, rule in zip(chains, rules, strict=True)])
        useful = [ids[: most // rule.block_tokens] for ids, rule in zip(chains, rules, strict=True)]
        self._keys = [ids.packed() for ids in useful]
        first = {key: index for index, key in reversed(list(enumerate(self._keys)))}
        self._asked = {index: useful[index] for index in sorted(first.values()) if len(useful[index])}
        self._tiers = {key: bytearray() for key in self._keys}
        self._ready_in_ms = 0

    def calls(self, most: int) -> Iterator[list[tuple[int, Identities]]]:
        """Runs of chains, each with the number of its chain, at most `most` identities a call; in order."""
        call: list[tuple[int, Identities]] = []
        room = most
        for index, ids in self._asked.items():
            start = 0
            while start < len(ids):
                if not room or len(call) == CHAINS_MAX:
                    yield call
                    call, room = [], most
                run = ids[start : start + room]
                call.append((index, run))
                start, room = start + len(run), room - len(run)
        if call:
            yield call

    def answered(self, call: Sequence[tuple[int, Identities]], tiers: Sequence[bytes], ready_in_ms: int) -> None:
        """Takes the answer to one call."""
        for (index, _), bits in zip(call, tiers, strict=True):
            self._tiers[self._keys[index]] += bits
        self._ready_in_ms = max(self._ready_in_ms, ready_in_ms)

    def hit(self) -> ChainsHit:
        """When all calls are answered."""
        present = [np.frombuffer(self._tiers[key], np.uint8) != 0 for key in self._keys]
        tokens = hit_tokens(list(zip(present, self._rules, strict=True)))
        needed = [ids[rule.needed(tokens)] for ids, rule in zip(self._chains, self._rules, strict=True)]
        return ChainsHit(tokens, tuple(needed), self._ready_in_ms if tokens else 0)
