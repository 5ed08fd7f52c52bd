"""A sequence: a running request, whose blocks stay pinned until it closes.

Inside its `with` block, acquires and puts of its blocks in the same thread or task belong to it, and so do those
of blocks that its chain goes on with: each block counts as one access, however many calls there are.
"""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from tierd_client.attention import observe, set_budget
from tierd_client.hints import Closing
from tierd_client.identity import Identities
from tierd_client.outcomes import LookupResult, NextUse, Tier
from tierd_client.routine import Perform, described_by

if TYPE_CHECKING:
    from tierd_client.budget import Budget, Resident
    from tierd_client.namespace import NamespaceRoutines

_ENTERED: ContextVar[tuple[Running, ...]] = ContextVar("tierd_sequences", default=())
"""The `with` blocks that a thread or task is inside of, innermost last."""


def entered() -> tuple[Running, ...]:
    """The sequences whose `with` blocks this thread or task is inside of, of all clients, innermost last."""
    return _ENTERED.get()


class Running:
    """A request that the daemon was told of: its name, its blocks, and those of its other groups."""

    def __init__(
        self, namespace: NamespaceRoutines, name: str, ids: Identities, priority: Any = 0,
        others: tuple[Identities, ...] = (),
    ) -> None:
        self.namespace = namespace
        self.name = name
        self.ids = ids
        self.priority = priority
        self.others = others
        self.budget: Budget | None = None
        self._known: frozenset[bytes] | None = None

    def contains(self, ids: Identities) -> bool:
        """Whether these blocks are its own, or go on where it ends: what a running request has decoded."""
        groups = [own for own in (self.ids, *self.others) if own.group == ids.group]
        if not groups or not len(ids):
            return False
        if any(own.chain and ids.chain and _goes_along(own, ids) for own in groups):
            return True
        if self._known is None:
            self._known = frozenset(self.ids).union(*self.others)
        return self._known.issuperset(ids)


    def in_blocks(self, budget: Budget) -> dict[str, Any]:
        """A budget in blocks of its chain, as the wire has it."""
        return budget.in_blocks(self.namespace.layout.groups[self.ids.group].block_tokens)

    def most_at_once(self, tier: Tier | None, most: int) -> int:
        """Blocks of one call that stores in a tier, of `most` that it takes: under a budget no more come into hbm
        than are its last ones."""
        if self.budget is None or tier is not Tier.HBM:
            return most
        return min(most, int(self.in_blocks(self.budget)["recent_blocks"]))

    def go_on(self, ids: Identities) -> None:
        """A running request with a budget stored these: what goes on behind its last block is its own."""
        own = self.ids
        further = len(own) - (ids.position - own.position)
        if ids.group == own.group and 0 <= further < len(ids) and _goes_along(own, ids):
            self.ids = replace(own, array=np.concatenate([own.array, ids.array[further:]]))


def _goes_along(own: Identities, ids: Identities) -> bool:
    """Whether a chain is a run of another one, or of a continuation of it."""
    start = ids.position - own.position
    if not 0 <= start <= len(own):
        return False
    part = own.array[start : start + len(ids)]
    if not len(part):
        return bool(len(own)) and ids.parent == own[-1]
    return np.array_equal(part, ids.array[: len(part)])


class BaseSequence:
    """An open sequence of one namespace; a context manager. Made by `sequence` of a namespace."""

    def __init__(self, running: Running, perform: Perform) -> None:
        self._running = running
        self._namespace = running.namespace
        self._perform = perform

    @property
    def name(self) -> str:
        return self._running.name

    @property
    def ids(self) -> Identities:
        return self._running.ids

    def _enter(self) -> Self:
        _ENTERED.set((*_ENTERED.get(), self._running))
        return self

    def _leave(self) -> None:
        _ENTERED.set(tuple(one for one in _ENTERED.get() if one is not self._running))


class Sequence(BaseSequence):
    __doc__ = BaseSequence.__doc__

    def lookup(self) -> LookupResult:
        """Where its blocks are now."""
        result: LookupResult = self._perform(self._namespace.lookup(self.ids))
        return result

    def observe(self, attention: Any = None, steps: int = 1, policy_epoch: int = 0) -> int:
        """Reports attention over its blocks; see Namespace.observe."""
        step: int = self._perform(observe(self._namespace, self.name, attention, steps, policy_epoch))
        return step

    def set_budget(
        self, budget: Budget | str | None = None, attention: Any = None, steps: int = 1, timeout_s: float = 2.0,
    ) -> Resident:
        """Changes its budget, or asks what of it is in hbm; see Namespace.set_budget."""
        resident: Resident = self._perform(
            set_budget(self._namespace, self.name, budget, attention, steps, timeout_s))
        return resident

    def compress(
        self, attention: Any, budget: Budget | str | None = None, window: int = 32, timeout_s: float = 10.0,
    ) -> Resident:
        """Cuts its prompt to its budget before generation begins, once it is stored whole; what of it stays.

        `attention`: one number per block, as in `observe`, the mean over the prompt's last `window` queries. Of a
        sequence that was opened without a budget nothing has gone before.
        """
        return self.set_budget(budget, attention, window, timeout_s)

    def close(
        self, next_use: NextUse | str | None = None, stop_reason: str = "", expected_s: float = 0.0,
    ) -> None:
        """Ends the request: its blocks are no longer pinned. Idempotent.

        `next_use`: tool_call (runs for `expected_s` seconds; 0 is the daemon's default), human or closed; or
        `stop_reason`, as the inference server says it. It decides which blocks are evicted first.
        """
        self._perform(self._namespace.close_sequence(self._running, Closing(next_use, stop_reason, expected_s)))

    def __enter__(self) -> Self:
        return self._enter()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None,
    ) -> None:
        self._leave()
        self.close()


class AsyncSequence(BaseSequence):
    __doc__ = BaseSequence.__doc__

    async def lookup(self) -> LookupResult:
        """Where its blocks are now."""
        result: LookupResult = await self._perform(self._namespace.lookup(self.ids))
        return result

    async def observe(self, attention: Any = None, steps: int = 1, policy_epoch: int = 0) -> int:
        """Reports attention over its blocks; see Namespace.observe."""
        step: int = await self._perform(observe(self._namespace, self.name, attention, steps, policy_epoch))
        return step

    @described_by(Sequence.set_budget)
    async def set_budget(
        self, budget: Budget | str | None = None, attention: Any = None, steps: int = 1, timeout_s: float = 2.0,
    ) -> Resident:
        resident: Resident = await self._perform(
            set_budget(self._namespace, self.name, budget, attention, steps, timeout_s))
        return resident

    @described_by(Sequence.compress)
    async def compress(
        self, attention: Any, budget: Budget | str | None = None, window: int = 32, timeout_s: float = 10.0,
    ) -> Resident:
        return await self.set_budget(budget, attention, window, timeout_s)

    @described_by(Sequence.close)
    async def close(
        self, next_use: NextUse | str | None = None, stop_reason: str = "", expected_s: float = 0.0,
    ) -> None:
        closing = Closing(next_use, stop_reason, expected_s)
        await self._perform(self._namespace.close_sequence(self._running, closing))

    async def __aenter__(self) -> Self:
        return self._enter()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None,
    ) -> None:
        self._leave()
        await self.close()
