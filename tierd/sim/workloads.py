"""Traces that are made rather than read: `name` or `name(parameter=value,...)` in place of a file.

* `chained-zipf`: prompts that share prefixes, chosen by Zipf's law, each with a turn of its own behind it; the
  popularity of some prompts is dealt anew from time to time;
* `scan-polluted`: each request asks for some blocks of a hot set that is renewed bit by bit, and for as many that
  nobody asks for again;
* `multi-turn`: sessions of a chat service that come back by Zipf's law, and grow by each answer. With the defaults
  and half of it as warm-up it is, draw by draw, the workload behind the figures that docs/policies/claims.md is
  about.

The same spec makes the same trace. Times are one second apart.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar, Protocol

import numpy as np

from tierd.core.errors import InvalidInput
from tierd.sim.traces import BLOCK_TOKENS, F64Array, Trace, build_trace
from tierd_client.format import I64Array

MOST_ACCESSES = 50_000_000
"""Of a made trace: it takes 8 bytes for each."""
_SPEC = re.compile(r"([a-z-]+)(?:\((.*)\))?")


class Workload(Protocol):
    """A frozen dataclass whose fields are its parameters; their ranges are in the fields' metadata."""

    name: ClassVar[str]

    def accesses(self) -> float:
        """About how many blocks will be asked for and stored."""

    def make(self) -> Trace:
        """The trace, named later."""


def _within(default: float, low: float, high: float) -> Any:
    return field(default=default, metadata={"low": low, "high": high})


@dataclass(frozen=True)
class ChainedZipf:
    name: ClassVar[str] = "chained-zipf"
    seed: int = _within(1, 0, 1 << 32)
    requests: int = _within(6_000, 1, 10_000_000)
    prompts: int = _within(2_000, 1, 1_000_000)
    exponent: float = _within(0.8, 0.0, 5.0)
    most_prompt_blocks: int = _within(220, 1, 65_536)
    most_turn_blocks: int = _within(44, 0, 65_536)
    drift: float = _within(0.15, 0.0, 1.0)
    drift_every: int = _within(800, 1, 10_000_000)

    def accesses(self) -> float:
        return self.requests * (self.most_prompt_blocks + self.most_turn_blocks) / 2

    def make(self) -> Trace:
        rng = np.random.default_rng(self.seed)
        chains = rng.integers(1, self.most_prompt_blocks + 1, self.prompts)
        heads = np.cumsum(chains) - chains
        popularity = rng.permutation(self.prompts)
        draws = rng.choice(self.prompts, self.requests, p=zipf(self.prompts, self.exponent))
        turns = rng.integers(0, self.most_turn_blocks + 1, self.requests)
        prompts = np.empty(self.requests, np.int64)
        for start in range(0, self.requests, self.drift_every):
            if start:
                _deal_anew(rng, popularity, self.drift)
            batch = slice(start, start + self.drift_every)
            prompts[batch] = popularity[draws[batch]]
        own = int(chains.sum()) + np.cumsum(turns) - turns
        starts = np.stack([heads[prompts], own], axis=1).ravel()
        runs = np.stack([chains[prompts], turns], axis=1).ravel()
        return _of_runs(starts, runs, runs.reshape(-1, 2).sum(axis=1))


@dataclass(frozen=True)
class ScanPolluted:
    name: ClassVar[str] = "scan-polluted"
    seed: int = _within(1, 0, 1 << 32)
    requests: int = _within(400, 1, 1_000_000)
    hot_blocks: int = _within(6_000, 1, 10_000_000)
    hot_asked: int = _within(768, 1, 1_000_000)
    scanned: int = _within(256, 0, 1_000_000)
    drift: float = _within(0.25, 0.0, 1.0)
    drift_every: int = _within(20, 1, 1_000_000)

    def accesses(self) -> float:
        return self.requests * (self.hot_asked + self.scanned)

    def make(self) -> Trace:
        if self.hot_asked > self.hot_blocks:
            raise InvalidInput("scan-polluted.hot_asked", f"{self.hot_asked} is more than hot_blocks")
        rng = np.random.default_rng(self.seed)
        hot = np.arange(self.hot_blocks)
        fresh = self.hot_blocks
        asked = np.empty((self.requests, self.hot_asked + self.scanned), np.int64)
        for request in range(self.requests):
            if request and request % self.drift_every == 0:
                gone = rng.choice(self.hot_blocks, int(self.drift * self.hot_blocks), replace=False)
                hot[gone] = np.arange(fresh, fresh + len(gone))
                fresh += len(gone)
            asked[request, : self.hot_asked] = rng.choice(hot, self.hot_asked, replace=False)
            asked[request, self.hot_asked :] = np.arange(fresh, fresh + self.scanned)
            fresh += self.scanned
        lengths = np.full(self.requests, asked.shape[1])
        return replace(_at_one_second(asked.ravel(), lengths), chained=False)


