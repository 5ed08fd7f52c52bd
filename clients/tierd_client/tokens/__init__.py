"""Which tokens of a KV cache to keep, by the attention that they get: vectorised torch over batch and heads.

    held = HeldTokens(H2O(budget=1024, recent=512), batch=1, heads=8)
    held.append(prompt_tokens)            # the cache has grown
    held.observe(weights)                 # attention: [batch, query heads, rows, tokens held]
    keep = held.evict()                   # indices of what stays: [batch, heads, tokens kept]
    keys, values = kept_of(keys, keep), kept_of(values, keep)

Evicted tokens are gone for good, so answers change: for lossless tiers see the daemon's policies. Importing this
package imports torch.
"""

from __future__ import annotations

from tierd_client.tokens.budgets import adaptive_budgets, guide_recents, pyramid_budgets
from tierd_client.tokens.guide import GuideCache
from tierd_client.tokens.h2o import H2O
from tierd_client.tokens.heads import GROUPINGS, group_heads
from tierd_client.tokens.held import HeldTokens, kept_of
from tierd_client.tokens.lift import block_mass
from tierd_client.tokens.policy import Column, Slots, TokenPolicy
from tierd_client.tokens.presets import PRESETS, policy_of
from tierd_client.tokens.random import Random
from tierd_client.tokens.scissorhands import Scissorhands
from tierd_client.tokens.snapkv import SnapKV
from tierd_client.tokens.streaming import SlidingWindow, StreamingLLM
from tierd_client.tokens.strided import Strided
from tierd_client.tokens.tova import Tova

__all__ = [
    "Column", "GROUPINGS", "GuideCache", "H2O", "HeldTokens", "PRESETS", "Random", "Scissorhands", "SlidingWindow",
    "Slots", "SnapKV", "StreamingLLM", "Strided", "TokenPolicy", "Tova", "adaptive_budgets", "block_mass",
    "group_heads", "guide_recents", "kept_of", "policy_of", "pyramid_budgets",
]
