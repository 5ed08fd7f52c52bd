"""A sequence: a running request, whose blocks stay pinned until it closes.

Inside its `with` block, acquires and puts of its blocks on the same thread belong to it, and so do those of
blocks that its chain goes on with: each block counts as one access, however many calls there are.
"""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from tierd_client.identity import Identities
from tierd_client.outcomes import LookupResult

if TYPE_CHECKING:
    from tierd_client.namespace import Namespace


class Sequence:
    """An open sequence of one namespace; a context manager. Made by `Namespace.sequence`."""

    def __init__(self, namespace: Namespace, name: str, ids: Identities) -> None:
        self.namespace = namespace
        self.name = name
        self.ids = ids
        self._known: frozenset[bytes] | None = None

    def lookup(self) -> LookupResult:
        """Where its blocks are now."""
        return self.namespace.lookup(self.ids)

    def observe(self, attention: Any = None, steps: int = 1, policy_epoch: int = 0) -> int:
        """Reports attention over its blocks; see Namespace.observe."""
        return self.namespace.observe(self.name, attention, steps, policy_epoch)

    def close(self) -> None:
        """Ends the request: its blocks are no longer pinned. Idempotent."""
        self.namespace.close_sequence(self)

    def contains(self, ids: Identities) -> bool:
        """Whether these blocks are its own, or go on where it ends: what a running request has decoded."""
        if ids.group != self.ids.group or not len(ids):
            return False
        if ids.chain and self.ids.chain and self._goes_along(ids):
            return True
        if self._known is None:
            self._known = frozenset(self.ids)
        return self._known.issuperset(ids)

    def _goes_along(self, ids: Identities) -> bool:
        """Whether a chain is a run of its own chain, or of a continuation of it."""
        start = ids.position - self.ids.position
        if not 0 <= start <= len(self.ids):
            return False
        own = self.ids.array[start : start + len(ids)]
        if not len(own):
            return ids.parent == self.ids[-1]
        return np.array_equal(own, ids.array[: len(own)])

    def __enter__(self) -> Self:
        self.namespace.enter_sequence(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None,
    ) -> None:
        self.namespace.exit_sequence(self)
        self.close()
