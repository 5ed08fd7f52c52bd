"""Which setting serves a trace best: chosen on its first half, judged on its second.

Both halves are of one replay, so that the second begins with what the first left in the tier. Nothing is said to
beat `lru` unless its gain on the half on which it was not chosen is beyond noise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from tierd.sim.noise import Interval, difference
from tierd.sim.played import Played
from tierd.sim.rows import BELADY
from tierd.sim.traces import Trace

LRU, DEFAULT = "lru", "lrfu"
BY_REQUESTS = ("gab", "gittins", "lfu", "ema", "arc", "s3fifo", "sieve", "random", "lrfu(admission=none)")
"""What is tried by its name: of attention, and of places that sequences keep, a trace of requests says nothing."""


@dataclass(frozen=True, slots=True)
class Grid:
    """Specs of two parameters: `spec(row value, column value)`."""

    title: str
    row_name: str
    rows: tuple[float, ...]
    column_name: str
    columns: tuple[float, ...]
    spec: Callable[[float, float], str]

    def specs(self) -> list[str]:
        return [self.spec(row, column) for row in self.rows for column in self.columns]


def composite(beta: float, alpha: float) -> str:
    return f"lrfu(ranking=composite,alpha={alpha:g},beta={beta:g})"


def decayed(ghost_factor: float, half_life: float) -> str:
    """By half-life in steps; no ghosts at all is a record that does not survive."""
    survives = f"ghost_factor={ghost_factor:g}" if ghost_factor else "persist=false"
    return f"lrfu(ranking=decayed,lambda={1 / half_life:.6g},{survives})"


def grids(*, fine: bool) -> list[Grid]:
    """alpha x beta of the composite rank; half-life x ghosts of LRFU as it was published."""
    alphas = (0.5, 0.3, 0.15, 0.05, 0.01, 0.003, 0.001) if fine else (0.5, 0.15, 0.05, 0.01)
    betas = (0.1, 0.01, 1e-3, 1e-4, 1e-5) if fine else (0.1, 1e-3, 1e-5)
    half_lives = (10.0, 30.0, 100.0, 300.0, 1e3, 3e3, 1e4) if fine else (30.0, 300.0, 3e3)
    ghosts = (0.0, 1.0, 2.0, 4.0, 8.0) if fine else (0.0, 1.0, 4.0)
    return [
        Grid("lrfu(ranking=composite)", "beta", betas, "alpha", alphas, composite),
        Grid("lrfu(ranking=decayed)", "ghosts", ghosts, "half-life, steps", half_lives, decayed),
    ]


def candidates(made: Sequence[Grid], others: Iterable[str]) -> list[str]:
    """Every spec that is tried, `lru` first and the optimum last, each once."""
    tried = [LRU, DEFAULT, *others, *(spec for grid in made for spec in grid.specs())]
    return [*dict.fromkeys(tried), BELADY]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one spec gained over `lru`, in points of prefix hits."""

    spec: str
    fitted: float
    """On the first half."""
    held_out: Interval
    """On the second half."""

    @property
    def beats(self) -> bool:
        return self.held_out.low > 0


@dataclass(frozen=True, slots=True)
class Verdict:
    """`outcomes` by what they gained on the first half, the best first; the optimum is not among them."""

    capacity: int
    lru_percent: float
    """Prefix hits of `lru` on the second half, in percent of what was asked for."""
    outcomes: tuple[Outcome, ...]
    optimum: Interval

    def of(self, spec: str) -> Outcome:
        return next(one for one in self.outcomes if one.spec == spec)

    @property
    def best(self) -> Outcome:
        return self.outcomes[0]

    @property
    def recommended(self) -> str:
        """The best on the first half if it beats `lru` on the second, else the default unless `lru` beats that."""
        if self.best.beats:
            return self.best.spec
        return LRU if self.of(DEFAULT).held_out.high < 0 else DEFAULT

    def sentence(self) -> str:
        best, default = self.best, self.of(DEFAULT)
        if best.beats:
            return (
                f"{best.spec}, the best on the first half, beats lru on the second by {best.held_out.as_text()}; "
                f"the default, {DEFAULT}, is at {default.held_out.as_text()}."
            )
        if default.beats:
            return (
                f"{best.spec}, the best on the first half, beats lru on the second by no more than noise, "
                f"{best.held_out.as_text()}; the default, {DEFAULT}, does by {default.held_out.as_text()}. "
                "Tuning is not worth it here."
            )
        return (
            f"Nothing beats lru by more than noise: {best.spec}, the best on the first half, is on the second at "
            f"{best.held_out.as_text()}. Tuning is not worth it here; the default, {DEFAULT}, is at "
            f"{default.held_out.as_text()}."
        )


def judge(trace: Trace, capacity: int, specs: Sequence[str], played: Sequence[Played]) -> Verdict:
    """`specs` as `candidates` makes them, each with what its replay counted at this capacity."""
    half = trace.requests // 2
    asked = trace.asked
    base = played[specs.index(LRU)].prefix_hits

    def points(hits: Played) -> float:
        return 100 * float((hits.prefix_hits - base)[:half].sum() / max(1, asked[:half].sum()))

    def held_out(hits: Played) -> Interval:
        return difference(hits.prefix_hits[half:], base[half:], asked[half:])

    by_spec = dict(zip(specs, played, strict=True))
    optimum = held_out(by_spec.pop(BELADY))
    outcomes = [Outcome(spec, points(hits), held_out(hits)) for spec, hits in by_spec.items()]
    lru_percent = 100 * float(base[half:].sum() / max(1, asked[half:].sum()))
    return Verdict(
        capacity, lru_percent, tuple(sorted(outcomes, key=lambda one: -one.fitted)), optimum
    )
