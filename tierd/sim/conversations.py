"""Made traffic of conversations: a request is what was said before, and something more."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from tierd.core.errors import InvalidInput
from tierd.sim.draws import FreshIds, of_requests, of_runs, within, zipf
from tierd.sim.traces import BLOCK_TOKENS, F64Array, Trace
from tierd_client.format import I64Array

Turn = tuple[float, I64Array]
"""When it comes (s), and its blocks."""


@dataclass(frozen=True)
class MultiTurn:
    """Sessions that come back by Zipf's law, and grow by each answer. Tokens of the shared prompt, of a context
    before its first turn and of an answer are rounded down to blocks. `most_blocks`: a context grows no further, 0
    without a bound. With the defaults and half of it as warm-up it is, draw by draw, the workload behind the
    figures that docs/policies/claims.md is about."""

    name: ClassVar[str] = "multi-turn"
    seed: int = within(1, 0, 1 << 32)
    sessions: int = within(200, 1, 100_000)
    turns: int = within(2_500, 1, 1_000_000)
    exponent: float = within(1.1, 0.0, 5.0)
    shared_tokens: int = within(2_048, 0, 1 << 20)
    least_context_tokens: int = within(1_024, 16, 1 << 20)
    most_context_tokens: int = within(12_288, 17, 1 << 21)
    least_answer_tokens: int = within(32, 0, 1 << 16)
    most_answer_tokens: int = within(512, 1, 1 << 16)
    most_blocks: int = within(0, 0, 1 << 20)

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
        trace = of_runs(np.array(starts), np.array(runs), lengths)
        return replace(trace, replies=np.array(replies, np.int64))


@dataclass(frozen=True)
class Chat:
    """Conversations that begin once a second on average, until so many have. Each goes on by chance after a while
    of thinking, `think_s` in the middle (log-normal, sigma 1.2). A share of them, `with_system`, begins with one of
    the system prompts, by Zipf's law. Blocks of the first question and of what each turn adds are exponential, in
    the mean as said."""

    name: ClassVar[str] = "chat"
    seed: int = within(1, 0, 1 << 32)
    conversations: int = within(5_000, 1, 1_000_000)
    goes_on: float = within(0.5, 0.0, 0.99)
    think_s: float = within(120.0, 0.0, 1e6)
    mean_first_blocks: float = within(12.0, 0.0, 65_536.0)
    mean_turn_blocks: float = within(3.0, 0.0, 65_536.0)
    systems: int = within(20, 1, 100_000)
    most_system_blocks: int = within(3, 1, 65_536)
    with_system: float = within(0.5, 0.0, 1.0)
    block_tokens: int = within(512, 1, 1 << 16)

    def accesses(self) -> float:
        first = 1 + self.mean_first_blocks + self.with_system * self.most_system_blocks / 2
        return self.conversations * _in_all(1 / (1 - self.goes_on), first, self.mean_turn_blocks)

    def make(self) -> Trace:
        rng = np.random.default_rng(self.seed)
        ids = FreshIds()
        systems = ids.chains(rng.integers(1, self.most_system_blocks + 1, self.systems))
        begins_s = np.cumsum(rng.exponential(1.0, self.conversations))
        counts = rng.geometric(1 - self.goes_on, self.conversations)
        picks = rng.choice(self.systems, self.conversations, p=zipf(self.systems, 1.0))
        picks[rng.random(self.conversations) >= self.with_system] = self.systems
        systems.append(ids.take(0))
        turns: list[Turn] = []
        for begin_s, count, pick in zip(begins_s.tolist(), counts.tolist(), picks.tolist(), strict=True):
            blocks = _exponential(rng, self.mean_first_blocks, self.mean_turn_blocks, count)
            pauses_s = self.think_s * rng.lognormal(0.0, 1.2, count)
            turns += _turns(ids, systems[pick], blocks, begin_s - pauses_s[0] + np.cumsum(pauses_s))
        return _in_order([turn for turn in turns if turn[0] <= begins_s[-1]], self.block_tokens)


@dataclass(frozen=True)
class Agents:
    """Sessions of agents, `at_once` side by side: when one is over the next begins. Each has one of the system
    prompts, a task, and turns (geometric, two at least). Turns follow each other after 10 s on average
    (exponential), one in ten of them, when a human was asked, after 300 s. Blocks of tasks and of what each turn
    adds are exponential, in the mean as said."""

    name: ClassVar[str] = "agents"
    seed: int = within(1, 0, 1 << 32)
    sessions: int = within(800, 1, 100_000)
    at_once: int = within(40, 1, 10_000)
    mean_turns: float = within(9.0, 2.0, 10_000.0)
    mean_task_blocks: float = within(10.0, 0.0, 65_536.0)
    mean_turn_blocks: float = within(4.0, 0.0, 65_536.0)
    systems: int = within(10, 1, 100_000)
    most_system_blocks: int = within(40, 1, 65_536)
    block_tokens: int = within(16, 1, 1 << 16)

    def accesses(self) -> float:
        first = 1 + self.mean_task_blocks + self.most_system_blocks
        return self.sessions * _in_all(self.mean_turns, first, 1 + self.mean_turn_blocks)

    def make(self) -> Trace:
        rng = np.random.default_rng(self.seed)
        ids = FreshIds()
        least = -(-self.most_system_blocks // 2)
        systems = ids.chains(rng.integers(least, self.most_system_blocks + 1, self.systems))
        picks = rng.integers(self.systems, size=self.sessions).tolist()
        counts = (1 + rng.geometric(1 / (self.mean_turns - 1), self.sessions)).tolist()
        free_s = [0.0] * self.at_once
        turns: list[Turn] = []
        for number, (pick, count) in enumerate(zip(picks, counts, strict=True)):
            blocks = 1 + _exponential(rng, self.mean_task_blocks, self.mean_turn_blocks, count)
            pauses_s = rng.exponential(10.0, count) * np.where(rng.random(count) < 0.1, 30.0, 1.0)
            times_s = free_s[number % self.at_once] + np.cumsum(pauses_s)
            free_s[number % self.at_once] = float(times_s[-1])
            turns += _turns(ids, systems[pick], blocks, times_s)
        return _in_order(turns, self.block_tokens)


def _in_all(turns: float, first: float, more: float) -> float:
    """Mean of the blocks that a conversation asks for: `turns` times its first ones, and what it grows by, where
    the number of turns is geometric."""
    return turns * (first + (turns - 1) * more)


def _exponential(rng: np.random.Generator, first: float, more: float, count: int) -> I64Array:
    """Of `count` turns, how many blocks each adds: exponential, in the mean `first`, and then `more`."""
    return rng.exponential([first, *[more] * (count - 1)]).astype(np.int64)


def _turns(ids: FreshIds, system: I64Array, blocks: I64Array, times_s: F64Array) -> list[Turn]:
    """A conversation that says so many blocks of its own at these times, behind a system prompt."""
    own = ids.take(int(blocks.sum()))
    said = zip(times_s.tolist(), np.cumsum(blocks).tolist(), strict=True)
    return [(time_s, np.concatenate([system, own[:end]])) for time_s, end in said]


def _in_order(turns: list[Turn], block_tokens: int) -> Trace:
    turns.sort(key=lambda turn: turn[0])
    return of_requests([blocks for _, blocks in turns], [time_s for time_s, _ in turns], block_tokens)