@dataclass(frozen=True)
class MultiTurn:
    """Tokens of the shared prompt, of a context before its first turn and of an answer; in blocks, rounded down.
    `most_blocks`: a context grows no further, 0 without a bound."""

    name: ClassVar[str] = "multi-turn"
    seed: int = _within(1, 0, 1 << 32)
    sessions: int = _within(200, 1, 100_000)
    turns: int = _within(2_500, 1, 1_000_000)
    exponent: float = _within(1.1, 0.0, 5.0)
    shared_tokens: int = _within(2_048, 0, 1 << 20)
    least_context_tokens: int = _within(1_024, 16, 1 << 20)
    most_context_tokens: int = _within(12_288, 17, 1 << 21)
    least_answer_tokens: int = _within(32, 0, 1 << 16)
    most_answer_tokens: int = _within(512, 1, 1 << 16)
    most_blocks: int = _within(0, 0, 1 << 20)

    def accesses(self) -> float:
        """Every context at its mean and, on top, half of what the busiest session comes to."""
        often = float((zipf(self.sessions, self.exponent) ** 2).sum()) * self.turns
        context = (self.least_context_tokens + self.most_context_tokens) / 2
        grown = often / 2 * (self.least_answer_tokens + self.most_answer_tokens) / 2
        return self.turns * (self.shared_tokens + context + grown) / BLOCK_TOKENS

    def make(self) -> Trace:
        for least, most in (("least_context_tokens", "most_context_tokens"),
                            ("least_answer_tokens", "most_answer_tokens")):
            if getattr(self, least) >= getattr(self, most):
                raise InvalidInput(f"multi-turn.{most}", f"is not above {least}")
        rng = np.random.default_rng(self.seed)
        own = rng.integers(self.least_context_tokens, self.most_context_tokens, self.sessions) // BLOCK_TOKENS
        popularity = rng.permutation(self.sessions)
        order = popularity[rng.choice(self.sessions, self.turns, p=zipf(self.sessions, self.exponent))]
        answers = rng.integers(self.least_answer_tokens, self.most_answer_tokens, self.turns) // BLOCK_TOKENS
        shared = self.shared_tokens // BLOCK_TOKENS
        room = 1 + max(int(own.max()) + int(answers.sum()), shared)  # ids of one session lie side by side
        starts, runs, replies = [], [], []
        for session, answer in zip(order.tolist(), answers.tolist(), strict=True):
            if self.most_blocks:
                answer = max(0, min(answer, self.most_blocks - int(own[session])))
            starts += [0, (session + 1) * room]
            runs += [shared, int(own[session]) + answer]
            own[session] += answer
            replies.append(answer)
        lengths = np.array(runs).reshape(-1, 2).sum(axis=1)
        trace = _of_runs(np.array(starts), np.array(runs), lengths)
        return replace(trace, replies=np.array(replies, np.int64))


WORKLOADS: dict[str, type[Any]] = {kind.name: kind for kind in (ChainedZipf, ScanPolluted, MultiTurn)}


def is_workload(text: str) -> bool:
    """Whether this names a workload, rather than a file."""
    match = _SPEC.fullmatch(text.strip())
    return match is not None and match.group(1) in WORKLOADS


def make_trace(spec: str) -> Trace:
    """The trace that a spec names. InvalidInput names the parameter that is wrong."""
    match = _SPEC.fullmatch(spec.strip())
    if match is None or match.group(1) not in WORKLOADS:
        raise InvalidInput("workload", f"{spec[:80]!r} is not {' or '.join(WORKLOADS)}, with (parameter=value,...)")
    kind = WORKLOADS[match.group(1)]
    workload: Workload = kind(**_parameters(kind, match.group(2) or ""))
    if (accesses := workload.accesses()) > MOST_ACCESSES:
        raise InvalidInput("workload", f"{spec} asks for about {accesses:.3g} blocks, over {MOST_ACCESSES:,}")
    return replace(workload.make(), name=spec.strip())


def zipf(count: int, exponent: float) -> F64Array:
    """Probabilities of ranks 1 to `count`."""
    weights: F64Array = 1.0 / np.arange(1, count + 1, dtype=np.float64) ** exponent
    weights /= weights.sum()
    return weights


def _parameters(kind: type[Any], text: str) -> dict[str, Any]:
    """Values by name, of the type of the field's default, within its range."""
    known = {one.name: one for one in fields(kind)}
    given: dict[str, Any] = {}
    for part in filter(None, (one.strip() for one in text.split(","))):
        name, _, value = (one.strip() for one in part.partition("="))
        if name not in known or name in given:
            problem = "given twice" if name in given else f"is no parameter; there are {', '.join(known)}"
            raise InvalidInput(f"{kind.name}.{name}", problem)
        given[name] = _number(kind, known[name], value)
    return given


def _number(kind: type[Any], one: Any, text: str) -> Any:
    low, high = one.metadata["low"], one.metadata["high"]
    try:
        value = type(one.default)(text)
    except ValueError:
        value = None
    if value is None or not low <= value <= high:
        wanted = f"{type(one.default).__name__} in [{low}, {high}]"
        raise InvalidInput(f"{kind.name}.{one.name}", f"{text!r} is no {wanted}")
    return value


def _deal_anew(rng: np.random.Generator, popularity: I64Array, share: float) -> None:
    """Prompts at some of the ranks of popularity change places."""
    ranks = rng.choice(len(popularity), int(share * len(popularity)), replace=False)
    popularity[ranks] = popularity[rng.permutation(ranks)]


def _of_runs(starts: I64Array, runs: I64Array, lengths: I64Array) -> Trace:
    """Requests made of runs of ids."""
    ends = np.cumsum(runs)
    ids = np.repeat(starts - (ends - runs), runs) + np.arange(ends[-1] if len(ends) else 0)
    return _at_one_second(ids, lengths)


def _at_one_second(ids: I64Array, lengths: I64Array) -> Trace:
    return build_trace("", ids, lengths, np.arange(len(lengths), dtype=np.float64))
