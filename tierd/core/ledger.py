"""What a sequence with a budget has in hbm, what attention gave to its blocks, and which of them are over.

The choice is that of H2O's two pools (Zhang et al., NeurIPS 2023, arXiv 2306.14048), lifted to blocks: sinks and
the last blocks stay, of the others the one that is worth least by the policy goes first, of equals the one nearer
to the front. Masses count by sequence and as they are reported. Those beside the records (attention.py) are made
monotone along the chain: by them the last block would always be worth least.
"""

from __future__ import annotations

from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from tierd.core.arrays import Mask
from tierd.core.budget_messages import Budget, Residency
from tierd.core.errors import InvalidInput, Refused
from tierd.core.policy.attended import ByAttention
from tierd.core.policy.base import WINDOW_REPORTS, Attended, ByNeighbours, FloatArray
from tierd.core.policy.registry import parse
from tierd_client.format import I64Array, U8Array

Kind = TypeVar("Kind", bound=np.generic)

MOST_BLOCKS = 1 << 18
"""Of a sequence with a budget, and so of the budget: 4 million tokens in blocks of 16."""


class Seen:
    """What reports gave to each block of one sequence. A report of k steps counts as k of their mean."""

    def __init__(self) -> None:
        self._total = np.zeros(0)
        self._latest = np.zeros(0)
        self._votes = np.zeros(0, np.int64)
        self._reports = np.zeros(0, np.int64)
        self._window = np.zeros((0, WINDOW_REPORTS), np.float32)
        self._next = 0
        """Column of the window that the next step is written to."""

    def grow(self, count: int) -> None:
        """So many blocks more, of which no report said anything."""
        self._total, self._latest = _longer(self._total, count), _longer(self._latest, count)
        self._votes, self._reports = _longer(self._votes, count), _longer(self._reports, count)
        self._window = _longer(self._window, count)

    def report(self, mass: FloatArray, steps: int, among: int) -> None:
        """Takes in the masses of the first blocks, of which `among` are held; those behind had none."""
        blocks = len(mass)
        self._total[:blocks] += mass * steps
        self._latest[:blocks] = mass
        self._votes[:blocks] += steps * (mass > 1.0 / max(1, among))
        self._reports[:blocks] += steps
        columns = (self._next + np.arange(min(steps, WINDOW_REPORTS))) % WINDOW_REPORTS
        self._window[:, columns] = 0.0
        self._window[:blocks, columns] = mass[:, None]
        self._next += len(columns)

    def worth(self, policy: ByAttention, places: I64Array) -> FloatArray:
        """What the blocks at these places are worth to a policy, each beside those next to it among them."""
        latest_first = (self._next - 1 - np.arange(WINDOW_REPORTS)) % WINDOW_REPORTS
        windows = self._window[places][:, latest_first].astype(np.float64)
        near = policy.near(windows) if isinstance(policy, ByNeighbours) and len(places) else np.zeros(len(places))
        reports = self._reports[places]
        return policy.worth(Attended(
            self._total[places], self._latest[places], self._votes[places], reports, windows, near,
            np.zeros(len(places), np.int64), reports > 0,
        ))


