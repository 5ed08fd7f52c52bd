"""A model without a model: random tensors that depend on the tokens alone.

The KV of a block is drawn from a generator seeded by the block's identity, so that every worker in every
process makes the same bytes for the same prefix, and no two blocks are alike.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np

from tierd.demo.model import BLOCK_TOKENS, SYNTHETIC, Block, Prefill
from tierd_client import Layout, chain_ids


class Synthetic:
    """Blocks of 64 KiB: 4 layers, 2 KV heads of 64."""

    def __init__(self) -> None:
        self.layout = Layout(
            model=SYNTHETIC, dtype="float32", layers=4, kv_heads=2, head_dim=64, block_tokens=BLOCK_TOKENS
        )
        self._shape = (2, *self.layout.groups[0].parts[0].shape)

    def prefill(self, tokens: Sequence[int], past: Sequence[Block]) -> Prefill:
        """Draws the blocks after `past`. Has no logits."""
        start = time.perf_counter()
        new = chain_ids(self.layout, tokens)[len(past) :]
        blocks = [self._draw(identity) for identity in new]
        return Prefill(blocks, None, time.perf_counter() - start)

    def _draw(self, identity: bytes) -> Block:
        generator = np.random.default_rng(int.from_bytes(identity, "little"))
        return generator.standard_normal(self._shape, np.float32)
