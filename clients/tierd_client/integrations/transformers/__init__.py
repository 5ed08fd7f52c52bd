"""tierd for Hugging Face transformers: prompts that begin alike are computed once, by whichever process.

    prefixes = PrefixStore(model, address="unix:///run/tierd/tierd.sock")
    cache = prefixes.cache(input_ids)                # begins with the longest prefix that tierd holds
    output = model.generate(input_ids, cache=cache)  # past_key_values= before transformers 5.24
    prefixes.save(cache, output[0])                  # what is new becomes blocks

Importing this package imports torch and transformers.
"""

from __future__ import annotations

from tierd_client.integrations.transformers.attention import use_attention
from tierd_client.integrations.transformers.held import HeldCache
from tierd_client.integrations.transformers.model import layout_of, revision_of
from tierd_client.integrations.transformers.offloaded import OffloadedCache, OffloadStats
from tierd_client.integrations.transformers.prefix import PrefixCache, PrefixStats, PrefixStore

__all__ = [
    "HeldCache", "OffloadStats", "OffloadedCache", "PrefixCache", "PrefixStats", "PrefixStore", "layout_of",
    "revision_of", "use_attention",
]
