"""Shadow mode of engines that look up and store by themselves: what they ask is reported, and nothing is there."""

from __future__ import annotations

from typing import Any

import numpy as np

from tierd_client.identity import Identities
from tierd_client.lease import Lease, Pinned, PrivateSlots
from tierd_client.namespace import Namespace
from tierd_client.outcomes import AcquireOutcome, LookupResult, Presence, PutOutcome


class ShadowNamespace(Namespace):
    """A namespace in which no block is ever found, and each that is stored is said to be.

    A lookup begins a request, and what is stored behind it goes on with it. All of that counts as asked for: these
    engines do not say where a prompt ends, and what is new saves nothing either way.
    """

    def __init__(self, namespace: Namespace) -> None:
        """`namespace`: whose calls are reported instead."""
        super().__init__(namespace._routines, namespace._perform)

    def lookup(self, ids: Any) -> LookupResult:
        count = len(self._report(ids, continued=False))
        return LookupResult(0, np.full(count, Presence.MISS.value, np.uint8), np.zeros(count, np.uint8))

    def acquire(self, ids: Any, *_: Any, **__: Any) -> Lease:
        asked = self._report(ids, continued=False)
        missed = [AcquireOutcome.MISS] * len(asked)
        return Lease(Pinned(asked, missed, self._routines.form(asked), PrivateSlots({})), self._perform)

    def get_into(self, ids: Any, *_: Any, **__: Any) -> list[AcquireOutcome]:
        return [AcquireOutcome.MISS] * len(self.identities(ids))

    def get_pages(self, ids: Any, *_: Any, **__: Any) -> list[AcquireOutcome]:
        return [AcquireOutcome.MISS] * len(self.identities(ids))

    def put(self, ids: Any, *_: Any, **__: Any) -> list[PutOutcome]:
        return [PutOutcome.STORED] * len(self._report(ids, continued=True))

    def put_pages(self, ids: Any, *_: Any, **__: Any) -> list[PutOutcome]:
        return [PutOutcome.STORED] * len(self._report(ids, continued=True))

    def _report(self, ids: Any, *, continued: bool) -> Identities:
        identities = self.identities(ids)
        if len(identities):
            self.shadow(identities, continued=continued, ended=False)
        return identities
