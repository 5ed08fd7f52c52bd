"""Budgets of sequences: how many blocks of one may lie in hbm, and which of them do. Part of the vocabulary of
messages.py."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from tierd.core.terms import OutcomeArray


class Residency(IntEnum):
    """Where a block of a sequence with a budget is. KEPT: in hbm. AWAY: held, and not in hbm, or there by others'
    doing. LEAVING: in hbm, being copied down. GIVEN_UP: not held any more."""

    KEPT = 1
    AWAY = 2
    LEAVING = 3
    GIVEN_UP = 4


@dataclass(frozen=True, slots=True)
class Budget:
    """`blocks`: most of a sequence in hbm. Of these the first `sink_blocks` of the sequence and the last
    `recent_blocks` always stay, the others are the heavy ones by `policy`, a spec of one over attention. What is
    over goes down, or with `lossy` for good."""

    blocks: int
    recent_blocks: int
    sink_blocks: int = 0
    lossy: bool = False
    policy: str = "h2o"


@dataclass(frozen=True, slots=True)
class SetBudget:
    """An open sequence gets a budget, or another one (None: it keeps the one it has), and what is over it goes.
    `attention`, `steps`: as in Observe, counted before."""

    session: int
    sequence: str
    budget: Budget | None = None
    attention: NDArray[np.float32] | None = None
    steps: int = 1


@dataclass(frozen=True, slots=True)
class ListSequences:
    """Open sequences, by session and name: `limit` of them, from the `offset`-th on."""

    limit: int
    offset: int = 0


BudgetCommand = SetBudget | ListSequences


@dataclass(slots=True)
class BudgetSet:
    """`outcomes`: the Residency of each block of the sequence, in order. `waiting`: moves of those LEAVING."""

    budget: Budget
    outcomes: OutcomeArray
    waiting: tuple[int, ...] = ()


@dataclass(slots=True)
class SequenceView:
    """An open sequence, for people. `blocks`: of its first chain. Without a budget the rest is 0. `spare_slots`:
    those that its blocks have left for its next ones."""

    session: int
    name: str
    namespace: int
    group: int
    blocks: int
    budget: Budget | None = None
    kept_blocks: int = 0
    leaving_blocks: int = 0
    given_up_blocks: int = 0
    spare_slots: int = 0


@dataclass(slots=True)
class SequencePage:
    """`more`: there are others behind these."""

    sequences: list[SequenceView]
    more: bool


BudgetReply = BudgetSet | SequencePage
