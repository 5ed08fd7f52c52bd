"""Which models can keep their blocks, under which layout, and in which dtype."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from hf_models import llama, prompt
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from tierd_client import InvalidArgument
from tierd_client.integrations.transformers import HeldCache, OffloadedCache, PrefixStore, layout_of
from tierd_client.integrations.transformers import blocks as packing
from tierd_client.tokens import H2O


def _model(**fields: Any) -> Any:
    sizes = {
        "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "vocab_size": 64, "_name_or_path": "small",
    }
    return LlamaForCausalLM(LlamaConfig(**(sizes | fields))).eval()


def test_a_layout_has_the_sizes_of_the_model() -> None:
    """Layers, KV heads, head size and dtype, also where the head size is not the hidden size by heads."""
    part = layout_of(_model(head_dim=48), 8).groups[0].parts[0]
    assert (part.name, part.shape, part.dtype) == ("k", (2, 8, 2, 48), "float32")
    assert layout_of(_model().to(torch.bfloat16), 8).dtype == "bfloat16"
    assert layout_of(_model(num_key_value_heads=None), 8).groups[0].parts[1].shape == (2, 8, 4, 16)


def test_a_given_revision_stands_for_the_weights(tmp_path: Path) -> None:
    """With it weights are not looked at, and need not be in memory; without it they must be."""
    _model().save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert layout_of(loaded, 16).model == tmp_path.name
    assert layout_of(loaded, 16, "v1") == layout_of(loaded, 16, "v1")
    assert layout_of(loaded, 16, "v1") != layout_of(loaded, 16, "v2")
    with torch.device("meta"):
        empty = _model()
    assert layout_of(empty, 16, "v1").revision == "v1"
    with pytest.raises(InvalidArgument, match="revision: needed"):
        layout_of(empty, 16)


@pytest.mark.parametrize("layer", ["linear_attention", "conv"])
def test_layers_without_keys_are_refused(layer: str) -> None:
    """A state that is no keys and values is named, before anything is asked of the daemon."""
    model = _model()
    model.config.layer_types = ["full_attention", layer]
    with pytest.raises(InvalidArgument, match=f"model: layers of {layer}"):
        layout_of(model, 16)


def test_a_window_is_kept_whole_and_not_budgeted() -> None:
    """Layers that look at a window have blocks like others; caches under a budget refuse them by name."""
    model = _model()
    model.config.layer_types = ["full_attention", "sliding_attention"]
    assert layout_of(model, 16).groups[0].parts[0].shape[0] == 2
    for make in (
        lambda: HeldCache(model, H2O(budget=32)),
        lambda: OffloadedCache(model, address="unix:///nowhere/tierd.sock"),
    ):
        with pytest.raises(InvalidArgument, match="model: layers of sliding_attention"):
            make()


def test_packing_is_undone_by_unpacking() -> None:
    """Blocks of a cache, and the cache of its blocks, agree in each element; bytes are those of the layout."""
    model, ids = llama(), prompt(70)
    layout = layout_of(model, 16)
    with torch.no_grad():
        cache = model(ids, use_cache=True).cache
    packed = packing.pack(cache.layers, layout, 1, 4)
    assert packing.raw(packed).shape == (3, layout.block_bytes)
    for layer, (keys, values) in zip(cache.layers, packing.unpack(packed, "cpu"), strict=True):
        assert torch.equal(keys, layer.keys[:, :, 16:64])
        assert torch.equal(values, layer.values[:, :, 16:64])


def test_half_precision_comes_back_bit_by_bit(module_daemon: Any) -> None:
    """Blocks in bfloat16, which numpy has not, are those that were saved."""
    model, ids = llama(4).to(torch.bfloat16), prompt(64, seed=30)
    with torch.no_grad(), PrefixStore(model, address=module_daemon(host_bytes="16MiB").address) as prefixes:
        cache = prefixes.cache(ids)
        model(ids, cache=cache)
        assert prefixes.save(cache, ids) == {"STORED": 4}
        again = prefixes.cache(torch.cat((ids, ids), 1))
        assert again.reused_tokens == 64
        for one, other in zip(cache.layers, again.layers, strict=True):
            assert torch.equal(one.keys, other.keys)
            assert torch.equal(one.values, other.values)
