"""What tierd costs a vLLM: requests to an engine with it and to two without it, by turns.

    python tests/clients/vllm/no_harm.py [--rounds 8] [--json FILE]

By tierd's interpreter; vLLM's is that of tests/clients/install.sh. Prints a table: requests that are new, some at a
time and one by one, requests that tierd has, and new ones while the daemon is stopped (SIGSTOP). The second engine
without tierd tells by how much two equal engines differ.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from conftest import ENVIRONMENTS
from vllm_answers import PAUSE, spec
from vllm_process import Engine, StartEngine

from tierd.bench.report import machine
from tierd.bench.stage import Daemon, serving
from tierd.demo.model import find_model
from tierd_client import Tier
from tierd_client.integrations.options import Options

BATCH, BATCH_TOKENS, BATCH_NEW_TOKENS = 4, 160, 4
LENGTHS = (48, 144, 272)
"""Tokens of single prompts, of which 1, 4 and 8 blocks of 32 can be found."""

IDLE_S = 1.2
"""vLLM's processes wait for a second for more, each on a core, before they sleep."""

STORED_WITHIN_S = 10.0
WITH, WITHOUT, AGAIN = "with", "without", "without_again"
NEW, FOUND, TOGETHER = "new, {} tokens", "found, {} tokens", "new, {} of {} tokens at once"
STOPPED = "new, {} tokens, daemon stopped"
COMPUTED = {FOUND.format(tokens): NEW.format(tokens) for tokens in LENGTHS}
"""What a kind of request is compared with, where that is another one."""


class Measured:
    """The seconds of requests, by kind of request and by engine, in the order in which they were asked."""

    def __init__(self, engines: Mapping[str, Engine], daemon: Daemon) -> None:
        self.seconds: dict[str, dict[str, list[float]]] = {}
        self._engines, self._daemon = engines, daemon
        self._seeds = itertools.count(time.time_ns() % 1_000_000_007)
        self._draw = random.Random(0)

    def batches(self, rounds: int) -> None:
        """New prompts, some at once."""
        for name in self._turns(rounds):
            self._new(TOGETHER.format(BATCH, BATCH_TOKENS), name, BATCH, BATCH_TOKENS, BATCH_NEW_TOKENS)

    def singles(self, rounds: int) -> None:
        """New prompts one by one; with tierd once more each, when the engine's own cache is empty."""
        for name in self._turns(rounds):
            seeds = [self._new(NEW.format(tokens), name, 1, tokens, 1) for tokens in LENGTHS]
            if name == WITH:
                self._await_stores()
                assert self._engines[WITH].ask("reset")
                for seed, tokens in zip(seeds, LENGTHS, strict=True):
                    self._found(FOUND.format(tokens), seed, tokens)

    def while_stopped(self, rounds: int) -> float:
        """New prompts one by one, while the daemon is stopped. The first one's seconds, which are not among the
        others: it waits for the daemon."""
        os.kill(self._daemon.child.pid, signal.SIGSTOP)
        try:
            first = self._asked(WITH, next(self._seeds), 1, LENGTHS[0], 1)
            for name in self._turns(rounds):
                for _ in LENGTHS:
                    self._new(STOPPED.format(LENGTHS[0]), name, 1, LENGTHS[0], 1)
        finally:
            os.kill(self._daemon.child.pid, signal.SIGCONT)
        return float(first["seconds"])

    def _turns(self, rounds: int) -> Iterator[str]:
        """Engines in random order, all in each round; it is quiet before each turn."""
        for _ in range(rounds):
            for name in self._draw.sample(list(self._engines), len(self._engines)):
                PAUSE.wait(IDLE_S)
                yield name

    def _new(self, kind: str, name: str, count: int, tokens: int, new_tokens: int) -> int:
        """Asks for prompts that nobody has seen; their seed."""
        seed = next(self._seeds)
        answer = self._asked(name, seed, count, tokens, new_tokens)
        assert not answer["cached"]
        self._note(kind, name, answer)
        return seed

    def _found(self, kind: str, seed: int, tokens: int) -> None:
        answer = self._asked(WITH, seed, 1, tokens, 1)
        if answer["cached"]:  # else it was faster to compute, or is not stored
            self._note(kind, WITH, answer)

    def _asked(self, name: str, *request: int) -> dict[str, Any]:
        answer: dict[str, Any] = self._engines[name].ask(" ".join(map(str, ("timed", *request))))
        return answer

    def _note(self, kind: str, name: str, answer: dict[str, Any]) -> None:
        self.seconds.setdefault(kind, {}).setdefault(name, []).append(answer["seconds"])

    def _await_stores(self) -> None:
        """Until the daemon has got nothing new for a while."""
        ends_at = time.monotonic() + STORED_WITHIN_S
        stored = -1
        while stored < (stored := self._stored()) and time.monotonic() < ends_at:
            PAUSE.wait(0.3)

    def _stored(self) -> int:
        with self._daemon.client() as client:
            return client.admin.occupancy().tiers[Tier.HOST].blocks


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--json", default="", help="file for all that was measured")
    asked = parser.parse_args()
    with running() as measured:
        measured.batches(asked.rounds)
        measured.singles(asked.rounds)
        first_s = measured.while_stopped(asked.rounds)
    say(measured.seconds, first_s, asked.json)


@contextmanager
def running() -> Iterator[Measured]:
    """A daemon and engines that answer, and are warm."""
    model = find_model(lambda _: None).directory
    with ExitStack() as stack:
        daemon = stack.enter_context(serving(host_bytes="2GiB"))
        start = StartEngine(ENVIRONMENTS / "vllm" / "bin" / "python", model)
        stack.callback(lambda: [engine.end() for engine in start.engines])
        usual = Options()
        transfer = spec(daemon.child, answer_ms=usual.answer_ms, promote_ms=usual.promote_ms)
        engines = {
            name: start(transfer if name == WITH else None, processes=True) for name in (WITH, WITHOUT, AGAIN)}
        warm = Measured(engines, daemon)
        warm.batches(1)
        warm.singles(1)
        yield Measured(engines, daemon)


def row(kind: str, seconds: Mapping[str, Sequence[float]], alone: Mapping[str, Sequence[float]]) -> dict[str, Any]:
    """One kind of request. `alone`: those that it is compared with, of the engines without tierd."""
    with_it, without = seconds[WITH], [*alone[WITHOUT], *alone[AGAIN]]
    return {
        "requests": kind, "times": len(with_it), "without_s": median(without), "with_s": median(with_it),
        "ratio": median(with_it) / median(without), "longest_ratio": max(with_it) / max(without),
        "two_without_ratio": median(alone[AGAIN]) / median(alone[WITHOUT]),
    }


def say(seconds: Mapping[str, Mapping[str, Sequence[float]]], first_s: float, file: str) -> None:
    rows = [row(kind, of_kind, seconds[COMPUTED.get(kind, kind)]) for kind, of_kind in seconds.items()]
    print("| requests | times | without, s | with, s | ratio | longest with / longest without | two without |")
    print("|---|---|---|---|---|---|---|")
    for one in rows:
        print(f"| {one['requests']} | {one['times']} | {one['without_s']:.3f} | {one['with_s']:.3f} | "
              f"{one['ratio']:.3f} | {one['longest_ratio']:.3f} | {one['two_without_ratio']:.3f} |")
    print(f"\nThe first request to the stopped daemon: {first_s:.3f} s. {machine()}")
    if file:
        whole = {"machine": machine(), "rows": rows, "first_stopped_s": first_s, "seconds": seconds}
        Path(file).write_text(json.dumps(whole, indent=1) + "\n")


if __name__ == "__main__":
    main()