class Ledger:
    """The books of one budget. Arrays are parallel to the blocks of the sequence; places are indices of them."""

    def __init__(self, budget: Budget) -> None:
        self.policy = policy_of(budget)
        self.budget = budget
        self.residency: U8Array = np.zeros(0, np.uint8)
        self.found: Mask = np.zeros(0, bool)
        """Had a copy when the sequence came upon them."""
        self.seen = Seen()
        self.slots: list[int] = []
        """Slots that its blocks have left, borrowed for its next ones."""
        self.slot_bytes = 0
        self.worth_left: FloatArray = np.zeros(0)
        """What each block was worth when it was over, NaN where it never was; `worth_stayed`: the least that
        another was worth which could have gone and stayed, infinite where there was none."""
        self.worth_stayed: FloatArray = np.zeros(0)

    def check(self, budget: Budget) -> None:
        """InvalidInput for one that cannot be; Refused where it is to lose nothing, and blocks are lost."""
        policy_of(budget)
        lost = self.count(Residency.GIVEN_UP)
        if lost and not budget.lossy:
            raise Refused(f"budget.lossy: false, but the sequence has given up {lost} blocks")

    def change(self, budget: Budget) -> None:
        """Another budget, which was checked, is in force."""
        self.policy, self.budget = policy_of(budget), budget

    def grow(self, count: int) -> None:
        """The sequence goes on with so many blocks, which it does not hold yet."""
        self.residency = np.concatenate([self.residency, np.full(count, Residency.GIVEN_UP, np.uint8)])
        self.found = _longer(self.found, count)
        self.worth_left = np.concatenate([self.worth_left, np.full(count, np.nan)])
        self.worth_stayed = np.concatenate([self.worth_stayed, np.full(count, np.nan)])
        self.seen.grow(count)

    def take_in(self, places: I64Array, kept: Mask, found: Mask) -> None:
        """The sequence holds these from now on: some have a copy already (`found`), some in hbm (`kept`)."""
        self.residency[places] = np.where(kept, Residency.KEPT.value, Residency.AWAY.value)
        self.found[places] = found

    def report(self, mass: FloatArray, steps: int) -> None:
        """Masses of the first blocks, the mean of so many steps."""
        held = np.count_nonzero(self.residency[: len(mass)] != Residency.GIVEN_UP.value)
        self.seen.report(mass, steps, int(held))

    def places(self, residency: Residency) -> I64Array:
        return np.flatnonzero(self.residency == residency.value)

    def count(self, residency: Residency) -> int:
        return int(np.count_nonzero(self.residency == residency.value))

    @property
    def room(self) -> int:
        """Blocks that may still come to hbm, into slots in hand or others."""
        return self.budget.blocks - self.count(Residency.KEPT) - self.count(Residency.LEAVING)

    def choose(self, kept: I64Array, able: Mask, over: int, coming: int) -> I64Array:
        """The next `over` of the `kept` places that go, those that are `able` to, where `coming` blocks more are
        to be the last ones."""
        last = max(0, len(kept) - max(0, self.budget.recent_blocks - coming))
        free = np.flatnonzero(able[:last] & (kept[:last] >= self.budget.sink_blocks))
        worth = self.seen.worth(self.policy, kept)[free]
        order = worth.argsort(kind="stable")
        going = kept[free[order[:over]]]
        self.worth_left[going] = worth[order[:over]]
        self.worth_stayed[going] = worth[order[over]] if over < len(order) else np.inf
        return going


def policy_of(budget: Budget) -> ByAttention:
    """The policy of a budget that is possible. InvalidInput names the field."""
    if not 1 <= budget.blocks <= MOST_BLOCKS:
        raise InvalidInput("budget.blocks", f"{budget.blocks} is not from 1 to {MOST_BLOCKS}")
    if budget.recent_blocks < 1:
        raise InvalidInput("budget.recent_blocks", f"{budget.recent_blocks}: the last block at least stays")
    if budget.sink_blocks < 0:
        raise InvalidInput("budget.sink_blocks", f"{budget.sink_blocks} is negative")
    if budget.blocks < (always := budget.sink_blocks + budget.recent_blocks):
        stay = f"sink_blocks + recent_blocks, {budget.sink_blocks} + {budget.recent_blocks}"
        raise InvalidInput("budget.blocks", f"{budget.blocks} is less than {stay} = {always}, which always stay")
    try:
        policy = parse(budget.policy)
    except InvalidInput as error:
        raise InvalidInput("budget.policy", str(error)) from error
    if not isinstance(policy, ByAttention):
        raise InvalidInput("budget.policy", f"{policy.name} does not go by attention")
    if policy.recent_blocks:
        raise InvalidInput("budget.policy", "recent_blocks is a field of the budget")
    return policy


def _longer(column: NDArray[Kind], count: int) -> NDArray[Kind]:
    return np.concatenate([column, np.zeros((count, *column.shape[1:]), column.dtype)])
