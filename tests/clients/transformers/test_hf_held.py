"""Caches under a budget, by policies over tokens or by blocks that come back, and the attention that feeds them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hf_models import llama, prompt
from transformers import DynamicCache

from tierd_client import Client, FailedPrecondition, InvalidArgument
from tierd_client.integrations.transformers import HeldCache, OffloadedCache, use_attention
from tierd_client.integrations.transformers.index import index_named
from tierd_client.integrations.transformers.offloaded import _drop
from tierd_client.tokens import H2O, SlidingWindow, SnapKV, StreamingLLM, pyramid_budgets

TOLERANCE = 1e-4
TOKENS = 150


@pytest.fixture(scope="module")
def model() -> Iterator[Any]:
    with torch.no_grad():
        chosen = llama(7)
        use_attention(chosen)
        yield chosen


@pytest.fixture(scope="module")
def server(module_daemon: Any) -> Any:
    return module_daemon(host_bytes="64MiB")


@pytest.fixture(scope="module")
def reference(model: Any) -> Any:
    """Tokens and logits with all of the cache."""
    return _generated(model, None)


def _generated(model: Any, cache: Any, tokens: int = 20) -> Any:
    return model.generate(
        prompt(TOKENS, seed=9), cache=cache, max_new_tokens=tokens, do_sample=False, return_dict_in_generate=True,
        output_logits=True)


def _differ(one: Any, other: Any) -> float:
    """Largest difference of a logit of the first step that decodes under the budget, its input alike."""
    return float(one.logits[1].sub(other.logits[1]).abs().max())


def test_the_attention_is_that_of_eager(model: Any, reference: Any) -> None:
    """With a cache of transformers' own, logits are those of eager attention."""
    model.set_attn_implementation("eager")
    eager = _generated(model, DynamicCache(config=model.config))
    use_attention(model)
    assert torch.stack(eager.logits).sub(torch.stack(reference.logits)).abs().max() < TOLERANCE


@pytest.mark.parametrize("per_head", [True, False])
def test_a_budget_above_all_tokens_changes_nothing(model: Any, reference: Any, per_head: bool) -> None:
    """H2O that may keep more tokens than there are answers as without."""
    cache = HeldCache(model, H2O(budget=TOKENS + 20, recent=8), per_head=per_head)
    assert torch.equal(_generated(model, cache).sequences, reference.sequences)


def test_a_budget_is_kept(model: Any, reference: Any) -> None:
    """Of 169 tokens each layer's heads hold 40, positions go on from 169, and the answer is another."""
    cache = HeldCache(model, H2O(budget=40, recent=8))
    told = _generated(model, cache)
    assert cache.get_seq_length() == TOKENS + 19
    assert [layer.keys.shape[2] for layer in cache.layers] == [40] * 4
    assert cache.held_bytes == 4 * 2 * 2 * 40 * 32 * 4
    assert _differ(told, reference) > 10 * TOLERANCE


def test_a_window_looks_like_a_masked_one(model: Any) -> None:
    """A sliding window of 32 tokens gives each decoded token the logits of a full cache cut to those 32."""
    cache = HeldCache(model, SlidingWindow(budget=32))
    told = _generated(model, cache, 2)
    full = DynamicCache(config=model.config)
    model(prompt(TOKENS, seed=9), cache=full)
    for layer in full.layers:
        layer.keys, layer.values = layer.keys[:, :, -32:], layer.values[:, :, -32:]
    after = model(told.sequences[:, TOKENS : TOKENS + 1], cache=full, position_ids=torch.tensor([[TOKENS]]))
    assert told.logits[1].sub(after.logits[:, -1]).abs().max() < TOLERANCE


def test_layers_and_heads_have_budgets_of_their_own(model: Any) -> None:
    """PyramidKV's layers hold what their budgets say; Ada-KV's heads share theirs, 40 on average."""
    budgets = pyramid_budgets(40, 4, recent=8)
    cache = HeldCache(model, [SnapKV(budget=one, recent=8) for one in budgets])
    _generated(model, cache)
    assert [layer.keys.shape[2] for layer in cache.layers] == budgets
    cache = HeldCache(model, SnapKV(budget=40, recent=8), adaptive=0.2)
    _generated(model, cache)
    for layer in cache.layers:
        assert int((layer.held.positions >= 0).sum()) == 2 * 40


def test_offloaded_blocks_change_nothing_while_all_are_attended_to(
    model: Any, reference: Any, server: Any,
) -> None:
    """With a budget for all blocks the logits are those of the whole cache, though the blocks are in the daemon."""
    with OffloadedCache(model, address=server.address, budget_tokens=160, recent_tokens=16) as cache:
        told = _generated(model, cache)
        assert cache.stats.offloaded == 4 * 9
        assert cache.stats.fetched == 4 * 9
    assert torch.stack(told.logits).sub(torch.stack(reference.logits)).abs().max() < TOLERANCE


