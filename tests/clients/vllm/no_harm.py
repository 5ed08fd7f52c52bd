"""What tierd costs a vLLM: requests to an engine with it and to two without it, by turns.

    python tests/clients/vllm/no_harm.py [--rounds 8] [--json FILE]

By tierd's interpreter; vLLM's is that of tests/clients/install.sh. Every round asks all engines for the same
prompts, in random order: new ones, some at a time and one by one, those that tierd has, and new ones while the
daemon is stopped (SIGSTOP). Everything is compared with the first engine without tierd, the second one as well: so
much is noise. Prints a table; no_harm_table.py has its columns.
"""

from __future__ import annotations

import argparse
import itertools
import os
import random
import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

from conftest import ENVIRONMENTS
from no_harm_table import AGAIN, WITH, WITHOUT, Kind, Seconds, say
from vllm_answers import PAUSE, spec
from vllm_process import Engine, StartEngine

from tierd.bench.stage import Daemon, serving
from tierd.demo.model import find_model
from tierd_client import Tier
from tierd_client.integrations.options import Options

BATCH, BATCH_TOKENS, BATCH_NEW_TOKENS = 4, 160, 4
LENGTHS = (48, 144, 272)
"""Tokens of single prompts, of which 1, 4 and 8 blocks of 32 can be found."""

PROMPTS = 2
"""Of each length."""

STOPS = 4
"""Times that the daemon is stopped."""

IDLE_S = 1.2
"""vLLM's processes wait for a second for more, each on a core, before they sleep."""

STORED_WITHIN_S = 10.0


class Measured:
    """Asks the engines, and notes what it takes."""

    def __init__(self, engines: Mapping[str, Engine], daemon: Daemon) -> None:
        self.seconds = Seconds()
        self._engines, self._daemon = engines, daemon
        self._seeds = itertools.count(time.time_ns() % 1_000_000_007)
        self._draw = random.Random(0)

    def batches(self, rounds: int) -> None:
        """New prompts, some at once."""
        kind, seed = Kind.together(BATCH, BATCH_TOKENS), next(self._seeds)
        for turn, name in self._turns(rounds):
            self._new(kind, name, turn, seed, BATCH, BATCH_TOKENS, BATCH_NEW_TOKENS)
            self._forget(name)

    def singles(self, rounds: int) -> None:
        """New prompts one by one; with tierd once more each, when the engine's own cache is empty."""
        prompts = [(tokens, next(self._seeds)) for tokens in LENGTHS * PROMPTS]
        for turn, name in self._turns(rounds):
            for tokens, seed in prompts:
                self._new(Kind.new(tokens), name, turn, seed, 1, tokens, 1)
            if name == WITH:
                self._await_stores()
                assert self._engines[WITH].ask("reset")
                for tokens, seed in prompts:
                    self._found(Kind.found(tokens), turn, seed, tokens)
            self._forget(name)

    def while_stopped(self, rounds: int) -> None:
        """New prompts one by one, while the daemon is stopped. The first ones wait for the daemon."""
        for stop in range(STOPS):
            with self._stopped():
                PAUSE.wait(IDLE_S)
                self._short(Kind.first(LENGTHS[0]), WITH, stop)
                for turn, name in self._turns(-(-rounds // STOPS)):
                    for place in range(len(LENGTHS)):
                        self._short(Kind.stopped(LENGTHS[0]), name, (stop, turn, place))
            self._await_use()

    @contextmanager
    def _stopped(self) -> Iterator[None]:
        os.kill(self._daemon.child.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(self._daemon.child.pid, signal.SIGCONT)

    def _turns(self, rounds: int) -> Iterator[tuple[int, str]]:
        """Rounds with all engines in random order; it is quiet before each turn."""
        for turn in range(rounds):
            for name in self._draw.sample(list(self._engines), len(self._engines)):
                PAUSE.wait(IDLE_S)
                yield turn, name

    def _new(self, kind: Kind, name: str, turn: Any, seed: int, *request: int) -> None:
        """Asks for prompts that neither engine nor daemon has."""
        answer = self._asked(name, seed, *request)
        assert not answer["cached"]
        self.seconds.note(kind, name, seed, turn, answer["seconds"])

    def _short(self, kind: Kind, name: str, turn: Any) -> None:
        """Another prompt each time; they count as one."""
        answer = self._asked(name, next(self._seeds), 1, LENGTHS[0], 1)
        self.seconds.note(kind, name, 0, turn, answer["seconds"])

    def _found(self, kind: Kind, turn: int, seed: int, tokens: int) -> None:
        answer = self._asked(WITH, seed, 1, tokens, 1)
        if answer["cached"]:  # else it was faster to compute, or is not stored
            self.seconds.note(kind, WITH, seed, turn, answer["seconds"])

    def _asked(self, name: str, *request: int) -> dict[str, Any]:
        answer: dict[str, Any] = self._engines[name].ask(" ".join(map(str, ("timed", *request))))
        return answer

    def _forget(self, name: str) -> None:
        """What was asked is new to this engine again."""
        assert self._engines[name].ask("reset")
        if name == WITH:
            self._await_stores()
            with self._daemon.client() as client:
                client.admin.clear(ghosts=True)

    def _await_stores(self) -> None:
        """Until the daemon has got nothing new for a while."""
        ends_at = time.monotonic() + STORED_WITHIN_S
        stored = -1
        while stored < (stored := self._stored()) and time.monotonic() < ends_at:
            PAUSE.wait(0.3)

    def _await_use(self) -> None:
        """Until the engine uses the daemon again."""
        stored, ends_at = self._stored(), time.monotonic() + STORED_WITHIN_S
        while self._stored() == stored and time.monotonic() < ends_at:
            self._asked(WITH, next(self._seeds), 1, LENGTHS[0], 1)

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
        measured.while_stopped(asked.rounds)
    say(measured.seconds, asked.json)


@contextmanager
def running() -> Iterator[Measured]:
    """A daemon and engines that answer, and are warm."""
    model = find_model(lambda _: None).directory
    with ExitStack() as stack:
        daemon = stack.enter_context(serving(host_bytes="2GiB"))
        start = StartEngine(ENVIRONMENTS / "vllm" / "bin" / "python", model)
        stack.callback(start.end)
        usual = Options()
        transfer = spec(daemon.child, answer_ms=usual.answer_ms, promote_ms=usual.promote_ms)
        engines = {
            name: start(transfer if name == WITH else None, processes=True) for name in (WITH, WITHOUT, AGAIN)}
        warm = Measured(engines, daemon)
        warm.batches(1)
        warm.singles(1)
        yield Measured(engines, daemon)


if __name__ == "__main__":
    main()
