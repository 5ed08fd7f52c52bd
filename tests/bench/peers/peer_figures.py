"""From times of single calls to figures, and from figures to verdicts. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Times = dict[str, Any]
"""What the runner says of timed calls: seconds, blocks, client_cpu_s, server_cpu_s."""

VERDICT_BLOCK_BYTES = (128 << 10, 640 << 10, 2 << 20, 5 << 20)
VERDICT_LOOKUP_IDS = (1024, 8192)


@dataclass(frozen=True, slots=True)
class Work:
    """What was done: put, queue (a put that does not wait for its commit), get or lookup; bytes of a block (0 for
    a lookup); blocks or ids of a call."""

    verb: str
    block_bytes: int
    per_call: int

    @property
    def label(self) -> str:
        if self.verb == "lookup":
            return f"lookup of {self.per_call:,} ids"
        batch = f", {self.per_call} a call" if self.per_call > 1 else ""
        verb = "queued put" if self.verb == "queue" else self.verb
        return f"{verb} {size_text(self.block_bytes)}{batch}"


@dataclass(frozen=True, slots=True)
class Figure:
    """How long one call of a work took, in microseconds, over `calls` of them; CPU seconds per GB where bytes
    moved. `wrong`: blocks or answers that were not what was put; `missed`: calls that did not find what was put."""

    work: Work
    p10_us: float
    p50_us: float
    calls: int
    client_cpu_s_per_gb: float
    server_cpu_s_per_gb: float
    wrong: int = 0
    missed: int = 0


@dataclass(frozen=True, slots=True)
class Verdict:
    """Median of a peer over that of tierd in the same run: above 1 tierd is the faster one."""

    work: Work
    ours_us: float
    theirs_us: float

    @property
    def ratio(self) -> float:
        return self.theirs_us / self.ours_us

    @property
    def is_faster(self) -> bool:
        return self.ratio > 1.0


def percentile(samples: Sequence[float], share: float) -> float:
    """The smallest sample that at least this share of them does not exceed; NaN where there is none."""
    ordered = sorted(samples) or [math.nan]
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def figure_of(work: Work, times: Sequence[Times], wrong: int = 0, missed: int = 0) -> Figure:
    """One figure of the calls of all rounds."""
    seconds = [second for one in times for second in one["seconds"]]
    gigabytes = sum(one["blocks"] for one in times) * work.block_bytes / 1e9
    client, server = (
        sum(one[of] for one in times) / gigabytes if gigabytes else 0.0 for of in ("client_cpu_s", "server_cpu_s")
    )
    return Figure(
        work, percentile(seconds, 0.1) * 1e6, percentile(seconds, 0.5) * 1e6, len(seconds), client, server,
        wrong, missed)


def verdicts(ours: Mapping[Work, Figure], theirs: Mapping[Work, Figure]) -> dict[Work, Verdict]:
    """Over the works that the promise names, where the peer did them at all and rightly. Done wrongly by tierd it
    is lost, however fast."""
    return {
        work: Verdict(work, math.inf if ours[work].wrong else ours[work].p50_us, theirs[work].p50_us)
        for work in judged() if work in ours and work in theirs and _counts(theirs[work])
    }


def _counts(theirs: Figure) -> bool:
    return theirs.calls > 0 and not theirs.wrong


def promised(put: str = "put") -> list[Work]:
    """The works on which tierd means to be faster than every peer daemon; `put`: or queue."""
    blocks = [Work(verb, size, 1) for verb in ("get", put) for size in VERDICT_BLOCK_BYTES]
    return blocks + [Work("lookup", 0, count) for count in VERDICT_LOOKUP_IDS]


def judged() -> list[Work]:
    """All of them, with each kind of put."""
    return list(dict.fromkeys(promised() + promised("queue")))


def size_text(size: int) -> str:
    """128 KiB, 5 MiB."""
    return f"{size >> 20} MiB" if size >= 1 << 20 else f"{size >> 10} KiB"
