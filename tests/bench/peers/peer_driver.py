"""Measures tierd and one peer by turns, each in a process of its own environment."""

from __future__ import annotations

import json
import os
import queue
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections import defaultdict
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from peer_figures import VERDICT_BLOCK_BYTES, VERDICT_LOOKUP_IDS, Figure, Work, figure_of
from peer_subjects import ENVIRONMENTS, LIMIT, OURS, Subject

ANSWER_WITHIN_S = 90.0
STOP_WITHIN_S = 20.0
SHARED_MEMORY = Path("/dev/shm")
BATCH_BLOCKS = 16
POOL_BYTES = 128 << 20
"""Of the blocks that are put in one round: more than the caches hold."""


class PeerFailed(Exception):
    """A peer that is not installed, does not start, or failed at what it was asked."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How much is measured. `budget_s`: of all calls of one work in one round."""

    rounds: int = 6
    budget_s: float = 0.2
    warm_up_s: float = 0.05
    lookups: int = 24

    @classmethod
    def quick(cls) -> Plan:
        return cls(rounds=1, budget_s=0.05, warm_up_s=0.02, lookups=3)


class Peer:
    """The runner of a subject. A context manager: at its end nothing of it is left."""

    def __init__(self, subject: Subject) -> None:
        python = _python_of(subject)
        self.subject = subject
        self.version = ""
        self._place = Path(tempfile.mkdtemp(prefix="peer-"))
        self._names = _names_in_shared_memory()
        self._answers: queue.Queue[str] = queue.Queue(maxsize=1)
        self._log = (self._place / "runner.log").open("wb")
        self._process = subprocess.Popen(
            [python, str(Path(__file__).with_name("peer_runner.py")), subject.adapter, str(self._place)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, text=True, start_new_session=True,
            env=os.environ | dict(subject.variables))
        threading.Thread(target=self._listen, daemon=True).start()

    def ask(self, verb: str, **arguments: Any) -> dict[str, Any]:
        """PeerFailed when it says so, ends, or does not answer in time."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            print(json.dumps({"do": verb} | arguments), file=self._process.stdin, flush=True)
        try:
            line = self._answers.get(timeout=ANSWER_WITHIN_S)
        except queue.Empty:
            raise self._failure(verb, f"no answer within {ANSWER_WITHIN_S:.0f} s") from None
        if not line:
            raise self._failure(verb, f"its process ended: {self._last_words()}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise self._failure(verb, answer["error"])
        return answer

    def __enter__(self) -> Self:
        try:
            self.version = self.ask("start")["version"]
        except BaseException:
            self.end()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(PeerFailed):
            self.ask("stop")
        self.end()

    def end(self) -> None:
        """Ends its process, which ends what it started; removes its files, also from shared memory."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(STOP_WITHIN_S)
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._log.close()
        for name in _names_in_shared_memory() - self._names:
            if name.startswith(self.subject.leaves):
                _remove(SHARED_MEMORY / name)
        _remove(self._place)

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._answers.put(line)
        self._answers.put("")

    def _failure(self, verb: str, what: str) -> PeerFailed:
        return PeerFailed(f"{self.subject.name}, {verb}: {what}")

    def _last_words(self) -> str:
        lines = (self._place / "runner.log").read_text(errors="replace").splitlines()
        return lines[-1][:300] if lines else "it said nothing"


def compare(subject: Subject, plan: Plan) -> tuple[dict[str, str], dict[str, list[Figure]]]:
    """Measures a peer, tierd and the limit by turns, so that what else the machine does hits all alike.

    Returns versions and figures of each, by name. PeerFailed when one of them fails; nothing is left behind.
    """
    with ExitStack() as stack:
        peers = [stack.enter_context(Peer(one)) for one in (subject, OURS, LIMIT)]
        figures: dict[str, list[Figure]] = {peer.subject.name: [] for peer in peers}
        for block_bytes in VERDICT_BLOCK_BYTES:
            _measure_blocks(peers, plan, block_bytes, figures)
        if subject.has_ids:
            _measure_lookups(peers[:2], plan, figures)
        return {peer.subject.name: peer.version for peer in peers}, figures


def _measure_blocks(peers: Sequence[Peer], plan: Plan, block_bytes: int, figures: dict[str, list[Figure]]) -> None:
    """Puts and gets of one size, one block a call and in batches."""
    pool_blocks = max(2 * BATCH_BLOCKS, POOL_BYTES // block_bytes)
    for peer in peers:
        peer.ask("use", block_bytes=block_bytes, pool_blocks=pool_blocks)
    for per_call in (1, BATCH_BLOCKS):
        rounds = _rounds(peers, plan, "round", per_call=per_call)
        for name, answers in rounds.items():
            figures[name] += _figures_of_rounds(answers, block_bytes, per_call)


def _figures_of_rounds(answers: Sequence[dict[str, Any]], block_bytes: int, per_call: int) -> list[Figure]:
    """Of put, get, and where they were measured of queued puts."""
    def total(key: str) -> int:
        return sum(one[key] for one in answers)

    def figure(verb: str, wrong: int, missed: int = 0) -> Figure:
        return figure_of(Work(verb, block_bytes, per_call), [one[verb] for one in answers], wrong, missed)

    figures = [figure("put", total("wrong")), figure("get", total("wrong"), total("missed"))]
    return [*figures, figure("queue", total("queue_wrong"))] if "queue" in answers[0] else figures


def _measure_lookups(peers: Sequence[Peer], plan: Plan, figures: dict[str, list[Figure]]) -> None:
    for peer in peers:
        peer.ask("fill", count=max(VERDICT_LOOKUP_IDS))
    for count in VERDICT_LOOKUP_IDS:
        rounds = _rounds(peers, plan, "lookup", count=count, calls=plan.lookups)
        for name, answers in rounds.items():
            wrong = sum(one["wrong"] for one in answers)
            figures[name].append(figure_of(Work("lookup", 0, count), [one["lookup"] for one in answers], wrong))


def _rounds(peers: Sequence[Peer], plan: Plan, verb: str, **arguments: int) -> dict[str, list[dict[str, Any]]]:
    """The answers of each peer, but for a first round that warms up. Each round begins with another peer."""
    answers: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for peer in peers:
        peer.ask(verb, budget_s=plan.warm_up_s, **arguments)
    for number in range(plan.rounds):
        first = number % len(peers)
        for peer in (*peers[first:], *peers[:first]):
            answers[peer.subject.name].append(peer.ask(verb, budget_s=plan.budget_s, **arguments))
    return answers


def _python_of(subject: Subject) -> str:
    if not subject.environment:
        return sys.executable
    python = ENVIRONMENTS / subject.environment / "bin/python"
    if not python.exists():
        raise PeerFailed("not installed: tests/bench/peers/install.sh did not make its environment")
    return str(python)


def _names_in_shared_memory() -> set[str]:
    return {path.name for path in SHARED_MEMORY.iterdir()}


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
