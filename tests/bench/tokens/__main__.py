"""`python tests/bench/tokens`: what policies over tokens cost beside a step of a model, and that model's attention.

    python tests/bench/tokens overhead         what a step of each policy takes, as a share of a step of decoding
    python tests/bench/tokens record FILE.npz  attention of a text, token by token, for `tierd sim attention`
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from small_model import SmallModel
from transformers import DynamicCache

from tierd.bench.figures import Figure, Finding
from tierd.bench.measuring import Result, alternate, ratio
from tierd.bench.report import machine, print_table
from tierd_client.tokens import HeldTokens, TokenPolicy, kept_of, policy_of
from tierd_client.tokens.presets import POLICIES

ROOT = Path(__file__).resolve().parents[3]
TEXT = ROOT / "LICENSE"
EVICTED_AT_ONCE = 64
"""Tokens that a cache may grow beyond its budget where it is not evicted at every step."""

WHAT = {
    "decode": "a step of decoding with fused attention, milliseconds",
    "weights": "having weights of attention: the slow kernel's step less the fused one's",
    "move": "keys and values of all layers gathered without one token per head",
    "layers": "observe, append and evict one token, layer by layer",
    "stacked": f"the same for all layers in one call, evicting every {EVICTED_AT_ONCE} steps",
}
"""Of the figures; all but the first are shares of that."""


def main(words: list[str]) -> int:
    said = _arguments(words)
    model = SmallModel()
    if said.command == "record":
        weights = recorded(model, said.text.read_text(), said.prompt, said.steps)
        np.savez_compressed(said.file, attention=weights)
        print(f"{said.file}: {model.name}, {weights.shape} of {said.text.name}")
    else:
        print(model.name, machine(), f"budget {said.budget}", file=sys.stderr)
        print_table(overhead(model, said.budget, said.repetitions), Console())
    return 0


def recorded(model: SmallModel, text: str, prompt: int, steps: int) -> np.ndarray:
    """Attention of steps over a text that is given, float16 [steps, layers, query heads, tokens]."""
    tokens = model.encode(text)[: prompt + steps]
    cache = model.prefilled(tokens[:prompt])
    weights = np.zeros((len(tokens) - prompt, model.layers, model.query_heads, len(tokens)), np.float16)
    for step, token in enumerate(tokens[prompt:]):
        for layer, row in enumerate(model.decode(token, cache, weights=True)):
            weights[step, layer, :, : row.shape[-1]] = row[0, :, 0].numpy()
    return weights


def overhead(model: SmallModel, budget: int, repetitions: int) -> list[Finding]:
    """Times per step of decoding, shares of a step without weights."""
    tokens = model.encode(TEXT.read_text())[:budget]
    cache = model.prefilled(tokens)
    things: dict[str, Callable[[], float]] = {
        "decode": partial(_decode, model, cache, tokens[0], weights=False),
        "weights": partial(_decode, model, cache, tokens[0], weights=True),
        "move": partial(_move, model, budget),
    }
    for name in POLICIES:
        policy = policy_of(name, budget=budget)
        things[name] = partial(_policy_step, model, _full(policy, model.layers, 1, model.kv_heads), 1)
        things[f"{name}_stacked"] = partial(
            _policy_step, model, _full(policy, 1, model.layers, model.kv_heads), EVICTED_AT_ONCE)
    taken = alternate(things, repetitions)
    decode = taken.pop("decode")
    slower = [slow - fused for slow, fused in zip(taken["weights"], decode, strict=True)]
    milliseconds = Result.of(1000 * one for one in decode)
    return [
        Finding(Figure("decode_ms", WHAT["decode"]), milliseconds),
        *(_share(name, slower if name == "weights" else seconds, decode) for name, seconds in taken.items()),
    ]


def _share(name: str, seconds: list[float], decode: list[float]) -> Finding:
    what = WHAT.get(name, WHAT["stacked"] if name.endswith("_stacked") else WHAT["layers"])
    return Finding(Figure(f"{name}_share", what, better="lower"), ratio(seconds, decode))


def _decode(model: SmallModel, cache: DynamicCache, token: int, *, weights: bool) -> float:
    began = time.perf_counter()
    model.decode(token, cache, weights=weights)
    taken = time.perf_counter() - began
    cache.crop(-1)
    return taken


def _full(policy: TokenPolicy, states: int, batch: int, heads: int) -> list[HeldTokens]:
    """As many states at their budgets."""
    made = [HeldTokens(policy, batch, heads, checked=False) for _ in range(states)]
    for held in made:
        held.append(policy.budget)
    return made


def _policy_step(model: SmallModel, states: list[HeldTokens], at_once: int) -> float:
    """Seconds per step of all states, over as many steps as lie between two evictions."""
    seconds = 0.0
    for step in range(at_once):
        weights = torch.rand(states[0].shape[0], model.query_heads, states[0].slots).softmax(-1)
        began = time.perf_counter()
        for held in states:
            held.observe(weights)
            held.append()
            if step + 1 == at_once:
                held.evict()
        seconds += time.perf_counter() - began
    return seconds / at_once


def _move(model: SmallModel, budget: int) -> float:
    """Seconds that all layers' keys and values take to close one gap per head."""
    cache = torch.zeros(1, model.kv_heads, budget + 1, model.head_dim)
    keep = torch.arange(1, budget + 1).expand(1, model.kv_heads, budget)
    began = time.perf_counter()
    for _ in range(2 * model.layers):
        kept_of(cache, keep)
    return time.perf_counter() - began


def _arguments(words: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="tests/bench/tokens", description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    cost = commands.add_parser("overhead")
    cost.add_argument("--budget", type=int, default=1024)
    cost.add_argument("--repetitions", type=int, default=15)
    record = commands.add_parser("record")
    record.add_argument("file", type=Path)
    record.add_argument("--text", type=Path, default=TEXT)
    record.add_argument("--prompt", type=int, default=512)
    record.add_argument("--steps", type=int, default=64)
    return parser.parse_args(words)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
