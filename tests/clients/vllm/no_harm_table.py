"""The table of no_harm.py: every figure of the engine with tierd beside that of an equal engine without."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from tierd.bench.report import machine

WITH, WITHOUT, AGAIN = "with", "without", "without_again"
"""The engines. Everything is divided by what WITHOUT took, also what AGAIN did."""


@dataclass(frozen=True, order=True)
class Kind:
    """Requests that cost the same. `computed`: what computing them is called, where that is another kind."""

    name: str
    computed: str = ""

    @classmethod
    def new(cls, tokens: int) -> Kind:
        return cls(f"new, {tokens} tokens")

    @classmethod
    def found(cls, tokens: int) -> Kind:
        return cls(f"found, {tokens} tokens", cls.new(tokens).name)

    @classmethod
    def together(cls, count: int, tokens: int) -> Kind:
        return cls(f"new, {count} of {tokens} tokens at once")

    @classmethod
    def stopped(cls, tokens: int) -> Kind:
        return cls(f"new, {tokens} tokens, daemon stopped")

    @classmethod
    def first(cls, tokens: int) -> Kind:
        return cls("the first one after each stop", cls.stopped(tokens).name)


Asked = dict[tuple[int, Any], float]
"""Seconds by prompt and turn."""


@dataclass(frozen=True)
class Harm:
    """Seconds of an engine over those of WITHOUT. `median`: of all; `worst_prompt`: the largest of the prompts'
    medians; `worst_single`: the largest of all pairs of one prompt and turn, None where engines were not asked in
    pairs; `longest`: the longest one over the longest one."""

    median: float
    worst_prompt: float
    worst_single: float | None
    longest: float

    @classmethod
    def of(cls, some: Asked, base: Asked) -> Harm:
        by_prompt, base_by_prompt = _by_prompt(some), _by_prompt(base)
        pairs = some.keys() & base.keys()
        return cls(
            median(some.values()) / median(base.values()),
            max(by_prompt[prompt] / base_by_prompt[prompt] for prompt in by_prompt),
            max((some[pair] / base[pair] for pair in pairs), default=None),
            max(some.values()) / max(base.values()))


class Seconds:
    """What requests took, by kind and engine."""

    def __init__(self) -> None:
        self.kinds: dict[Kind, dict[str, Asked]] = defaultdict(lambda: defaultdict(dict))

    def note(self, kind: Kind, engine: str, prompt: int, turn: Any, seconds: float) -> None:
        self.kinds[kind][engine][prompt, turn] = seconds

    def rows(self) -> Iterator[dict[str, Any]]:
        named = {kind.name: of_kind for kind, of_kind in self.kinds.items()}
        for kind, of_kind in self.kinds.items():
            alone = named[kind.computed or kind.name]
            yield {
                "requests": kind.name, "times": len(of_kind[WITH]),
                "without_s": median(alone[WITHOUT].values()), "with_s": median(of_kind[WITH].values()),
                "with": asdict(Harm.of(of_kind[WITH], alone[WITHOUT])),
                "equal": asdict(Harm.of(alone[AGAIN], alone[WITHOUT])),
            }

    def plain(self) -> dict[str, dict[str, list[float]]]:
        return {
            kind.name: {engine: list(asked.values()) for engine, asked in of_kind.items()}
            for kind, of_kind in self.kinds.items()
        }


def say(seconds: Seconds, file: str) -> None:
    """Prints the table. `file`: for all that was measured, as JSON."""
    rows = list(seconds.rows())
    columns = list(rows[0]["with"])
    print(f"| requests | times | without, s | with, s | {' | '.join(columns)} |".replace("_", " "))
    print("|---" * (4 + len(columns)) + "|")
    for row in rows:
        figures = " | ".join(_figure(row["with"][name], row["equal"][name]) for name in columns)
        print(f"| {row['requests']} | {row['times']} | {row['without_s']:.3f} | {row['with_s']:.3f} | {figures} |")
    print(f"\n{machine()}")
    if file:
        whole = {"machine": machine(), "rows": rows, "seconds": seconds.plain()}
        Path(file).write_text(json.dumps(whole, indent=1) + "\n")


def _figure(with_it: float | None, equal: float) -> str:
    return "" if with_it is None else f"{with_it:.3f} ({equal:.3f})"


def _by_prompt(asked: Mapping[tuple[int, Any], float]) -> dict[int, float]:
    """Medians over turns."""
    found: dict[int, list[float]] = defaultdict(list)
    for (prompt, _), seconds in asked.items():
        found[prompt].append(seconds)
    return {prompt: median(some) for prompt, some in found.items()}
