"""A model without a model: random tensors that depend on the tokens alone.

The KV of a block is drawn from a generator seeded by the block's identity, so that every worker in every
process makes the same bytes for the same prefix, and no two blocks are alike.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np

from tierd.demo.model import BLOCK_TOKENS, SYNTHETIC, Prefill
from tierd_client import Layout, chain_ids
from tierd_client.format import U8Array


class Synthetic:
    """Blocks of 64 KiB: 4 layers, 2 KV heads of 64."""

    def __init__(self) -> None:
        self.layout = Layout(
            model=SYNTHETIC, dtype="float32", layers=4, kv_heads=2, head_dim=64, block_tokens=BLOCK_TOKENS
        )

    def prefill(self, tokens: Sequence[int], past: Sequence[U8Array]) -> Prefill:
        """Draws the blocks after `past`. Has no logits."""
        start = time.perf_counter()
        new = chain_ids(self.layout, tokens)[len(past) :]
        blocks = [self._draw(identity) for identity in new]
        return Prefill(blocks, None, time.perf_counter() - start)

    def _draw(self, identity: bytes) -> U8Array:
        generator = np.random.default_rng(int.from_bytes(identity, "little"))
        values = generator.standard_normal(self.layout.block_bytes // 4, np.float32)
        return values.view(np.uint8)