def test_what_is_needed_comes_back(model: Any, reference: Any, server: Any) -> None:
    """Four blocks of nine are attended to; each step may bring others; bytes here stay below half; in the end the
    daemon holds nothing; and of equal budgets the re-admitting one is nearer to the whole cache than a window."""
    with Client(server.address) as client:
        before = client.admin.occupancy().tiers[2].used_bytes
        with OffloadedCache(model, address=server.address, budget_tokens=64, recent_tokens=16) as cache:
            told = _generated(model, cache)
            assert cache.stats.fetched > 4 * 4
            assert (cache.stats.kept, cache.stats.late, cache.stats.lost) == (0, 0, 0)
            assert cache.held_bytes < 4 * 2 * 2 * (TOKENS + 19) * 32 * 4 * 0.7
            assert client.admin.occupancy().tiers[2].used_bytes > before
        assert client.admin.occupancy().tiers[2].used_bytes == before
    window = _generated(model, HeldCache(model, StreamingLLM(budget=80, sinks=16)))
    assert _differ(told, reference) < _differ(window, reference)


def test_a_second_prompt_attends_to_all(model: Any, server: Any) -> None:
    """A turn of several tokens after offloading has the logits of the whole cache, whatever the budget."""
    more = prompt(12, seed=10)
    full = DynamicCache(config=model.config)
    with OffloadedCache(model, address=server.address, budget_tokens=32, recent_tokens=16) as cache:
        wanted, got = ((model(prompt(TOKENS, seed=9), cache=one), model(more, cache=one).logits)[1]
                       for one in (full, cache))
    assert wanted.sub(got).abs().max() < TOLERANCE


def test_without_a_daemon_blocks_stay(model: Any, reference: Any) -> None:
    """Blocks that no daemon takes are kept, and the answer is that of the whole cache."""
    with OffloadedCache(model, address="unix:///nowhere/tierd.sock", budget_tokens=160, recent_tokens=16) as cache:
        assert torch.equal(_generated(model, cache).sequences, reference.sequences)
        assert (cache.stats.offloaded, cache.stats.kept) == (0, 4 * 9)


def test_what_must_come_back_is_stored(model: Any) -> None:
    """Shadow mode is refused by a cache whose blocks lie in the daemon alone."""
    with pytest.raises(InvalidArgument, match="shadow: blocks of an offloaded"):
        OffloadedCache(model, address="unix:///nowhere/tierd.sock", budget_tokens=160, shadow=True)


@pytest.mark.parametrize("name", ["keys", "bounds"])
def test_an_index_ranks_blocks_by_their_largest_product(name: str) -> None:
    """Products of int8 keys are those of the keys to two hundredths of the largest; bounds are never below them."""
    torch.manual_seed(0)
    keys, queries = torch.randn(2, 30, 16, 32), torch.randn(2, 3, 32)
    exact = torch.einsum("hbtd,hqd->hqbt", keys, queries).amax(-1)
    index = index_named(name)
    index.add(keys[:, :10])
    index.add(keys[:, 10:])
    told = index.products(queries)
    if name == "keys":
        assert told.sub(exact).abs().max() < 0.02 * exact.max()
    else:
        assert bool((told >= exact - 1e-4).all())


def test_lost_blocks_are_counted_and_left_out(model: Any, server: Any) -> None:
    """Of blocks that the daemon dropped each that a query wants is lost once, and decoding goes on without them."""
    with OffloadedCache(model, address=server.address, budget_tokens=160, recent_tokens=16) as cache:
        model(prompt(TOKENS, seed=9), cache=cache)
        cache._shelf._each(_drop)
        for seed in (11, 12):
            assert model(prompt(1, seed=seed), cache=cache).logits.isfinite().all()
        assert cache.stats.lost == 4 * 8
        assert cache.get_seq_length() == TOKENS + 2


def test_a_cache_is_of_one_text(model: Any, server: Any) -> None:
    """A reset is refused, and changes nothing: under the same names the daemon has blocks of the text before."""
    with OffloadedCache(model, address=server.address, budget_tokens=64, recent_tokens=16) as cache:
        for one in (cache, HeldCache(model, H2O(budget=40, recent=8))):
            model(prompt(TOKENS, seed=9), cache=one)
            with pytest.raises(FailedPrecondition, match="make a new cache"):
                one.reset()
            assert one.get_seq_length() == TOKENS
            assert model(prompt(1, seed=12), cache=one).logits.isfinite().all()


def test_bad_input_is_named(model: Any) -> None:
    """Batches, numbers out of range and a model without this attention are refused by name."""
    cache = HeldCache(model, H2O(budget=40, recent=8))
    with pytest.raises(InvalidArgument, match="batch: 2"):
        model(prompt(8).repeat(2, 1), cache=cache)
    with pytest.raises(InvalidArgument, match="policies: 3, the model has 4"):
        HeldCache(model, [H2O(budget=40)] * 3)
    with pytest.raises(InvalidArgument, match="budget_tokens: 16"):
        OffloadedCache(model, budget_tokens=16, block_tokens=16)
    with pytest.raises(InvalidArgument, match="index: 'key'"):
        OffloadedCache(model, address="unix:///nowhere/tierd.sock", index="key")
    plain = llama(8)
    cache = HeldCache(plain, H2O(budget=40, recent=8))
    plain(prompt(8), cache=cache)
    with pytest.raises(FailedPrecondition, match="use_attention"):
        plain(prompt(1), cache=cache)
