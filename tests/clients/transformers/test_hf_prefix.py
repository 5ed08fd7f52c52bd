"""Prefixes of transformers' caches in a real daemon: answers do not change, and no daemon is needed to answer."""

from __future__ import annotations

import logging
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from hf_models import llama, prompt

from tierd_client import Client, InvalidArgument
from tierd_client.integrations.transformers import PrefixStore, layout_of, revision_of

TOLERANCE = 1e-4
"""Of a logit in float32: matrix products sum in another order for another number of rows; logits span about 10."""


@pytest.fixture(scope="module", autouse=True)
def _no_grad() -> Any:
    with torch.no_grad():
        yield


@pytest.fixture(scope="module")
def address(module_daemon: Any) -> str:
    return module_daemon(host_bytes="64MiB").address


def _generated(model: Any, ids: Any, cache: Any, tokens: int = 24) -> Any:
    return model.generate(
        ids, cache=cache, max_new_tokens=tokens, do_sample=False, return_dict_in_generate=True, output_logits=True)


def _first_fed(model: Any) -> list[int]:
    """Lengths of what each forward pass is fed, from now on."""
    fed: list[int] = []
    model.model.register_forward_pre_hook(
        lambda _, args, kwargs: fed.append(kwargs["input_ids"].shape[1]), with_kwargs=True)
    return fed


def test_a_second_request_computes_only_what_is_new(address: str) -> None:
    """Of a prompt whose first 96 of 101 tokens are stored 5 are fed; tokens and logits are those of no re-use."""
    model, ids = llama(), prompt(101)
    with PrefixStore(model, address=address) as prefixes:
        first = prefixes.cache(ids)
        cold = _generated(model, ids, first)
        assert first.reused_tokens == 0
        assert prefixes.save(first, cold.sequences[0]) == {"STORED": 124 // 16}
    with PrefixStore(model, address=address) as prefixes:
        again = prefixes.cache(ids)
        fed = _first_fed(model)
        warm = _generated(model, ids, again)
        assert (again.reused_tokens, fed[0]) == (96, 5)
        assert torch.equal(cold.sequences, warm.sequences)
        assert torch.stack(cold.logits).sub(torch.stack(warm.logits)).abs().max() < TOLERANCE
        assert prefixes.save(again, warm.sequences[0]) == {"EXISTS": 1}
        assert (prefixes.stats.prompt_tokens, prefixes.stats.reused_tokens) == (101, 96)


def test_another_suffix_shares_the_prefix(address: str) -> None:
    """A prompt that leaves the stored one after 40 tokens begins with two blocks of 16, and answers as without."""
    model, ids = llama(), prompt(80, seed=1)
    other = torch.cat((ids[:, :40], prompt(41, seed=2)), 1)
    with PrefixStore(model, address=address) as prefixes:
        cache = prefixes.cache(ids)
        prefixes.save(cache, _generated(model, ids, cache).sequences)
        cache = prefixes.cache(other)
        assert cache.reused_tokens == 32
        assert torch.equal(_generated(model, other, cache).sequences, _generated(model, other, None).sequences)


def test_a_wrong_block_would_show(address: str) -> None:
    """Negative control: with one stored block zeroed the logits are other ones, by far more than the tolerance."""
    model, ids = llama(), prompt(100, seed=3)
    with PrefixStore(model, address=address) as prefixes, Client(address) as client:
        cache = prefixes.cache(ids)
        cold = _generated(model, ids, cache, 2)
        prefixes.save(cache, cold.sequences)
        namespace = client.namespace(prefixes.layout)
        block = namespace.chains(ids[0])[0].take([3])
        namespace.evict(block, to=None, allow_drop=True)
        namespace.put(block, [bytes(prefixes.layout.block_bytes)])
        warm = _generated(model, ids, prefixes.cache(ids), 2)
        assert cold.logits[0].sub(warm.logits[0]).abs().max() > 100 * TOLERANCE


def test_a_conversation_is_saved_turn_by_turn(address: str) -> None:
    """Each turn stores the blocks that it completed, and another process begins where the last turn ended."""
    model, ids = llama(), prompt(50, seed=4)
    with PrefixStore(model, address=address) as prefixes:
        cache = prefixes.cache(ids)
        said = _generated(model, ids, cache, 20).sequences
        assert prefixes.save(cache, said) == {"STORED": 69 // 16}
        longer = torch.cat((said, prompt(30, seed=5)), 1)
        said = _generated(model, longer, cache, 4).sequences
        assert prefixes.save(cache, said) == {"STORED": 103 // 16 - 69 // 16}
    script = Path(__file__).with_name("hf_reader.py")
    tokens = ",".join(map(str, said[0].tolist()))
    told = subprocess.run(
        [sys.executable, str(script), address, tokens], check=True, capture_output=True, text=True, timeout=120)
    assert told.stdout.split() == ["96", str(int(said[0, -1]))]


def test_models_share_blocks_only_where_kv_is_the_same() -> None:
    """Weights, adapters and rotary settings make another layout; a copy of the model does not."""
    base, other = layout_of(llama(), 16), layout_of(llama(1), 16)
    assert base != other
    assert revision_of(llama()) == revision_of(llama())
    model = llama(2)
    before = revision_of(model)
    model.model.layers[3].self_attn.v_proj.weight[0, 0] += 1
    assert revision_of(model) != before
    before = revision_of(model)
    model.config.rope_parameters = {**model.config.rope_parameters, "rope_theta": 5e5}
    assert revision_of(model) != before


def test_bad_input_is_named(address: str) -> None:
    """Batches, too few ids, other shapes and unknown options are refused by name, and nothing is stored."""
    model, ids = llama(), prompt(40, seed=6)
    with PrefixStore(model, address=address) as prefixes:
        with pytest.raises(InvalidArgument, match="token_ids: shape"):
            prefixes.cache(ids.repeat(2, 1))
        cache = prefixes.cache(ids)
        model(ids.repeat(2, 1), cache=cache)
        with pytest.raises(InvalidArgument, match="layer 0 holds"):
            prefixes.save(cache, ids)
        with pytest.raises(InvalidArgument, match="token_ids: 39"):
            prefixes.save(cache, ids[:, :39])
    with pytest.raises(InvalidArgument, match="adress: is none of"):
        PrefixStore(model, adress=address)


def test_goes_on_without_a_daemon(daemon: Any, caplog: pytest.LogCaptureFixture) -> None:
    """No daemon, a stopped and a killed one: one line in the log, the same answers, and saving after its return."""
    model, ids = llama(), prompt(64, seed=7)
    server = daemon(host_bytes="64MiB", start=False)
    cold = _generated(model, ids, None).sequences
    with caplog.at_level(logging.WARNING), PrefixStore(model, address=server.address) as prefixes:
        assert prefixes.cache(ids).reused_tokens == 0
        server.start()
        assert prefixes._link.wait_up(20.0)
        cache = prefixes.cache(ids)
        assert torch.equal(_generated(model, ids, cache).sequences, cold)
        server.process.send_signal(signal.SIGSTOP)
        assert prefixes.save(cache, cold) == {}
        assert prefixes.save(cache, cold) == {}
        server.process.send_signal(signal.SIGCONT)
        assert prefixes._link.wait_up(20.0)
        assert prefixes.save(cache, cold).total() == 87 // 16
        server.kill()
        warm = prefixes.cache(ids)
        assert torch.equal(_generated(model, ids, warm).sequences, cold)
    away = [record for record in caplog.records if "is away" in record.message]
    assert len(away) == 1
    assert server.address in away[0].getMessage()
